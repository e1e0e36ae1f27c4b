"""Whether a GPU makes the same video as a CPU: with the embedded models, the user's own command, every fast path.

    python -m benchmarks.same_on_gpu [DEVICE] [--blocks 9] [--variants NAME ...] [--json]

Makes one video on the CPU and the same one on DEVICE (default cuda) in every way it can run. Prints how far latents
and scores are off, and the first block where decisions differ. A bug shows as an unrelated video; rounding shows in
the third digit or later, and in close decisions.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.markdown import markdown
from sdvg_core.checkpoints.latents import load_latents
from sdvg_core.cli import Parser
from sdvg_core.cli import main as sdvg
from sdvg_core.pocket.trained_set import DEFAULT_PROMPT, FOLDER, NAMES
from sdvg_core.pocket.world import SIZE

Video = Mapping[str, Any]
"""The `latents` of a complete video, on the CPU; of its blocks the decisions (`accepted`) and frame `scores`."""
# What each one changes besides the device, as options of `generate`.
VARIANTS = {
    "plain": "",
    "attention of torch's choice": "--attention sdpa",
    "VAE in float16": "--vae-dtype float16",
    "scorer in float16": "--reward-dtype float16",
    "transformers in bfloat16": "--dtype bfloat16",
    "keys and values in fp8": "--kv-dtype float8_e4m3fn",
    "compiled": "--compile default",
}
PRESETS = "--drafter-settings preset=self-forcing-1.3b --target-settings preset=krea-14b"
DTYPES = "--dtype float32 --text-dtype float32"


def film(options: str, blocks: int, folder: Path) -> Video:
    """Make a video with the embedded models.

    Raises `RuntimeError` with the command's error sentence if it fails.
    """
    asked = ["generate", "--prompt", DEFAULT_PROMPT, "--output", str(folder)]
    asked += [word for role, name in NAMES.items() for word in (f"--{role.replace('_', '-')}", str(FOLDER / name))]
    asked += f"{PRESETS} {DTYPES} --size {SIZE}x{SIZE} --blocks {blocks} {options}".split()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = sdvg(asked)
    if code:
        raise RuntimeError(output.getvalue().strip().splitlines()[-1])
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return {
        "latents": load_latents(folder / "latents.safetensors").latents,
        "accepted": [block["accepted"] for block in report["blocks"]],
        "scores": [block["frame_scores"] for block in report["blocks"]],
    }


def compare(reference: Video, other: Video, block_frames: int = 3) -> dict[str, Any]:
    """Return how far a video is off up to the first block decided otherwise; from there on it is another video."""
    pairs = list(zip(reference["accepted"], other["accepted"], strict=True))
    alike = next((number for number, (a, b) in enumerate(pairs) if a != b), len(pairs))
    ours, theirs = (video["latents"][:, :, : alike * block_frames].double() for video in (reference, other))
    judged = zip(reference["scores"][: alike + 1], other["scores"][: alike + 1], strict=True)
    scores = [
        abs(a - b) for one, two in judged for a, b in zip(one or (), two or (), strict=True) if None not in (a, b)
    ]
    return {
        "blocks_alike": alike,
        "latents": float((ours - theirs).abs().max()) if alike else None,
        "latents_relative": float((ours - theirs).norm() / ours.norm()) if alike else None,
        "scores": max(scores, default=0.0),
    }


def compared_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return as a table how videos differ."""
    columns = ("blocks_alike", "latents", "latents_relative", "scores", "failed")
    rows = [[name, *(f"{one.get(column, '-')}" for column in columns)] for name, one in found.items()]
    return markdown(("video", *columns), rows)


def main(words: Sequence[str] | None = None) -> int:
    """Make and compare the videos. The exit code tells whether every way could run."""
    parser = Parser(prog="python -m benchmarks.same_on_gpu", description=__doc__)
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    options = parser.parse_args(words)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        reference = film("--device cpu", options.blocks, Path(folder) / "reference")
        for number, name in enumerate(options.variants):
            print(f"making it on {options.device}: {name}", file=sys.stderr, flush=True)
            try:
                asked = f"--device {options.device} {VARIANTS[name]}"
                found[name] = compare(reference, film(asked, options.blocks, Path(folder) / str(number)))
            except RuntimeError as error:
                found[name] = {"failed": str(error)}
    result = {"benchmark": "sdvg same", "device": options.device, "variants": found}
    print(json.dumps(result) if options.json else compared_text(found))
    return int(any("failed" in one for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
