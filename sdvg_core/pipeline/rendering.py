"""One video: from what was asked for to the files that show it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..decoders.wan_vae import open_wan_vae
from ..devices.environment import versions_on
from ..engine.drafts import check_finite
from ..engine.history import History
from ..engine.noise import KeyedNoise
from ..engine.overlap import speculate_overlapped
from ..engine.records import BlockRecord
from ..engine.router import RouterConfig
from ..engine.spans import plan_spans, spans_of_clip
from ..engine.speculate import DrafterContext, Emitted, speculate
from ..engine.timeline import Timeline, replay
from ..engine.types import Block, Span
from ..errors import BadInput
from ..files.images import read_image
from ..files.outputs import LATENTS, PICTURE, REPORT, VIDEO, Staging
from ..files.video import Mp4Writer
from ..report.picture import route_picture
from ..report.run_report import RunReport, predict_target_only
from ..text.prompts import Conditions
from .journal import Journal
from .latents import load_latents, save_latents
from .loading import Loaded, device_clock

# A generous guess: CRF 18 takes about half of it for a photograph in motion.
MP4_BYTES_PER_PIXEL = 0.1


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
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise BadInput(f"expected fps above 0, but got {self.fps}; give pixel frames per second, such as 16")
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


def predict_bytes(request: VideoRequest, vae: Path, block_frames: int) -> int:
    """Return about how many bytes of disk a video takes while it is made: its latents twice, and the mp4.

    Raises `BadInput` if `vae` is no VAE's file.
    """
    _, sizes, _ = open_wan_vae(vae)
    stride = sizes.spatial_stride
    shape = load_latents(request.continue_from).latents.shape if request.continue_from else (1, 1, 1, 0, 0)
    width, height = request.width or shape[4] * stride or 832, request.height or shape[3] * stride or 480
    frames = shape[2] + request.blocks * block_frames
    latents = 4 * sizes.latent_channels * frames * (height // stride) * (width // stride)
    pixels = frames * sizes.temporal_stride * width * height
    return 2 * latents + int(pixels * MP4_BYTES_PER_PIXEL)


def render(
    loaded: Loaded,
    request: VideoRequest,
    condition_of: Conditions,
    staging: Staging,
    journal: Journal,
    on_block: Callable[[BlockRecord], None],
    *,
    prompt_in_report: bool = False,
) -> RunReport:
    """Make one video and write video, latents, report and picture into `staging`; return the report.

    Every block goes into `journal` as soon as it is committed; those that are in there already are not made again.
    `prompt_in_report`: also in the picture; else a hash stands for every prompt.
    """
    beginning = begin(request, loaded)
    block_frames = loaded.engine.target.block_frames
    given = _given_blocks(beginning, condition_of, block_frames)
    first = given[-1].span.stop if given else 0
    spans = plan_spans(request.blocks, block_frames, first)
    before = _blocks_before(journal, spans, condition_of)
    records = [entry.record for entry in journal.before]
    with Mp4Writer(staging.path(VIDEO), request.fps) as video:
        timeline = Timeline(History(horizon=loaded.engine.horizon))
        for timeline, frames in replay((*given, *before), loaded.codec, loaded.engine.horizon):
            check_finite(frames, timeline.history.blocks[-1].span, "decoded frames")
            video.add(frames)
        for emitted in _loop(loaded)(
            loaded.engine,
            request.router,
            spans,
            _noise(loaded, request, beginning),
            condition_of,
            drafter_context=request.drafter_context,
            start=timeline,
            past=tuple(record.decision for record in records),
            clock=device_clock(*(torch.device(loaded.settings[name]) for name in ("device", "side_device"))),
        ):
            journal.add(emitted.block.latents, emitted.record)
            video.add(emitted.frames)
            records.append(emitted.record)
            timeline = emitted.timeline
            on_block(emitted.record)

    latents = timeline.history.latents(0, timeline.history.frames)
    noted = {"seed": request.seed, "block_frames": block_frames, "fps": request.fps, "request": journal.digest}
    save_latents(staging.path(LATENTS), latents, noted)
    notes = (*_prompt_notes(loaded, condition_of), *_resume_notes(len(before)))
    report = _report(loaded, request, _settings(loaded, request, beginning, first), notes, records)
    if not prompt_in_report:
        report = report.without_prompts()
    staging.path(REPORT).write_text(report.to_json(), encoding="utf-8")
    route_picture(report).save(staging.path(PICTURE), format="PNG")
    return report


def _loop(loaded: Loaded) -> Callable[..., Iterator[Emitted]]:
    if not loaded.overlap:
        return speculate
    return partial(speculate_overlapped, device=torch.device(loaded.settings["device"]))


def _given_blocks(beginning: Beginning, condition_of: Conditions, block_frames: int) -> tuple[Block, ...]:
    """Return the blocks of the clip to go on from."""
    given = beginning.given
    if given is None:
        return ()
    spans = spans_of_clip(given.shape[2], block_frames)
    return tuple(Block(span, given[:, :, span.start : span.stop], condition_of(span.index)) for span in spans)


def _blocks_before(journal: Journal, spans: tuple[Span, ...], condition_of: Conditions) -> tuple[Block, ...]:
    """Return the blocks that a run which was stopped had made. Raises `BadInput` if they are not the first ones."""
    for number, entry in enumerate(journal.before):
        if number >= len(spans) or entry.record.span != spans[number]:
            raise BadInput(
                f"expected the unfinished video to have the request's blocks, but its block {number + 1} is not; "
                "leave --resume out to begin anew"
            )
    return tuple(
        Block(span, entry.latents, condition_of(span.index))
        for span, entry in zip(spans, journal.before, strict=False)
    )


def _noise(loaded: Loaded, request: VideoRequest, beginning: Beginning) -> KeyedNoise:
    stride = loaded.codec.spatial_stride
    return KeyedNoise(
        seed=request.seed,
        channels=loaded.codec.latent_channels,
        height=beginning.height // stride,
        width=beginning.width // stride,
    )


def _resume_notes(blocks: int) -> tuple[str, ...]:
    if not blocks:
        return ()
    return (f"Blocks 1 to {blocks} of this run were made before it was interrupted; it went on from there.",)


def _report(
    loaded: Loaded,
    request: VideoRequest,
    settings: dict[str, Any],
    notes: tuple[str, ...],
    records: list[BlockRecord],
) -> RunReport:
    # Beside a draft on the same device, decoding takes longer than it would for the target alone.
    shared = loaded.overlap and settings["device"] == settings["side_device"]
    target_only = (None if shared else predict_target_only(records)) or (None, None)
    return RunReport(
        settings=settings,
        versions=versions_on(loaded.settings["device"]),
        blocks=tuple(records),
        fps=request.fps,
        notes=(*loaded.notes, *notes),
        target_only_seconds=target_only[0],
        target_only_source=target_only[1],
    )


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
