"""A random bfloat16 file of the published 1.3B loads and makes a block of 832x480 on a CPU; nothing is decoded.

    python -m tests.campaigns.real_size FOLDER            the weights stay in the file's memory map
    python -m tests.campaigns.real_size FOLDER --streamed every layer is copied when it works, as on a small card

The file, 2.8 GB, is written into FOLDER and used again. Prints seconds and the peak of memory, found and planned,
and exits with 1 if it is a tenth above. `--steps`: of the block's denoising; one takes minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.models import Random
from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.causal_wan.config import WAN_1_3B, wan_shapes
from sdvg_core.causal_wan.generator import build_engine
from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.engine.history import History
from sdvg_core.engine.noise import KeyedNoise
from sdvg_core.engine.protocols import BlockCall
from sdvg_core.engine.types import Condition, Span
from sdvg_core.plan import sizes
from tests.causal_wan.wan_files import save_hollow

CPU, TOKENS, FRAMES = torch.device("cpu"), 1560, 3
TORCH_ITSELF = 0.4e9
"""What a process takes that has run something small."""


def write(path: Path) -> None:
    """Write the file tensor by tensor, so that it needs no memory of its size."""
    save_hollow(path, WAN_1_3B)
    with path.open("r+b") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin, random = file.tell(), Random(CPU, 0)
        for name, shape in wan_shapes(WAN_1_3B).items():
            file.seek(begin + header[name]["data_offsets"][0])
            file.write(random.weight(name, shape).bfloat16().view(torch.uint8).numpy().tobytes())


def anonymous() -> int:
    """Return the bytes of memory that are no file's."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssAnon")).split()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--streamed", action="store_true")
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    path, most, ended = options.folder / "random_1.3b.safetensors", [0], threading.Event()
    if not path.exists():
        write(path)

    def watch() -> None:
        while not ended.wait(0.05):
            most[0] = max(most[0], anonymous())

    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    layers = range(WAN_1_3B.num_layers) if options.streamed else ()
    loaded = load_wan(path, dtype=torch.bfloat16, streamed=layers)
    read = time.perf_counter() - began
    schedule = ",".join(str(1000 - 250 * n) for n in range(options.steps))
    wan = replace(loaded, preset=replace(get_preset("self-forcing-1.3b"), schedule=schedule))
    codec = argparse.Namespace(encode=None)
    engine = build_engine(wan, None, codec, None)  # type: ignore[arg-type]
    condition = Condition(torch.zeros(1, 512, 4096), "", "")
    noise = KeyedNoise(seed=0, channels=16, height=60, width=104)
    made = engine.drafter.generate(BlockCall(History(()), Span(0, 0, FRAMES), noise, condition))
    took = time.perf_counter() - began - read
    ended.set()
    assert bool(torch.isfinite(made.latents).all())
    caches = sizes.kv_bytes(WAN_1_3B, 2 * FRAMES, TOKENS, 2) + sizes.text_kv_bytes(WAN_1_3B, 2)
    planned = caches + sizes.pass_bytes(WAN_1_3B, FRAMES, TOKENS, 2) + TORCH_ITSELF
    if options.streamed:  # here the home of the weights lies in memory too
        planned += loaded.copied + 2 * sizes.wan_bytes(WAN_1_3B, 2, sizes.LAYER)
    sys.stdout.write(f"loaded in {read:.1f} s, steps of a block: {options.steps}, in {took:.0f} s\n")
    peak = f"peak of memory besides the file's map {most[0] / 1e9:.2f} GB, planned {planned / 1e9:.2f} GB"
    sys.stdout.write(f"{peak}\n")
    return int(most[0] > 1.1 * planned)


if __name__ == "__main__":
    sys.exit(main())
