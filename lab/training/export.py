"""Put finished files of lab/training/train_drafter.py into the package, and write them into its manifest.

    python -m lab.training.export drafter=FILE [target=FILE ...]

The manifest says for every file its size and hash, and the commit of the newest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.pocket.trained_set import FAST_VAE, FAST_VAE_NAME, WEIGHT_FILES, WEIGHTS_FOLDER, manifest


def main() -> None:
    """Copy the files, and write the manifest."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", metavar="ROLE=FILE", help="a file to take as it is")
    described = manifest()
    for role, file in (entry.split("=", 1) for entry in options.parse_args().files):
        path = WEIGHTS_FOLDER / (FAST_VAE_NAME if role == FAST_VAE else WEIGHT_FILES[role])
        shutil.copyfile(file, path)
        path.chmod(0o644)  # safetensors writes for the owner alone
        described["files"][role] = _described(path)
    described["commit"] = _commit()
    (WEIGHTS_FOLDER / "manifest.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def save_model(path: Path, tree: WanTree) -> None:
    """Write a transformer as the set holds it, as a whole or not at all."""
    weights = {f"model.{name}": w.half().contiguous() for name, w in tree.state_dict().items()}
    # ComfyUI sees these in no shape: it would take any text for one of width 4096, and any patch for 2 x 2.
    stated = {name: getattr(tree, name) for name in ("text_dim", "num_heads", "patch_size", "out_dim")}
    save_file(weights, path.with_suffix(".part"), {"config": json.dumps({"transformer": stated})})
    path.with_suffix(".part").replace(path)


def _described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"file": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
