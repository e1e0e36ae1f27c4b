"""What an artist sees during a run: the progress bar, the newest frame, a sentence, and the strip's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.model_management as mm
import comfy.utils
from PIL import Image
from server import PromptServer
from torch import Tensor

from ...sdvg_core.engine.records import BlockRecord
from ...sdvg_core.report.fates import fate_of
from ...sdvg_core.report.progress import block_line

PREVIEW_SIZE = 512
EVENT = "sdvg.block"
NO_BREAK = "\N{NO-BREAK SPACE}"


class NodeProgress:
    """Reports one run on its node, and stops it when the user interrupts."""

    def __init__(self, node_id: str | None, blocks: int, steps: int, *, workflow_id: str | None = None) -> None:
        self._node_id, self._blocks, self._workflow_id = node_id, blocks, workflow_id
        # A block takes at most the steps of a draft and of the target; the bar skips those that were not needed.
        self._steps_per_block = 2 * steps
        self._bar = comfy.utils.ProgressBar(blocks * self._steps_per_block)
        self._done = 0
        self._passes = 0

    def before_pass(self, kind: str) -> None:
        """Stop if the user interrupts; otherwise count a denoising step. Called before every forward pass."""
        mm.throw_exception_if_processing_interrupted()
        if kind == "denoise":
            self._passes += 1
            self._bar.update_absolute(self._done * self._steps_per_block + min(self._passes, self._steps_per_block))

    def block(self, record: BlockRecord, frames: Tensor) -> None:
        """Show a finished block: its last frame of `b f c h w`, the sentence, and the strip's next square."""
        self._done, self._passes = self._done + 1, 0
        picture = Image.fromarray((frames[0, -1].movedim(0, -1) * 255).round().byte().cpu().numpy())
        self._bar.update_absolute(self._done * self._steps_per_block, preview=("JPEG", picture, PREVIEW_SIZE))
        self.say(_for_a_narrow_node(block_line(record, self._done, self._blocks)))
        server = getattr(PromptServer, "instance", None)
        if server is not None and self._node_id is not None:
            event = route_event(record, self._done, self._blocks, self._node_id, self._workflow_id)
            server.send_sync(EVENT, event, server.client_id)

    def say(self, text: str) -> None:
        """Show a line of text on the node."""
        server = getattr(PromptServer, "instance", None)
        if server is not None and self._node_id is not None:
            server.send_progress_text(text, self._node_id)


def route_event(
    record: BlockRecord, number: int, of: int, node_id: str | None, workflow_id: str | None
) -> dict[str, Any]:
    """Return what the strip needs to know about block `number` of a run of `of` blocks."""
    return {
        "node": node_id,
        "workflow": workflow_id,
        "number": number,
        "of": of,
        "fate": fate_of(record).name.lower(),
        "score": record.decision.score,
        "seconds": record.seconds.total,
        "text": block_line(record, number, of),
    }


def route_events(
    records: Sequence[BlockRecord], node_id: str | None, workflow_id: str | None
) -> list[dict[str, Any]]:
    """Return the events of a whole run, for the history and for a result that comes from the cache."""
    return [route_event(record, i, len(records), node_id, workflow_id) for i, record in enumerate(records, 1)]


def _for_a_narrow_node(line: str) -> str:
    """Let a block's line wrap before the comparison, `worst frame -0.31 >= -0.70`, not inside it."""
    start, comma, comparison = line.rpartition(", ")
    return start + comma + comparison.replace(" ", NO_BREAK)
