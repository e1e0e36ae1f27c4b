"""Say what is there and what is missing, what a file is, or whether a run fits in a GPU's memory; get model files.

Without a file, lists packages, devices and model files, with where to get what is missing. With a file, says what
it is, whether it would load, and why not (exit code 2). With --vram, says how the real pair fits. With --fetch,
gets model files from the Hugging Face Hub.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import BadInput
from ..pocket import POCKET
from ..settings.execution import AUTO
from ..weights.model_files import CONTROL_FILES, KNOWN_FILES, KnownFile, misplaced, smaller_file
from . import fitting
from .shared import file_path

PACKAGES = (
    *("torch", "transformers", "safetensors", "einops", "numpy", "Pillow", "av", "tqdm", "tokenizers"),
    *("sentencepiece", "diffusers", "ftfy", "huggingface_hub"),
)
USUAL_ROLES = ("drafter", "target", "vae", "text_encoder")
"""What --fetch gets if no role is named."""
FETCHABLE: Mapping[str, KnownFile] = {known.role: known for known in (*KNOWN_FILES, *CONTROL_FILES)}


def role_name(text: str) -> str:
    """Return a role in its usual spelling. Raises argparse's error for one without a known file."""
    name = text.replace("-", "_")
    if name not in FETCHABLE:
        raise argparse.ArgumentTypeError(f"no file is known for {text!r:.60}; choose {', '.join(FETCHABLE)}")
    return name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "file", nargs="?", type=file_path, help="a file of weights, an index of shards, or a folder with either"
    )
    parser.add_argument(
        "--values", action="store_true", help="also read all values of the file, and look for NaN and infinity"
    )
    parser.add_argument("--models", type=file_path, help="folder of models (default ./models), or pocket")
    others = ", ".join(role for role in FETCHABLE if role not in USUAL_ROLES)
    parser.add_argument(
        "--fetch",
        nargs="*",
        type=role_name,
        metavar="ROLE",
        help=f"get files from the Hugging Face Hub: {', '.join(USUAL_ROLES)}, or those named ({others})",
    )
    parser.add_argument("--yes", action="store_true", help="--fetch without asking")
    fitting.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the findings. Missing files are findings, not errors; a file that would not load is one."""
    parts = {
        "a file": options.file is not None,
        "--vram": options.vram is not None,
        "--fetch": options.fetch is not None,
        "--models": options.models is not None and options.fetch is None,
    }
    asked = [part for part, given in parts.items() if given]
    if len(asked) > 1:
        raise BadInput(f"{asked[0]} and {asked[1]} ask for two things; leave one of them out")
    if options.values and options.file is None:
        raise BadInput("--values reads the values of a file; name one")
    if options.yes and options.fetch is None:
        raise BadInput("--yes answers the question of --fetch; add that, or leave it out")
    if options.vram is None and (stated := fitting.stated_options(options)):
        raise BadInput(f"{stated[0]} says what should fit; add --vram, or leave it out")
    if options.file is not None:
        return _show_file(options.file, values=options.values)
    models = options.models or Path("models")
    if options.fetch is not None:
        if models == POCKET:
            raise BadInput("the embedded models are there already; leave --fetch out, or name a folder as --models")
        from .fetching import fetch_files

        roles = dict.fromkeys(options.fetch or USUAL_ROLES)
        fetch_files([FETCHABLE[role] for role in roles], models, agreed=options.yes)
    elif options.vram is not None:
        fitting.show_fit(options)
    else:
        _show_machine(models)
    return 0


def _show_file(file: Path, *, values: bool) -> int:
    from ..loading.inspection import inspect_file

    findings = inspect_file(file, values=values)
    print("\n".join(f"{name:<13}{value}" for name, value in findings.items() if value))
    return 2 if findings["reason"] else 0


def _show_machine(models: Path) -> None:
    import torch

    from ..causal_wan.attention import NEEDS, choose_attention, why_not
    from ..causal_wan.config import HEAD_DIM
    from ..devices.device import package_version, processor
    from ..videos.chosen_files import files_in, show_folder

    paths = files_in(models)
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
    print("", f"Models in {show_folder(models)}", sep="\n")
    for known in KNOWN_FILES:
        print(f"  {known.role:14} {_examined(paths[known.role], known, models)}")
    if not all(paths.values()):
        print("", "python -m sdvg_core doctor --fetch ROLE ... gets what is missing", sep="\n")


def _examined(path: Path | None, known: KnownFile, models: Path) -> str:
    """Return whether a model's file would load, or where to get it."""
    from ..loading.inspection import inspect_file
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
            plain = known.role == "target" and findings["quantisation"] == "none"
            details += [smaller_file(path)] if plain else []
    except BadInput as error:
        refusal = str(error)
    if refusal:
        return f"UNUSABLE {path}: {refusal}"
    return " ".join((f"found {path}", *(f"({detail})" for detail in details if detail)))
