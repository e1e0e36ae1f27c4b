"""What keeping blocks for later runs costs: time and host memory per block.

    python benchmarks/reuse_cost.py [--runs 30]

Runs nine blocks of the paper's size (832 x 480: latents of 16 x 3 x 60 x 104) through parts that do almost nothing,
with a store and without, in turn, in one thread. Times are the processor's, so other work on the machine counts
little. The prompt's embedding is hashed once per run; that is told apart. Prints a table, then one JSON line. The
goal is under 1 ms per block.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sdvg_core.engine.keys import Identities, hash_tensor
from sdvg_core.engine.parts import Engine
from sdvg_core.engine.reuse import Reuse
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.store import Store
from sdvg_core.engine.types import Condition, Generated

BLOCKS, WIDTH, HEIGHT = 9, 832, 480
ROUTES = {"all kept": "raaaaaaaa", "mixed": "rarararar", "all remade": "rrrrrrrrr"}
EMBEDDING = torch.zeros(1, 512, 4096)
IDENTITIES = Identities(drafter="drafter", target="target", codec="codec", scorer="scorer")


class Part:
    """A model, codec and scorer in one. Every block is a tensor of its own, as a model's is."""

    block_frames = 3
    latent_channels = 16
    timesteps = first_timesteps = (1000.0, 625.0)
    anchor_horizon = 3
    temporal_stride = 4
    spatial_stride = 8
    name = "stub"

    def generate(
        self,
        history: Any,
        span: Any,
        noise: Any,
        condition: Any,
        given: Sequence[Tensor] = (),
        stop: int | None = None,
    ) -> Generated:
        """Return zeros."""
        return Generated((torch.zeros(1, 16, 3, HEIGHT // 8, WIDTH // 8),))

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return frames of one grey pixel."""
        frames = 4 * latents.shape[2] - (3 if state is None else 0)
        return torch.full((1, frames, 3, 1, 1), 0.5), True

    def encode(self, frames: Tensor) -> Tensor:
        """Nothing asks for it."""
        raise NotImplementedError

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return zeros."""
        return torch.zeros(frames.shape[1])

    def describe(self) -> dict[str, Any]:
        """Return no settings."""
        return {}


def timed(work: Callable[[], Any]) -> float:
    """Return the milliseconds of processor time that `work` takes."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def run_once(script: str, store: Store | None) -> None:
    """Make one video from nothing."""
    part = Part()
    engine = Engine(drafter=part, target=part, codec=part, scorer=part)
    condition = Condition(EMBEDDING, "", "")
    if store:
        store.begin_run()
    run = plan_run(
        engine,
        RouterConfig(policy="scripted", script=script),
        lambda _: condition,
        blocks=BLOCKS,
        seed=0,
        width=WIDTH,
        height=HEIGHT,
        reuse=Reuse(store=store, identities=IDENTITIES) if store else None,
    )
    for _ in run.blocks():
        pass


def main() -> None:
    """Measure every route with and without a store, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "benchmark": "reuse_cost",
        "unit": "ms per block, median of the differences",
        "runs": runs,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    print(f"{'route':12}{'ms/block more':>15}{'MB/block kept':>15}")
    hashing = [timed(lambda: hash_tensor(EMBEDDING)) for _ in range(runs)]
    result["hash of a prompt, ms per run"] = statistics.median(hashing)
    for name, script in ROUTES.items():
        run_once(script, None)
        differences = []
        for _ in range(runs):
            store = Store()
            more = timed(partial(run_once, script, store)) - timed(partial(run_once, script, None))
            differences.append((more - result["hash of a prompt, ms per run"]) / BLOCKS)
        result[name] = {
            "milliseconds": statistics.median(differences),
            "megabytes": store.bytes / BLOCKS / 1e6,
        }
        print(f"{name:12}{result[name]['milliseconds']:15.2f}{result[name]['megabytes']:15.2f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
