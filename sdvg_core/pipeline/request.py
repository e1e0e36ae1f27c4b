"""A request for one video, and how models resolve it. Nothing here needs weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..causal_wan.config import common_patch
from ..decoders.vae_files import VaeHeader
from ..engine.control import ControlClip, check_control_strength
from ..engine.drift import check_hold
from ..engine.noise import check_seed
from ..engine.plan import (
    RunPlan,
    check_compatible,
    check_directions,
    check_given,
    check_restyle,
    check_size,
    most_handover,
    plan_blocks,
    read_takes,
)
from ..engine.protocols import Engine, VideoCodec
from ..engine.restyle import USUAL, Strength, read_strengths
from ..engine.reuse import Reuse
from ..engine.router import ROUTER_PRESETS, RouterConfig
from ..engine.run import Run, make_run
from ..engine.types import Condition, DrafterContext, check_blocks
from ..errors import BadInput
from ..files.footage import RATE, Footage, read_footage
from ..files.pictures import read_image
from ..files.sound import CODECS, Sound
from ..files.video import check_rate, check_video_size
from ..plan.budget import BudgetedRun, check_budget, route_for_budget
from ..plan.request import PUBLISHED_BASE, PlanRequest
from ..report.assemble import FAST_NOTE, JUDGE_NOTE
from ..report.summary import count
from ..settings import check_fields
from .control import ControlFootage, held
from .headers import Headers
from .latents import from_pixels_in, load_latents, still_in

WIDTH, HEIGHT, BLOCKS = 832, 480, 9
"""The paper's size and length."""
NO_MODEL = "there is no drafter and no target; give at least one"
TWO_STARTS = "the video has two starts; give a clip, an image or a clip to restyle"
MOST_EDGE = 256
NEEDS = {"control_mask": "control", "control_strength": "control", "control_edge": "control_mask"}
"""Fields that have no effect without another."""
LATENTS_SUFFIX = ".safetensors"
LEAST_GIVEN = 9
"""Pixel frames of a video to continue: a whole block. A shorter one begins with its first frame held."""
# A generous guess: CRF 18 takes about half of that for a moving photograph.
MP4_BYTES_PER_PIXEL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """What one video should be.

    `width`, `height`: in pixels; None takes those of the clip to continue, or 832 x 480. `budget`: a share of
    target-only's cost for the router to spend, or None. `directions`, `takes`: what the user decides block by
    block, as in `engine.plan`. `continue_from`: a clip to continue, as latents, a video or a folder of pictures;
    `start_image`: a picture to use as the first frame; `restyle`: a video or a folder of pictures that the blocks
    are made from, as strongly as `strength` says: `medium`, or `medium,7:0.6` for another one from block 7 on.
    `colour_hold`: from 0 (none) to 1; see `ColourHold`.
    `control`: such a clip that the blocks obey, as strongly as `control_strength` says; `control_mask`: white where
    they are made, black where the control's own pixels are kept, which fade out over `control_edge` pixels.
    """

    blocks: int = BLOCKS
    seed: int = 42
    width: int | None = None
    height: int | None = None
    fps: float = 16.0
    drafter_context: DrafterContext = "committed"
    router: RouterConfig = field(default_factory=RouterConfig)
    budget: float | None = None
    directions: str = ""
    takes: str = ""
    continue_from: Path | None = None
    start_image: Path | None = None
    restyle: Path | None = None
    strength: str = USUAL
    colour_hold: float = 0.0
    control: Path | None = None
    control_mask: Path | None = None
    control_strength: float = 1.0
    control_edge: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_blocks(self.blocks)
        check_seed(self.seed)
        check_rate(self.fps)
        if self.budget is not None:
            check_budget(self.budget)
            if self.router.part is not None:
                raise BadInput("a budget chooses the route, and so does a router of your own; give one of them")
        check_directions(self.directions, self.blocks)
        read_takes(self.takes, self.blocks)
        read_strengths(self.strength, self.blocks)
        check_hold(self.colour_hold)
        check_control_strength(self.control_strength)
        if not 0 <= self.control_edge <= MOST_EDGE:
            raise BadInput(f"the edge of a kept region is {self.control_edge}; give 0 to {MOST_EDGE} pixels")
        for name, size in (("width", self.width), ("height", self.height)):
            if size is not None and size < 1:
                raise BadInput(f"{name} {size} is too small; use 16 or more")
        for name, needed in NEEDS.items():
            usual = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != usual and not getattr(self, needed):
                words = name.replace("_", " "), needed.replace("_", " ")
                raise BadInput(f"{words[0]} has no effect without {words[1]}; add it, or leave {words[0]} out")
        if sum(map(bool, (self.continue_from, self.start_image, self.restyle))) > 1:
            raise BadInput(TWO_STARTS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResolvedRequest:
    """A video that its models can make: its request, its size in pixels, its blocks, and its start.

    `clip`: latents `b c t h w` of the clip to continue; `image`: the first frame, `1 1 c h w` in [0, 1]; `footage`:
    the clip to continue or restyle, as pixels. `control`: what the blocks obey, as pixels; `controls`: the same as
    latents. `sound`: what the mp4 has. `notes`: what a reader of the report must know of models and budget.
    """

    request: VideoRequest
    width: int
    height: int
    plan: RunPlan
    clip: Tensor | None = None
    image: Tensor | None = None
    footage: Footage | None = None
    control: ControlFootage | None = None
    controls: tuple[ControlClip, ...] = ()
    sound: Sound | None = None
    notes: tuple[str, ...] = ()

    def given(self, codec: VideoCodec) -> tuple[Tensor | None, Tensor | None]:
        """Return the latents before the first new block, `b c t h w`, and the clip's own pixels, `1 f c h w`.

        Either may be None. A picture fills a whole block, and so does a shorter clip, whose first frame is held.
        """
        if self.clip is not None and self.clip.shape[2] == self.plan.spans[0].start:
            return self.clip, None
        if self.image is not None:
            pixels = self.image
        elif self.clip is not None:
            pixels = codec.decode(self.clip)[0]
        elif self.footage and not self.plan.strengths:
            pixels = self.footage.fill(self.footage.frames)
        else:
            return None, None
        held = _frames(self.plan.spans[0].start, codec.temporal_stride) - pixels.shape[1]
        latents = codec.encode(torch.cat([pixels[:, :1].expand(-1, held, -1, -1, -1), pixels], dim=1))
        return latents, None if self.plan.still else pixels

    def run(
        self,
        engine: Engine,
        conditions: Callable[[int], Condition],
        reuse: Reuse | None,
        clock: Callable[[], float],
    ) -> Run:
        """Return its run. `reuse`: where blocks are taken from and put; None to do neither."""
        codec, end, source = engine.codec, self.plan.spans[-1].stop, None
        given, shown = self.given(codec)
        if self.footage and self.plan.strengths:
            source = codec.encode(self.footage.fill(_frames(end, codec.temporal_stride)))
        of_pixels = (self.control.clip(codec, end),) if self.control else ()
        return make_run(
            engine,
            self.plan,
            conditions,
            seed=self.request.seed,
            width=self.width,
            height=self.height,
            drafter_context=self.request.drafter_context,
            given=given,
            source=source,
            controls=(*self.controls, *of_pixels),
            shown=shown,
            reuse=reuse,
            colour_hold=self.request.colour_hold,
            clock=clock,
        )


def resolve_request(
    request: VideoRequest,
    headers: Headers,
    *,
    clip: Tensor | None = None,
    still: int = 0,
    from_pixels: int = 0,
    read_image: Callable[[int, int], tuple[Tensor, tuple[str, ...]]] | None = None,
    read_footage: Callable[[int, int], Footage] | None = None,
    restyle: bool = False,
    read_control: Callable[[int, int], ControlFootage] | None = None,
    controls: Sequence[ControlClip] = (),
) -> ResolvedRequest:
    """Return what a request comes to with these models: size, start, blocks, router, models needed, notes.

    `clip`: normalised latents `b c t h w` of the clip to continue; one frame counts as a picture. `still`: how
    many of its first frames show a start image; `from_pixels`: how many were given as pixels. `read_image`: makes
    the first frame, `1 1 c h w` in [0, 1], in a width and a height, with notes on it; `read_footage`: the video to
    continue or, with `restyle`, to make anew. `read_control`, `controls`: what the blocks obey, from the video's
    first frame on, as pixels or as latents.
    Raises `BadInput` for a video that the models cannot make.
    """
    if not headers.models:
        raise BadInput(NO_MODEL)
    vae, stride = headers.vae, headers.vae.spatial_stride
    usual = (WIDTH, HEIGHT) if clip is None else (clip.shape[4] * stride, clip.shape[3] * stride)
    width = usual[0] if request.width is None else request.width
    height = usual[1] if request.height is None else request.height
    check_size(width, height, stride * common_patch(model.config for model in headers.models.values()))
    if clip is not None:
        check_given(clip, vae.latent_channels, height // stride, width // stride)
    given_frames = there = 0 if clip is None else clip.shape[2]
    most = max(model.preset.block_frames for model in headers.models.values())
    of_clip: tuple[str, ...] = ()
    if 1 < there < most and not still:  # no model was trained to go on from fewer frames than it makes
        given_frames, of_clip = most, ("The clip's first frame is held: it is shorter than a block.",)
    footage, strengths = read_footage(width, height) if read_footage else None, tuple[Strength, ...]()
    if footage and restyle:
        strengths = read_strengths(request.strength, request.blocks)
    elif footage:
        given_frames = 1 + -(-(max(footage.frames, LEAST_GIVEN) - 1) // vae.temporal_stride)
        from_pixels = given_frames
    picture = read_image is not None or given_frames == 1
    if (picture or footage or read_control or there < given_frames) and not vae.encodes:
        found = "the VAE's file has no encoder for a start or a control"
        raise BadInput(f"{found}; give the Wan 2.1 VAE, and this as the judge")
    clip_frames = 0 if picture else max(given_frames - still, 0)
    router, bought = _within_budget(request, headers, clip_frames, from_pixels)
    half = most_handover(headers.shape("drafter").timesteps, headers.shape("target").timesteps)
    if router in ROUTER_PRESETS.values() and router.handover > half:  # one of them is the default, for every pair
        steps = f"{count(half, 'step')} of a block handed over in place of {router.handover}"
        router, bought = replace(router, handover=half), (*bought, f"{steps}: the schedules allow no more.")
    plan = plan_blocks(
        router,
        blocks=request.blocks,
        block_frames={role: model.preset.block_frames for role, model in headers.models.items()},
        scorer=headers.scorer,
        given_frames=given_frames,
        still=still,
        from_pixels=from_pixels,
        picture=picture,
        directions=request.directions,
        takes=request.takes,
        strengths=strengths,
    )
    every, headers = headers, headers.restrict_to(plan.models_needed)
    _check_pair(headers)
    if read_control or controls:
        _check_controlled(headers, every)
    shapes = headers.shape("drafter"), headers.shape("target")
    check_compatible(*shapes, vae.latent_channels, plan.router, plan.spans)
    check_restyle(*shapes, plan)
    before = _frames(plan.spans[0].start, vae.temporal_stride)
    # What the models see before the video's first frame: a still fills a block, and a clip whole latent frames.
    given = before - vae.temporal_stride * max(plan.still - 1, given_frames - there if there > 1 else 0, 0)
    given = footage.frames if footage and not strengths else given
    lead, frames = before - given, _frames(plan.spans[-1].stop, vae.temporal_stride) - (before - given)
    control, of_control = read_control(width, height) if read_control else None, tuple[str, ...]()
    if control:
        block = vae.temporal_stride * plan.spans[-1].frames
        control, told = control.fitted(frames, block, lead=lead, new=given)
        of_control = (told,)
    controls = tuple(replace(one, start=lead // vae.temporal_stride) for one in controls)
    _check_length(controls, plan, vae.temporal_stride, frames)
    image, of_image = read_image(width, height) if read_image else (None, ())
    sound, of_sound = _sound(footage, control.footage if control else None, request.fps)
    return ResolvedRequest(
        request=request,
        width=width,
        height=height,
        plan=plan,
        clip=clip,
        image=image,
        footage=footage,
        control=control,
        controls=controls,
        sound=sound,
        notes=(
            *plan.notes,
            *_of_models(headers),
            *bought,
            *of_clip,
            *of_image,
            *_of_footage(footage, plan, vae.temporal_stride),
            *of_control,
            *of_sound,
        ),
    )


def _frames(latent_frames: int, stride: int) -> int:
    """Return the pixel frames of a clip of `latent_frames`."""
    return 1 + stride * (latent_frames - 1) if latent_frames else 0


def _check_length(controls: Sequence[ControlClip], plan: RunPlan, stride: int, frames: int) -> None:
    """Raise `BadInput` if a control given as latents is shorter than the video of `frames` pixel frames."""
    for one in controls:
        there = one.context.shape[2]
        if there + one.start < plan.spans[-1].stop:
            found = f"the control has {_frames(there, stride)} frames and the video {frames}"
            raise BadInput(f"{found}; set length {frames} in WanVaceToVideo, or ask for fewer blocks")


ALONE = {"drafter": "always-target", "target": "always-draft with no forced blocks"}
"""The policies that need only the other model."""


def _check_controlled(headers: Headers, every: Headers) -> None:
    """Raise `BadInput` unless every model of the route has a control module. `every`: all available models."""
    for role, model in headers.models.items():
        if not model.control_blocks:
            way = f"choose {ALONE[role]}" if len(every.models) > 1 else "leave the control out"
            raise BadInput(f"the {role} has no control module; load one for it, or {way}")


def strength_of(usual: str, strengths: Sequence[tuple[int, str]], *, restyles: bool) -> str:
    """Return the `usual` strength and those that prompt lines state, as in `medium,7:0.6`."""
    if strengths and not restyles:
        start = strengths[0][0] + 1
        raise BadInput(f"the prompt has a strength from block {start} on, but no clip is restyled; add a clip")
    return ",".join((usual, *(f"{start + 1}:{strength}" for start, strength in strengths)))


def blocks_in(frames: int) -> int:
    """Return how many blocks of three latent frames come closest to a clip of `frames` pixel frames."""
    return max(1, round((frames + 3) / 12))


def _of_footage(footage: Footage | None, plan: RunPlan, stride: int) -> tuple[str, ...]:
    """Return what was done to a clip, and which of its frames are not used, or used again."""
    if footage is None:
        return ()
    if not plan.strengths:
        short = footage.frames < LEAST_GIVEN
        return (f"{footage.note} Its first frame is held: it is shorter than a block." if short else footage.note,)
    wanted, block = _frames(plan.spans[-1].stop, stride), stride * plan.spans[-1].frames
    return (footage.note + held(footage.frames, wanted, block, "clip to restyle"),)


def _sound(footage: Footage | None, control: Footage | None, fps: float) -> tuple[Sound | None, list[str]]:
    """Return the sound of the video, of its clip before its control, and a note for each sound that is left out."""
    chosen: Sound | None = None
    notes = []
    for sound in (clip.sound for clip in (footage, control) if clip and clip.sound):
        if chosen:
            problem = f"the video has that of {chosen.path.name}"
        elif fps != RATE:
            problem = f"the clip is taken as {RATE} frames a second, and the video has {fps:g}"
        elif sound.codec not in CODECS:
            problem = f"an mp4 does not hold {sound.codec}"
        else:
            chosen = sound
            continue
        notes.append(f"The sound of {sound.path.name} is left out: {problem}.")
    return chosen, notes


def _check_pair(headers: Headers) -> None:
    """Raise `BadInput` if two models cannot work on one video."""
    if len(headers.models) < 2:
        return
    drafter, target = (headers.models[role] for role in ("drafter", "target"))
    for name, words in {"in_dim": "latent channels", "text_dim": "text channels"}.items():
        ours, theirs = getattr(drafter.config, name), getattr(target.config, name)
        if ours != theirs:
            found = f"the drafter has {ours} {words} and the target {theirs}"
            raise BadInput(f"{found}; load two models that share one VAE and text encoder")
    if headers.one_model and drafter.preset.identity == target.preset.identity:
        raise BadInput("drafter and target are one model with one schedule; give the drafter fewer steps")


def _of_models(headers: Headers) -> tuple[str, ...]:
    of_files = dict.fromkeys(note for _, model in sorted(headers.models.items()) for note in model.notes)
    fast, judge = (FAST_NOTE,) if headers.vae.is_tae else (), (JUDGE_NOTE,) if headers.judge else ()
    return (*of_files, *fast, *judge, *headers.swapped_note)


def _within_budget(
    request: VideoRequest, headers: Headers, given_frames: int, from_pixels: int
) -> tuple[RouterConfig, tuple[str, ...]]:
    """Return the request's router, or what its budget buys, and a sentence that says so."""
    if request.budget is None:
        return request.router, ()
    if len(headers.models) < 2:
        raise BadInput("a budget is for two models, and one is missing; give a drafter and a target")
    block_frames = headers.shape("target").preset.block_frames
    run = budgeted_run(headers, request.blocks, given_frames // block_frames)
    routed = replace(request.router, route_start=from_pixels // block_frames)
    router, note = route_for_budget(request.budget, routed, run)
    return router, (note,)


def budgeted_run(headers: Headers, blocks: int, given_blocks: int) -> BudgetedRun:
    """Return the run that a budget is for. `given_blocks`: of the clip that it continues."""
    presets = {role: headers.shape(role).preset for role in ("drafter", "target")}
    return BudgetedRun(presets=presets, blocks=blocks, given_blocks=given_blocks)


def memory_request(headers: Headers, width: int, height: int, blocks: int) -> PlanRequest:
    """Return the run whose memory is planned; a missing model counts as the other one."""
    drafter, target = headers.shape("drafter"), headers.shape("target")
    return PlanRequest(
        width=width,
        height=height,
        blocks=blocks,
        drafter=drafter.config,
        target=target.config,
        drafter_preset=drafter.preset,
        target_preset=target.preset,
        vae=headers.vae.planned_as,
        judge=headers.judge.planned_as if headers.judge else None,
        vae_base=headers.vae.decoder_base or PUBLISHED_BASE,
        control={role: model.control_blocks for role, model in headers.models.items() if model.control_blocks},
    )


def resolve_files(request: VideoRequest, headers: Headers) -> ResolvedRequest:
    """Resolve a request whose start is in files."""
    if request.strength != USUAL and not request.restyle:
        raise BadInput("the strength has no effect without a clip to restyle; add one, or leave the strength out")
    given, video = request.continue_from, request.restyle
    if given and given.suffix.lower() != LATENTS_SUFFIX:
        given, video = None, given
    saved = load_latents(given) if given else None
    clip = saved.latents.float() if saved else None
    image = partial(read_image, request.start_image) if request.start_image else None
    footage = partial(read_footage, video) if video else None
    of_control = (request.control_mask, request.control_strength, request.control_edge)
    control = partial(ControlFootage.read, request.control, *of_control) if request.control else None
    resolved = resolve_request(
        request,
        headers,
        clip=clip,
        still=still_in(saved.metadata) if saved else 0,
        from_pixels=from_pixels_in(saved.metadata, saved.latents) if saved else 0,
        read_image=image,
        read_footage=footage,
        restyle=bool(request.restyle),
        read_control=control,
    )
    check_video_size(resolved.width, resolved.height)
    return resolved


def predict_bytes(resolved: ResolvedRequest, vae: VaeHeader) -> int:
    """Return roughly how many bytes of disk a video takes while it is made: latents, drafts, and the mp4."""
    width, height, spans = resolved.width, resolved.height, resolved.plan.spans
    frames = spans[-1].stop
    latents = 4 * vae.latent_channels * frames * (height // vae.spatial_stride) * (width // vae.spatial_stride)
    mp4 = int(frames * vae.temporal_stride * width * height * MP4_BYTES_PER_PIXEL)
    # The latents as one file; for each block the target's, the draft, and the estimates that are handed over.
    return (3 + resolved.plan.router.handover) * latents + mp4
