"""Gather what was measured of the set into `metrics.json`, which the export puts into the manifest.

    python -m training.collect_metrics --pair out/measured.jsonl

What routes are worth is measured by training.measure_pair, the reward by training.evaluate_reward,
and the TAEHV by training.measure_taehv; reconstruction here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from research.metrics import judge
from research.world import held_out_prompts, render
from sdvg_core.decoders.wan_vae import load_wan_vae
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import trained_set

from .common import WORK
from .make_latents import FRAMES
from .measure_pair import tables


def reconstruction(prompts: int) -> dict[str, float]:
    """Return how well whole held-out clips come back from the VAE, in decibels by the oracle."""
    codec = load_wan_vae(trained_set().vae, layers="planes")
    found = []
    for prompt in held_out_prompts(prompts, seed=0):
        scene = parse(prompt)
        shown, _ = codec.decode(codec.encode(render(scene, torch.arange(FRAMES))[None]))
        found.append(judge(shown[0], scene).quality.mean())
    values = torch.stack(found)
    return {"prompts": prompts, "mean": round(values.mean().item(), 2), "worst": round(values.min().item(), 2)}


def main() -> None:
    """Write the measurements."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pair", type=Path, required=True, help="what training.measure_pair wrote of the weights")
    options.add_argument("--prompts", type=int, default=40, help="held-out prompts for the reconstruction")
    args = options.parse_args()
    torch.set_num_threads(1)
    found = {
        "reconstruction_db": reconstruction(args.prompts),
        "reward": json.loads((WORK / "reward.json").read_text(encoding="utf-8")),
        "pair": tables([json.loads(line) for line in args.pair.read_text(encoding="utf-8").splitlines()]),
        "fast_vae": json.loads((WORK / "taehv.json").read_text(encoding="utf-8")),
    }
    (WORK / "metrics.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
