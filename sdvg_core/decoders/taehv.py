"""TAEHV, the tiny autoencoder for Wan 2.1's latents: network, codec and files.

The network has 2-D convolutions, and blocks that also see their input of the previous time step. These inputs are
the whole decode state, so it is a value. Frames of a batch are `(t b) c h w`, with time as the slow factor. Source
of the design: madebyollin/taehv.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..devices.compiling import Backend, compiled, copy_function
from ..errors import BadInput
from ..settings.execution import AUTO
from ..settings.load import TAE_KINDS, StatedKind, TaeKind
from ..weights.weight_file import (
    TensorInfo,
    WeightFile,
    check_complete,
    check_finite_weights,
    shape_of,
)
from .wan_vae import WAN_MEAN, WAN_STD, check_clip_shape, unshared, without_wrapper

GROWTH = (1, 2, 2)
"""Frames per frame in each of the decoder's three stages."""
JOINED = (2, 2, 1)
"""Frames joined to one in each of the encoder's stages."""
TEMPORAL_STRIDE = 4
SPATIAL_STRIDE = 8
FIRST_STAGE = 3
"""Index of the decoder's first layer with memory."""
STAGE = 6
"""Number of layers of a stage."""

Widths = tuple[int, ...]
FrameMemory = tuple[Tensor, ...]
"""The newest input of each block with memory, `b c h w`."""

LIMIT = 3.0
"""Latents are limited smoothly (tanh) to this absolute value."""
LEADING = TEMPORAL_STRIDE - 1
"""Pixel frames dropped at a clip's start: its first latent frame shows only one."""

TAE_ADVICE = "give lighttaew2_1.safetensors, taew2_1.safetensors or taew2_1.pth"
TAE_KIND = "tiny autoencoder for Wan 2.1 (TAEHV)"
_shape = partial(shape_of, dims=4, what=TAE_KIND, advice=TAE_ADVICE)
TAE_TELLTALE = "decoder.3.conv.0.weight"
"""A weight of every video autoencoder of this design, and of no other known model."""

# Latent channels -> other models with autoencoders of this design.
STRANGERS = {48: "Wan 2.2 5B", 32: "HunyuanVideo 1.5", 128: "LTX-2"}


def _conv(inputs: int, outputs: int, *, bias: bool = True, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)


class MemoryBlock(nn.Module):
    """A residual block of three convolutions over a frame and the previous one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Sequential(
            _conv(2 * width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Return `n c h w`. `before`: the input of the previous time step."""
        return F.relu(self.conv(torch.cat([x, before], dim=1)) + x)


class Grow(nn.Module):
    """Makes `growth` frames of each, by splitting the channels of a 1x1 convolution."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.growth = growth
        self.conv = nn.Conv2d(width, width * growth, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """Map `(t b) c h w` to `(t growth b) c h w`."""
        made: Tensor = self.conv(x)
        if self.growth == 1:
            return made
        return torch.cat([part for frame in made.split(batch) for part in frame.chunk(self.growth, dim=1)])


class Join(nn.Module):
    """Joins `joined` frames to one; in shape the inverse of `Grow`."""

    def __init__(self, width: int, joined: int) -> None:
        super().__init__()
        self.joined = joined
        self.conv = nn.Conv2d(width * joined, width, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """Map `(t joined b) c h w` to `(t b) c h w`."""
        if self.joined > 1:
            frames = x.split(batch)
            groups = range(0, len(frames), self.joined)
            x = torch.cat([torch.cat(frames[first : first + self.joined], dim=1) for first in groups])
        made: Tensor = self.conv(x)
        return made


class Taehv(nn.Module):
    """Decoder and encoder with the published weight names. `decoder`, `encoder`: widths; None for no encoder."""

    def __init__(self, latent_channels: int, decoder: Widths, encoder: Widths | None) -> None:
        super().__init__()
        self.latent_channels = latent_channels
        self.widths = decoder
        self.decoder = _decoder(latent_channels, decoder)
        self.encoder = _encoder(latent_channels, encoder) if encoder else None


def _decoder(latent_channels: int, widths: Widths) -> nn.Sequential:
    # The first published layer limits the latents; the codec does that in float32.
    layers: list[nn.Module] = [nn.Identity(), _conv(latent_channels, widths[0]), nn.ReLU()]
    for width, following, growth in zip(widths, widths[1:], GROWTH, strict=False):
        layers += [MemoryBlock(width) for _ in range(3)]
        layers += [nn.Upsample(scale_factor=2), Grow(width, growth), _conv(width, following, bias=False)]
    return nn.Sequential(*layers, nn.ReLU(), _conv(widths[-1], 3))


def _encoder(latent_channels: int, widths: Widths) -> nn.Sequential:
    layers: list[nn.Module] = [_conv(3, widths[0]), nn.ReLU()]
    for width, following, joined in zip(widths, widths[1:], JOINED, strict=False):
        layers += [Join(width, joined), _conv(width, following, bias=False, stride=2)]
        layers += [MemoryBlock(following) for _ in range(3)]
    return nn.Sequential(*layers, _conv(widths[-1], latent_channels))


def run_half(half: nn.Sequential, x: Tensor, memory: FrameMemory, batch: int) -> tuple[Tensor, FrameMemory]:
    """Run encoder or decoder over `(t b) c h w`; return the result and the next memory. Inputs are unchanged."""
    kept: list[Tensor] = []
    for layer in half:
        if isinstance(layer, MemoryBlock):
            past = memory[len(kept)]
            before = past if len(x) == batch else torch.cat([past, x[:-batch]])
            kept.append(x[-batch:])
            x = layer(x, before)
        elif isinstance(layer, Grow | Join):
            x = layer(x, batch)
        else:
            x = layer(x)
    return x, tuple(kept)


class TaehvCodec:
    """A `VideoCodec` over a TAEHV.

    Latents may have any dtype and device; the codec computes in the network's, and returns float32 on its device.
    The decode state is a tuple of nine tensors. `kind`: of the latents it takes. `channels_last`: faster on a GPU
    in half precision; it changes the network. `compiler`: compiles the decoder, once per size; None for none.
    `name`: of the file, for errors.
    """

    temporal_stride = TEMPORAL_STRIDE
    spatial_stride = SPATIAL_STRIDE

    def __init__(
        self,
        net: Taehv,
        *,
        kind: TaeKind,
        channels_last: bool = False,
        compiler: Backend | None = None,
        name: str = "the TAEHV",
    ) -> None:
        self.net = net
        self.kind = kind
        self.latent_channels = net.latent_channels
        self._name = name
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        self._run_decoder = compiled(copy_function(run_half), compiler) if compiler else run_half
        weight = next(net.parameters())
        self.device = weight.device
        self.dtype = weight.dtype
        mean, std = (WAN_MEAN, WAN_STD) if kind == "lighttaew2_1" else ((0.0,), (1.0,))
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)

    @torch.inference_mode()
    def decode(self, latents: Tensor, state: FrameMemory | None = None) -> tuple[Tensor, FrameMemory]:
        """Decode `b c t h w` into `b f c h w` in [0, 1], and return the next state. `state` is unchanged.

        The first latent frame of a clip gives one pixel frame, each later one four. Latent frames are decoded one
        by one, so that the bits do not depend on how a clip is split into calls.
        """
        pieces = []
        memory = state
        for frame in latents.to(self.device, torch.float32).unbind(2):
            z = self._limited(frame)
            if memory is None:
                memory = self._blank(self.net.decoder, z, len(z))
            made, kept = self._run_decoder(self.net.decoder, z, memory, len(z))
            memory = tuple(unshared(entry, self._format) for entry in kept)
            pieces += made.split(len(z))
        assert memory is not None
        video = torch.stack(pieces[LEADING if state is None else 0 :], dim=1).float()
        # Values that are not finite become NaN, as clamping would turn infinity into white.
        return video.clamp(0, 1).masked_fill(~video.isfinite(), torch.nan), memory

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode 1 + 4 * k pixel frames `b f c h w` in [0, 1] into normalised latents `b c t h w`.

        As in ComfyUI, each four frames from the first on make a latent frame, and the last frame is repeated. So,
        unlike the Wan VAE's, a latent frame also depends on the pixel frames after its last one.
        Raises `BadInput` for a size that does not fit, and without an encoder.
        """
        encoder = self.net.encoder
        if encoder is None:
            raise BadInput(f"{self._name} has no encoder; {TAE_ADVICE}, or use the Wan 2.1 VAE")
        check_clip_shape(frames, self.temporal_stride, self.spatial_stride)
        video = frames.to(self.device, self.dtype)
        video = torch.cat([video, video[:, -1:].expand(-1, LEADING, -1, -1, -1)], dim=1)
        batch = len(video)
        pieces = []
        memory = None
        for group in video.split(self.temporal_stride, dim=1):
            x = group.transpose(0, 1).flatten(0, 1).contiguous(memory_format=self._format)
            memory = self._blank(encoder, x, batch) if memory is None else memory
            made, memory = run_half(encoder, x, memory, batch)
            pieces.append((made.float() - self._mean) / self._std)
        return torch.stack(pieces, dim=2)

    def _limited(self, frame: Tensor) -> Tensor:
        """Scale and limit a latent frame for the decoder; values that are not finite become NaN.

        One frame at a time, as the last bit of tanh may depend on a value's place in memory.
        """
        z = frame.contiguous() * self._std + self._mean
        z = (torch.tanh(z / LIMIT) * LIMIT).masked_fill(~z.isfinite(), torch.nan)
        return z.to(self.dtype).contiguous(memory_format=self._format)

    def _blank(self, half: nn.Sequential, x: Tensor, batch: int) -> FrameMemory:
        """Return the memory at a clip's start: zeros, in the sizes for inputs like `x`, `(t b) c h w`."""
        height, width = x.shape[-2:]
        memory = []
        for layer in half:
            if isinstance(layer, nn.Upsample):
                height *= 2
                width *= 2
            elif isinstance(layer, nn.Conv2d):
                height //= layer.stride[0]
                width //= layer.stride[1]
            elif isinstance(layer, MemoryBlock):
                blank = x.new_zeros(batch, layer.width, height, width)
                memory.append(blank.contiguous(memory_format=self._format))
        return tuple(memory)


def taehv_from_weights(
    weights: Mapping[str, Tensor],
    *,
    kind: TaeKind,
    name: str = "the TAEHV in memory",
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> TaehvCodec:
    """Return a codec over the weights of a TAEHV in memory, such as the `state_dict` of ComfyUI's module.

    `kind`: of its latents. `device`, `dtype`: None for those of the weights, which are then shared, unless
    `channels_last` is set. `name`: for errors. `options`: see `TaehvCodec`.
    Raises `BadInput` for weights of another model, and for incomplete ones.
    """
    info = {key: TensorInfo(tuple(tensor.shape), tensor.dtype) for key, tensor in weights.items()}
    file = WeightFile(Path(name), "tensors in memory", info, weights.__getitem__, {key: key for key in weights})
    file, net = find_taehv(file, kind)
    return TaehvCodec(fill_taehv(net, file, device, dtype), kind=kind, name=name, **options)


def fill_taehv(net: Taehv, file: WeightFile, device: str | torch.device | None, dtype: torch.dtype | None) -> Taehv:
    """Load a file's weights into an empty network. `device`, `dtype`: None for those in the file."""
    weights = {name: file[name].detach().to(device=device, dtype=dtype) for name in net.state_dict()}
    net.load_state_dict(weights, assign=True)
    check_finite_weights(net, file.path.name)
    return net


def is_taehv(names: Iterable[str]) -> bool:
    """True if weights with these names are of TAEHV's design, for any model's latents."""
    return any(without_wrapper(name) == TAE_TELLTALE for name in names)


def find_taehv(file: WeightFile, kind: TaeKind) -> tuple[WeightFile, Taehv]:
    """Return a file's weights under published names and in the used shapes, and an empty network for them.

    Raises `BadInput` unless they are a whole TAEHV for Wan 2.1; the encoder may be missing.
    """
    file = file.renamed(without_wrapper)
    channels = _shape(file, "decoder.1.weight")[1]
    if channels in STRANGERS:
        raise BadInput(
            f"{file.path.name} is for {STRANGERS[channels]}, with {channels} latent channels; {TAE_ADVICE}"
        )
    if kind == "lighttaew2_1" and channels != len(WAN_MEAN):
        fault = f"{file.path.name} is no lighttaew2_1, with {channels} latent channels, not {len(WAN_MEAN)}"
        raise BadInput(f"{fault}; check what it was trained for")
    has_encoder = any(name.startswith("encoder.") for name in file)
    decoder = tuple(_shape(file, f"decoder.{n}.weight")[0] for n in (1, 8, 14, 20))
    encoder = tuple(_shape(file, f"encoder.{n}.weight")[0] for n in (0, 3, 8, 13)) if has_encoder else None
    with torch.device("meta"):
        net = Taehv(channels, decoder, encoder)
    file = _with_last_rows(file, net.widths)
    check_complete(file, net.state_dict(), TAE_KIND, TAE_ADVICE)
    return file, net.train(False).requires_grad_(False)


def _with_last_rows(file: WeightFile, widths: Widths) -> WeightFile:
    """Return the file with the growing layers cut to the rows in use, the last ones.

    Files of a network that was trained to grow further have more rows.
    """
    used: dict[str, int] = {}
    info = dict(file.info)
    for stage, (width, growth) in enumerate(zip(widths, GROWTH, strict=False)):
        name = f"decoder.{FIRST_STAGE + STAGE * stage + 4}.conv.weight"
        rows, *rest = _shape(file, name)
        used[file.names[name]] = width * growth
        info[name] = TensorInfo((min(rows, width * growth), *rest), info[name].dtype)

    def read(source: str) -> Tensor:
        tensor = file.read(source)
        return tensor[-used[source] :] if source in used else tensor

    return replace(file, info=info, read=read)


# The two kinds have the same tensors, and files may have been converted to another dtype. `taew2_1` takes
# normalised latents; `lighttaew2_1` takes those of the Wan VAE: each channel times its standard deviation, plus its
# mean.

# kind: length in bytes and sha256 of the file as published (lightx2v/Autoencoders; madebyollin/taehv).
PUBLISHED_TAES: dict[TaeKind, tuple[int, str]] = {
    "lighttaew2_1": (45_274_004, "8666e769f449f2d955651564bcadb0c5e12461b50480e67b7241f32c15f11a19"),
    "taew2_1": (22_642_902, "04766eac0221b5390b985ae3fdcca652cbb4b1e8b82b28ea7ff89dfad1b1a93f"),
}
_NAMED = re.compile(r"(light[-_.]?)?tae[-_.]?w[-_.]?2[-_.]1(?![0-9])", re.IGNORECASE)


def kind_of(path: Path, stated: StatedKind = AUTO) -> TaeKind:
    """Return the kind of the TAEHV at `path`: as stated, or by its digest, or by its name.

    Raises `BadInput` if it is unknown, or if `stated` contradicts digest or name.
    """
    size = path.stat().st_size if path.is_file() else 0
    likely = [kind for kind, (length, _) in PUBLISHED_TAES.items() if size == length]
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if likely else ""
    kinds: set[TaeKind] = {kind for kind in likely if PUBLISHED_TAES[kind][1] == digest}
    source = "digest" if kinds else "name"
    kinds = kinds or {"lighttaew2_1" if light else "taew2_1" for light in _NAMED.findall(path.name)}
    kind = kinds.pop() if len(kinds) == 1 else None
    if stated == AUTO:
        if kind is None:
            raise BadInput(
                f"nothing tells which TAEHV {path.name} is; set tae_kind (--tae-kind) to {' or '.join(TAE_KINDS)}"
            )
        return kind
    if kind not in (None, stated):
        raise BadInput(
            f"{path.name} is {kind} by its {source}, not {stated}; state {kind} or {AUTO}, or give another file"
        )
    return stated
