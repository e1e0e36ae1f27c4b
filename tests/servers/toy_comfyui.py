"""A ComfyUI without models, in a thread: it speaks the same JSON, and moves on by one step at every look."""

from __future__ import annotations

import copy
import json
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from sample_reports import record, report, route

from sdvg_core.engine.router import RouterConfig
from sdvg_core.files.video import write_mp4
from sdvg_core.report.run_report import hide_prompt

BLOCKS = 3
Answer = tuple[int, bytes, dict[str, str]]
Job = tuple[str, str, int]
"""A prompt's id, its text, its seed."""


def pocket() -> dict[str, Any]:
    """A workflow with the nodes of our pocket workflow, and of their inputs those that matter here."""

    def node(kind: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": kind, "inputs": inputs}

    sampler = {"prompt": ["1", 5], "positive": ["1", 2], "drafter": ["1", 0], "seed": 42, "blocks": BLOCKS}
    return {
        "1": node("SDVGPocketModels", prompt="a big blue ball drifts right from the left over sand"),
        "3": node("SDVGSpeculativeSampler", **sampler),
        "5": node("SaveVideo", filename_prefix="sdvg/pocket", video=["4", 0]),
        "6": node("SDVGRouteReport", report=["3", 2]),
    }


def as_json(value: Any, status: int = 200) -> Answer:
    return status, json.dumps(value).encode(), {"Content-Type": "application/json"}


class Toy:
    """Makes videos that say which prompt and seed they show; see `shown_in`.

    `made`: how often it has made which. `queued`: prompts that it took. `steps`: how often it is looked at until
    a prompt is done. `deaf`: requests that it drops unanswered; after the last it has forgotten queue and history.
    `refuses`: a prompt's text -> its answer 400. `fails`: a prompt's text -> the message of its run's error.
    `strange`: path -> another answer. `on_look`: called at every look.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.history: dict[str, Any] = {}
        self.made: Counter[tuple[str, int]] = Counter()
        self.most_at_once = self.requests = self.deaf = self.queued = 0
        self.steps, self.looks_left = 1, 1
        self.refuses: Callable[[str], Any] = lambda text: None
        self.fails: Callable[[str], str | None] = lambda text: None
        self.strange: dict[str, Callable[[], Answer | None]] = {}
        self.on_look: Callable[[], None] = lambda: None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def forget(self) -> None:
        """Be as after a restart."""
        self.running, self.waiting, self.history = [], [], {}

    def answer(self, method: str, target: str, body: Any) -> Answer | None:
        """Return the answer to a request; None to break off."""
        self.requests += 1
        if self.deaf:
            self.deaf -= 1
            if not self.deaf:
                self.forget()
            return None
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        for prefix, strange in self.strange.items():
            if path.startswith(prefix):
                return strange()
        if method == "POST":
            return self._post(path, body)
        if path == "/queue":
            return self._look()
        if path.startswith("/history/"):
            known = self.history.get(path.rpartition("/")[2])
            return as_json({path.rpartition("/")[2]: known} if known else {})
        if path == "/view":
            text, seed = json.loads(query["subfolder"][0])
            return 200, video_of(text, seed), {"Content-Type": "video/mp4"}
        return as_json({}, 404)

    def _post(self, path: str, body: Any) -> Answer:
        if path == "/prompt":
            nodes = body["prompt"]
            text, seed = nodes["1"]["inputs"]["prompt"], nodes["3"]["inputs"]["seed"]
            refusal = self.refuses(text)
            if refusal is not None:
                return as_json(refusal, 400)
            assert body["client_id"]
            self.queued += 1
            self.waiting.append((body["prompt_id"], text, seed))
            self.most_at_once = max(self.most_at_once, len(self.running + self.waiting))
            return as_json({"prompt_id": body["prompt_id"], "number": 1, "node_errors": {}})
        if path == "/queue":
            self.waiting = [job for job in self.waiting if job[0] not in body["delete"]]
        if path == "/interrupt":
            for job in [job for job in self.running if job[0] == body["prompt_id"]]:
                self.running.remove(job)
                self.history[job[0]] = entry(error=["execution_interrupted", {}])
        return 200, b"", {}

    def _look(self) -> Answer:
        self._step()
        self.on_look()
        queue = {
            "queue_running": [[0, job[0], {}, {}, []] for job in self.running],
            "queue_pending": [[1, job[0], {}, {}, []] for job in self.waiting],
        }
        return as_json(queue)

    def _step(self) -> None:
        if self.running:
            self.looks_left -= 1
            if self.looks_left:
                return
            prompt_id, text, seed = self.running.pop()
            message = self.fails(text)
            if message is None:
                self.made[text, seed] += 1
                self.history[prompt_id] = entry(text, seed)
            else:
                told = {"node_id": "3", "node_type": "SDVGSpeculativeSampler", "exception_message": message}
                self.history[prompt_id] = entry(error=["execution_error", told])
        if self.waiting and not self.running:
            self.running, self.looks_left = [self.waiting.pop(0)], self.steps


def entry(text: str = "", seed: int = 0, error: list[Any] | None = None) -> dict[str, Any]:
    """One entry of the history."""
    if error:
        return {"status": {"status_str": "error", "completed": False, "messages": [error]}, "outputs": {}}
    video = {"filename": "toy_00001_.mp4", "subfolder": json.dumps([text, seed]), "type": "output"}
    picture = {"filename": "route.png", "subfolder": "", "type": "temp"}
    outputs = {
        "3": {"sdvg_route": [{"number": 1}]},
        "5": {"images": [video], "animated": [True]},
        "6": {"images": [picture], "text": ["..."], "sdvg_report": [report_of(text, seed)]},
    }
    return {"status": {"status_str": "success", "completed": True, "messages": []}, "outputs": outputs}


def report_of(text: str, seed: int) -> str:
    """The report of a video, with a hash of its prompt."""
    decisions = route(RouterConfig(), ((0.0,), (0.5, -0.2), (-0.9, 0.3)))
    blocks = tuple(record(decision, index, hide_prompt(text)) for index, decision in enumerate(decisions))
    found = report(decisions, fps=16.0)
    return replace(found, blocks=blocks, settings={**found.settings, "seed": seed}).to_json()


def video_of(text: str, seed: int) -> bytes:
    """An mp4 that names what it shows in a box that players skip."""
    said = json.dumps([text, seed]).encode()
    return some_mp4() + struct.pack(">I", len(said) + 8) + b"free" + said


def shown_in(path: Path) -> tuple[str, int]:
    """Which prompt and seed a video was made of."""
    text, seed = json.loads(path.read_bytes().rpartition(b"free")[2])
    return text, seed


@cache
def some_mp4() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_mp4(Path(folder) / "video.mp4", torch.rand(33, 3, 32, 32), 16.0)
        return (Path(folder) / "video.mp4").read_bytes()


@contextmanager
def toys(count: int) -> Iterator[list[Toy]]:
    """Run toys, each at a port of its own."""
    found = [Toy() for _ in range(count)]
    servers = [serve(toy) for toy in found]
    try:
        yield found
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def serve(toy: Toy) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            with toy.lock:
                answer = copy.deepcopy(toy.answer(self.command, self.path, body))
            if answer is None:
                self.close_connection = True
                return
            status, content, headers = answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = handle_any

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    toy.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server
