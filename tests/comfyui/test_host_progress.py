"""What a run says while it goes on, and that it listens before every pass."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import comfy.model_management
import comfy.utils
import pytest
import torch
from aiohttp import web
from PIL import Image
from sdvg_pack.nodes.host.live import LiveRun
from sdvg_pack.nodes.host.progress import BLOCK_EVENT, NodeProgress, output_of
from sdvg_pack.nodes.routes import register_routes
from sdvg_pack.sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_pack.sdvg_core.engine.router import Decision, Reason
from sdvg_pack.sdvg_core.engine.types import Span
from server import PromptServer

pytestmark = pytest.mark.comfyui


def judged(index: int, score: float) -> BlockRecord:
    """A drafted block whose worst frame had a score, held against -0.7."""
    kept = score >= -0.7
    reason = Reason.REACHED if kept else Reason.FELL_SHORT
    return BlockRecord(
        span=Span(index, 3 * index, 3),
        pixel_frames=12,
        prompt="a",
        decision=Decision(
            accepted=kept, reason=reason, score=score, threshold=-0.7, frame_scores=(score, score + 1)
        ),
        draft=None,
        target=None,
        decodes=1,
        seconds=Seconds(draft=0.5),
    )


RECORDS = [judged(1, -0.5), judged(2, -1.21)]


class Ear:
    """Stands in for the server: keeps what is sent."""

    client_id = "me"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[Any] = []

    def send_progress_text(self, text: str, node_id: str, sid: str | None = None) -> None:
        assert sid == self.client_id, "other pages may have another node of that id"
        self.lines.append(text)

    def send_sync(self, event: str, data: Any, client_id: str) -> None:
        self.events.append((event, data))


@pytest.mark.parametrize("kind", ["denoise", "context", "target"])
def test_a_run_stops_before_a_pass_of_any_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own check: ComfyUI's progress bar, which would stop a denoising step as well, is not connected here."""
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", None)
    progress = NodeProgress(None, blocks=1, steps=4)
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        progress.before_pass(kind)
    progress.before_pass(kind)


def test_the_preview_has_the_size_of_the_video(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a largest side, to which ComfyUI would also blow up a small video."""
    previews: list[Any] = []
    monkeypatch.setattr(
        comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, preview, **more: previews.append(preview)
    )
    NodeProgress("3", blocks=1, steps=4).block(RECORDS[0], torch.zeros(1, 9, 3, 48, 832))
    [(kind, picture, largest_side)] = [preview for preview in previews if preview]
    assert (kind, picture.size, largest_side) == ("JPEG", (832, 48), None)


def test_a_line_breaks_before_its_comparison_and_the_events_are_those_of_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node is narrow: `worst frame -1.21 <` on one line and `-0.70` on the next was hard to read."""
    ear = Ear()
    monkeypatch.setattr(PromptServer, "instance", ear, raising=False)
    progress = NodeProgress("3", blocks=2, steps=4, workflow_id="w")
    for record in RECORDS:
        progress.block(record, torch.zeros(1, 9, 3, 8, 8))
    assert [re.split(r" (?=worst)", line)[-1] for line in ear.lines] == [
        "worst\N{NO-BREAK SPACE}frame\N{NO-BREAK SPACE}-0.50\N{NO-BREAK SPACE}>=\N{NO-BREAK SPACE}-0.70",
        "worst\N{NO-BREAK SPACE}frame\N{NO-BREAK SPACE}-1.21\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}-0.70",
    ]
    events = [data for name, data in ear.events if name == BLOCK_EVENT]
    assert events == output_of(progress.live, RECORDS)["sdvg_route"]
    assert [(event["number"], event["of"], event["fate"]) for event in events] == [(1, 2, "kept"), (2, 2, "remade")]


def test_a_block_of_very_many_frames_gets_smaller_pictures() -> None:
    """A JPEG has at most 65535 pixels a side, and a preset of one's own may have 256 latent frames to a block."""
    run = LiveRun("3", "w", {})
    measures = run.add_sprite(1, torch.zeros(1, 1021, 3, 16, 832))
    picture = Image.open(io.BytesIO(run.sprites[1]))
    assert measures["frames"] == 1021
    assert picture.size == (1021 * measures["width"], measures["height"])


def test_a_second_copy_of_the_pack_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page asks the first copy, and the nodes are the last one's: squares and Stop fail."""
    monkeypatch.setattr(PromptServer, "instance", SimpleNamespace(routes=web.RouteTableDef()), raising=False)
    register_routes()
    assert caplog.text == ""
    register_routes()
    assert "SDVG is installed twice" in caplog.text
