"""A hub on this machine that answers as the Hugging Face Hub does, and a second server for its large files."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

COMMIT = "1234567890abcdef1234567890abcdef12345678"
SMALL_ETAG = "a" * 40
"""Of a small file: its git hash, which says nothing of a beginning."""
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
RANGE = re.compile(r"bytes=(\d+)-")
PAGE = b"<html>Please log in to this network</html>"


@dataclass
class FakeHub:
    """Repositories with their files, what is wrong with it, and the requests it got.

    `licences`: by repository. `gated`: repositories -> status of the refusal. `hashes`, `sizes`: what is announced,
    by path, where it is not so. `cuts`: bytes after which the store's next answers break off. `ranges`: whether a
    download may go on in the middle. `pages`: methods that a proxy answers with a page; of the store, STORE.
    `stalled`: the store breaks off, but does not close. `requests`: method, path and headers.
    """

    files: Mapping[str, Mapping[str, bytes]]
    licences: Mapping[str, str] = field(default_factory=dict)
    gated: Mapping[str, int] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    pages: tuple[str, ...] = ()
    stalled: threading.Event | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    address: str = ""
    store: str = ""

    def downloads(self, path: str) -> list[dict[str, str]]:
        """Return the headers of each download of a file from the second server."""
        return [heads for method, asked, heads in self.requests if (method, asked) == ("STORE", f"/{path}")]


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Run the hub and its store until the `with` block ends."""
    servers = [_Server(hub, store=store) for store in (False, True)]
    hub.address, hub.store = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    try:
        for thread in threads:
            thread.start()
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    """The hub, or the store where it keeps its large files."""

    def __init__(self, hub: FakeHub, *, store: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.store = store


class _Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> FakeHub:
        return cast(_Server, self.server).hub

    @property
    def method(self) -> str:
        """The request's method; STORE for any of the store."""
        return "STORE" if cast(_Server, self.server).store else self.command

    def log_message(self, *details: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer without content."""
        self._answer()

    def do_GET(self) -> None:
        """Answer with content."""
        self._answer()

    def _answer(self) -> None:
        self.hub.requests.append((self.method, self.path, dict(self.headers)))
        file = FILE.fullmatch(self.path)
        if self.method in self.hub.pages:
            self._send(200, {"Content-Type": "text/html"}, PAGE)
        elif self.method == "STORE":
            self._send_content(self.path[1:])
        elif file:
            self._send_file(*file.groups())
        else:
            self._send_card(self.path.removeprefix("/api/models/"))

    def _send_card(self, repository: str) -> None:
        if repository not in self.hub.licences:
            self._send(404, {"X-Error-Code": "RepoNotFound"})
            return
        card = {"id": repository, "tags": ["video", f"license:{self.hub.licences[repository]}"]}
        self._send(200, {"Content-Type": "application/json"}, json.dumps(card).encode())

    def _send_file(self, repository: str, revision: str, path: str) -> None:
        if status := self.hub.gated.get(repository):
            self._send(status, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return
        content = self.hub.files.get(repository, {}).get(path)
        if content is None or revision not in ("main", COMMIT):
            fault = "EntryNotFound" if repository in self.hub.files else "RepoNotFound"
            self._send(404, {"X-Error-Code": fault})
            return
        size = self.hub.sizes.get(path, len(content))
        heads = {"X-Repo-Commit": COMMIT, "X-Linked-Size": str(size)}
        if path.endswith(".txt"):  # a small one: with its git hash, and from here
            self._send_rest({**heads, "ETag": f'"{SMALL_ETAG}"'}, content)
            return
        digest = self.hub.hashes.get(path) or hashlib.sha256(content).hexdigest()
        heads |= {"ETag": '"of the answer"', "X-Linked-ETag": f'"{digest}"'}
        self._send(302, {**heads, "Location": f"{self.hub.store}/{repository}/{path}"})

    def _send_content(self, path: str) -> None:
        owner, name, inner = path.split("/", 2)
        self._send_rest({}, self.hub.files[f"{owner}/{name}"][inner])

    def _send_rest(self, heads: Mapping[str, str], content: bytes) -> None:
        """Send a file from where it is asked for on."""
        asked = RANGE.fullmatch(self.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.hub.ranges else 0
        part = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self._send(206 if start else 200, {**heads, **part}, content[start:])

    def _send(self, status: int, heads: Mapping[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**heads, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "GET":
            return
        cuts = self.hub.cuts if self.method == "STORE" else []
        if not cuts:
            self.wfile.write(content)
            return
        self.wfile.write(content[: cuts.pop(0)])
        if self.hub.stalled:
            self.hub.stalled.wait(60)
