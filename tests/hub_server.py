"""A hub of models on loopback, as huggingface_hub expects it: what it lists, and files with checksums and ranges."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "7ae557604adf67be50417f59c2c2f167def9a775"
LARGE = (".safetensors", ".gguf", ".bin")
"""The suffixes of files that are stored by checksum."""


@dataclass
class Hub:
    """Models by name, each a folder of files; and how the hub misbehaves."""

    models: dict[str, Path]
    address: str = ""
    private: dict[str, str] = field(default_factory=dict[str, str])
    """Model → the token that it needs."""
    gated: set[str] = field(default_factory=set[str])
    commit: str = COMMIT
    cut: int = 0
    """So many answers with a large file end after its first half."""
    broken: bool = False
    """What it lists lacks the files' sizes and names."""
    wrong: bool = False
    """Large files have another byte than they should."""
    requests: list[str] = field(default_factory=list[str])
    sent: int = 0
    """Bytes of files."""


class _Handler(BaseHTTPRequestHandler):
    """Answers of a hub."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        url = urlsplit(self.path)
        self.hub.requests.append(f"{self.command} {url.path}")
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
        else:
            name, rest = "/".join(parts[:2]), parts[2:]
        folder = self.hub.models.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if folder is None or self.hub.private.get(name, token) != token:
            self.fail(401 if not token else 404, "RepoNotFound", "Repository not found")
        elif name in self.hub.gated and rest[:1] == ["resolve"]:
            self.fail(403, "GatedRepo", f"Access to model {name} is restricted")
        elif len(rest) > 1 and rest[1] not in ("main", self.hub.commit, self.hub.commit[:7]):
            self.fail(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        elif rest[:1] == ["resolve"]:
            self.file(folder / "/".join(rest[2:]))
        elif rest[:1] == ["tree"]:
            self.json([self.entry(folder, path) for path in files(folder)])
        elif self.hub.broken:
            self.json({"id": name, "siblings": [{"size": 1}]})
        else:
            self.json(
                {"id": name, "modelId": name, "sha": self.hub.commit, "siblings": siblings(folder)}
            )

    def entry(self, folder: Path, path: Path) -> dict[str, object]:
        found = sibling(folder, path)
        lfs = {"lfs": found["lfs"]} if "lfs" in found else {}
        return {
            "type": "file",
            "path": found["rfilename"],
            "size": found["size"],
            "oid": found["blobId"],
            **lfs,
        }

    def fail(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def file(self, path: Path) -> None:
        if not path.is_file():
            self.fail(404, "EntryNotFound", "Entry not found")
            return
        data = path.read_bytes()
        etag = hashlib.sha256(data).hexdigest() if path.suffix in LARGE else git_id(data)
        if self.hub.wrong and path.suffix in LARGE:
            data = data[:-1] + bytes([data[-1] ^ 1])
        first, end, status = 0, len(data), 200
        if given := self.headers.get("Range"):
            low, _, high = given.removeprefix("bytes=").partition("-")
            first, end, status = (
                int(low),
                min(int(high) + 1 if high else len(data), len(data)),
                206,
            )
        self.send_response(status)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", self.hub.commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - first))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.cut and path.suffix in LARGE:
            self.hub.cut -= 1
            end = (first + end) // 2
            self.close_connection = True
        self.hub.sent += end - first
        self.wfile.write(data[first:end])


@contextmanager
def hub_server(models: dict[str, Path]) -> Iterator[Hub]:
    """A running hub."""
    hub = Hub(models)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def siblings(folder: Path) -> list[dict[str, object]]:
    return [sibling(folder, path) for path in files(folder)]


def sibling(folder: Path, path: Path) -> dict[str, object]:
    """What a hub tells of a file."""
    data = path.read_bytes()
    found: dict[str, object] = {
        "rfilename": path.relative_to(folder).as_posix(), "size": len(data), "blobId": git_id(data),
    }  # fmt: skip
    if path.suffix in LARGE:
        digest = hashlib.sha256(data).hexdigest()
        found["lfs"] = {"sha256": digest, "oid": digest, "size": len(data), "pointerSize": 130}
    return found


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
