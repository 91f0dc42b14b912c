"""A registry of images for the lab's hosts: what Docker needs to pull, over plain HTTP, for the stand-in image alone.

Manifests and blobs as in the registry's published interface (version 2, schema 2). Nothing can be pushed.
"""

from __future__ import annotations

import json
import shutil
import socket
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lab.image import config, digest, ensure_image, read_layers

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"


@contextmanager
def registry(address: str, port: int, images: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Serve the stand-in under the given names while the context lasts; gives the digest of each.

    `images` maps names without the registry to engine versions: {"ascend/vllm-ascend:v0.13.0-a3": "0.13.0"}.
    """
    archive = ensure_image()
    layers = read_layers(archive)
    with tarfile.open(archive) as opened:
        sizes = {layer: opened.getmember(f"{layer}.tar").size for layer in layers}
    texts: dict[str, bytes] = {}  # configurations, by digest
    manifests: dict[str, bytes] = {}  # by NAME:TAG and NAME@sha256:...
    digests = {}
    for name, version in images.items():
        text = config(version, layers, name)
        texts[digest(text)] = text
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(text), "digest": f"sha256:{digest(text)}"},
            "layers": [{"mediaType": LAYER, "size": sizes[la], "digest": f"sha256:{la}"} for la in layers],
        }
        written = json.dumps(manifest).encode()
        digests[name] = f"sha256:{digest(written)}"
        manifests[name] = manifests[f"{name.rpartition(':')[0]}@{digests[name]}"] = written

    class Handler(BaseHTTPRequestHandler):
        """Answers Docker's questions."""

        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            if self.connection.recv(1, socket.MSG_PEEK) == b"\x16":  # TLS: answered in plain HTTP, as registries do
                self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            else:
                super().handle()

        def do_GET(self) -> None:
            path = self.path.removeprefix("/v2/")
            if path == "":
                return self.say(b"{}", "application/json")
            for word in ("manifests", "blobs"):
                head, found, what = path.rpartition(f"/{word}/")
                if found:
                    return self.manifest(head, what) if word == "manifests" else self.blob(what)
            return self.refuse()

        do_HEAD = do_GET

        def manifest(self, name: str, reference: str) -> None:
            written = manifests.get(f"{name}@{reference}" if reference.startswith("sha256:") else f"{name}:{reference}")
            if written is None:
                return self.refuse()
            return self.say(written, MANIFEST, f"sha256:{digest(written)}")

        def blob(self, reference: str) -> None:
            key = reference.removeprefix("sha256:")
            if key in texts:
                return self.say(texts[key], "application/octet-stream", reference)
            if key not in sizes:
                return self.refuse()
            self.begin(sizes[key], "application/octet-stream", reference)
            if self.command == "GET":
                with tarfile.open(archive) as opened, opened.extractfile(f"{key}.tar") as content:  # type: ignore[union-attr]
                    shutil.copyfileobj(content, self.wfile, 1 << 20)

        def say(self, content: bytes, kind: str, its: str = "") -> None:
            self.begin(len(content), kind, its)
            if self.command == "GET":
                self.wfile.write(content)

        def begin(self, size: int, kind: str, its: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            if its:
                self.send_header("Docker-Content-Digest", its)
            self.end_headers()

        def refuse(self) -> None:
            text = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode()
            self.send_response(404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: tests read what is printed."""

    server = ThreadingHTTPServer((address, port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield digests
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
