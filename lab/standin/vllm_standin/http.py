"""As much of HTTP/1.1 as clients of the real engine use, over asyncio's streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

MAX_BODY = 64 * 2**20


@dataclass
class Request:
    """One request, with its body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    # HTTP/1.0, as of HAProxy's checks: the connection ends after the answer.
    old: bool = False
    gone: Callable[[], bool] = lambda: False


@dataclass
class Response:
    """One answer: a body, or parts of a stream."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


def as_json(value: object, status: int = 200) -> Response:
    """A JSON body as the real server writes it."""
    return Response(status, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def serve_with(handler: Handler) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """What answers each connection, request after request."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _one(handler, reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, ValueError, asyncio.LimitOverrunError):
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    return connection


async def _one(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; whether the connection stays."""
    request = await _read(reader, writer)
    if request is None:
        return False
    wish = request.headers.get("connection", "").lower()
    keep = wish == "keep-alive" if request.old else wish != "close"
    try:
        response = await handler(request)
    except Exception as error:  # what Starlette answers when a route raises
        response = Response(500, b"Internal Server Error", "text/plain; charset=utf-8")
        print(f"stand-in: {type(error).__name__}: {error}", flush=True)
    await _write(request, response, writer, keep)
    return keep


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    first = await reader.readline()
    if not first.strip():
        return None
    method, target, protocol = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(min(int(headers["content-length"]), MAX_BODY))
    old = protocol.strip() == "HTTP/1.0"
    return Request(method, target.split("?")[0], headers, body, old, gone=reader.at_eof)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(min(size, MAX_BODY)))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


async def _write(request: Request, response: Response, writer: asyncio.StreamWriter, keep: bool) -> None:
    phrase = HTTPStatus(response.status).phrase
    head = [f"HTTP/1.1 {response.status} {phrase}", "server: uvicorn (vllm stand-in)"]
    if response.body or response.stream:
        head.append(f"content-type: {response.kind}")
    head += [f"{name}: {value}" for name, value in response.headers.items()]
    head.append("transfer-encoding: chunked" if response.stream else f"content-length: {len(response.body)}")
    if not keep:
        head.append("connection: close")
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
    if response.stream is None:
        writer.write(b"" if request.method == "HEAD" else response.body)
        await writer.drain()
        return
    try:
        async for part in response.stream:
            if part:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
    finally:
        with contextlib.suppress(Exception):
            await response.stream.aclose()  # type: ignore[attr-defined]
    writer.write(b"0\r\n\r\n")
    await writer.drain()
