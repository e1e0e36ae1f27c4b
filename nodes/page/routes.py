"""HTTP routes for the page: recent runs, pictures of their blocks, stop a run, keep blocks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from aiohttp import web
from server import PromptServer

from ...sdvg_core.errors import BadInput
from .answers import Check, forecast, refusals
from .kept import FORGOTTEN, find_locks, write_kept
from .live import RUNS, LiveRuns
from .steering import SESSIONS, TooMany

logger = logging.getLogger(__name__)

ALL_RUNS = "/sdvg/runs"
MOST_DIGITS = 16
MOST_BYTES = 1 << 18
"""Bytes of a message to a live session: 20,000 characters, each of six letters in JSON, and some more."""


def register_routes(check: Check) -> None:
    """Add our routes to ComfyUI's server, if there is one. `check`: of the sampler's inputs."""
    server = getattr(PromptServer, "instance", None)
    if server is None:
        return
    if any(getattr(route, "path", None) == ALL_RUNS for route in server.routes):
        # Routes of the first copy win, but nodes of the last.
        logger.warning(
            "SDVG is installed twice, so the sampler's squares and 'Stop after this block' fail: remove one of the copies from "
            "custom_nodes; one is %s",
            Path(__file__).parents[1],
        )

    @server.routes.get(ALL_RUNS)
    async def runs(request: web.Request) -> web.Response:
        return web.json_response(runs_since(request.query.get("after"), RUNS))

    @server.routes.get("/sdvg/frames/{run}/{number}")
    async def frames(request: web.Request) -> web.Response:
        number = request.match_info["number"]
        picture = RUNS.sprite(request.match_info["run"], int(number)) if number.isdecimal() else None
        if picture is None:
            return refuse(404, "the server no longer has a picture of that block; run the workflow again")
        return web.Response(
            body=picture, content_type="image/jpeg", headers={"Cache-Control": "max-age=3600, immutable"}
        )

    @server.routes.post(ALL_RUNS)
    async def post_runs(request: web.Request) -> web.Response:
        prompt = await read(request)
        refused = await asyncio.to_thread(refusals, prompt, check)  # reads locks from the disk
        known = runs_since(request.query.get("after"), RUNS)
        return web.json_response({**known, "refused": refused, **forecast(prompt, RUNS)})

    @server.routes.post("/sdvg/stop")
    async def stop(request: web.Request) -> web.Response:
        return answer_stop(await read(request), RUNS)

    @server.routes.post("/sdvg/steer")
    async def steer(request: web.Request) -> web.Response:
        if (request.content_length or MOST_BYTES + 1) > MOST_BYTES:
            return refuse(413, "send the message's length, and at most 20,000 characters")
        return await asyncio.to_thread(answer_steer, await read(request))

    @server.routes.post("/sdvg/keep")
    async def keep(request: web.Request) -> web.Response:
        return await asyncio.to_thread(answer_keep, await read(request))


async def read(request: web.Request) -> Any:
    """Return the JSON of the request, or None if it is not valid."""
    try:
        return await request.json()
    except (ValueError, RecursionError, LookupError):  # nested too deep; an unknown character set
        return None


def runs_since(after: str | None, runs: LiveRuns) -> dict[str, Any]:
    """Return all runs as JSON values, or what is new since the change `after`, which an answer before this one named."""
    if after is None:
        return {"runs": runs.all()}
    return runs.since(int(after) if after.isdecimal() and len(after) <= MOST_DIGITS else 0)


def answer_stop(asked: Any, runs: LiveRuns) -> web.Response:
    """Stop the run of a node. `asked`: JSON as sent, `{"node": id}`."""
    node = asked.get("node") if isinstance(asked, dict) else None
    if not isinstance(node, str):
        return refuse(400, 'to stop a run, send the id of its sampler, such as {"node": "5"}')
    if not runs.stop(node):
        return refuse(404, f"node {node!r:.60} is not making a video, so there is nothing to stop")
    return web.json_response({"stopping": True})


def answer_steer(asked: Any) -> web.Response:
    """Do what a page asks of a live session. `asked`: JSON as sent, `{"run": id, "act": ...}`; see `LiveSession`."""
    run = asked.get("run") if isinstance(asked, dict) else None
    if not isinstance(run, str):
        return refuse(400, 'to steer a session, send its run and an act, such as {"run": "0a1b", "act": "hold"}')
    session = SESSIONS.get(run)
    if session is None:
        return refuse(404, "there is no such live session; it has ended, or the server was restarted")
    try:
        return web.json_response(session.act(asked))
    except BadInput as error:
        return refuse(429 if isinstance(error, TooMany) else 400, str(error))


def answer_keep(asked: Any) -> web.Response:
    """Write blocks to disk, and answer with the bytes that all kept blocks take there. `asked`: `{"blocks": digest}`."""
    blocks = asked.get("blocks") if isinstance(asked, dict) else None
    if not isinstance(blocks, str) or not blocks.strip():
        return refuse(
            400, 'to lock blocks, send how many and their digest, such as {"blocks": "5:0123456789abcdef"}'
        )
    try:
        sizes = [write_kept(lock) for lock in find_locks(blocks, FORGOTTEN).values()]
        return web.json_response({"bytes": sizes[-1] if sizes else 0})
    except BadInput as error:
        return refuse(404, str(error))


def refuse(status: int, sentence: str) -> web.Response:
    """Return an error response with a message."""
    return web.json_response({"error": sentence}, status=status)
