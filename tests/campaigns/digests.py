"""What a checkout makes, as digests, to show that a change of its insides changed nothing that it makes.

    python tests/campaigns/digests.py record FILE [--checkout DIR]
    python tests/campaigns/digests.py compare BEFORE AFTER

`record` makes small videos by the command line, and writes of each: hashes of its latents, and its report without
seconds, versions and free memory. `compare` lists what differs between two such files and exits with 1 if anything
does; settings, whose shape may change, are listed apart and do not count. Left out are mp4 files, which x264 does
not always write alike, pictures of routes, which show seconds, and the nodes, whose latents
tests/comfyui/test_same_latents.py holds against the command line's.

It relies on nothing but options, the files that are written, the weights in sdvg_core/pocket, and the checkout's
tests/support/random_set.py; so it serves for a checkout whose modules lie elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # this is run as a program

from tests.support.cli_runs import override  # noqa: E402

WEIGHTS = "sdvg_core/pocket/weights"
Digest = dict[str, Any]

# --- runs of the command line; {made} is a folder that `prepare` fills, {weights} that of the embedded models

FILES = (
    "--drafter {made}/models/tiny_self_forcing.pt --target {made}/models/tiny_krea.safetensors "
    "--vae {made}/models/tiny_wan_2.1_vae.safetensors --text-encoder {made}/models/tiny_umt5.safetensors "
    "--reward {made}/models/TinyImageReward.pt --text-dtype float32"
)
POCKET_FILES = (
    "--drafter {weights}/pocket_self_forcing.safetensors --target {weights}/pocket_krea.safetensors "
    "--vae {weights}/pocket_wan_2.1_vae.safetensors --text-encoder {weights}/pocket_umt5.safetensors "
    "--reward {weights}/PocketImageReward.safetensors --dtype float32 --text-dtype float32"
)
PRESETS = "--drafter-settings preset=self-forcing-1.3b --target-settings preset=krea-14b"
OTHER_PRESETS = "--drafter-settings preset=causal-forcing --target-settings preset=longlive-1.0"
UNROUTED = f"generate {FILES} {PRESETS} --size 32x32 --schedule 1000,625 --blocks 5"
# This tau is reached by some drafts of the tiny models, which have random weights, and missed by others.
ANY = f"{UNROUTED} --tau -0.15"
BALL = "--prompt 'a red ball'"
TINY = f"{ANY} {BALL}"


def directed(more: str = "", letters: str = "taraa") -> str:
    """Return a command whose route is fixed, with one letter per block."""
    return f"{UNROUTED} {BALL} --handover 0 {more} --blocks {len(letters)} --directions {letters}"


SEVEN = "taraarr"
OTHER_PROMPT = "a big red box drifts left from the right over snow"
POCKET = f"generate {POCKET_FILES} --size 64x64 --blocks 4 --prompt '{OTHER_PROMPT}'"

POLICIES = {
    "reward": "",
    "reward, mean": "--aggregation mean --tau 0.7",
    "reward, quantile": "--aggregation 0.5 --tau 0.6",
    "first": "--policy first",
    "stride": "--policy stride --stride 3 --handover 1",
    "always-target": "--policy always-target",
}
CONTEXTS = {
    "recompute": "--{0}-settings cache=recompute context-frames=6 --blocks 7",
    "incremental": "--{0}-settings cache=incremental window=21 --blocks 7",
    "sliding": "--{0}-settings cache=incremental window=9 sink=3 --blocks 7",
}
SLIDING = " ".join(CONTEXTS["sliding"].format(role) for role in ("drafter", "target"))
FP8 = "--kv-dtype float8_e4m3fn"
CONTINUED = "--continue-from {made}/clip/latents.safetensors"
PICTURE = "--start-image {made}/picture.bmp"
COMMANDS = {
    **{
        f"policy {name}": f"{TINY if 'reward' in name else UNROUTED + ' ' + BALL} {more}"
        for name, more in POLICIES.items()
    },
    **{f"drafter {name}": directed(more.format("drafter"), SEVEN) for name, more in CONTEXTS.items()},
    **{f"target {name}": directed(more.format("target"), SEVEN) for name, more in CONTEXTS.items()},
    "own": f"{TINY} --drafter-context own",
    "own, sliding": directed(f"{SLIDING} --drafter-context own", SEVEN),
    "no forced first": f"{TINY} --forced-blocks 0",
    "first, no forced block": f"{UNROUTED} {BALL} --policy first --forced-blocks 0",
    "directions": directed(),
    "bail-out": f"{UNROUTED} {BALL} --tau 1e9 --bail-out 2 --blocks 7",
    "repair-step": directed("--handover 1"),
    "repair-step, bail-out": f"{UNROUTED} {BALL} --tau 1e9 --handover 1 --bail-out 2 --blocks 6",
    "continue-from": f"{TINY} {CONTINUED}",
    "continue-from, sliding": directed(f"{SLIDING} {CONTINUED}", "aarra"),
    "continue-from, own": f"{TINY} {CONTINUED} --drafter-context own",
    "start-image": f"{TINY} {PICTURE}",
    "start-image, sliding": directed(f"{SLIDING} {PICTURE}", SEVEN),
    "prompt-schedule": f"{ANY} --prompt-file {{made}}/schedule.txt --tau -2.2",
    "prompt-schedule, sliding": f"{ANY} --prompt-file {{made}}/schedule.txt --tau -2.2 {SLIDING}",
    "prompt-file": f"{ANY} --prompt-file {{made}}/prompts.txt --blocks 3",
    "fp8": directed(FP8),
    "fp8, sliding": directed(f"{FP8} {SLIDING}", SEVEN),
    "reward in float16": f"{TINY} --size 64x32 --reward-dtype float16",
    "bfloat16, reference5": f"{TINY} --dtype bfloat16 --text-dtype bfloat16 --schedule reference5",
    "blocks of two": directed("--drafter-settings block-frames=2 --target-settings block-frames=2"),
    "pocket, other presets": f"{POCKET} {OTHER_PRESETS} --blocks 6",
    "pocket, start-image": f"{POCKET} {PRESETS} {PICTURE} --tau -1.47",
    "demo": "demo --blocks 6",
    "demo, the gate": "demo --blocks 6 --preset paper",
}

# --- where they are run

# One thread, so that sums are added up in the same order; and nothing is written into the checkout.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The checkout whose work is recorded, its interpreter, and a folder to work in."""

    checkout: Path
    python: Path
    folder: Path

    def run(self, *words: str) -> str:
        """Run Python on the checkout's modules and return what it printed. Raises `RuntimeError` if it fails."""
        done = subprocess.run(
            [str(self.python), *words],
            cwd=self.checkout,
            env={**ENVIRONMENT, "PYTHONPATH": str(self.checkout)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"python {shlex.join(words)} failed:\n{done.stdout[-3000:]}")
        return done.stdout

    def command(self, command: str, output: Path) -> list[str]:
        """Return the words of one of COMMANDS."""
        names = {"made": self.folder, "weights": self.checkout / WEIGHTS}
        words = [word.format(**names) for word in override(shlex.split(command))]
        return ["-m", "sdvg_core", *words, "--output", str(output)]


def prepare(place: Place) -> None:
    """Write what the runs read: models, a clip, a picture, prompts. Raises if the wrong code would run."""
    ours = Path(place.run("-c", "import sdvg_core; print(sdvg_core.__file__)").strip()).resolve()
    if not ours.is_relative_to(place.checkout):
        raise RuntimeError(f"expected to run the code of {place.checkout}, but Python finds {ours}")
    write = "import pathlib, sys; from tests.support.random_set import write_random_set as write"
    place.run("-c", f"{write}; write(pathlib.Path(sys.argv[1]))", str(place.folder / "models"))
    place.run(*place.command(directed("--seed 5", "tar"), place.folder / "clip"))
    (place.folder / "prompts.txt").write_text("a red ball\na blue cube\n", encoding="utf-8")
    (place.folder / "schedule.txt").write_text("1: a red ball\n3: a blue cube\n", encoding="utf-8")
    pixels = bytes((x * 5, y * 3, (x ^ y) * 2)[colour] for y in range(80) for x in range(48) for colour in range(3))
    header = struct.pack("<2sIIIIiiHHI20x", b"BM", 54 + len(pixels), 0, 54, 40, 48, 80, 1, 24, 0)
    (place.folder / "picture.bmp").write_bytes(header + pixels)


def run_command(place: Place, name: str, command: str) -> dict[str, Digest]:
    """Make what a command asks for; return the digest of each video."""
    output = place.folder / name
    digests = {}
    place.run(*place.command(command, output))
    for latents in sorted(output.rglob("latents.safetensors")):
        title = " ".join(("command line:", name, *latents.relative_to(output).parts[:-1]))
        report = json.loads(latents.with_name("report.json").read_bytes())
        digests[title] = digest(title, latents, report)
    return digests


# --- what is kept of a run


def digest(title: str, latents: Path, report: Any) -> Digest:
    """Return what is compared of a video; tell who made its blocks, t the target, d the drafter."""
    steady = without_volatile(report)
    route = "".join(block["author"][0] for block in report["blocks"])
    sys.stderr.write(f"{title}: {route}\n")
    asked = {name: steady.pop(name) for name in ("request", "load") if name in steady}
    return {"latents": tensors(latents), "settings": steady.pop("settings") | asked, "report": steady}


def tensors(path: Path) -> dict[str, Any]:
    """Return type, shape and hash of the bytes of each tensor in a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: [of["dtype"], of["shape"], hashlib.sha256(data[start:][slice(*of["data_offsets"])]).hexdigest()]
        for name, of in header.items()
    }


def without_volatile(value: Any) -> Any:
    """Leave out of a report what differs from run to run: seconds, rates of them, versions, free memory."""
    if isinstance(value, dict):
        volatile = re.compile("versions|speed_up|.*seconds")
        return {name: without_volatile(inner) for name, inner in value.items() if not volatile.fullmatch(name)}
    if isinstance(value, list):
        return [without_volatile(inner) for inner in value]
    return value


# --- the two commands


def record(place: Place) -> dict[str, Digest]:
    """Return the digests of all runs, by name. Two are made at a time."""
    prepare(place)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_command, place, *case) for case in COMMANDS.items()]
        try:
            return {title: digests for job in jobs for title, digests in job.result().items()}
        finally:
            pool.shutdown(cancel_futures=True)


def compare(before: dict[str, Digest], after: dict[str, Digest]) -> int:
    """List what differs, settings apart; return 1 if anything but settings does."""
    lines = list(differences(before, after))
    made = [line for path, line in lines if path[1:2] != ("settings",)]
    settings = [line for path, line in lines if path[1:2] == ("settings",)]
    sys.stdout.write(f"{len(before)} videos before, {len(after)} after\n")
    for title, differing in (("settings", settings), ("what is made", made)):
        sys.stdout.write("\n".join([f"{len(differing) or 'no'} differences in {title}", *differing, ""]))
    return int(bool(made))


def differences(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where two JSON values differ, and how."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        before = dict(enumerate(before))
        after = dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from differences(before.get(name, "nothing"), after.get(name, "nothing"), (*path, str(name)))
    elif before != after:
        yield path, f"  {' / '.join(path)}: {before!r:.100} became {after!r:.100}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("record", help="make the videos and write their digests")
    new.add_argument("file", type=Path, help="file to write")
    new.add_argument("--checkout", type=Path, default=ROOT, help="whose work (default: this one's)")
    new.add_argument("--python", type=Path, default=ROOT / ".venv-test/bin/python")
    old = commands.add_parser("compare", help="list what differs between two such files")
    old.add_argument("files", type=Path, nargs=2)
    options = parser.parse_args(arguments)
    if options.command == "compare":
        before, after = (json.loads(file.read_bytes()) for file in options.files)
        return compare(before, after)
    with TemporaryDirectory() as folder:
        place = Place(
            checkout=options.checkout.resolve(),
            python=options.python.absolute(),
            folder=Path(folder).resolve(),
        )
        made = record(place)
    options.file.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
