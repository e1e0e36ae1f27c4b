"""Measure the shipped TAEHV's pictures against those of the shipped VAE, by who made the clip.

    python -m lab.training.measure_taehv [--prompts 40]

Prints, over held-out clips of nine blocks, with 95 % intervals over prompts: decibels between the two decoders'
pictures, of the first frame and of the whole clip, and the quality of both by the oracle.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict

import torch
from torch import Tensor

from lab.research.protocol import FIRST_TWO
from lab.research.world import held_out_prompts
from sdvg_core.decoders.open import load_vae
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.types import Condition
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import encode_prompts, load_models
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import judge
from sdvg_core.pocket.renderer import render_scene
from sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from sdvg_core.pocket.world import SIZE
from sdvg_core.settings.route import First, Route, TargetOnly

from .causal import BLOCKS, FRAMES
from .measure_pair import interval_of_mean

ROUTES = {
    "drafter": Route(First(0)),
    "first two": FIRST_TWO.route,
    "target": Route(TargetOnly()),
}
COLUMNS = ("first frame", "whole", "oracle, TAEHV", "oracle, VAE")


def decibels(shown: Tensor, truth: Tensor) -> Tensor:
    """Return the decibels of a picture, or of a clip, from another."""
    return -10 * (shown - truth).square().mean().log10()


def made(engine: Engine, route: Route, condition: Condition) -> Tensor:
    """Return the latents `1 c t h w` of a clip."""
    run = plan_run(engine, route, lambda _: condition, blocks=BLOCKS, seed=0, width=SIZE, height=SIZE)
    return torch.cat([block.block.latents for block in run.blocks()], dim=2)


def measured(prompts: int) -> dict[str, dict[str, str]]:
    """Return COLUMNS by who made the clip: the world itself, or a route."""
    files = trained_set()
    load = pocket_options()
    fast = load_vae(pocket_fast_vae(), layers="planes")
    full = load_vae(files.vae, layers="planes")
    engine = load_models(files, load, check_models(files, load)).build()
    texts = held_out_prompts(prompts, seed=0)
    embeddings = encode_prompts(files, texts, load)
    rows = defaultdict(list)
    for text in texts:
        scene = parse(text)
        condition = Condition(embeddings[text], text)
        clips = {"the world": full.encode(render_scene(scene, torch.arange(FRAMES))[None])}
        for name, route in ROUTES.items():
            clips[name] = made(engine, route, condition)
        for name, latents in clips.items():
            shown = fast.decode(latents)[0][0]
            truth = full.decode(latents)[0][0]
            quality = [judge(frames, scene).quality.mean() for frames in (shown, truth)]
            rows[name].append(torch.stack([decibels(shown[0], truth[0]), decibels(shown, truth), *quality]))
    tables = {name: torch.stack(of) for name, of in rows.items()}
    return {
        name: {column: interval_of_mean(table[:, place]) for place, column in enumerate(COLUMNS)}
        for name, table in tables.items()
    }


def main() -> None:
    """Print the measurements."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--prompts", type=int, default=40, help="held-out prompts")
    args = options.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measured(args.prompts), indent=1))


if __name__ == "__main__":
    main()
