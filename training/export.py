"""Put the trained set into the package: 16-bit safetensors in the published layouts, and a manifest.

    python -m training.export [--taehv] [--put drafter=FILE ...]

The manifest says for every file what it is, its size and hash, the commit it was trained at and what it measured.
`--taehv`: only the TAEHV is put in, with what was measured of it; all other entries stay. `--put`: only finished
files of training/train_drafter.py are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.decoders.wan_vae import wan_vae_to_original
from sdvg_core.pocket.trained_set import FAST_VAE, FAST_VAE_NAME, FOLDER, NAMES, manifest
from sdvg_core.text.umt5 import umt5_to_comfy

from .common import WORK
from .train_transformer import MODELS


def main() -> None:
    """Write the set and its manifest."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--taehv", action="store_true", help="only the TAEHV")
    options.add_argument("--put", action="append", default=[], help="role=FILE, a file to take as it is")
    args = options.parse_args()
    if args.put:
        found = manifest()
        for role, file in (entry.split("=", 1) for entry in args.put):
            name = FAST_VAE_NAME if role == FAST_VAE else NAMES[role]
            shutil.copyfile(file, FOLDER / name)
            found["files"][role] = _described(FOLDER / name)
        _write_manifest(found | {"commit": _commit()})
        return
    if args.taehv:
        described = manifest()
        _write_taehv()
        described["files"][FAST_VAE] = _described(FOLDER / FAST_VAE_NAME)
        if (WORK / "taehv.json").exists():
            described["metrics"][FAST_VAE] = json.loads((WORK / "taehv.json").read_text(encoding="utf-8"))
        _write_manifest(described)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for role, sizes in MODELS.items():
        tree = WanTree(sizes)
        tree.load_state_dict(_load(role))
        save_model(FOLDER / NAMES[role], tree)
    save_file(wan_vae_to_original(_half(_load("vae"))), FOLDER / NAMES["vae"])
    text = torch.load(WORK / "text.pt", weights_only=True)
    pieces = text["pieces"].numpy().tobytes()
    save_file(umt5_to_comfy(_half(text["weights"]), pieces), FOLDER / NAMES["text_encoder"])
    shutil.copyfile(WORK / "reward.safetensors", FOLDER / NAMES["reward"])
    shutil.copyfile(WORK / "vocab.txt", FOLDER / NAMES["vocabulary"])
    _write_taehv()
    names = {**NAMES, FAST_VAE: FAST_VAE_NAME}
    made: dict[str, Any] = {"commit": _commit()}
    made["files"] = {role: _described(FOLDER / name) for role, name in names.items()}
    metrics = WORK / "metrics.json"
    if metrics.exists():
        made["metrics"] = json.loads(metrics.read_text(encoding="utf-8"))
    _write_manifest(made)


def _write_taehv() -> None:
    save_file(_half(_load("taehv")), FOLDER / FAST_VAE_NAME)


def _write_manifest(made: dict[str, Any]) -> None:
    for path in FOLDER.iterdir():
        path.chmod(0o644)  # safetensors writes for the owner alone
    (FOLDER / "manifest.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    total = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{total / 1e6:.1f} MB in {FOLDER.name}")


def _load(name: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(WORK / f"{name}.pt", weights_only=True)["weights"]
    return weights


def save_model(path: Path, tree: WanTree) -> None:
    """Write a transformer as the set holds it, as a whole or not at all."""
    weights = {f"model.{name}": w for name, w in _half(tree.state_dict()).items()}
    # ComfyUI sees these in no shape: it would take any text for one of width 4096, and any patch for 2 x 2.
    stated = {name: getattr(tree, name) for name in ("text_dim", "num_heads", "patch_size", "out_dim")}
    save_file(weights, path.with_suffix(".part"), {"config": json.dumps({"transformer": stated})})
    path.with_suffix(".part").replace(path)


def _half(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: w.half().contiguous() for name, w in weights.items()}


def _described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"file": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
