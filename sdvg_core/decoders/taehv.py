"""TAEHV, the tiny autoencoder for Wan 2.1's latents, as a codec whose decode state is a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoints.weights import TensorInfo, WeightFile, check_finite_weights
from ..devices.execution import AUTO, Backend, compiled, own_copy
from ..errors import BadInput
from . import StatedKind, TaeKind
from .taehv_files import ADVICE, check_channels, find_taehv, open_taehv
from .taehv_net import SPATIAL_STRIDE, TEMPORAL_STRIDE, Memory, Taehv, blank_memory, run_half
from .wan_vae_files import WAN_MEAN, WAN_STD, check_frames, on_its_own

LIMIT = 3.0
"""Latents are bent smoothly so that none lies further from 0."""
LEADING = TEMPORAL_STRIDE - 1
"""A clip's first latent frame shows one pixel frame; those made before it are dropped."""


class TaehvCodec:
    """Turns Wan 2.1 latents into pixels, and back if the encoder is there; a `VideoCodec`.

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
        self.latent_channels, self.kind = net.latent_channels, kind
        if channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self.net, self._name = net, name
        self._run_decoder = compiled(own_copy(run_half), compiler) if compiler else run_half
        weight = next(net.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        scaled = kind == "lighttaew2_1"
        mean, std = (WAN_MEAN, WAN_STD) if scaled else ((0.0,), (1.0,))
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)

    @torch.inference_mode()
    def decode(self, latents: Tensor, state: Memory | None = None) -> tuple[Tensor, Memory]:
        """Decode `b c t h w` into `b f c h w` in [0, 1], and return the next state.

        The first latent frame of a clip gives one pixel frame, each later one four. `state` itself is unchanged.
        Latent frames are decoded one by one, so the result does not depend on how a clip is cut into calls, bit for
        bit.
        """
        pieces, memory = [], state
        for frame in latents.to(self.device, torch.float32).unbind(2):
            z = self._limited(frame)
            if memory is None:
                memory = self._blank(self.net.decoder, z, len(z))
            made, kept = self._run_decoder(self.net.decoder, z, memory, len(z))
            memory = tuple(on_its_own(entry, self._format) for entry in kept)
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
        batch, memory, pieces = len(video), None, []
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
        return tuple(entry.contiguous(memory_format=self._format) for entry in blank_memory(half, x, batch))


def load_taehv(
    path: str | Path,
    *,
    kind: StatedKind = AUTO,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> TaehvCodec:
    """Load a TAEHV for Wan 2.1 from a file.

    `kind`: which latents it wants; `auto`: what digest or name say. `options`: see `TaehvCodec`.
    Raises `BadInput` if the file cannot be read, is another model, is incomplete, or its kind is not known or
    another than stated.
    """
    file, net, known = open_taehv(path, kind)
    return TaehvCodec(_fill(net, file, device, dtype), kind=known, name=file.path.name, **options)


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
    return TaehvCodec(_fill(net, file, device, dtype), kind=kind, name=name, **options)


def _fill(net: Taehv, file: WeightFile, device: str | torch.device | None, dtype: torch.dtype | None) -> Taehv:
    weights = {name: file[name].detach().to(device=device, dtype=dtype) for name in net.state_dict()}
    net.load_state_dict(weights, assign=True)
    check_finite_weights(net, file.path.name)
    return net
