"""Whether a GPU makes the same video as a CPU: with the embedded models, the user's own command, every fast path.

    python benchmarks/same_on_gpu.py [DEVICE] [--blocks 9] [--variants NAME ...] [--json]

Makes one video on the CPU and the same one on DEVICE (default cuda) in every way it can run. Prints how far latents
and scores are off, and the first block where decisions differ. A bug shows as an unrelated video; rounding shows in
the third digit or later, and in close decisions.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdvg_core.cli import main as sdvg
from sdvg_core.pipeline.latents import load_latents
from sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_core.pocket.trained_set import FOLDER, NAMES
from sdvg_core.pocket.world import SIZE

REFERENCE = ("--device", "cpu")
# What each one changes besides the device, as options of `generate`.
VARIANTS = {
    "plain": (),
    "overlap": ("--overlap",),
    "attention of torch's choice": ("--attention", "sdpa"),
    "VAE as diffusers has it": ("--vae-layers", "diffusers"),
    "VAE as planes": ("--vae-layers", "planes"),
    "VAE as planes in float16": ("--vae-layers", "planes", "--vae-dtype", "float16"),
    "scorer in float16": ("--reward-dtype", "float16"),
    "transformers in bfloat16": ("--dtype", "bfloat16"),
    "keys and values in fp8": ("--kv-dtype", "float8_e4m3fn"),
    "compiled": ("--compile", "default", "--vae-layers", "planes"),
    "compiled and overlap": ("--compile", "default", "--vae-layers", "planes", "--overlap"),
}


def film(options: Sequence[str], blocks: int, folder: Path) -> dict[str, Any]:
    """Make a video with the embedded models; return its latents, decisions and scores.

    Raises `RuntimeError` with the command's error sentence if it fails.
    """
    files = [word for role, name in NAMES.items() for word in (f"--{role.replace('_', '-')}", str(FOLDER / name))]
    presets = ["--drafter-preset", "self-forcing-1.3b", "--target-preset", "krea-14b"]
    size = ["--width", str(SIZE), "--height", str(SIZE), "--blocks", str(blocks), "--text-dtype", "float32"]
    asked = ["generate", "--prompt", DEFAULT_PROMPT, *files, *presets, *size, "--dtype", "float32"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = sdvg([*asked, *options, "--output", str(folder)])
    if code:
        raise RuntimeError(said.getvalue().strip().splitlines()[-1])
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return {
        "latents": load_latents(folder / "latents.safetensors").latents,
        "accepted": [block["accepted"] for block in report["blocks"]],
        "scores": [block["frame_scores"] for block in report["blocks"]],
    }


def compare(reference: dict[str, Any], other: dict[str, Any], block_frames: int = 3) -> dict[str, Any]:
    """Return how far a video is off up to the first block decided otherwise; from there on it is another video."""
    pairs = list(zip(reference["accepted"], other["accepted"], strict=True))
    alike = next((number for number, (a, b) in enumerate(pairs) if a != b), len(pairs))
    ours, theirs = (video["latents"][:, :, : alike * block_frames].double() for video in (reference, other))
    judged = zip(reference["scores"][: alike + 1], other["scores"][: alike + 1], strict=True)
    scores = [abs(a - b) for one, two in judged for a, b in zip(one or (), two or (), strict=True)]
    return {
        "blocks_alike": alike,
        "latents": float((ours - theirs).abs().max()) if alike else None,
        "latents_relative": float((ours - theirs).norm() / ours.norm()) if alike else None,
        "scores": max(scores, default=0.0),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make and compare the videos. The exit code tells whether every way could run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        reference = film(REFERENCE, options.blocks, Path(folder) / "reference")
        for number, name in enumerate(options.variants):
            print(f"making it on {options.device}: {name}", file=sys.stderr, flush=True)
            try:
                how = ("--device", options.device, *VARIANTS[name])
                found[name] = compare(reference, film(how, options.blocks, Path(folder) / str(number)))
            except RuntimeError as error:
                found[name] = {"failed": str(error)}
    if options.json:
        print(json.dumps({"benchmark": "sdvg same", "device": options.device, "variants": found}))
    else:
        print("\n".join(_line(name, one, options.blocks) for name, one in found.items()))
    return int(any("failed" in one for one in found.values()))


def _line(name: str, found: dict[str, Any], blocks: int) -> str:
    if "failed" in found:
        return f"{name:28} {found['failed']}"
    off = ""
    if found["latents"]:
        off = f"latents {found['latents']:.1e}, {found['latents_relative']:.1e} of their size; "
    return f"{name:28} {found['blocks_alike']} of {blocks} blocks alike; {off}scores {found['scores']:.1e}"


if __name__ == "__main__":
    sys.exit(main())
