"""What an artist sees during a run: the progress bar, the newest frame, a sentence, and the strip's events."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

import comfy.model_management as mm
import comfy.utils
from PIL import Image
from protocol import BinaryEventTypes
from server import PromptServer
from torch import Tensor

from ...sdvg_core.engine.records import BlockRecord
from ...sdvg_core.report.record_json import plain
from ...sdvg_core.report.run_report import RunReport
from ...sdvg_core.report.summary import block_line, outcome_of
from .live import RUNS, LiveRun

logger = logging.getLogger(__name__)

_notified: set[str | None] = set()
"""The nodes that `notify` left a text on."""
DONE_EVENT = "sdvg.done"
KEPT_EVENT = {
    "fate": "given",
    "take": 1,
    "reused": True,
    "score": None,
    "worst_frame": None,
    "seconds": 0.0,
    "decode": 0.0,
}
NO_BREAK = "\N{NO-BREAK SPACE}"


class NodeProgress:
    """Reports one run on its node, and stops it when the user interrupts.

    `steps`: of a block, by both models. `kept_count`: how many blocks are kept from an earlier run; `until`: the last block
    that is made now, to be compared, or 0. `more`: further fields of the run's first event.
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
        # The bar skips the steps that were not needed.
        self._steps_per_block = steps
        self._bar = comfy.utils.ProgressBar(blocks * self._steps_per_block)
        self._done = 0
        self._passes = 0
        self._began = time.perf_counter()
        self._kept_count = kept_count
        self.kept_left = kept_count
        ids = {"run": uuid.uuid4().hex, "node": node_id, "workflow": workflow_id}
        self.live = LiveRun({**ids, "of": blocks, "loading": 0.0, "until": until, **more})

    def begin(self) -> None:
        """Say that the run begins, now that the models are loaded."""
        self.live.begin["loading"] = time.perf_counter() - self._began
        RUNS.begin(self.live)
        self._send("sdvg.run", self.live.begin)

    def before_pass(self, kind: str) -> None:
        """Stop if the user interrupts; otherwise count a denoising step. Called before every forward pass."""
        mm.throw_exception_if_processing_interrupted()
        if kind == "denoise":
            self._passes += 1
            self._bar.update_absolute(self._done * self._steps_per_block + min(self._passes, self._steps_per_block))

    def block(self, record: BlockRecord, frames: Tensor) -> None:
        """Show a finished block: its last frame of `b f c h w`, the sentence, and the strip's next square."""
        self._done += 1
        self._passes = 0
        picture = Image.fromarray((frames[0, -1].movedim(0, -1) * 255).round().byte().cpu().numpy())
        self._bar.update_absolute(self._done * self._steps_per_block)
        self._preview(picture)
        # On a narrow node, a line wraps before the comparison, `worst frame -0.31 >= -0.70`, not inside it.
        start, comma, comparison = block_line(record, self._done, self._blocks).rpartition(", ")
        self.show(start + comma + comparison.replace(" ", NO_BREAK))
        event = block_event(record, self._done, self._blocks)
        if self._done >= self.live.begin["until"]:  # for a take to compare, only that block is shown
            event["sprite"] = self.live.add_sprite(self._done, frames)
        self._add(event)

    def kept_block(self, frames: Tensor) -> None:
        """Show a block that is kept from an earlier run: its square and its pixels."""
        self._done += 1
        self.kept_left -= 1
        sprite = self.live.add_sprite(self._done, frames)
        self._add({**KEPT_EVENT, "number": self._done, "of": self._blocks, "sprite": sprite})

    def _add(self, event: dict[str, Any]) -> None:
        self.live.events.append({**whose(self.live), **event})
        self._send("sdvg.block", self.live.events[-1])

    def done(self, report: RunReport) -> None:
        """Say that the run has ended, and how."""
        blocks = len(report.blocks)
        of = self._blocks - self._kept_count
        self.live.done = {
            **whose(self.live),
            **{"blocks": blocks, "of": of, "stopped": blocks < of},
            **{"seconds": report.seconds.total, "speed_up": report.speed_up},
            "digests": list(self.live.beginnings),
        }
        self._send(DONE_EVENT, self.live.done)

    def give_up(self) -> None:
        """Say that the run ended without a result, unless it had one."""
        if self.live.done is None:
            ended = {"blocks": self._done, "of": self._blocks, "stopped": False, "failed": True}
            self.live.done = {**whose(self.live), **ended, "seconds": 0.0, "speed_up": None}
            self._send(DONE_EVENT, self.live.done)

    def show(self, text: str) -> None:
        """Show a line of text on the node."""
        show_on(self._node_id, text)

    def _preview(self, picture: Image.Image) -> None:
        """Show a picture in the page's queue and app mode, but not on the node, whose strip has it."""
        names = ("node_id", "display_node_id", "parent_node_id", "real_node_id")
        place = {**dict.fromkeys(names, f"{self._node_id}.film"), "prompt_id": self.live.begin.get("prompt")}
        # None: in the video's own size.
        self._send(BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA, (("JPEG", picture, None), place))

    def _send(self, event: str | int, data: Any) -> None:
        if server := getattr(PromptServer, "instance", None):
            server.send_sync(event, data, server.client_id)


def show_on(node_id: str | None, text: str) -> None:
    """Show a line of text on a node, if there is a page to show it."""
    if server := getattr(PromptServer, "instance", None):
        # To the page that queued the prompt: others may have another node of that id.
        server.send_progress_text(text, node_id, server.client_id)


def notify(node_id: str | None, text: str) -> None:
    """Log a text and show it on a node; if it is empty, remove an earlier one."""
    if text:
        logger.info("SDVG: %s", text)
    if text or node_id in _notified:
        show_on(node_id, text)
    (_notified.add if text else _notified.discard)(node_id)


def block_event(record: BlockRecord, number: int, of: int) -> dict[str, Any]:
    """Return what the strip needs to know about block `number` of a run of `of` blocks."""
    return {
        "number": number,
        "of": of,
        "fate": outcome_of(record).name.lower(),
        "score": record.decision.score,
        "threshold": plain(record.decision.threshold),
        "worst_frame": record.decision.worst_frame,
        "unscored": record.decision.frame_scores.count(None),
        "seconds": record.seconds.total,
        "decode": record.seconds.decode / record.decodes if record.decodes else 0.0,
        "take": record.span.take,
        "reused": record.reused,
        "drift": record.drift,
        "text": block_line(record, number, of),
    }


def whose(live: LiveRun) -> dict[str, Any]:
    """Return the fields with which every event of a run begins."""
    return {name: live.begin.get(name) for name in ("run", "node", "workflow", "prompt", "until")}


def output_of(live: LiveRun) -> dict[str, Any]:
    """Return a run for the history, and for a cached result: its events, and the fields of its first and last one."""
    return {"sdvg_route": live.events, "sdvg_run": [{**live.begin, **(live.done or {})}]}
