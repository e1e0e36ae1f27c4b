"""Show a run on its node and in the page: progress bar, newest frame, a line of text, and events of the strip."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import comfy.model_management as mm
import comfy.utils
from PIL import Image
from protocol import BinaryEventTypes
from server import PromptServer
from torch import Tensor

from ...sdvg_core.engine.records import BlockRecord
from ...sdvg_core.report.run_report import RunReport, json_values
from ...sdvg_core.report.summary import block_line, outcome_of
from .live import RUNS, LiveRun

logger = logging.getLogger(__name__)

_notified: set[str | None] = set()
"""Ids of the nodes that show a text by `notify`."""
NOTHING_NOTED = "Nothing to note."
DONE_EVENT = "sdvg.done"
LIVE_EVENT = "sdvg.live"
KEPT_EVENT = {
    "outcome": "given",
    "take": 1,
    "reused": True,
    "score": None,
    "worst_frame": None,
    "seconds": 0.0,
    "decode": 0.0,
}
NO_BREAK = "\N{NO-BREAK SPACE}"


class NodeProgress:
    """Shows one run on its node, and stops it when the user interrupts.

    `steps`: denoising steps of a block, of both models. `kept_count`: number of blocks kept from an earlier run.
    `until`: the last block to make for a take, or 0. `more`: further fields of the run's first event.
    """

    def __init__(
        self,
        node_id: str | None,
        blocks: int,
        steps: int,
        *,
        workflow_id: str | None = None,
        kept_count: int = 0,
        until: int = 0,
        **more: Any,
    ) -> None:
        self._node_id = node_id
        self._blocks = blocks
        self._steps_per_block = steps
        self._bar = comfy.utils.ProgressBar(blocks * self._steps_per_block)
        self._done = 0
        self._passes = 0
        self._began = time.perf_counter()
        self.kept_count = kept_count
        ids = {"run": uuid.uuid4().hex, "node": node_id, "workflow": workflow_id}
        self.live = LiveRun({**ids, "of": blocks, "loading": 0.0, "until": until, **more})

    def begin(self) -> None:
        """Send the first event; call it when the models are loaded."""
        self.live.begin["loading"] = time.perf_counter() - self._began
        RUNS.begin(self.live)
        self._send("sdvg.run", self.live.begin)

    def before_pass(self, kind: str) -> None:
        """Count a denoising step, or raise if the user interrupted. Called before every forward pass."""
        mm.throw_exception_if_processing_interrupted()
        if kind == "denoise":
            self._passes += 1
            self._bar.update_absolute(self._done * self._steps_per_block + min(self._passes, self._steps_per_block))

    def block(self, number: int, record: BlockRecord, frames: Tensor, **more: Any) -> None:
        """Show a finished block, from 1, with its frames `b f c h w`: preview of the last one, text, and event.

        `more`: further fields of its event.
        """
        self._done = number
        self._passes = 0
        picture = Image.fromarray((frames[0, -1].movedim(0, -1) * 255).round().byte().cpu().numpy())
        self._bar.update_absolute(self._done * self._steps_per_block)
        self._preview(picture)
        # On a narrow node, a line wraps before the comparison, `weakest frame -0.31 >= -0.70`, not inside it.
        start, comma, evidence = block_line(record, self._done, self._blocks).rpartition(", ")
        is_compared = record.decision.score is not None
        self.show(start + comma + (evidence.replace(" ", NO_BREAK) if is_compared else evidence))
        event = {**block_event(record, self._done, self._blocks), **more}
        if self.live.trace:
            self.live.trace.decisions[self._done] = record.decision
        if self._done >= self.live.begin["until"]:  # of a take, only the last block is shown
            event["sprite"] = self.live.add_sprite(self._done, frames)
        self._add(event)

    def kept_block(self, number: int, frames: Tensor) -> None:
        """Show a block kept from an earlier run, from 1, with its frames `b f c h w`."""
        self._done = number
        sprite = self.live.add_sprite(self._done, frames)
        self._add({**KEPT_EVENT, "number": self._done, "of": self._blocks, "sprite": sprite})

    def _add(self, event: dict[str, Any]) -> None:
        told = {**whose(self.live), **event}
        self.live.add(told)
        self._send("sdvg.block", told)

    def done(self, report: RunReport) -> None:
        """Send the last event of a run with a result."""
        blocks = len(report.blocks)
        wanted = self._blocks - self.kept_count
        done = {
            **whose(self.live),
            "blocks": blocks,
            "of": wanted,
            "stopped": blocks < wanted,
            "seconds": report.seconds.total,
            "speed_up": report.speed_up,
            "digests": self.live.digests,
            "clip_frames": self.live.clip_frames,
            "joins": {} if self.live.begin["until"] else joins_of(report),
        }
        self._end(done)

    def give_up(self) -> None:
        """Send the last event of a run that failed; do nothing after `done()`."""
        if self.live.done is None:
            ended = {"blocks": self._done, "of": self._blocks, "stopped": False, "failed": True}
            self._end({**whose(self.live), **ended, "seconds": 0.0, "speed_up": None})

    def steered(self, state: Mapping[str, Any]) -> None:
        """Show the state of a live session."""
        told = {**whose(self.live), **state}
        self.live.tell(told)
        self._send(LIVE_EVENT, told)

    def recorded(self, recording: Mapping[str, Any], dropped: Sequence[Mapping[str, Any]], why: str) -> None:
        """Send the last event of a live session. `recording`: its values; none if nothing was made.

        `dropped`: values of what was made before each *again*. `why`: what ended it, if that was not asked for.
        """
        blocks = recording.get("blocks", 0)
        if len(self.live.events) > blocks:  # it was set back, and ended before those were made anew
            self.live.set_back(blocks + 1)
        ended = {"blocks": blocks, "of": self._blocks, "stopped": blocks < self._blocks, "failed": not blocks}
        told = {"live": True, "recording": recording or None, "dropped": dropped, "why": why}
        seconds = sum(event["seconds"] for event in self.live.events)
        self._end({**whose(self.live), **ended, **told, "seconds": seconds, "speed_up": None})

    def _end(self, done: dict[str, Any]) -> None:
        self.live.end(done)
        self._send(DONE_EVENT, done)

    def show(self, text: str) -> None:
        """Show a line of text on the node."""
        show_on(self._node_id, text)

    def _preview(self, picture: Image.Image) -> None:
        """Show a picture in the page's queue and app mode, but not on the node, whose strip shows it."""
        names = ("node_id", "display_node_id", "parent_node_id", "real_node_id")
        place = {**dict.fromkeys(names, f"{self._node_id}.film"), "prompt_id": self.live.begin.get("prompt")}
        # None: do not scale the picture.
        self._send(BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA, (("JPEG", picture, None), place))

    def _send(self, event: str | int, data: Any) -> None:
        if server := getattr(PromptServer, "instance", None):
            server.send_sync(event, data, server.client_id)


def show_on(node_id: str | None, text: str) -> None:
    """Show a line of text on a node, if a page is open."""
    if server := getattr(PromptServer, "instance", None):
        # Only to the page that queued the prompt: another page may use the same node id.
        server.send_progress_text(text, node_id, server.client_id)


def notify(node_id: str | None, text: str) -> None:
    """Log a text and show it on a node; without one, say that an earlier one does not count any more."""
    if text:
        logger.info("SDVG: %s", text)
    if text or node_id in _notified:
        show_on(node_id, text or NOTHING_NOTED)  # the page drops an empty text, and would keep the earlier one
    (_notified.add if text else _notified.discard)(node_id)


def block_event(record: BlockRecord, number: int, of: int) -> dict[str, Any]:
    """Return the strip's event for block `number`, from 1, of a run of `of` blocks."""
    return {
        "number": number,
        "of": of,
        "outcome": outcome_of(record).name.lower(),
        "score": record.decision.score,
        "threshold": json_values(record.decision.threshold),
        "worst_frame": record.decision.worst_frame,
        "unscored": record.decision.frame_scores.count(None),
        "seconds": record.seconds.total,
        "decode": record.seconds.decode / record.decodes if record.decodes else 0.0,
        "take": record.span.take,
        "reused": record.reused,
        "drift": record.drift,
        "text": block_line(record, number, of),
    }


def joins_of(report: RunReport) -> dict[str, Any]:
    """Return the join to each shot of a film but the first, by the number of the shot's first block, from 1."""
    given = report.settings.get("blocks_given", 0)
    shots = report.settings.get("shots", [])
    return {str(shot["first_block"] - given): shot["join"] for shot in shots if "join" in shot}


def whose(live: LiveRun) -> dict[str, Any]:
    """Return the fields that identify a run, first in each of its events."""
    return {name: live.begin.get(name) for name in ("run", "node", "workflow", "prompt", "until")}


def output_of(live: LiveRun) -> dict[str, Any]:
    """Return a run's events for the node's `ui`, which ComfyUI keeps in its history and with cached results."""
    return {"sdvg_route": live.events, "sdvg_run": [{**live.begin, **(live.done or {})}]}
