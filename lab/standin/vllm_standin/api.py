"""The OpenAI-compatible routes of `vllm serve`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from . import words
from .engine import Engine, Failure, Job, bad_request
from .http import Request, Response, as_json
from .settings import version_text

# A conversation without a limit would end by itself at some point.
CHAT_TOKENS = 32


@dataclass
class Api:
    """What the routes answer from."""

    engine: Engine
    names: list[str]
    root: str
    max_model_len: int

    async def __call__(self, request: Request) -> Response:
        """One request."""
        posts = {"/v1/completions": False, "/v1/chat/completions": True}
        gets: dict[str, Callable[[], Response]] = {
            "/health": self.health,
            "/ping": self.health,
            "/version": lambda: as_json({"version": version_text()}),
            "/load": lambda: as_json({"server_load": self.engine.running}),
            "/v1/models": self.models,
            "/metrics": lambda: Response(
                body=self.engine.metrics(self.names[0]).encode(), kind="text/plain; version=0.0.4; charset=utf-8"
            ),
        }
        if request.path in gets and (request.method in ("GET", "HEAD") or request.path == "/ping"):
            return gets[request.path]()
        if request.path in gets or (request.path in posts and request.method != "POST"):
            return as_json({"detail": "Method Not Allowed"}, 405)
        if request.path not in posts:
            return as_json({"detail": "Not Found"}, 404)
        try:
            return await self.complete(request, posts[request.path])
        except Failure as failure:
            return as_json(failure.body, failure.status)

    def health(self) -> Response:
        """200 and nothing, until the engine is known to be dead."""
        return Response(503 if self.engine.dead else 200)

    def models(self) -> Response:
        """The served names."""
        now = int(time.time())
        data: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": now,
                "owned_by": "vllm",
                "root": self.root,
                "parent": None,
                "max_model_len": self.max_model_len,
                "permission": [],
            }
            for name in self.names
        ]
        return as_json({"object": "list", "data": data})

    async def complete(self, request: Request, chat: bool) -> Response:
        """A completion, whole or as a stream."""
        body = self._body(request)
        jobs = [self._job(body, prompt, chat, request) for prompt in self._prompts(body, chat)]
        self.engine.admit()
        answer = _Answer(body.get("model") or self.names[0], chat)
        if body.get("stream"):
            options = body.get("stream_options") or {}
            stream = self._stream(jobs, answer, bool(options.get("include_usage")))
            # Nothing is sent before the first event, so that a failure still has a status of its own.
            first = await stream.__anext__()
            return Response(kind="text/event-stream; charset=utf-8", stream=_after(first, stream))
        return as_json(answer.whole(jobs, [await self._text(job) for job in jobs]))

    async def _text(self, job: Job) -> str:
        return "".join([text async for text in self.engine.generate(job)])

    async def _stream(self, jobs: list[Job], answer: _Answer, usage: bool) -> AsyncIterator[bytes]:
        for index, job in enumerate(jobs):
            # One token is held back: the last one's event says how it ended.
            held: str | None = None
            async for text in self.engine.generate(job):
                if held is None and answer.chat:
                    yield answer.event(index, {"role": "assistant", "content": ""}, None)
                if held is not None:
                    yield answer.event(index, held, None)
                held = text
            yield answer.event(index, held or "", job.ended)
        if usage:
            yield answer.usage_event(jobs)
        yield b"data: [DONE]\n\n"

    def _body(self, request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json":
            raise Failure(400, "Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")
        try:
            body = json.loads(request.body)
        except ValueError as error:
            raise Failure(
                400, f"[{{'type': 'json_invalid', 'msg': 'JSON decode error: {error}'}}]", "Bad Request"
            ) from None
        if not isinstance(body, dict):
            raise Failure(400, "[{'type': 'model_attributes_type', 'loc': ('body',)}]", "Bad Request")
        model = body.get("model")
        if model is not None and model not in self.names:
            raise Failure(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
        return body

    def _prompts(self, body: dict[str, Any], chat: bool) -> list[Any]:
        if chat:
            messages = body.get("messages")
            if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
                raise bad_request("[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]")
            return [words.chat_prompt(messages)]
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            return prompt
        if not prompt:
            raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.")
        return [prompt]

    def _job(self, body: dict[str, Any], prompt: Any, chat: bool, request: Request) -> Job:
        tokens, limit = words.count(prompt), self.max_model_len
        if tokens >= limit:
            raise bad_request(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input "
                "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
                "input prompt.",
                "input_tokens",
            )
        wanted = body.get("max_completion_tokens") if chat else None
        wanted = wanted if wanted is not None else body.get("max_tokens")
        finish = "length"
        if wanted is None:
            wanted, finish = (CHAT_TOKENS, "stop") if chat else (16, "length")
            wanted = min(wanted, limit - tokens)
        if not isinstance(wanted, int) or wanted < 1:
            raise bad_request(f"max_tokens must be at least 1, got {wanted}.", "max_tokens")
        if tokens + wanted > limit:
            raise bad_request(
                f"'max_tokens' or 'max_completion_tokens' is too large: {wanted}. This model's maximum context length "
                f"is {limit} tokens and your request has {tokens} input tokens ({wanted} > {limit} - {tokens}).",
                "max_tokens",
            )
        params = body.get("kv_transfer_params") or {}
        return Job(prompt, tokens, wanted, finish, params, request.gone)


class _Answer:
    """The JSON of one answer."""

    def __init__(self, model: str, chat: bool) -> None:
        self.chat = chat
        self.model = model
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def whole(self, jobs: list[Job], texts: list[str]) -> dict[str, Any]:
        """An answer that is no stream."""
        choices: list[dict[str, Any]] = []
        for index, (job, text) in enumerate(zip(jobs, texts, strict=True)):
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            tail = {"logprobs": None, "finish_reason": job.ended, "stop_reason": None}
            choices.append({"index": index, **said, **tail})
        handed = next((job.handed_over for job in jobs if job.handed_over), None)
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": _usage(jobs), "kv_transfer_params": handed}

    def event(self, index: int, said: Any, finish: str | None) -> bytes:
        """One part of a stream."""
        if self.chat:
            delta = said if isinstance(said, dict) else {"content": said}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        else:
            choice = {"index": index, "text": said, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return _event({**self._head(self._chunk()), "choices": [choice]})

    def usage_event(self, jobs: list[Job]) -> bytes:
        """The last part, where it was asked for."""
        return _event({**self._head(self._chunk()), "choices": [], "usage": _usage(jobs)})

    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _usage(jobs: list[Job]) -> dict[str, Any]:
    prompt, answered = sum(job.prompt_tokens for job in jobs), sum(job.answered for job in jobs)
    return {"prompt_tokens": prompt, "total_tokens": prompt + answered, "completion_tokens": answered}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part
