"""Whether models, VAE, router and blocks fit together. Shapes are enough to tell, so no weights are read."""

from __future__ import annotations

from ..errors import BadInput
from .parts import Engine, ModelShape
from .router import RouterConfig
from .spans import plan_spans, spans_of_clip
from .types import Span


def check_parts(engine: Engine, router: RouterConfig, spans: tuple[Span, ...]) -> None:
    """Raise `BadInput` unless the parts of a run fit together and include all that the router needs."""
    check_fit(engine.drafter, engine.target, engine.codec.latent_channels, router, spans)
    check_scorer(router, there_is_one=engine.scorer is not None)


def check_scorer(router: RouterConfig, *, there_is_one: bool) -> None:
    """Raise `BadInput` if the router needs scores and there is no scorer."""
    if router.needs_scorer and not there_is_one:
        raise BadInput(
            f"the policy {router.policy} needs scores, but there is no scorer; load a reward model, or choose a "
            "policy that needs none, such as anchor-only"
        )


def check_route(
    drafter: ModelShape,
    target: ModelShape,
    latent_channels: int,
    router: RouterConfig,
    *,
    blocks: int,
    frames_given: int,
    ahead_from_pixels: bool = False,
    drafter_context: str = "committed",
) -> None:
    """Raise `BadInput` for a run that these models cannot make, before anything of it is loaded.

    `frames_given`: latent frames of the clip to continue, 1 for a start image. `ahead_from_pixels`: with overlap, a
    drafter whose context needs pixels.
    """
    clip = spans_of_clip(frames_given, target.block_frames)
    spans = plan_spans(blocks, target.block_frames, clip[-1].stop if clip else 0)
    check_fit(drafter, target, latent_channels, router, spans)
    check_overlap(drafter_context, needs_pixels=ahead_from_pixels)


def check_fit(
    drafter: ModelShape, target: ModelShape, latent_channels: int, router: RouterConfig, spans: tuple[Span, ...]
) -> None:
    """Raise `BadInput` unless two models, a VAE's `latent_channels`, the router and the blocks fit together."""
    for model in (drafter, target):
        if model.latent_channels != latent_channels:
            raise BadInput(
                f"drafter, target and VAE must share their latent channels, but the VAE has {latent_channels} and "
                f"the {model.name} has {model.latent_channels}; load models and VAE of one family"
            )
    if drafter.block_frames != target.block_frames:
        raise BadInput(
            f"drafter and target must make blocks of the same size, but theirs are {drafter.block_frames} and "
            f"{target.block_frames} latent frames; choose presets with one block size"
        )
    _check_repair(drafter, target, router.repair_step)
    router.check_blocks(spans[-1].index)


def check_overlap(drafter_context: str, *, needs_pixels: bool) -> None:
    """Raise `BadInput` if overlap cannot work with the drafter. `needs_pixels`: whether its context needs them."""
    if drafter_context == "own" and needs_pixels:
        raise BadInput(
            "overlap needs a drafter that continues from latents alone, but this one's context policy asks for "
            "pixels of its own drafts; turn overlap off, choose the drafter context committed, or use the "
            "incremental policy"
        )


def _check_repair(drafter: ModelShape, target: ModelShape, step: int) -> None:
    if not step:
        return
    if drafter.timesteps != target.timesteps:
        raise BadInput(
            f"repair needs one schedule for both models, but drafter and target denoise at {drafter.timesteps} and "
            f"{target.timesteps}; give both the same schedule, or set repair_step to 0"
        )
    if step >= len(target.timesteps):
        raise BadInput(
            f"repair_step must be below the {len(target.timesteps)} denoising steps, but is {step}; leave the "
            "target at least one step"
        )
