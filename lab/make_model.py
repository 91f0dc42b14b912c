"""Write a tiny Qwen3-MoE model with random weights and a real tokenizer: make_model.py DIRECTORY

Runs with the Python of an engine's environment (torch, transformers, tokenizers) and needs no network. The shape is
the smallest that still has everything a real one has: several experts, grouped heads, a chat template. The same seed
gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SEED = 0
VOCABULARY = 512
MAX_POSITION = 4096
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Written here, so that the tokenizer does not depend on the Python version; other scripts make a streamed
# character span several tokens, which a client must survive.
TEXT = """
A fleet is a list of machines that answer as one. An operator writes down which machines there are, which model they
serve and how large each part is; everything else follows from that. Before a machine is replaced its requests are
drained, then it stops, then the new version starts, and only when it answers a real question does it get work again.
def serve(model, host, port): return {"model": model, "host": host, "port": port, "stream": True, "max_tokens": 64}
The quick brown fox jumps over the lazy dog. 0 1 2 3 4 5 6 7 8 9 10 16 32 64 128 256 512 1024 2048 4096
零宕机滚动升级 专家并行 数据并行 你好，世界 Größe naïve façade señor Ελληνικά русский 日本語 한국어 🙂
"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on the text above; it can spell any input."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=MAX_POSITION
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3MoeConfig:
    """Two layers, eight experts of which two are active, four heads over two key-value heads."""
    ids: dict[str, Any] = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(PAD),
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    return Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITION,
        rope_theta=1_000_000.0,
        tie_word_embeddings=False,
        **ids,
    )


def make_model(config: Qwen3MoeConfig) -> Qwen3MoeForCausalLM:
    """Random weights, larger than usual, so that greedy answers depend on the prompt."""
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=False
    )
    return model


def main(target: Path) -> None:
    """Write tokenizer, config and weights into the directory."""
    target.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(target)
    make_model(make_config(tokenizer)).save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
