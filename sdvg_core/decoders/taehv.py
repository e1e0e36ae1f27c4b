"""TAEHV, the tiny autoencoder for Wan 2.1's latents: its network, its codec, and its files.

The network has 2-D convolutions, and blocks that also see their own input of one time step earlier. That input is
all that goes from frame to frame, so the decode state is a value. Inside, the frames of a batch are `(t b) c h w`:
time is the slow factor of the first axis. Source of the design: madebyollin/taehv.
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

from ..checkpoints.weights import (
    TensorInfo,
    WeightFile,
    check_complete,
    check_finite_weights,
    shape_of,
)
from ..decoders import TAE_KINDS, StatedKind, TaeKind
from ..devices.execution import AUTO, Backend, compiled, copy_function
from ..errors import BadInput
from .wan_vae import WAN_MEAN, WAN_STD, check_frames, unshared, without_wrapper

GROWTH = (1, 2, 2)
"""Frames made of one in each of the decoder's three stages."""
JOINED = (2, 2, 1)
"""Frames joined into one in each of the encoder's."""
TEMPORAL_STRIDE = 4
SPATIAL_STRIDE = 8
FIRST_STAGE = 3
"""The number of the decoder's first layer with memory."""
STAGE = 6
"""Layers of a stage."""

Widths = tuple[int, int, int, int]
Memory = tuple[Tensor, ...]
"""For each block with memory, its input of the newest time step: `b c h w`."""

LIMIT = 3.0
"""Latents are bent smoothly so that none lies further from 0."""
LEADING = TEMPORAL_STRIDE - 1
"""A clip's first latent frame shows one pixel frame; those made before it are dropped."""

ADVICE = "give lighttaew2_1.safetensors, taew2_1.safetensors or taew2_1.pth"
WHAT = "tiny autoencoder for Wan 2.1 (TAEHV)"
_shape = partial(shape_of, dims=4, what=WHAT, advice=ADVICE)
TELLTALE = "decoder.3.conv.0.weight"
"""A weight that every video autoencoder of this design has, and no other model we know of."""

# By their latent channels: the designs with the same names for other latents.
STRANGERS = {48: "Wan 2.2 5B", 32: "HunyuanVideo 1.5", 128: "LTX-2"}


def _conv(inputs: int, outputs: int, *, bias: bool = True, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)


class MemoryBlock(nn.Module):
    """A residual block of three convolutions over a frame and the frame before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Sequential(
            _conv(2 * width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Return `n c h w`, given as much and the same one time step earlier."""
        return F.relu(self.conv(torch.cat([x, before], dim=1)) + x)


class Grow(nn.Module):
    """Make several frames of each; they lie one after the other in the channels of a 1x1 convolution."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.growth = growth
        self.conv = nn.Conv2d(width, width * growth, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """Return `(t growth b) c h w` of `(t b) c h w`."""
        made: Tensor = self.conv(x)
        if self.growth == 1:
            return made
        return torch.cat([part for frame in made.split(batch) for part in frame.chunk(self.growth, dim=1)])


class Join(nn.Module):
    """Make one frame of several; the inverse of `Grow` in shape."""

    def __init__(self, width: int, joined: int) -> None:
        super().__init__()
        self.joined = joined
        self.conv = nn.Conv2d(width * joined, width, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """Return `(t b) c h w` of `(t joined b) c h w`."""
        if self.joined > 1:
            frames = x.split(batch)
            groups = range(0, len(frames), self.joined)
            x = torch.cat([torch.cat(frames[first : first + self.joined], dim=1) for first in groups])
        made: Tensor = self.conv(x)
        return made


class Taehv(nn.Module):
    """Both halves under the published names of their weights.

    `decoder`, `encoder`: their widths in order; no encoder is None, as in a file of the decoder alone.
    """

    def __init__(self, latent_channels: int, decoder: Widths, encoder: Widths | None) -> None:
        super().__init__()
        self.latent_channels = latent_channels
        self.widths = decoder
        self.decoder = _decoder(latent_channels, decoder)
        self.encoder = _encoder(latent_channels, encoder) if encoder else None


def _decoder(latent_channels: int, widths: Widths) -> nn.Sequential:
    # The first layer limits the latents, which the codec does in float32.
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


def run_half(half: nn.Sequential, x: Tensor, memory: Memory, batch: int) -> tuple[Tensor, Memory]:
    """Run the encoder or the decoder over `(t b) c h w`; return the result and the next memory.

    The inputs stay unchanged.
    """
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
    """A `VideoCodec` for Wan 2.1 latents; it encodes only with a TAEHV that has an encoder.

    Latents may have any dtype and device; the codec computes in the network's own, and returns float32 on the
    network's device. The decode state is a tuple of nine tensors, one for each block with memory.
    `kind`: which latents the network wants. `channels_last`: the memory order that suits a GPU in half precision;
    the codec owns the network from now on and may change it. `compiler`: compiles the decoder, once for all frames
    of a size; None leaves it uncompiled. `name`: of the file, for errors.
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
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._run_decoder = compiled(copy_function(run_half), compiler) if compiler else run_half
        weight = next(net.parameters())
        self.device = weight.device
        self.dtype = weight.dtype
        mean, std = (WAN_MEAN, WAN_STD) if kind == "lighttaew2_1" else ((0.0,), (1.0,))
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)

    @torch.inference_mode()
    def decode(self, latents: Tensor, state: Memory | None = None) -> tuple[Tensor, Memory]:
        """Decode `b c t h w` into `b f c h w` in [0, 1], and return the next state.

        The first latent frame of a clip gives one pixel frame, each later one four. `state` itself is unchanged.
        Latent frames are decoded one by one, so the result does not depend on how a clip is cut into calls, bit for
        bit.
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
        # Infinity must not turn into white: what is not finite becomes NaN.
        return video.clamp(0, 1).masked_fill(~video.isfinite(), torch.nan), memory

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode a clip of 1 + 4 * k pixel frames, `b f c h w` in [0, 1], into normalised latents `b c t h w`.

        As in ComfyUI, four frames make a latent frame, counted from the first, and the last one is repeated three
        times at the end. So, unlike the Wan VAE's, a latent frame also shows what follows its last pixel frame.
        Raises `BadInput` if the clip's size does not fit, or the file has no encoder.
        """
        encoder = self.net.encoder
        if encoder is None:
            raise BadInput(f"{self._name} has no encoder; {ADVICE}, or use the Wan 2.1 VAE")
        check_frames(frames, self.temporal_stride, self.spatial_stride)
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
        """Return a latent frame as the decoder's first convolution wants it.

        Infinity would look like the limit. Frame by frame, because a function's last bit may depend on the place.
        """
        z = frame.contiguous() * self._std + self._mean
        z = (torch.tanh(z / LIMIT) * LIMIT).masked_fill(~z.isfinite(), torch.nan)
        return z.to(self.dtype).contiguous(memory_format=self._format)

    def _blank(self, half: nn.Sequential, x: Tensor, batch: int) -> Memory:
        """Return the memory at a clip's start, which is zero, for inputs like `(t b) c h w`."""
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
    """Return a codec over the weights of a TAEHV in memory, such as the `state_dict` of another program's module.

    `kind`: which latents it wants; tensors cannot tell. `device`, `dtype`: None for those of the weights, which are
    then shared and not copied, unless `channels_last` is set. `name`: for errors. `options`: see `TaehvCodec`.
    Raises `BadInput` if they are of another model, or incomplete.
    """
    info = {key: TensorInfo(tuple(tensor.shape), tensor.dtype) for key, tensor in weights.items()}
    file = WeightFile(Path(name), "tensors in memory", info, weights.__getitem__, {key: key for key in weights})
    file, net = find_taehv(file)
    check_channels(file, net, kind)
    return TaehvCodec(fill_taehv(net, file, device, dtype), kind=kind, name=name, **options)


def fill_taehv(net: Taehv, file: WeightFile, device: str | torch.device | None, dtype: torch.dtype | None) -> Taehv:
    """Give an empty network the file's weights; None for their own device and dtype."""
    weights = {name: file[name].detach().to(device=device, dtype=dtype) for name in net.state_dict()}
    net.load_state_dict(weights, assign=True)
    check_finite_weights(net, file.path.name)
    return net


def is_taehv(names: Iterable[str]) -> bool:
    """True if weights with these names are of TAEHV's design, for any latents."""
    return any(without_wrapper(name) == TELLTALE for name in names)


def find_taehv(file: WeightFile) -> tuple[WeightFile, Taehv]:
    """Return the weights under their published names, in the shapes that are used, and the empty network for them.

    Raises `BadInput` if they are not the whole decoder of a TAEHV for Wan 2.1; the encoder may be left out.
    """
    file = file.renamed(without_wrapper)
    if not is_taehv(file):
        raise BadInput(f"{file.path.name} is no {WHAT}; {ADVICE}")
    net = _empty_network(file)
    file = _with_last_rows(file, net.widths)
    check_complete(file, net.state_dict(), WHAT, ADVICE)
    return file, net


def _empty_network(file: WeightFile) -> Taehv:
    """Return a network of the file's sizes.

    Raises `BadInput` for other latents, or if a weight that tells a size is missing.
    """
    channels = _shape(file, "decoder.1.weight")[1]
    if channels in STRANGERS:
        raise BadInput(f"{file.path.name} is for {STRANGERS[channels]}, with {channels} latent channels; {ADVICE}")
    has_encoder = any(name.startswith("encoder.") for name in file)
    decoder = _widths(file, "decoder", (1, 8, 14, 20))
    encoder = _widths(file, "encoder", (0, 3, 8, 13)) if has_encoder else None
    with torch.device("meta"):
        net = Taehv(channels, decoder, encoder)
    return net.train(False).requires_grad_(False)


def _widths(file: WeightFile, half: str, layers: tuple[int, int, int, int]) -> Widths:
    first, second, third, fourth = (_shape(file, f"{half}.{layer}.weight")[0] for layer in layers)
    return first, second, third, fourth


def _with_last_rows(file: WeightFile, widths: Widths) -> WeightFile:
    """Return the file with no more rows in its growing layers than are used: the last ones.

    Files of a network that was trained to grow further have more.
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


# Tensors do not tell the two kinds apart, nor does the dtype, because a file may have been converted.
# `taew2_1` takes normalised latents, `lighttaew2_1` what the Wan VAE's own decoder takes: each channel times its
# standard deviation, plus its mean.

# kind: length in bytes and sha256 of the file as published (lightx2v/Autoencoders; madebyollin/taehv).
PUBLISHED: dict[TaeKind, tuple[int, str]] = {
    "lighttaew2_1": (45_274_004, "8666e769f449f2d955651564bcadb0c5e12461b50480e67b7241f32c15f11a19"),
    "taew2_1": (22_642_902, "04766eac0221b5390b985ae3fdcca652cbb4b1e8b82b28ea7ff89dfad1b1a93f"),
}
_NAMED = re.compile(r"(light[-_.]?)?tae[-_.]?w[-_.]?2[-_.]1(?![0-9])", re.IGNORECASE)


def kind_of(path: Path, stated: StatedKind = AUTO) -> TaeKind:
    """Return the kind of the TAEHV at `path`, as stated or as its digest or its name tells.

    A digest outweighs a name. Raises `BadInput` if none of them tells it, or if `stated` contradicts them.
    """
    size = path.stat().st_size if path.is_file() else 0
    likely = [kind for kind, (length, _) in PUBLISHED.items() if size == length]
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if likely else ""
    kinds: set[TaeKind] = {kind for kind in likely if PUBLISHED[kind][1] == digest}
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


def check_channels(file: WeightFile, net: Taehv, kind: TaeKind) -> None:
    """Raise `BadInput` if a network whose latents are scaled takes others than Wan 2.1's."""
    if kind == "lighttaew2_1" and net.latent_channels != len(WAN_MEAN):
        channels = f"{net.latent_channels} latent channels, not {len(WAN_MEAN)}"
        raise BadInput(f"{file.path.name} is no lighttaew2_1, with {channels}; check what it was trained for")
