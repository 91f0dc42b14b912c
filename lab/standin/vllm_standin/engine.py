"""Requests that run and wait, their tokens at a steady pace, and what is counted of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from . import words
from .settings import log, seconds

DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DRAINING = "cannot schedule new futures after shutdown"


class Failure(Exception):
    """A request that ends with a status and the real engine's JSON of an error."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def internal(message: str) -> Failure:
    """A 500."""
    return Failure(500, message, "InternalServerError")


def bad_request(message: str, param: str | None = None) -> Failure:
    """A 400."""
    return Failure(400, message, "BadRequestError", param)


@dataclass
class Job:
    """One prompt to answer."""

    prompt: Any
    prompt_tokens: int
    max_tokens: int
    finish: str
    params: dict[str, Any] = field(default_factory=dict)
    # What the client has left of the request, and whether it still listens.
    gone: Callable[[], bool] = lambda: False
    spoilt: bool = False
    handed_over: dict[str, Any] | None = None
    answered: int = 0
    ended: str | None = None


class Engine:
    """The scheduler's part of the real one."""

    def __init__(self, slots: int, transfer: Any = None) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.transfer = transfer
        self.pace = 1 / seconds("VLLM_STANDIN_TOKENS_PER_S", 200)
        self.running = 0
        self.waiting = 0
        self.draining = False
        self.dead = False
        self.aborted = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.counts: Counter[str] = Counter()
        # Tells why the engine can no longer answer: a lost member of its group is noticed at a request, not before.
        self.lost: Callable[[], bool] = lambda: False
        self.on_death: Callable[[], None] = lambda: None

    def admit(self) -> None:
        """Refuse what the real engine would no longer take."""
        if self.lost() and not self.dead:
            self.dead = True
            self.on_death()
        if self.dead:
            raise internal(DEAD)
        if self.draining:
            raise internal(DRAINING)

    async def generate(self, job: Job) -> AsyncIterator[str]:
        """The tokens of one answer; job.ended says how it ended."""
        self.admit()
        self.waiting += 1
        self.idle.clear()
        try:
            placed = await self._slot()
        finally:
            self.waiting -= 1
            self._settle()
        if not placed:
            job.ended = "abort"
            self._count_end(job)
            return
        self.running += 1
        self.idle.clear()
        try:
            await self._prompt(job)
            async for text in self._tokens(job):
                yield text
        finally:
            self.running -= 1
            self.slots.release()
            self._count_end(job)
            self._settle()

    def abort(self) -> None:
        """End everything that runs or waits."""
        self.aborted.set()

    async def _slot(self) -> bool:
        """A place among the running; False when all were ended before there was one."""
        slot = asyncio.ensure_future(self.slots.acquire())
        abort = asyncio.ensure_future(self.aborted.wait())
        try:
            await asyncio.wait({slot, abort}, return_when=asyncio.FIRST_COMPLETED)
            return slot.done()
        finally:
            abort.cancel()
            if not slot.done():
                slot.cancel()

    async def _prompt(self, job: Job) -> None:
        """Compute the prompt, or fetch what another has computed of it."""
        source = "local_compute"
        if self.transfer is not None and job.params.get("do_remote_prefill"):
            fault = await self.transfer.pull(job.params)
            policy = self.transfer.config.on_failure
            if fault is None:
                source = "external_kv_transfer"
            else:
                log(f"Failed to transfer KV cache for request: {fault}", "ERROR")
                if policy == "fail":
                    job.ended = "error"
                    raise internal(f"Internal server error (stand-in: {fault})")
                job.spoilt = policy == "ignore"
                source = "external_kv_transfer" if job.spoilt else source
        self.counts["prompt"] += job.prompt_tokens
        self.counts[f"source:{source}"] += job.prompt_tokens

    async def _tokens(self, job: Job) -> AsyncIterator[str]:
        seed = words.seed_of(job.prompt)
        loop = asyncio.get_running_loop()
        due = loop.time()
        for position in range(job.max_tokens):
            due += self.pace
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.aborted.wait(), max(0.0, due - loop.time()))
            if self.aborted.is_set() or job.gone():
                job.ended = "abort"
                return
            job.answered += 1
            self.counts["generation"] += 1
            yield words.garbage(position) if job.spoilt else words.token(seed, position)
        job.ended = job.finish
        if self.transfer is not None and job.params.get("do_remote_decode") and job.ended == "length":
            job.handed_over = self.transfer.params(job.prompt_tokens)

    def _count_end(self, job: Job) -> None:
        self.counts[f"end:{job.ended or 'abort'}"] += 1

    def _settle(self) -> None:
        if not self.running and not self.waiting:
            self.idle.set()

    def metrics(self, model: str) -> str:
        """What Prometheus would read."""
        labels = f'engine="0",model_name="{model}"'
        counts = self.counts
        lines: list[str] = []

        def add(name: str, kind: str, values: dict[str, float]) -> None:
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(f"{name}{{{labels}{extra}}} {float(value)}" for extra, value in values.items())

        add("vllm:num_requests_running", "gauge", {"": self.running})
        add("vllm:num_requests_waiting", "gauge", {"": self.waiting})
        add("vllm:kv_cache_usage_perc", "gauge", {"": min(1.0, self.running / 100)})
        add("vllm:prompt_tokens_total", "counter", {"": counts["prompt"]})
        add("vllm:generation_tokens_total", "counter", {"": counts["generation"]})
        ends = {f',finished_reason="{r}"': counts[f"end:{r}"] for r in ("stop", "length", "abort", "error")}
        add("vllm:request_success_total", "counter", dict(ends))
        sources = {f',source="{s}"': counts[f"source:{s}"] for s in ("local_compute", "external_kv_transfer")}
        add("vllm:prompt_tokens_by_source_total", "counter", dict(sources))
        return "\n".join(lines) + "\n"
