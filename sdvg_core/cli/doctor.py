"""List what is installed, the devices, the model files, and what is missing with where to get it."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..causal_wan.config import HEAD_DIM
from ..checkpoints.model_files import KNOWN_FILES, KnownFile, misplaced, namesakes
from ..devices.execution import AUTO
from ..errors import BadInput
from ..pocket import POCKET
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
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the findings and return 0: missing files are findings, not errors."""
    findings = examine(options.models)
    print(json.dumps(findings, indent=2) if options.json else "\n".join(describe(findings)))
    return 0


def examine(models: Path) -> dict[str, Any]:
    """Return versions, devices, attention kernels, and a description or a source of each model file."""
    from ..devices.device import package_version
    from ..videos.files import files_in

    paths = files_in(models)
    return {
        "sdvg": __version__,
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "devices": _devices(),
        "attention": _attention(),
        "models_folder": str(models),
        "models": {known.role: _examine_file(paths[known.role], known, models) for known in KNOWN_FILES},
    }


def _examine_file(path: Path | None, known: KnownFile, models: Path) -> dict[str, Any]:
    from ..models.inspection import inspect_file
    from ..scorers.image_reward import read_vocabulary

    if path is None:
        source = f"{known.source}; {known.licence}" if known.licence else known.source
        size = f"{1000 * known.gigabytes:g} MB" if known.gigabytes < 0.1 else f"{known.gigabytes:g} GB"
        get = f"get {known.names[0]} ({size}) into {known.folder}/ from {source}"
        smaller = f"; for a smaller card {known.smaller}" if known.smaller else ""
        remedy = misplaced(models, known) or get + smaller
        return {"found": False, "remedy": remedy}
    result: dict[str, Any] = {"found": True, "path": str(path), "would_load": True}
    if others := [] if models == POCKET else namesakes(models, known, path):
        result["not_taken"] = [str(other) for other in others]
    try:
        if known.role == "vocabulary":
            read_vocabulary(path)
            return result
        return {**result, **asdict(inspect_file(path))}
    except BadInput as error:
        return {**result, "would_load": False, "reason": str(error)}


def _devices() -> list[dict[str, Any]]:
    import torch

    from ..devices.device import processor

    devices: list[dict[str, Any]] = [{"name": "cpu", "what": processor()}]
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(i)
        memory = {"free_gb": free / 1e9, "total_gb": total / 1e9}
        devices.append({"name": f"cuda:{i}", "what": torch.cuda.get_device_name(i), **memory})
    return devices


def _attention() -> dict[str, Any]:
    """Return the kernel that `auto` chooses for the published models, and why each other one would not work."""
    import torch

    from ..causal_wan.attention import NEEDS, choose_attention, why_not

    model: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32, "head_dim": HEAD_DIM}
    if torch.cuda.is_available():
        model |= {"device": torch.device("cuda", 0), "dtype": torch.bfloat16}
    kernels = {name: why_not(name, **model) for name in NEEDS}
    return {"auto": choose_attention(AUTO, **model).name, "kernels": kernels}


def describe(findings: dict[str, Any]) -> list[str]:
    """Return the findings as lines of text."""
    from ..videos.files import show_folder

    lines = [f"sdvg {findings['sdvg']}, Python {findings['python']}", "", "Packages"]
    lines += [f"  {name:14} {version or 'MISSING'}" for name, version in findings["packages"].items()]
    lines += ["", "Devices"]
    for device in findings["devices"]:
        memory = f", {device['free_gb']:.1f} of {device['total_gb']:.1f} GB free" if "free_gb" in device else ""
        lines.append(f"  {device['name']:8} {device['what']}{memory}")
    if len(findings["devices"]) == 1:
        lines.append("  no CUDA device: all works but the real pair, which would take hours per video")
    lines += ["", f"Attention (auto takes {findings['attention']['auto']})"]
    for name, refusal in findings["attention"]["kernels"].items():
        lines.append(f"  {name:8} {'NO: ' + refusal if refusal else 'available'}")
    lines += ["", f"Models in {show_folder(Path(findings['models_folder']))}"]
    for role, model in findings["models"].items():
        lines.append(f"  {role:14} {_model_line(model)}")
    return lines


def _model_line(model: dict[str, Any]) -> str:
    if not model["found"]:
        return f"MISSING: {model['remedy']}"
    others = ", ".join(model.get("not_taken", ()))
    if not model["would_load"]:
        return f"UNUSABLE {model['path']}: {model['reason']}" + (f"; there is also {others}" if others else "")
    details = [model.get("dictionary"), f"preset {model['preset']}" if model.get("preset") else ""]
    details.append(f"not {others}, of the same name" if others else "")
    return " ".join((f"found {model['path']}", *(f"({detail})" for detail in details if detail)))
