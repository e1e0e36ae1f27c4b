"""Measure on held-out prompts, by the oracle, what a transformer's denoising steps are worth.

    python -m training.measure target [--prompts 40] [--blocks 9] [--schedules four-step 1000,625 1000]

Every schedule makes the same prompts from the same noise. Printed are decibels over all frames, of prompts that
determine the clip ("nothing" is open), of open ones, and of every kind of these, and the differences between the
first schedule and the others, with 95 % bootstrap intervals over prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import UMT5EncoderModel

from research.world import draw_scene
from sdvg_core.causal_wan.schedule import Schedule, get_schedule
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, build, embed
from .common import WORK, seeded
from .make_latents import BLOCKS, codec
from .open_prompts import judge, left_open, open_scenes
from .roll_out import FIRST, roll_out
from .train_text import CONFIG, Tokens
from .train_transformer import MODELS, go_on_from

TOGETHER = 20


def determined_scenes(count: int) -> list[Scene]:
    """Return held-out scenes that leave nothing open."""
    generator = seeded(0, "measure")
    return [draw_scene(generator, held_out=True) for _ in range(count)]


class Maker:
    """A transformer of the training with everything it needs to make clips."""

    def __init__(self, model: str, weights: Mapping[str, Tensor]) -> None:
        saved = torch.load(WORK / "text.pt", weights_only=True)
        self._encoder = UMT5EncoderModel(CONFIG).eval()
        self._encoder.load_state_dict(saved["weights"])
        self._tokens, self._vae = Tokens(saved["pieces"].numpy().tobytes()), codec()
        self._tree = build(MODELS[model])
        go_on_from(self._tree, dict(weights))
        self._tree.requires_grad_(False)

    def qualities(self, scenes: Sequence[Scene], schedule: Schedule, blocks: int, seed: int = 0) -> Tensor:
        """Return the mean quality of each block of each scene's clip in decibels, `n blocks`."""
        seams = tuple(FIRST + 4 * BLOCK * number for number in range(blocks - 1))
        found = []
        for first in range(0, len(scenes), TOGETHER):
            part = scenes[first : first + TOGETHER]
            torch.manual_seed(1000 * seed + first)
            asked = embed(self._encoder, self._tokens, [scene.text for scene in part])
            clips = roll_out(self._tree, self._vae, *asked, schedule=schedule, count=blocks)[2]
            for clip, scene in zip(clips, part, strict=True):
                quality = judge(clip, scene, seams).quality
                found.append(torch.stack([frames.mean() for frames in quality.tensor_split(seams)]))
        return torch.stack(found)


def interval(values: Tensor, draws: int = 2000) -> str:
    """Return the mean and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).choice(values.numpy(), (draws, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"


def summary(scenes: Sequence[Scene], clips: Mapping[str, Tensor]) -> dict[str, dict[str, str]]:
    """Return the figures by kind of prompt: of every schedule, and what the first is better by than the others."""
    kinds = np.array([" and ".join(left_open(scene)) or "nothing" for scene in scenes])
    groups = {"nothing": kinds == "nothing", "open": kinds != "nothing"}
    groups |= {kind: kinds == kind for kind in dict.fromkeys(kinds) if kind != "nothing"}
    best = next(iter(clips))
    found: dict[str, dict[str, str]] = {}
    for name, here in groups.items():
        if not here.any():
            continue
        found[f"{name} ({here.sum()})"] = {schedule: interval(of[here]) for schedule, of in clips.items()} | {
            f"{best} minus {other}": interval((clips[best] - of)[here])
            for other, of in clips.items()
            if other != best
        }
    return found


def main() -> None:
    """Measure, print, and keep the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", choices=sorted(MODELS))
    options.add_argument("--prompts", type=int, default=40, help="of each of the two sorts")
    options.add_argument("--blocks", type=int, default=BLOCKS)
    options.add_argument("--schedules", nargs="+", default=["four-step", "1000,625", "1000"])
    options.add_argument(
        "--weights", type=Path, help="a checkpoint's average, or weights (default: the checkpoint)"
    )
    options.add_argument("--output", type=Path)
    args = options.parse_args()
    torch.set_num_threads(1)
    saved = torch.load(args.weights or WORK / f"{args.model}.ckpt", weights_only=True)
    maker = Maker(args.model, saved.get("average", saved["weights"]))
    scenes = [*determined_scenes(args.prompts), *open_scenes(args.prompts)]
    blocks = {name: maker.qualities(scenes, get_schedule(name), args.blocks) for name in args.schedules}
    found = summary(scenes, {name: of.mean(dim=1) for name, of in blocks.items()})
    for sort, here in (("nothing", slice(args.prompts)), ("open", slice(args.prompts, None))):
        found[f"blocks, {sort}"] = {
            name: " ".join(f"{q:.1f}" for q in of[here].mean(dim=0)) for name, of in blocks.items()
        }
    text = json.dumps(found, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
