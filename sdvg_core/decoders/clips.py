"""What every codec asks of the latents and the frames that it is given."""

from __future__ import annotations

from torch import Tensor

from ..errors import BadInput


def check_latents(latents: Tensor, channels: int) -> None:
    """Raise `BadInput` unless the latents are `b c t h w` with these channels and at least one latent frame."""
    if latents.ndim != 5 or latents.shape[1] != channels or latents.shape[2] < 1:
        raise BadInput(
            f"latents need the shape b c t h w, {channels} channels and at least one latent frame, "
            f"but got {tuple(latents.shape)}; use latents of the model this VAE belongs to"
        )


def check_frames(frames: Tensor, temporal_stride: int, spatial_stride: int) -> None:
    """Raise `BadInput` unless these are 1 + `temporal_stride` * k RGB frames `b f c h w` of a fitting size."""
    if frames.ndim != 5 or frames.shape[2] != 3 or frames.shape[1] % temporal_stride != 1:
        raise BadInput(
            f"clips need 1 + {temporal_stride} * k RGB pixel frames, b f c h w, but got "
            f"{tuple(frames.shape)}; cut the clip to such a length"
        )
    if frames.shape[3] % spatial_stride or frames.shape[4] % spatial_stride:
        raise BadInput(
            f"frames need height and width in multiples of {spatial_stride}, but got "
            f"{frames.shape[3]} x {frames.shape[4]}; crop or resize the frames"
        )
