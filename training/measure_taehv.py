"""Measure the shipped TAEHV's pictures against those of the shipped VAE.

    python -m training.measure_taehv

Written to `taehv.json`, over whole held-out clips: decibels between the two decoders' pictures, and both decoders'
quality by the oracle.
"""

from __future__ import annotations

import argparse
import json

import torch

from research.metrics import judge
from research.world import held_out_prompts, render
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.taehv import load_taehv
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import pocket_fast_vae, trained_set

from .causal import FRAMES
from .common import WORK


def pictures(prompts: int) -> dict[str, float]:
    """Return how like the VAE's the TAEHV's pictures are."""
    fast, full = load_taehv(pocket_fast_vae(), channels_last=True), load_vae(trained_set().vae, layers="planes")
    rows = []
    for prompt in held_out_prompts(prompts, seed=0):
        scene = parse(prompt)
        latents = full.encode(render(scene, torch.arange(FRAMES))[None])
        shown, truth = fast.decode(latents)[0][0], full.decode(latents)[0][0]
        like = -10 * (shown - truth).square().mean().log10()
        rows.append(torch.stack([like, judge(shown, scene).quality.mean(), judge(truth, scene).quality.mean()]))
    found = torch.stack(rows)
    like, ours, theirs = (round(value, 2) for value in found.mean(dim=0).tolist())
    worst = round(found[:, 0].min().item(), 2)
    return {"prompts": prompts, "like_the_vae": like, "worst": worst, "oracle": ours, "oracle_of_the_vae": theirs}


def main() -> None:
    """Write the measurements."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--prompts", type=int, default=40, help="held-out prompts")
    args = options.parse_args()
    torch.set_num_threads(1)
    measured = {"decoded_db": pictures(args.prompts)}
    print(json.dumps(measured))
    (WORK / "taehv.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
