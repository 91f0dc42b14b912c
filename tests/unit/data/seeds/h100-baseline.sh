vllm serve Qwen/Qwen3-235B-A22B \
--host 0.0.0.0 --port 8000 \
--trust-remote-code \
--tensor-parallel-size 8
