"""Files of a TAEHV: its sizes, what else a file may be, and which latents it wants."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..checkpoints.weights import TensorInfo, WeightFile, check_complete, open_weights, shape_of
from ..devices.execution import AUTO
from ..errors import BadInput
from . import TAE_KINDS, StatedKind, TaeKind
from .taehv_net import FIRST_STAGE, GROWTH, STAGE, Taehv, Widths
from .wan_vae_files import without_wrapper

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
        return net.train(False).requires_grad_(False)


def is_taehv(names: Iterable[str]) -> bool:
    """Whether weights with these names are of TAEHV's design, for any latents."""
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
        raise BadInput(f"{file.path.name} is no {WHAT}; {ADVICE}")
    sizes = read_sizes(file)
    file = _with_last_rows(file, sizes.decoder)
    check_complete(file, sizes.build().state_dict(), WHAT, ADVICE)
    return file, sizes


def read_sizes(file: WeightFile) -> TaehvSizes:
    """Read the sizes. Raises `BadInput` for other latents or colours, or if a weight for it is missing."""
    first, last = _shape(file, "decoder.1.weight"), _shape(file, "decoder.22.weight")
    channels = first[1]
    if channels in STRANGERS:
        raise BadInput(f"{file.path.name} is for {STRANGERS[channels]}, with {channels} latent channels; {ADVICE}")
    if last[0] != COLOURS:
        raise BadInput(f"{file.path.name} makes {last[0]} channels, not {COLOURS} colours; {ADVICE}")
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
            raise BadInput(f"{name} in {file.path.name} has {shape[0]} rows, fewer than {wanted}; {ADVICE}")
        used[file.names[name]] = wanted
        info[name] = TensorInfo((wanted, *shape[1:]), info[name].dtype)

    def read(source: str) -> Tensor:
        tensor = file.read(source)
        return tensor[-used[source] :] if source in used else tensor

    return replace(file, info=info, read=read)


def _shape(file: WeightFile, name: str) -> tuple[int, ...]:
    return shape_of(file, name, 4, WHAT, ADVICE)


# The two kinds have the same tensors, which tell nothing, nor does the dtype, as anybody may convert a file.
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

    Raises `BadInput` if nobody says it, or if what is stated contradicts digest or name.
    """
    if stated not in (AUTO, *TAE_KINDS):
        raise BadInput(f"there is no tae_kind {stated!r}; choose {AUTO}, {' or '.join(TAE_KINDS)}")
    found, why = recognised_kind(path)
    if stated == AUTO:
        if found is None:
            raise BadInput(
                f"nothing tells which TAEHV {path.name} is; set tae_kind (--tae-kind) to {' or '.join(TAE_KINDS)}"
            )
        return found
    if found not in (None, stated):
        raise BadInput(
            f"{path.name} is {found} by its {why}, not {stated}; state {found} or {AUTO}, or give another file"
        )
    return stated


def recognised_kind(path: Path) -> tuple[TaeKind | None, Literal["digest", "name", ""]]:
    """Return the kind of a file, and what tells it; None if nothing does. A digest outweighs a name."""
    by_digest = _kind_by_digest(path)
    if by_digest:
        return by_digest, "digest"
    named: set[TaeKind] = {"lighttaew2_1" if light else "taew2_1" for light in _NAMED.findall(path.name)}
    return (named.pop(), "name") if len(named) == 1 else (None, "")


def _kind_by_digest(path: Path) -> TaeKind | None:
    """Only a file of a published length is read."""
    try:
        length = path.stat().st_size
        digests: dict[str, TaeKind] = {digest: kind for kind, (size, digest) in PUBLISHED.items() if size == length}
        return digests.get(hashlib.sha256(path.read_bytes()).hexdigest()) if digests else None
    except OSError:
        return None
