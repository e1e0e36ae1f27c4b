"""Every tensor of a Wan 2.1 VAE, by its name in the original release, with its shape; for any base width."""

from __future__ import annotations

LATENT_CHANNELS = 16
# Widths of the four resolutions, in base widths, from full size down, and how often each resolution is worked on.
LEVELS = (1, 2, 4, 4)
ENCODER_BLOCKS, DECODER_BLOCKS = 2, 3

Shapes = dict[str, tuple[int, ...]]


def wan_vae_shapes(base: int) -> Shapes:
    """Return names and shapes; the published VAE has a base width of 96."""
    z = LATENT_CHANNELS
    return {
        **_encoder(base),
        **_conv("conv1", 2 * z, 2 * z, 1, 1, 1),
        **_conv("conv2", z, z, 1, 1, 1),
        **_decoder(base),
    }


def _encoder(base: int) -> Shapes:
    widths = [base * level for level in LEVELS]
    shapes, unit, width = _conv("encoder.conv1", base, 3, 3, 3, 3), 0, base
    for level, out in enumerate(widths):
        for _ in range(ENCODER_BLOCKS):
            shapes |= _residual(f"encoder.downsamples.{unit}", width, out)
            unit, width = unit + 1, out
        if level < len(widths) - 1:
            name = f"encoder.downsamples.{unit}"
            shapes |= _conv(f"{name}.resample.1", out, out, 3, 3)
            if level > 0:  # time is halved at the two lower resolutions
                shapes |= _conv(f"{name}.time_conv", out, out, 3, 1, 1)
            unit += 1
    return {**shapes, **_middle("encoder", width), **_head("encoder", width, 2 * LATENT_CHANNELS)}


def _decoder(base: int) -> Shapes:
    widths = [base * level for level in reversed(LEVELS)]
    shapes, unit, width = _conv("decoder.conv1", widths[0], LATENT_CHANNELS, 3, 3, 3), 0, widths[0]
    for level, out in enumerate(widths):
        for _ in range(DECODER_BLOCKS):
            shapes |= _residual(f"decoder.upsamples.{unit}", width, out)
            unit, width = unit + 1, out
        if level < len(widths) - 1:
            name = f"decoder.upsamples.{unit}"
            shapes |= _conv(f"{name}.resample.1", out // 2, out, 3, 3)
            if level < 2:  # each frame becomes two, side by side in the channels
                shapes |= _conv(f"{name}.time_conv", 2 * out, out, 3, 1, 1)
            unit, width = unit + 1, out // 2
    return {**shapes, **_middle("decoder", widths[0]), **_head("decoder", width, 3)}


def _middle(half: str, width: int) -> Shapes:
    return {
        **_residual(f"{half}.middle.0", width, width),
        f"{half}.middle.1.norm.gamma": (width, 1, 1),
        **_conv(f"{half}.middle.1.to_qkv", 3 * width, width, 1, 1),
        **_conv(f"{half}.middle.1.proj", width, width, 1, 1),
        **_residual(f"{half}.middle.2", width, width),
    }


def _head(half: str, width: int, out: int) -> Shapes:
    return {f"{half}.head.0.gamma": (width, 1, 1, 1), **_conv(f"{half}.head.2", out, width, 3, 3, 3)}


def _residual(name: str, width: int, out: int) -> Shapes:
    return {
        f"{name}.residual.0.gamma": (width, 1, 1, 1),
        **_conv(f"{name}.residual.2", out, width, 3, 3, 3),
        f"{name}.residual.3.gamma": (out, 1, 1, 1),
        **_conv(f"{name}.residual.6", out, out, 3, 3, 3),
        **(_conv(f"{name}.shortcut", out, width, 1, 1, 1) if out != width else {}),
    }


def _conv(name: str, out: int, width: int, *kernel: int) -> Shapes:
    return {f"{name}.weight": (out, width, *kernel), f"{name}.bias": (out,)}
