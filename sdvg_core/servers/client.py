"""One ComfyUI server, over HTTP: queue, look, fetch, cancel. The one place in the core that connects anywhere.

A server's answers are not trusted. Sizes are bounded, no redirect and no proxy is followed, and the name of a file
only ever goes back to the server. Why no websocket: it would tell of a video's end half a second earlier, and after
a break one has to ask for queue and history anyway.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from ..errors import BadInput, first_line
from ..files.small_files import MEGABYTE, parse_json
from .answers import Refused, VideoFile, queue_in, refusal_in

LARGEST_ANSWER, LARGEST_VIDEO = 64 * MEGABYTE, 8000 * MEGABYTE
TIMEOUT = 30.0
"""Seconds until a silent server counts as away."""
LONGEST_ANSWER = 300.0
"""Seconds that an answer in JSON may take."""
PIECE = 1 << 18


class Away(Exception):
    """A server could not be reached, broke off, or answered what no ComfyUI server does. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is. `path`: what comes before `/prompt`, behind a proxy."""

    secure: bool
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.secure}://{host}:{self.port}{self.path}"


def parse_address(url: str) -> Address:
    """Return the address of a URL. Raises `BadInput` unless it is one of a server, over http or https."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    strange = parts.query or parts.fragment or "@" in parts.netloc or not re.fullmatch(r"[\w./~%-]*", parts.path)
    if parts.scheme not in ("http", "https") or not host or strange or not url.isascii() or not url.isprintable():
        raise BadInput(f"a server has an address such as http://127.0.0.1:8188, but got {url!r:.120}; give one")
    secure = parts.scheme == "https"
    return Address(secure=secure, host=host, port=port or (443 if secure else 80), path=parts.path.rstrip("/"))


class Client:
    """Speaks with one server. Every method raises `Away` if it is not there."""

    def __init__(self, address: Address, *, timeout: float = TIMEOUT) -> None:
        self.address, self._timeout = address, timeout

    def queue(self, prompt_id: str, nodes: Mapping[str, Any], client_id: str) -> None:
        """Queue a workflow under an id of ours. Raises `Refused` if the server does not take it."""
        # Without a client_id, ComfyUI leaves cached results out of its history.
        body = {"prompt": nodes, "prompt_id": prompt_id, "client_id": client_id}
        status, content = self._ask("/prompt", body, accept=(200, 400))
        answer = _json(content)
        refusal = refusal_in(answer, refused=status == 400)
        if refusal:
            raise Refused(refusal)
        if answer.get("prompt_id") != prompt_id:
            raise Away("it did not take the id of a prompt, as ComfyUI from 0.17 on does")

    def in_queue(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the ids of the prompts that are running, and of those that wait."""
        found = queue_in(_json(self._ask("/queue")[1]))
        if found is None:
            raise Away("it answered /queue with what is not a queue")
        return found

    def history(self, prompt_id: str) -> dict[str, Any] | None:
        """Return what became of a prompt; None if the server knows nothing of it."""
        entry = _json(self._ask(f"/history/{prompt_id}")[1]).get(prompt_id)
        return entry if isinstance(entry, dict) else None

    def cancel(self, prompt_id: str, *, running: bool) -> None:
        """End a prompt that is running, or take one that waits out of the queue."""
        if running:
            self._ask("/interrupt", {"prompt_id": prompt_id})
        else:
            self._ask("/queue", {"delete": [prompt_id]})

    def fetch(self, file: VideoFile, path: Path, halted: Callable[[], bool]) -> None:
        """Write a video that the server made to `path`. `halted`: whether to give up in between.

        Raises `Refused` if the server does not have it, or if it is too large.
        """
        query = urlencode({"filename": file.name, "subfolder": file.subfolder, "type": file.type})
        with _Answer(self, f"/view?{query}") as answer, path.open("wb") as out:
            if answer.status in (400, 403, 404):
                raise Refused(f"the server names a video {file.name!r:.80} and does not have it")
            answer.expect(200)
            for piece in answer.pieces(LARGEST_VIDEO):
                out.write(piece)
                if halted():
                    raise Away("this run was stopped")

    def _ask(self, path: str, body: Any = None, accept: tuple[int, ...] = (200,)) -> tuple[int, bytes]:
        """GET a path or POST a body to it, and return status and content of the answer."""
        until = time.monotonic() + LONGEST_ANSWER
        with _Answer(self, path, body) as answer:
            answer.expect(*accept)
            content = bytearray()
            try:
                for piece in answer.pieces(LARGEST_ANSWER):
                    content += piece
                    if time.monotonic() > until:
                        raise Away(f"its answer to {path[:40]} takes too long")
            except Refused as error:
                raise Away(str(error)) from error
            return answer.status, bytes(content)

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection of its own for one request; it follows no redirect and knows no proxy."""
        kind = http.client.HTTPSConnection if self.address.secure else http.client.HTTPConnection
        return kind(self.address.host, self.address.port, timeout=self._timeout)


class _Answer:
    """A request and its answer, whose every failure is `Away`."""

    def __init__(self, client: Client, path: str, body: Any = None) -> None:
        self._path = path.partition("?")[0]
        self._connection = client.connect()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        try:
            self._connection.request("POST" if data else "GET", client.address.path + path, data, headers)
            self._response = self._connection.getresponse()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            self._connection.close()
            raise Away(_reason(error)) from error
        self.status = self._response.status

    def expect(self, *statuses: int) -> None:
        """Raise `Away` unless the server answered with one of these."""
        if self.status not in statuses:
            raise Away(f"it answered {self._path[:40]} with {self.status}")

    def pieces(self, limit: int) -> Any:
        """Yield the content. Raises `Refused` if it is over `limit` bytes, `Away` if it breaks off."""
        stated, seen = self._response.length, 0
        if stated is None and not self._response.chunked:
            raise Away(f"it does not say how long its answer to {self._path[:40]} is")
        while True:
            try:
                piece = self._response.read1(PIECE)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Away(_reason(error)) from error
            seen += len(piece)
            if max(seen, stated or 0) > limit:
                raise Refused(f"its answer to {self._path[:40]} has more than {limit / MEGABYTE:g} MB")
            if not piece:
                break
            yield piece
        # Reading by pieces says nothing of an end that came too early.
        if stated is not None and seen != stated:
            raise Away(f"its answer to {self._path[:40]} broke off")

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _json(content: bytes) -> dict[str, Any]:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise Away(f"its answer is not JSON ({first_line(error):.60})") from error
    if not isinstance(value, dict):
        raise Away("its answer is not a JSON object")
    return value


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or first_line(error)
