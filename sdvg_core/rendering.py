"""One video: from what was asked for to the files that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .environment import versions_on
from .errors import BadInput
from .history import Timeline, timeline_from_latents
from .images import read_image
from .latents import load_latents, save_latents
from .loading import Loaded, device_clock
from .noise import KeyedNoise
from .outputs import LATENTS, PICTURE, REPORT, VIDEO, Staging
from .picture import route_picture
from .prompts import Conditions
from .records import BlockRecord
from .report import RunReport, predict_target_only
from .router import RouterConfig
from .spans import plan_spans, spans_of_clip
from .speculate import DrafterContext, speculate
from .types import Block, Condition
from .video import Mp4Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """What one video is to be.

    `width`, `height`: in pixels; None takes those of the latents to go on from, or 832 x 480.
    `continue_from`: latents of a clip to go on from; `start_image`: a picture that is to be the first frame.
    """

    blocks: int = 9
    seed: int = 42
    width: int | None = None
    height: int | None = None
    fps: float = 16.0
    drafter_context: DrafterContext = "committed"
    router: RouterConfig = field(default_factory=RouterConfig)
    continue_from: Path | None = None
    start_image: Path | None = None

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise BadInput(
                f"expected at least 1 block, but got {self.blocks}; ask for 1 or more (the paper uses 9)"
            )
        if self.continue_from and self.start_image:
            raise BadInput("expected latents to go on from or a start image, but got both; give one of them")


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """The clip before the first new block: its latents `b c t h w`, which may be none."""

    given: Tensor | None
    width: int
    height: int


def begin(request: VideoRequest, loaded: Loaded) -> Beginning:
    """Find the size of the video, and what it goes on from. Raises `BadInput` if they do not fit the models."""
    stride, step = loaded.codec.spatial_stride, loaded.codec.spatial_stride * loaded.patch
    given = load_latents(request.continue_from).latents.float() if request.continue_from else None
    width = request.width or (given.shape[4] * stride if given is not None else 832)
    height = request.height or (given.shape[3] * stride if given is not None else 480)
    for name, size in (("width", width), ("height", height)):
        if size < step or size % step:
            lower, upper = max(size // step, 1) * step, (size // step + 1) * step
            raise BadInput(f"expected {name} as a multiple of {step}, but got {size}; use {lower} or {upper}")
    wanted = (loaded.codec.latent_channels, height // stride, width // stride)
    if given is not None and (given.shape[1], *given.shape[3:]) != wanted:
        raise BadInput(
            f"expected latents of {wanted[0]} channels, {wanted[1]} rows and {wanted[2]} columns to go on from, "
            f"but {request.continue_from and request.continue_from.name} has {given.shape[1]}, {given.shape[3]} "
            f"and {given.shape[4]}; give the size it was made in, or leave the size out"
        )
    if request.start_image:
        given = loaded.codec.encode(read_image(request.start_image, width, height))
    return Beginning(given, width, height)


def render(
    loaded: Loaded,
    request: VideoRequest,
    condition_of: Conditions,
    staging: Staging,
    on_block: Callable[[BlockRecord], None],
) -> RunReport:
    """Make one video and write video, latents, report and picture into `staging`; return the report."""
    beginning = begin(request, loaded)
    frames_of_block = loaded.engine.target.block_frames
    timeline, shown = _timeline(loaded, beginning, condition_of, frames_of_block)
    first = timeline.history.frames
    spans = plan_spans(request.blocks, frames_of_block, first)
    stride = loaded.codec.spatial_stride
    noise = KeyedNoise(
        seed=request.seed,
        channels=loaded.codec.latent_channels,
        height=beginning.height // stride,
        width=beginning.width // stride,
    )
    records: list[BlockRecord] = []
    with Mp4Writer(staging.path(VIDEO), request.fps) as video:
        if shown is not None:
            video.add(shown)
        for emitted in speculate(
            loaded.engine,
            request.router,
            spans,
            noise,
            condition_of,
            drafter_context=request.drafter_context,
            start=timeline,
            clock=device_clock(torch.device(loaded.settings["device"])),
        ):
            video.add(emitted.frames)
            records.append(emitted.record)
            timeline = emitted.timeline
            on_block(emitted.record)

    history = timeline.history
    target_only = predict_target_only(records) or (None, None)
    save_latents(
        staging.path(LATENTS),
        history.latents(0, history.frames),
        {"seed": request.seed, "block_frames": frames_of_block, "fps": request.fps},
    )
    report = RunReport(
        settings=_settings(loaded, request, beginning, first),
        versions=versions_on(loaded.settings["device"]),
        blocks=tuple(records),
        fps=request.fps,
        notes=(*loaded.notes, *_prompt_notes(loaded, condition_of)),
        target_only_seconds=target_only[0],
        target_only_source=target_only[1],
    )
    staging.path(REPORT).write_text(report.to_json(), encoding="utf-8")
    route_picture(report).save(staging.path(PICTURE), format="PNG")
    return report


def _timeline(
    loaded: Loaded, beginning: Beginning, condition_of: Callable[[int], Condition], block_frames: int
) -> tuple[Timeline, Tensor | None]:
    """Return the timeline to go on from and the pixel frames it shows already."""
    given = beginning.given
    if given is None:
        return timeline_from_latents((), loaded.codec, loaded.engine.horizon)
    blocks = tuple(
        Block(span, given[:, :, span.start : span.stop], condition_of(span.index))
        for span in spans_of_clip(given.shape[2], block_frames)
    )
    return timeline_from_latents(blocks, loaded.codec, loaded.engine.horizon)


def _settings(loaded: Loaded, request: VideoRequest, beginning: Beginning, first: int) -> dict[str, Any]:
    router = asdict(request.router)
    router["script"] = "".join("a" if keep else "r" for keep in request.router.script)
    return {
        **loaded.settings,
        "router": router,
        "seed": request.seed,
        "blocks": request.blocks,
        "width": beginning.width,
        "height": beginning.height,
        "drafter_context": request.drafter_context,
        "latent_frames_given": first,
        "continue_from": request.continue_from and request.continue_from.name,
        "start_image": request.start_image and request.start_image.name,
    }


def _prompt_notes(loaded: Loaded, conditions: Conditions) -> tuple[str, ...]:
    texts = dict.fromkeys(condition.gate_text for _, condition in conditions.entries)
    return tuple(note for text in texts for note in loaded.scorer.prompt_notes(text))
