"""Measure the shipped judge against the shipped VAE: its pictures, and the verdicts that rest on them.

    python -m research --calibrate --judge-vae pocket --prompts 200 --output out/judged
    python -m training.measure_judge --judged out/judged

Written to `judge.json`: over whole held-out clips, decibels between the two decoders' pictures, and both decoders'
quality by the oracle; over the drafts of that study, how the scores compare.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from research.calibrate import compare_judge
from research.metrics import judge
from research.statistics import as_json
from research.videos import JUDGED
from research.world import held_out_prompts, render
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.taehv import load_taehv
from sdvg_core.engine.router import RouterConfig
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import pocket_judge, trained_set

from .common import WORK
from .make_latents import FRAMES


def pictures(prompts: int) -> dict[str, float]:
    """Return how like the VAE's the judge's pictures are."""
    fast, full = load_taehv(pocket_judge(), channels_last=True), load_vae(trained_set().vae, layers="auto")
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


def verdicts(folder: Path, tau: float) -> dict[str, Any]:
    """Return how the judge's scores of drafts compare with the VAE's."""
    records = [json.loads(line) for line in (folder / JUDGED).read_text(encoding="utf-8").splitlines()]
    prompts = tuple(dict.fromkeys(record["prompt"] for record in records))
    told: dict[str, Any] = as_json(compare_judge(records, prompts, tau), len(prompts))
    return told


def main() -> None:
    """Write the measurements."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--judged", type=Path, required=True, help="folder of the study of the shipped judge")
    options.add_argument("--tau", type=float, default=RouterConfig().tau)
    options.add_argument("--prompts", type=int, default=40, help="held-out prompts for the pictures")
    args = options.parse_args()
    torch.set_num_threads(1)
    found = {"decoded_db": pictures(args.prompts), "verdicts": verdicts(args.judged, args.tau)}
    print(json.dumps(found))
    (WORK / "judge.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
