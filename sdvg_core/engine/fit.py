"""Whether models, VAE, router and blocks fit together. Shapes are enough to tell, so no weights are read."""

from __future__ import annotations

from ..errors import BadInput
from .parts import Engine, ModelShape
from .roles import Absent, Roles, check_roles
from .router import RouterConfig, foresee
from .types import Span


def check_parts(engine: Engine, router: RouterConfig, spans: tuple[Span, ...]) -> None:
    """Raise `BadInput` unless the parts of a run fit together and include all that the router may ask for."""
    check_roles(router, spans, parts_there(engine))
    check_fit(engine.drafter, engine.target, engine.codec.latent_channels, router, spans)


def parts_there(engine: Engine) -> Roles:
    """Return which parts an engine has."""
    return Roles(
        drafter=not isinstance(engine.drafter, Absent),
        target=not isinstance(engine.target, Absent),
        scorer=engine.scorer is not None,
    )


def check_route(
    drafter: ModelShape,
    target: ModelShape,
    latent_channels: int,
    router: RouterConfig,
    spans: tuple[Span, ...],
    *,
    ahead_from_pixels: bool = False,
    drafter_context: str = "committed",
) -> None:
    """Raise `BadInput` for a run that these models cannot make, before anything of it is loaded.

    `ahead_from_pixels`: with overlap, a drafter whose context needs pixels.
    """
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
    if any(_may_be_handed_over(router, span.index) for span in spans):
        _check_handover(drafter, target, router.handover)
    router.check_blocks(spans[-1].index)


def check_overlap(drafter_context: str, *, needs_pixels: bool) -> None:
    """Raise `BadInput` if overlap cannot work with the drafter. `needs_pixels`: whether its context needs them."""
    if drafter_context == "own" and needs_pixels:
        raise BadInput(
            "overlap needs a drafter that continues from latents alone, but this one's context policy asks for "
            "pixels of its own drafts; turn overlap off, choose the drafter context committed, or use the "
            "incremental policy"
        )


def _may_be_handed_over(router: RouterConfig, index: int) -> bool:
    certain = foresee(router, index, ())
    return router.handover_at(index) > 0 and not (certain and certain.accepted)


def _check_handover(drafter: ModelShape, target: ModelShape, step: int) -> None:
    if drafter.timesteps != target.timesteps:
        raise BadInput(
            "a handover needs one schedule for both models, but drafter and target denoise at "
            f"{drafter.timesteps} and {target.timesteps}; give both the same schedule, or set handover to 0"
        )
    if step >= len(target.timesteps):
        raise BadInput(
            f"handover must be below the {len(target.timesteps)} denoising steps, but is {step}; leave the "
            "target at least one step"
        )
