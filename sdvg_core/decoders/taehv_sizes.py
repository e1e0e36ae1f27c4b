"""Read the sizes of a TAEHV from the shapes of its weights, and refuse files that hold something else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoints.weights import TensorInfo, WeightFile, check_complete, is_shape_of_weight, open_weights
from ..errors import BadInput
from .taehv_net import FIRST_STAGE, GROWTH, STAGE, Taehv, Widths
from .wan_vae_keys import without_wrapper

ADVICE = "give lighttaew2_1.safetensors, taew2_1.safetensors or taew2_1.pth"
WHAT = "tiny autoencoder for Wan 2.1 (TAEHV)"
TELLTALE = "decoder.3.conv.0.weight"
"""A weight that every video autoencoder of this design has, and no other model we know of."""

# By their latent channels: the designs with the same names for other latents.
STRANGERS = {48: "Wan 2.2 5B", 32: "HunyuanVideo 1.5", 128: "LTX-2"}
COLOURS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TaehvSizes:
    """The sizes needed to build the network. `decoder`, `encoder`: widths in order; no encoder is None."""

    latent_channels: int
    decoder: Widths
    encoder: Widths | None

    def build(self) -> Taehv:
        """Return the network without weights in memory."""
        with torch.device("meta"):
            net = Taehv(self.latent_channels, self.decoder, self.encoder)
        return net.eval().requires_grad_(False)


def is_taehv(names: Iterable[str]) -> bool:
    """Whether weights with these names are of TAEHV's design, for whatever latents."""
    return any(without_wrapper(name) == TELLTALE for name in names)


def open_taehv(path: str | Path) -> tuple[WeightFile, TaehvSizes]:
    """Return the tensors of a TAEHV for Wan 2.1 and its sizes, from the header alone.

    Raises `BadInput` if it could not be loaded.
    """
    return checked_taehv(open_weights(path))


def checked_taehv(file: WeightFile) -> tuple[WeightFile, TaehvSizes]:
    """Return the weights under their published names and in the shapes that are used, and the sizes.

    Raises `BadInput` if they are not the whole decoder of a TAEHV for Wan 2.1; the encoder may be left out.
    """
    file = file.renamed(without_wrapper)
    if not is_taehv(file):
        raise BadInput(f"this must be a {WHAT}, but {file.path.name} holds no TAEHV; {ADVICE}")
    sizes = read_sizes(file)
    file = _with_last_rows(file, sizes.decoder)
    check_complete(file, sizes.build().state_dict(), WHAT, ADVICE)
    return file, sizes


def read_sizes(file: WeightFile) -> TaehvSizes:
    """Read the sizes. Raises `BadInput` for other latents or colours, or if a weight for it is missing."""
    first, last = _shape(file, "decoder.1.weight"), _shape(file, "decoder.22.weight")
    channels = first[1]
    if channels in STRANGERS:
        raise BadInput(
            f"this must be a {WHAT}, which has 16 latent channels, but {file.path.name} has {channels}, as the one "
            f"for {STRANGERS[channels]}; {ADVICE}"
        )
    if last[0] != COLOURS:
        raise BadInput(
            f"this must be a {WHAT}, which makes {COLOURS} colours, but {file.path.name} makes {last[0]} channels; "
            f"{ADVICE}"
        )
    has_encoder = any(name.startswith("encoder.") for name in file)
    return TaehvSizes(
        latent_channels=channels,
        decoder=_widths(file, "decoder", (1, 8, 14, 20)),
        encoder=_widths(file, "encoder", (0, 3, 8, 13)) if has_encoder else None,
    )


def _widths(file: WeightFile, half: str, layers: tuple[int, int, int, int]) -> Widths:
    first, second, third, fourth = (_shape(file, f"{half}.{layer}.weight")[0] for layer in layers)
    return first, second, third, fourth


def _with_last_rows(file: WeightFile, widths: Widths) -> WeightFile:
    """Return the file with no more rows in its growing layers than are used: the last ones.

    Files of a network that was trained to grow further have more. Raises `BadInput` if one has too few.
    """
    used: dict[str, int] = {}
    info = dict(file.info)
    for stage, (width, growth) in enumerate(zip(widths, GROWTH, strict=False)):
        name = f"decoder.{FIRST_STAGE + STAGE * stage + 4}.conv.weight"
        shape, wanted = _shape(file, name), width * growth
        if shape[0] < wanted:
            raise BadInput(
                f"{name} must have {wanted} rows to make {growth} frames of one, but has {shape[0]} in "
                f"{file.path.name}; {ADVICE}"
            )
        used[file.names[name]] = wanted
        info[name] = TensorInfo((wanted, *shape[1:]), info[name].dtype)

    def read(source: str) -> Tensor:
        tensor = file.read(source)
        return tensor[-used[source] :] if source in used else tensor

    return replace(file, info=info, read=read)


def _shape(file: WeightFile, name: str) -> tuple[int, ...]:
    if name not in file.info:
        raise BadInput(f"this must be the whole {WHAT}, but {file.path.name} lacks {name}; {ADVICE}")
    shape = file.info[name].shape
    if not is_shape_of_weight(shape, 4):
        raise BadInput(f"this must be a {WHAT}, but {file.path.name} has {name} with the shape {shape}; {ADVICE}")
    return shape
