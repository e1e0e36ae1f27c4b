"""Whether models, VAE, router, blocks and sizes fit together. Shapes are enough to tell, so no weights are read."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..errors import BadInput
from .protocols import Engine, ModelShape
from .roles import Absent, Roles, check_roles
from .router import RouterConfig, foresee
from .several import check_pieces, first_timesteps
from .types import Span


def check_parts(engine: Engine, router: RouterConfig, spans: tuple[Span, ...]) -> None:
    """Raise `BadInput` unless the parts of a run fit together and include all that the router may ask for."""
    check_roles(router, spans, parts_there(engine))
    drafter, target = engine.drafter.block_frames, engine.target.block_frames
    if drafter != target:
        raise BadInput(
            f"drafter and target must make blocks of the same size, but theirs are {drafter} and {target} latent "
            "frames; wrap a drafter with smaller blocks in SeveralBlocks"
        )
    check_fit(engine.drafter, engine.target, engine.codec.latent_channels, router, spans)


def parts_there(engine: Engine) -> Roles:
    """Return which parts an engine has."""
    return Roles(
        drafter=not isinstance(engine.drafter, Absent),
        target=not isinstance(engine.target, Absent),
        scorer=engine.scorer is not None,
    )


def check_fit(
    drafter: ModelShape, target: ModelShape, latent_channels: int, router: RouterConfig, spans: tuple[Span, ...]
) -> None:
    """Raise `BadInput` unless two models, a VAE's `latent_channels`, the router and the blocks fit together.

    Nothing needs to be loaded for it.
    """
    for model in (drafter, target):
        if model.latent_channels != latent_channels:
            raise BadInput(
                f"drafter, target and VAE must share their latent channels, but the VAE has {latent_channels} and "
                f"the {model.name} has {model.latent_channels}; load models and VAE of one family"
            )
    check_pieces(drafter.block_frames, drafter.anchor_horizon, target.block_frames)
    handed_over = [span.index for span in spans if _may_be_handed_over(router, span.index)]
    if 0 in handed_over:
        _check_handover(first_timesteps(drafter, target.block_frames), target.first_timesteps, router.handover)
    if any(handed_over):
        _check_handover(drafter.timesteps, target.timesteps, router.handover)
    router.check_blocks(spans[-1].index)


def _may_be_handed_over(router: RouterConfig, index: int) -> bool:
    certain = foresee(router, index, ())
    return router.handover_at(index) > 0 and not (certain and certain.accepted)


def _check_handover(drafter: tuple[float, ...], target: tuple[float, ...], step: int) -> None:
    if drafter != target:
        raise BadInput(
            "a handover needs one schedule for both models, but drafter and target denoise at "
            f"{drafter or 'several lists'} and {target}; give both the same schedule, or set handover to 0"
        )
    if step >= len(target):
        raise BadInput(
            f"handover must be below the {len(target)} denoising steps, but is {step}; leave the "
            "target at least one step"
        )


def check_size(width: int, height: int, step: int) -> None:
    """Raise `BadInput` unless both are multiples of `step` pixels: the latent stride times the model's patch."""
    for name, size in (("width", width), ("height", height)):
        if size < step or size % step:
            near = sorted({max(size // step, 1) * step, (max(size, 0) // step + 1) * step})
            raise BadInput(f"{name} must be a multiple of {step}, but is {size}; use {' or '.join(map(str, near))}")


def check_given_shape(shape: Sequence[int], channels: int, rows: int, columns: int) -> None:
    """Raise `BadInput` unless latents of this shape are one clip with these channels, rows and columns."""
    wanted = (channels, rows, columns)
    if len(shape) != 5 or shape[0] != 1 or shape[2] < 1 or (shape[1], *shape[3:]) != wanted:
        raise BadInput(
            f"a clip to continue must be one video's latents, 1 x {channels} x frames x {rows} x {columns}, "
            f"but these are {' x '.join(map(str, shape))}; use the size the clip was made in"
        )


def check_given(latents: Tensor, channels: int, rows: int, columns: int) -> None:
    """Raise `BadInput` unless `latents` are one clip of this size with finite numbers."""
    check_given_shape(latents.shape, channels, rows, columns)
    if not bool(latents.isfinite().all()):
        raise BadInput(
            "a clip to continue must be finite, but some of its latents are NaN or infinity; make it again"
        )
