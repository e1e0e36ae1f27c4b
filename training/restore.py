"""Turn the shipped set back into checkpoints, so that training can go on from it.

    python -m training.restore

The checkpoints of a training are not part of the repository; its weights are. They are 16-bit, and the optimisers
begin anew. Nothing that is there already is replaced.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.checkpoints.weights import open_weights
from sdvg_core.decoders.wan_vae import open_wan_vae
from sdvg_core.pocket.trained_set import pocket_fast_vae, trained_set
from sdvg_core.text.umt5 import SPIECE, TABLE, TABLE_COPY, with_hf_names

from .common import WORK, save_checkpoint
from .train_transformer import MODELS


def main(folder: Path = WORK) -> None:
    """Write the checkpoints that are not there yet."""
    files = trained_set()
    for role in MODELS:
        loaded = load_wan(getattr(files, role), dtype=torch.float32)
        _write(folder / f"{role}.pt", weights=loaded.tree.state_dict())
    vae, _ = open_wan_vae(files.vae)
    _write(folder / "vae.pt", weights=_single(vae))
    _write(folder / "taehv.pt", weights=_single(open_weights(pocket_fast_vae())))
    stored = open_weights(files.text_encoder)
    weights = _single(with_hf_names(stored))
    _write(folder / "text.pt", weights=weights | {TABLE_COPY: weights[TABLE]}, pieces=stored[SPIECE])
    for source, name in ((files.reward, "reward.safetensors"), (files.vocabulary, "vocab.txt")):
        assert source is not None
        if not (folder / name).exists():
            shutil.copyfile(source, folder / name)


def _single(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weights[name].float() for name in weights}


def _write(path: Path, **parts: dict[str, Tensor] | Tensor) -> None:
    if not path.exists():
        save_checkpoint(path, **parts)


if __name__ == "__main__":
    main()
