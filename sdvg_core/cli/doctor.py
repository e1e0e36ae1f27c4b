"""List what is installed, the devices, the model files, and what is missing with where to get it."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

from .. import __version__
from ..causal_wan.config import HEAD_DIM
from ..checkpoints.model_files import KNOWN_FILES, KnownFile, misplaced
from ..errors import BadInput
from ..settings.execution import AUTO
from .shared import file_path

PACKAGES = (
    *("torch", "transformers", "safetensors", "einops", "numpy", "Pillow", "av", "tqdm", "tokenizers"),
    *("sentencepiece", "diffusers", "ftfy"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--models", type=file_path, default=Path("models"), help="folder of models (default ./models), or pocket"
    )


def run(options: argparse.Namespace) -> int:
    """Print the findings and return 0: missing files are findings, not errors."""
    import torch

    from ..causal_wan.attention import NEEDS, choose_attention, why_not
    from ..devices.device import package_version, processor
    from ..videos.files import files_in, show_folder

    paths = files_in(options.models)
    print(f"sdvg {__version__}, Python {platform.python_version()}", "", "Packages", sep="\n")
    for package in PACKAGES:
        print(f"  {package:14} {package_version(package) or 'MISSING'}")
    print("", "Devices", f"  {'cpu':8} {processor()}", sep="\n")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(cards):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        print(f"  {f'cuda:{number}':8} {name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free")
    if not cards:
        print("  no CUDA device: all works but the real pair, which would take hours per video")
    model: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32, "head_dim": HEAD_DIM}
    if cards:
        model |= {"device": torch.device("cuda", 0), "dtype": torch.bfloat16}
    print("", f"Attention (auto takes {choose_attention(AUTO, **model).name})", sep="\n")
    for kernel in NEEDS:
        refusal = why_not(kernel, **model)
        print(f"  {kernel:8} {'NO: ' + refusal if refusal else 'available'}")
    print("", f"Models in {show_folder(options.models)}", sep="\n")
    for known in KNOWN_FILES:
        print(f"  {known.role:14} {_examined(paths[known.role], known, options.models)}")
    return 0


def _examined(path: Path | None, known: KnownFile, models: Path) -> str:
    """Return whether a model's file would load, or where to get it."""
    from ..models.inspection import inspect_file
    from ..scorers.image_reward import read_vocabulary

    if path is None:
        source = f"{known.source}; {known.licence}" if known.licence else known.source
        size = f"{1000 * known.gigabytes:g} MB" if known.gigabytes < 0.1 else f"{known.gigabytes:g} GB"
        smaller = f"; for a smaller card {known.smaller}" if known.smaller else ""
        get = f"get {known.names[0]} ({size}) into {known.folder}/ from {source}{smaller}"
        return f"MISSING: {misplaced(models, known) or get}"
    details = []
    try:
        if known.role == "vocabulary":
            read_vocabulary(path)
            refusal = ""
        else:
            findings = inspect_file(path)
            refusal = findings["reason"]
            details = [findings["dictionary"], f"preset {findings['preset']}" if findings["preset"] else ""]
    except BadInput as error:
        refusal = str(error)
    if refusal:
        return f"UNUSABLE {path}: {refusal}"
    return " ".join((f"found {path}", *(f"({detail})" for detail in details if detail)))
