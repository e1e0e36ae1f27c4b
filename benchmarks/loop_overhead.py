"""How much time the loop itself takes per block, over the sum of the model calls.

    python benchmarks/loop_overhead.py [--runs 30]

Runs nine blocks through tiny parts and times every call into them from outside. The rest of the wall time is the
loop's own: routing, history, records. Prints a table, then one JSON line. The goal is under 2 ms per block.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sdvg_core.engine.noise import KeyedNoise
from sdvg_core.engine.parts import Engine
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.speculate import speculate
from sdvg_core.engine.types import Condition, Generated, plan_spans

BLOCKS = 9
ROUTES = {"all kept": "raaaaaaaa", "mixed": "rarararar", "all remade": "rrrrrrrrr"}


class Timed:
    """Adds up the seconds spent inside the parts."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        self.seconds += time.perf_counter() - began
        return result


class Part:
    """A model, codec and scorer in one that does almost nothing, at the size of a 64x64 video."""

    block_frames = 3
    latent_channels = 16
    timesteps = first_timesteps = (1000.0, 625.0)
    anchor_horizon = 3
    temporal_stride = 4
    spatial_stride = 8
    name = "stub"

    def __init__(self, timed: Timed) -> None:
        self.timed = timed

    def generate(
        self, history: Any, span: Any, noise: KeyedNoise, condition: Any, given: Any = (), stop: Any = None
    ) -> Generated:
        return self.timed(lambda: Generated((noise.draw(span, 0),)))

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        frames = 4 * latents.shape[2] - (3 if state is None else 0)
        return self.timed(lambda: (torch.full((1, frames, 3, 64, 64), 0.5), True))

    def encode(self, frames: Tensor) -> Tensor:
        raise NotImplementedError

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        return self.timed(lambda: torch.zeros(frames.shape[1]))

    def describe(self) -> dict[str, Any]:
        return {}


def overhead_ms(script: str) -> float:
    """Return the loop's own milliseconds per block, over one run."""
    timed = Timed()
    part = Part(timed)
    engine = Engine(drafter=part, target=part, codec=part, scorer=part)
    condition = Condition(torch.zeros(1, 1, 1), "", "")
    router = RouterConfig(policy="scripted", script=script)
    noise = KeyedNoise(seed=0, channels=16, height=8, width=8)
    began = time.perf_counter()
    for _ in speculate(engine, router, plan_spans(BLOCKS, 3), noise, lambda _: condition):
        pass
    return (time.perf_counter() - began - timed.seconds) / BLOCKS * 1000


def main() -> None:
    """Measure every route, after a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    result: dict[str, Any] = {
        "benchmark": "loop_overhead",
        "unit": "ms per block, median",
        "runs": runs,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    print(f"{'route':12}{'median ms/block':>18}{'worst':>10}")
    for name, script in ROUTES.items():
        overhead_ms(script)
        values = [overhead_ms(script) for _ in range(runs)]
        result[name] = statistics.median(values)
        print(f"{name:12}{result[name]:18.3f}{max(values):10.3f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
