"""What one video should be, and every check of it that needs no weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from ..engine.directions import check_directions, read_takes
from ..engine.fit import check_given, check_route, check_size
from ..engine.noise import check_seed
from ..engine.roles import Roles
from ..engine.route import Route, plan_route
from ..engine.router import ROUTER_PRESETS, RouterConfig
from ..engine.types import DrafterContext, blocks_before, check_blocks
from ..errors import BadInput
from ..files.images import read_image
from ..files.video import check_rate, check_video_size
from ..plan.budget import check_budget, spend
from ..plan.decoders import PUBLISHED_BASE
from ..plan.request import PlanRequest
from ..report.summary import count
from .checking import Checked
from .latents import load_latents

WIDTH, HEIGHT = 832, 480
"""The paper's size."""
# A generous guess: CRF 18 takes about half of that for a moving photograph.
MP4_BYTES_PER_PIXEL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """What one video should be.

    `width`, `height`: in pixels; None takes those of the clip to continue, or 832 x 480. `budget`: a share of
    target-only's cost for the router to spend, or None. `directions`, `takes`: what the user decides block by
    block, as in `engine.directions`. `continue_from`: the latents of a clip to continue; `start_image`: a picture
    to use as the first frame.
    """

    blocks: int = 9
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

    def __post_init__(self) -> None:
        check_blocks(self.blocks)
        check_seed(self.seed)
        check_rate(self.fps)
        if self.budget is not None:
            check_budget(self.budget)
        check_directions(self.directions, self.blocks)
        read_takes(self.takes, self.blocks)
        if self.continue_from and self.start_image:
            raise BadInput("a video starts from a clip or from an image, but got both; give one of them")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Beginning:
    """The start of a video that its models can make: its size in pixels, and what the first new block follows.

    `clip`: latents `b c t h w` of the clip to continue; `image`: the first frame, `1 1 c h w` in [0, 1]. `asked`:
    the parts its blocks may ask for. `router`: the request's, or what its budget buys; `notes`: what a reader of
    the report must know of that.
    """

    width: int
    height: int
    router: RouterConfig
    clip: Tensor | None = None
    image: Tensor | None = None
    asked: Roles = field(default_factory=lambda: Roles(drafter=True, target=True, scorer=True))
    notes: tuple[str, ...] = ()


def begin(request: VideoRequest, checked: Checked, *, scorer: bool = True) -> Beginning:
    """Check a request against the models' headers. `scorer`: whether there is a reward model.

    Raises `BadInput` for a video they cannot make.
    """
    vae, patch = checked.vae, checked.there[0].found.config.patch_size[1]
    stride = vae.spatial_stride
    clip = load_latents(request.continue_from).latents.float() if request.continue_from else None
    usual = (WIDTH, HEIGHT) if clip is None else (clip.shape[4] * stride, clip.shape[3] * stride)
    width = usual[0] if request.width is None else request.width
    height = usual[1] if request.height is None else request.height
    check_size(width, height, stride * patch)
    check_video_size(width, height)
    if clip is not None:
        check_given(clip, vae.latent_channels, height // stride, width // stride)
    if request.start_image and not vae.encodes:
        raise BadInput(
            "a start image is encoded, but the VAE's file holds a decoder alone; give the Wan 2.1 VAE with --vae, "
            "and the decoder with --judge-vae"
        )
    image = read_image(request.start_image, width, height) if request.start_image else None
    given = clip.shape[2] if clip is not None else int(image is not None)
    router, notes = _within_budget(request, checked, width, height, given)
    of_drafter, of_target = (shape.timesteps for shape in checked.shapes)
    half = len(of_target) // 2 if of_drafter == of_target else 0
    if router in ROUTER_PRESETS.values() and router.handover > half:  # one of them is the default, for every pair
        steps = f"{count(half, 'step')} of a block handed over in place of {router.handover}"
        router, notes = replace(router, handover=half), (*notes, f"{steps}: the schedules allow no more.")
    request = replace(request, router=router)
    # Without the models it does not ask for, the route may have blocks of another size.
    needed = checked.only(_route(request, checked, given, scorer).asked)
    route = _route(request, needed, given, scorer)
    drafter, target = needed.identities
    if needed.is_one_file and drafter == target:
        raise BadInput(
            "drafter and target are one file with one schedule, so a remade block would be the draft again; give "
            "--drafter-settings schedule=... fewer steps than --target-settings, or name two files"
        )
    check_route(
        *needed.shapes,
        vae.latent_channels,
        route.router,
        route.spans,
        ahead_from_pixels=checked.overlap
        and needed.drafter is not None
        and needed.drafter.preset.policy == "recompute",
        drafter_context=request.drafter_context,
    )
    return Beginning(
        width=width, height=height, router=router, clip=clip, image=image, asked=route.asked, notes=notes
    )


def _within_budget(
    request: VideoRequest, checked: Checked, width: int, height: int, given_frames: int
) -> tuple[RouterConfig, tuple[str, ...]]:
    """Return the request's router, or what its budget buys, and a sentence that says so."""
    if request.budget is None:
        return request.router, ()
    drafter, target = checked.drafter, checked.target
    if drafter is None or target is None:
        raise BadInput("a budget is spent on two models, but one of them is missing; give a drafter and a target")
    bought = spend(
        request.budget,
        request.router,
        PlanRequest(
            width=width,
            height=height,
            blocks=request.blocks,
            drafter=drafter.found.config,
            target=target.found.config,
            drafter_preset=drafter.preset,
            target_preset=target.preset,
            vae=checked.vae.planned_as,
            judge=checked.judge.planned_as if checked.judge else None,
            vae_base=checked.vae.decoder_base or PUBLISHED_BASE,
            given_blocks=blocks_before(given_frames, target.preset.block_frames),
        ),
    )
    return bought.router, (bought.note,)


def _route(request: VideoRequest, checked: Checked, given_frames: int, scorer: bool) -> Route:
    return plan_route(
        request.router,
        blocks=request.blocks,
        block_frames=checked.there[0].preset.block_frames,
        there=Roles(drafter=checked.drafter is not None, target=checked.target is not None, scorer=scorer),
        given_frames=given_frames,
        directions=request.directions,
        takes=request.takes,
    )


def predict_bytes(request: VideoRequest, beginning: Beginning, checked: Checked) -> int:
    """Return roughly how many bytes of disk a video takes while it is made: latents, drafts, and the mp4."""
    vae, width, height = checked.vae, beginning.width, beginning.height
    given = beginning.clip.shape[2] if beginning.clip is not None else int(beginning.image is not None)
    frames = given + request.blocks * checked.there[0].preset.block_frames
    latents = 4 * vae.latent_channels * frames * (height // vae.spatial_stride) * (width // vae.spatial_stride)
    # The latents as one file, and both models' blocks in the journal and again in blocks.safetensors.
    return 5 * latents + int(frames * vae.temporal_stride * width * height * MP4_BYTES_PER_PIXEL)
