"""Files of a TAEHV: its sizes, what else a file may be, and which latents it wants."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..checkpoints.weights import TensorInfo, WeightFile, check_complete, open_weights, shape_of
from ..devices.execution import AUTO
from ..errors import BadInput
from . import TAE_KINDS, StatedKind, TaeKind
from .taehv_net import FIRST_STAGE, GROWTH, STAGE, Taehv, Widths
from .wan_vae_files import WAN_MEAN, without_wrapper

ADVICE = "give lighttaew2_1.safetensors, taew2_1.safetensors or taew2_1.pth"
WHAT = "tiny autoencoder for Wan 2.1 (TAEHV)"
_shape = partial(shape_of, dims=4, what=WHAT, advice=ADVICE)
TELLTALE = "decoder.3.conv.0.weight"
"""A weight that every video autoencoder of this design has, and no other model we know of."""

# By their latent channels: the designs with the same names for other latents.
STRANGERS = {48: "Wan 2.2 5B", 32: "HunyuanVideo 1.5", 128: "LTX-2"}


def is_taehv(names: Iterable[str]) -> bool:
    """Whether weights with these names are of TAEHV's design, for any latents."""
    return any(without_wrapper(name) == TELLTALE for name in names)


def open_taehv(path: str | Path, stated: StatedKind = AUTO) -> tuple[WeightFile, Taehv, TaeKind]:
    """Return the tensors of a TAEHV for Wan 2.1, the still empty network for them, and its kind.

    `stated`: its kind, as the user states it. Raises `BadInput` if it could not be loaded.
    """
    file, net = find_taehv(open_weights(path))
    kind = kind_of(file.path, stated)
    check_channels(file, net, kind)
    return file, net, kind


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
    """Raises `BadInput` for other latents, or if a weight that tells a size is missing."""
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
        shape, wanted = _shape(file, name), width * growth
        used[file.names[name]] = wanted
        info[name] = TensorInfo((min(shape[0], wanted), *shape[1:]), info[name].dtype)

    def read(source: str) -> Tensor:
        tensor = file.read(source)
        return tensor[-used[source] :] if source in used else tensor

    return replace(file, info=info, read=read)


# Tensors do not tell the two kinds apart, nor does the dtype, because anybody may convert a file.
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

    Raises `BadInput` if none of them tells it, or if `stated` contradicts digest or name.
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
    size = path.stat().st_size if path.is_file() else 0
    for kind, (length, digest) in PUBLISHED.items():
        if size == length and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return kind, "digest"
    named: set[TaeKind] = {"lighttaew2_1" if light else "taew2_1" for light in _NAMED.findall(path.name)}
    return (named.pop(), "name") if len(named) == 1 else (None, "")


def check_channels(file: WeightFile, net: Taehv, kind: TaeKind) -> None:
    """Raise `BadInput` if a network whose latents are scaled takes others than Wan 2.1's."""
    if kind == "lighttaew2_1" and net.latent_channels != len(WAN_MEAN):
        channels = f"{net.latent_channels} latent channels, not {len(WAN_MEAN)}"
        raise BadInput(f"{file.path.name} is no lighttaew2_1, with {channels}; check what it was trained for")
