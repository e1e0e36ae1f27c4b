"""What an artist sees during a run: the progress bar, the newest frame, a sentence, and the strip's events."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import comfy.model_management as mm
import comfy.utils
from PIL import Image
from protocol import BinaryEventTypes
from server import PromptServer
from torch import Tensor

from ...sdvg_core.engine.records import BlockRecord
from ...sdvg_core.plan.choose import route_seconds
from ...sdvg_core.plan.rates import H100
from ...sdvg_core.plan.request import PlanRequest
from ...sdvg_core.pocket.trained_set import NAMES
from ...sdvg_core.report.run_report import RunReport
from ...sdvg_core.report.summary import block_line, count, outcome_of, speedup_known
from .live import RUNS, LiveRun

logger = logging.getLogger(__name__)

_notified: set[str | None] = set()
"""The nodes that `notify` left a text on."""
PREVIEW_SIZE = None  # the video's own
BEGIN_EVENT, BLOCK_EVENT, DONE_EVENT = "sdvg.run", "sdvg.block", "sdvg.done"
NOTHING_MADE = {"score": None, "worst_frame": None, "seconds": 0.0, "decode": 0.0}
GIVEN = {"fate": "given", "take": 1, "reused": True, **NOTHING_MADE}
NO_BREAK = "\N{NO-BREAK SPACE}"


class NodeProgress:
    """Reports one run on its node, and stops it when the user interrupts.

    `steps`: of a block, by both models. `given`: how many blocks are kept from an earlier run; `until`: the last block
    that is made now, to be compared, or 0. `more`: further fields of the run's first event.
    """

    def __init__(
        self,
        node_id: str | None,
        blocks: int,
        steps: int,
        *,
        workflow_id: str | None = None,
        given: int = 0,
        until: int = 0,
        **more: Any,
    ) -> None:
        self._node_id, self._blocks = node_id, blocks
        # The bar skips the steps that were not needed.
        self._steps_per_block = steps
        self._bar = comfy.utils.ProgressBar(blocks * self._steps_per_block)
        self._done = 0
        self._passes = 0
        self._began = self._newest = time.perf_counter()
        self._given, self.given_left, self.digests = given, given, list[str]()
        self.live = LiveRun(node_id, workflow_id, {})
        self.live.begin = {
            "run": self.live.id,
            "node": node_id,
            "workflow": workflow_id,
            "of": blocks,
            "reused": 0,
            "loading": 0.0,
            "until": until,
            **more,
        }

    def begin(self, reused: int) -> None:
        """Say that the run begins, now that the models are loaded, and how many of its blocks an earlier run made."""
        self.live.begin |= {"reused": reused, "loading": time.perf_counter() - self._began}
        RUNS.begin(self.live)
        self._send(BEGIN_EVENT, self.live.begin)

    def before_pass(self, kind: str) -> None:
        """Stop if the user interrupts; otherwise count a denoising step. Called before every forward pass."""
        mm.throw_exception_if_processing_interrupted()
        if kind == "denoise":
            self._passes += 1
            self._bar.update_absolute(self._done * self._steps_per_block + min(self._passes, self._steps_per_block))

    def block(self, record: BlockRecord, frames: Tensor) -> None:
        """Show a finished block: its last frame of `b f c h w`, the sentence, and the strip's next square."""
        self._done, self._passes = self._done + 1, 0
        self._newest = time.perf_counter()
        picture = Image.fromarray((frames[0, -1].movedim(0, -1) * 255).round().byte().cpu().numpy())
        self._bar.update_absolute(self._done * self._steps_per_block)
        self._preview(picture)
        self.show(_for_a_narrow_node(block_line(record, self._done, self._blocks)))
        if self._node_id is None:
            return
        event = block_event(record, self._done, self._blocks)
        if self._done >= self.live.begin["until"]:  # of a take to be compared, that block alone is shown
            event["sprite"] = self.live.add_sprite(self._done, frames)
        event = {**whose(self.live), **event}
        self.live.events.append(event)
        self._send(BLOCK_EVENT, event)

    def given(self, frames: Tensor) -> None:
        """Show a block that is kept from an earlier run: a square of its own, and its pixels."""
        self._done, self.given_left = self._done + 1, self.given_left - 1
        if self._node_id is None:
            return
        sprite = self.live.add_sprite(self._done, frames)
        event = {**whose(self.live), **GIVEN, "number": self._done, "of": self._blocks, "sprite": sprite}
        self.live.events.append(event)
        self._send(BLOCK_EVENT, event)

    def delivering(self, blocks_left: int) -> None:
        """Say how many blocks are still to be decoded; stop if the user interrupts."""
        mm.throw_exception_if_processing_interrupted()
        self.show(f"decoding the video: {count(blocks_left, 'block')} left")

    def done(self, report: RunReport) -> None:
        """Say that the run has ended, and how."""
        delivery = time.perf_counter() - self._newest
        ended = end_of(report, self._blocks - self._given)
        self.live.done = {**whose(self.live), **ended, "delivery": delivery, "digests": self.digests}
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
        """Show a picture where the page shows a job's, in its queue and app mode, but not on the node: its strip has it."""
        server = _page_of(self._node_id)
        if server is None:
            return
        place = dict.fromkeys(
            ("node_id", "display_node_id", "parent_node_id", "real_node_id"), f"{self._node_id}.film"
        )
        shown = (("JPEG", picture, PREVIEW_SIZE), {**place, "prompt_id": self.live.begin.get("prompt")})
        server.send_sync(BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA, shown, server.client_id)

    def _send(self, name: str, event: dict[str, Any]) -> None:
        if server := _page_of(self._node_id):
            server.send_sync(name, event, server.client_id)


def _page_of(node_id: str | None) -> Any:
    """Return the server whose page shows a node; None without a server or a node."""
    return None if node_id is None else getattr(PromptServer, "instance", None)


def show_on(node_id: str | None, text: str) -> None:
    """Show a line of text on a node, if there is a page to show it."""
    if server := _page_of(node_id):
        # To the page that queued the prompt: others may have another node of that id.
        server.send_progress_text(text, node_id, server.client_id)


def notify(node_id: str | None, text: str) -> None:
    """Log a text and show it on a node; if it is empty, take an earlier one away."""
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
        "worst_frame": record.decision.worst_frame,
        "seconds": record.seconds.total,
        "decode": record.seconds.decode / record.decodes if record.decodes else 0.0,
        "take": record.span.take,
        "reused": record.reused,
        "drift": record.drift,
        "text": block_line(record, number, of),
    }


def end_of(report: RunReport, of: int) -> dict[str, Any]:
    """Return what the strip says at the end of a run that was to have `of` blocks."""
    blocks = len(report.blocks)
    return {
        "blocks": blocks,
        "of": of,
        "stopped": blocks < of,
        "seconds": report.seconds.total,
        **({"published": _published(report)} if _is_pocket(report) else {"speed_up": speedup_known(report)}),
    }


def _is_pocket(report: RunReport) -> bool:
    models = filter(None, (report.settings["drafter"], report.settings["target"]))
    return all(model["file"] in NAMES.values() for model in models)


def _published(report: RunReport) -> Sequence[float] | None:
    """Return the seconds that this route and target-only are predicted to take the published pair.

    None of target-only, and of a restyled clip, whose steps left out are not predicted.
    """
    mixed = report.tally.accepted + report.tally.scored > 0 and not report.settings.get("restyle")
    return route_seconds(report.blocks, PlanRequest(rates=H100)) if mixed else None


def whose(live: LiveRun) -> dict[str, Any]:
    """Return what every event of a run begins with."""
    return {
        **{"run": live.id, "node": live.node, "workflow": live.workflow},
        **{name: live.begin.get(name) for name in ("prompt", "until")},
    }


def output_of(live: LiveRun, records: Sequence[BlockRecord]) -> dict[str, Any]:
    """Return a run for the history, and for a result that comes from the cache: its events, and its two ends."""
    of = live.begin["of"]
    # Without a node there are no pictures, and so no events to repeat.
    events = live.events or [{**whose(live), **block_event(record, i, of)} for i, record in enumerate(records, 1)]
    return {"sdvg_route": events, "sdvg_run": [{**live.begin, **(live.done or {})}]}


def _for_a_narrow_node(line: str) -> str:
    """Let a block's line wrap before the comparison, `worst frame -0.31 >= -0.70`, not inside it."""
    start, comma, comparison = line.rpartition(", ")
    return start + comma + comparison.replace(" ", NO_BREAK)
