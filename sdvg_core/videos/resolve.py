"""Resolve a request for one video against the headers of its models, before any weights are read.

Every check and default is applied here, once, so that command line, nodes and Python agree, and a mistake costs no
loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..causal_wan.config import common_patch
from ..decoders.open import FAST_NOTE
from ..engine.inputs import BlockInputs, ControlClip, KeyedNoise
from ..engine.plan import Lead, RunPlan, check_compatible, check_restyle, check_size, most_handover, plan_blocks
from ..engine.protocols import Engine
from ..engine.reuse import Reuse
from ..engine.run import Run
from ..engine.types import Condition
from ..engine.wrappers import check_sub_blocks
from ..errors import BadInput, count, see
from ..files.footage import RATE, Footage
from ..files.sound import Sound
from ..loading.headers import Headers, check_encoder
from ..memory.budget import BudgetedRun, route_for_budget
from ..settings.context import Recompute
from ..settings.request import (
    DEFAULT_HEIGHT,
    DEFAULT_WIDTH,
    FIRST_KEY,
    NO_MODEL,
    ROUTE_DECIDES,
    Shot,
    VideoRequest,
)
from ..settings.route import At, Budget, First, Route, lower_handover
from .control import ControlFootage, padding_note
from .start import NOTHING, ReadStart, Start, pixel_count

NO_HOLD = "The colour hold has no effect: it begins with a scene's third block, which the video does not have."
FADES_AFTER = 15
"""Blocks after which a video that only begins with target blocks is worth a note (docs/study.md)."""
EARLY = 5
"""The last block of the target's in a route that only begins with them."""
FADED = (
    "The large model's first blocks wear off: on the miniature nothing was seen of them in the last of 42 blocks, "
    "and over the clip no other place that was tried for as many was better. A shot that begins afresh starts with "
    "the large model anew."
)
WHOLE = Shot()
"""The shot of a film that is one run."""
ReadControl = Callable[[int, int], ControlFootage]
"""Function that reads a control for a width and a height in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResolvedRequest:
    """A request that its models can make, with size in pixels, blocks and start.

    `shot`: where it stands in its film. `control_footage`: a control in pixels, from files. `controls`: in latents,
    from nodes. `forgotten`: see `Run`. `sound`: of the mp4. `notes`: for the report, on models, budget and clips.
    """

    request: VideoRequest
    width: int
    height: int
    plan: RunPlan
    start: Start = NOTHING
    shot: Shot = WHOLE
    control_footage: ControlFootage | None = None
    controls: tuple[ControlClip, ...] = ()
    forgotten: int = 0
    sound: Sound | None = None
    notes: tuple[str, ...] = ()

    @property
    def block_count(self) -> int:
        """The number of blocks of the shot, locked ones too."""
        return self.start.locked_blocks + len(self.plan.blocks)

    def up_to(self, block: int) -> ResolvedRequest:
        """Return the request up to a block of the shot, from 1. It still needs the models of all blocks."""
        blocks = self.plan.blocks[: max(block - self.start.locked_blocks, 0)]
        return replace(self, plan=replace(self.plan, blocks=blocks))

    def prepare_run(
        self,
        engine: Engine,
        conditions: Callable[[int], Condition],
        reuse: Reuse | None,
        clock: Callable[[], Any],
    ) -> Run:
        """Return the run, for loaded models. `conditions`: by the film's block. `reuse`: results, or None."""
        codec = engine.codec
        controls = self.controls
        if self.control_footage:
            controls = (*controls, self.control_footage.clip(codec, self.plan.spans[-1].stop))
        start, restyle = self.start.clips(codec, self.plan)
        noise = KeyedNoise(
            seed=self.request.seed,
            channels=codec.latent_channels,
            height=self.height // codec.spatial_stride,
            width=self.width // codec.spatial_stride,
            shot="" if self.shot.key == FIRST_KEY else self.shot.key,
        )
        first = self.shot.start

        def condition_of(index: int) -> Condition:
            return conditions(first + index)

        return Run(
            engine=engine,
            plan=self.plan,
            inputs=BlockInputs(noise, condition_of, start, restyle, controls),
            drafter_context=self.request.drafter_context,
            reuse=reuse,
            forgotten=self.forgotten,
            colour_hold=self.request.colour_hold,
            clock=clock,
        )


def resolve_request(
    request: VideoRequest,
    headers: Headers,
    *,
    start: Start | ReadStart = NOTHING,
    shot: Shot = WHOLE,
    read_control: ReadControl | None = None,
    controls: Sequence[ControlClip] = (),
) -> ResolvedRequest:
    """Resolve a request for one run: size, start, blocks, route, models needed, notes.

    `shot`: of its film. `read_control`, `controls`: control of the blocks from the video's first frame on, in
    pixels or in latents. Raises `BadInput` for a video that the models cannot make.
    """
    if not headers.models:
        raise BadInput(NO_MODEL)
    vae = headers.vae
    width, height = size_of(request, headers, start)
    if not isinstance(start, Start):
        start = start(width, height)
    start.check(vae.latent_channels, width, height, vae.spatial_stride)
    plan, route_notes = plan_of(request, headers, start)
    needed = headers.restrict_to(plan.models_needed)
    # Where one model is not needed, both have the shape of the other.
    check_encoder(needed, *start.encoded(plan.lead), *(("the control",) if read_control else ()))
    drafter = needed.shape("drafter")
    target = needed.shape("target")
    _check_pair(needed)
    check_compatible(drafter, target, vae.latent_channels, plan.route, plan.blocks)
    if request.block_length and "drafter" in plan.models_needed:
        check_sub_blocks(drafter.block_frames, drafter.anchor_horizon, request.block_length)
    check_restyle(drafter, target, plan)
    if read_control or controls:
        for role, model in needed.models.items():
            if not model.control_blocks:
                cure = "load one for it, or leave the control out" + see("Models are not found")
                raise BadInput(f"the {role} has no control module; {cure}")
    padding = start.padding(plan, vae.temporal_stride)
    control: ControlFootage | None = None
    control_note = ""
    if read_control:
        control, control_note = fit_control(read_control(width, height), plan, vae.temporal_stride, padding)
    forgotten, memory_note = _forget(request, needed, start, plan)
    sound, sound_notes = _sound(start.footage, control.footage if control else None, request.fps)
    notes = (
        *plan.notes,
        *_model_notes(needed),
        *route_notes,
        *start.notes(plan, vae.temporal_stride),
        control_note,
        memory_note,
        *sound_notes,
        *_length_notes(request, plan),
    )
    return ResolvedRequest(
        request=request,
        width=width,
        height=height,
        plan=plan,
        start=start,
        shot=shot,
        control_footage=control,
        controls=_place_controls(controls, plan, vae.temporal_stride, padding),
        forgotten=forgotten,
        sound=sound,
        notes=tuple(filter(None, notes)),
    )


def plan_of(request: VideoRequest, headers: Headers, start: Start) -> tuple[RunPlan, tuple[str, ...]]:
    """Return the plan of the blocks, and notes on changes to the route."""
    block_frames = {role: model.block_frames for role, model in headers.models.items()}
    longest = request.block_length or max(block_frames.values())
    lead = start.lead(longest, headers.vae.temporal_stride)
    strengths = start.strengths(request.blocks)
    route, notes = _route(request, headers, lead)
    plan = plan_blocks(
        route,
        blocks=request.blocks,
        block_frames=block_frames,
        scorer=headers.scorer,
        lead=lead,
        directions=request.directions,
        takes=request.takes,
        strengths=strengths,
        block_length=request.block_length,
    )
    return plan, notes


def fit_control(control: ControlFootage, plan: RunPlan, stride: int, padding: int) -> tuple[ControlFootage, str]:
    """Fit a control to the length of the video; return it with a note. Raises `BadInput` if it is too short.

    `padding`: pixel frames that the models see before the video's first one.
    """
    frames = pixel_count(plan.spans[-1].stop, stride) - padding
    held = padding_note(control.footage.frames, frames, stride * plan.spans[-1].frames, "control")
    of_mask = f" Mask {control.mask.note}" if control.mask else ""
    control = replace(control, lead=padding, new=pixel_count(plan.spans[0].start, stride) - padding)
    return control, f"Control {control.footage.note}{held}{of_mask}"


def _place_controls(
    controls: Sequence[ControlClip], plan: RunPlan, stride: int, padding: int
) -> tuple[ControlClip, ...]:
    """Align controls in latents with the video's first frame. Raises `BadInput` for one shorter than the video."""
    placed = tuple(replace(clip, start=padding // stride) for clip in controls)
    video_frames = pixel_count(plan.spans[-1].stop, stride) - padding
    for clip in placed:
        latent_frames = clip.context.shape[2]
        if latent_frames + clip.start < plan.spans[-1].stop:
            fault = f"the control has {pixel_count(latent_frames, stride)} frames and the video {video_frames}"
            raise BadInput(f"{fault}; set length {video_frames} in WanVaceToVideo, or ask for fewer blocks")
    return placed


def _forget(request: VideoRequest, headers: Headers, start: Start, plan: RunPlan) -> tuple[int, str]:
    """Return the number of a clip's first latent frames that the models do not see, and a note on it."""
    frames = start.clip_frames(plan)
    wanted = request.context_blocks
    if not wanted or not frames:
        return 0, ""
    if frames == plan.lead.start_image_frames:
        return 0, "The clip is one frame, which the models remember."
    spans = [span for span in plan.clip if span.stop <= frames]
    blocks = count(len(spans), "block")
    if len(spans) <= wanted:
        return 0, f"The clip has {blocks}, of which the models remember all, not only {wanted}."
    first = spans[-wanted].start
    note = f"Of the clip's {blocks} the models remember the last {wanted}."
    contexts = [model.preset.context for model in headers.models.values()]
    short = [isinstance(context, Recompute) and not context.keep_first_frame for context in contexts]
    if all(short) and all(context.anchor_horizon <= frames - first for context in contexts):
        note += " That changes nothing: they see no more of it anyway."
    return first, note


def _length_notes(request: VideoRequest, plan: RunPlan) -> Iterator[str]:
    """Yield notes for a video too short for colour hold or for its policy, or too long for it."""
    if request.colour_hold and plan.spans[-1].index < 2:
        yield NO_HOLD
    policy = plan.route.policy
    begins = (isinstance(policy, First) and 0 < policy.n <= EARLY) or (
        isinstance(policy, At) and max(policy.blocks, default=1) <= EARLY
    )
    if begins and not request.directions.strip(ROUTE_DECIDES) and len(plan.blocks) > FADES_AFTER:
        yield FADED
    last = plan.blocks[-1].place + 1
    late = [block for block in policy.blocks if block > last] if isinstance(policy, At) else []
    if late and policy != At():  # the preset is for videos of every length
        yield f"The route ends with block {last}, so target at {', '.join(map(str, late))} has no effect."


def size_of(request: VideoRequest, headers: Headers, start: Start | ReadStart) -> tuple[int, int]:
    """Return width and height in pixels. Raises `BadInput` for a size that the models cannot make."""
    stride = headers.vae.spatial_stride
    usual = start.size(stride) if isinstance(start, Start) else None
    width, height = usual or (DEFAULT_WIDTH, DEFAULT_HEIGHT)
    width = width if request.width is None else request.width
    height = height if request.height is None else request.height
    check_size(width, height, stride * common_patch(model.config for model in headers.models.values()))
    return width, height


def _route(request: VideoRequest, headers: Headers, lead: Lead) -> tuple[Route, tuple[str, ...]]:
    """Return the request's route, or the one that its budget buys, and notes on changes."""
    notes: tuple[str, ...] = ()
    if isinstance(request.route, Budget):
        route, note = _route_for(request.route, request, headers, lead)
        directed = " What directions decide is not counted." if request.directions.strip(ROUTE_DECIDES) else ""
        notes = (note + directed,)
    else:
        route = request.route
    lowered = lower_handover(route, most_handover(headers.shape("drafter"), headers.shape("target")))
    if lowered != route:
        steps = f"{count(lowered.handover, 'step')} of a block handed over in place of {route.handover}"
        notes = (*notes, f"{steps}: the schedules and the drafts' steps allow no more.")
    return lowered, notes


def _route_for(budget: Budget, request: VideoRequest, headers: Headers, lead: Lead) -> tuple[Route, str]:
    """Return the route that a budget buys, and a note on it. Raises `BadInput` if a model is missing."""
    if len(headers.models) < 2:
        raise BadInput("a budget is for two models, and one is missing; give a drafter and a target")
    return route_for_budget(budget, budgeted_run(request.blocks, headers, lead))


def budgeted_run(blocks: int, headers: Headers, lead: Lead) -> BudgetedRun:
    """Return what a budget is spent on: `blocks` new ones after a `lead`, by two models."""
    presets = {role: headers.shape(role).preset for role in ("drafter", "target")}
    size = presets["target"].block_frames
    clip_frames = 0 if lead.picture else max(lead.frames - lead.start_image_frames, 0)
    clip_blocks = clip_frames // size
    in_route = clip_blocks - lead.from_pixels // size  # the route begins after those given as pixels
    return BudgetedRun(presets=presets, blocks=blocks, given_blocks=clip_blocks, route_blocks=in_route)


def _check_pair(headers: Headers) -> None:
    """Raise `BadInput` if two models cannot work on one video."""
    if len(headers.models) < 2:
        return
    drafter, target = (headers.models[role] for role in ("drafter", "target"))
    for name, words in {"in_dim": "latent channels", "text_dim": "text channels"}.items():
        ours = getattr(drafter.config, name)
        theirs = getattr(target.config, name)
        if ours != theirs:
            fault = f"the drafter has {ours} {words} and the target {theirs}"
            raise BadInput(f"{fault}; load two models that share one VAE and text encoder")
    if headers.one_model and drafter.preset.key == target.preset.key:
        raise BadInput("drafter and target are one model with one schedule; give the drafter fewer steps")


def _sound(footage: Footage | None, control: Footage | None, fps: float) -> tuple[Sound | None, list[str]]:
    """Choose the sound of the clip, else of the control; return it with a note on each sound left out."""
    chosen: Sound | None = None
    notes = []
    for sound in (clip.sound for clip in (footage, control) if clip and clip.sound):
        if chosen:
            problem = f"the video has that of {chosen.path.name}"
        elif fps != RATE:
            problem = f"the clip is taken as {RATE} frames a second, and the video has {fps:g}"
        else:
            chosen = sound
            notes += [sound.note] if sound.note else []
            continue
        notes.append(f"The sound of {sound.path.name} is left out: {problem}.")
    return chosen, notes


def _model_notes(headers: Headers) -> tuple[str, ...]:
    notes = dict.fromkeys(note for _, model in sorted(headers.models.items()) for note in model.notes)
    fast = (FAST_NOTE,) if headers.vae.tae_kind else ()
    return (*notes, *fast, *headers.swapped_note)
