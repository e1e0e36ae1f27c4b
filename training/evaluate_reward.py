"""Measure a reward on held-out prompts, loaded as the generator loads it.

    python -m training.evaluate_reward [--weights out/training/reward.safetensors] [--scenes 200]

AUC: the chance that a good pair scores higher than a bad one; over pairs of different prompts (`auc`), and of the
same prompt or picture (`same`), which is what a comparison of drafts of one video needs. With 95 % bootstrap
intervals over scenes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from research.statistics import Bootstrap
from research.world import draw_scene, render
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import Scene
from sdvg_core.scorers.image_reward import ImageRewardScorer, load_image_reward

from .common import WORK, seeded
from .corruptions import Shot, corrupt
from .open_prompts import KINDS_OF_OPEN, opened, still_quality
from .reward_data import LENGTH, read_pool
from .scene_changes import VISIBLE, changed

STRENGTHS = {"weak": (0.1, 0.35), "moderate": (0.35, 0.65), "strong": (0.65, 1.0)}
CEILING = 32.0
"""Decibels above which no difference is seen: qualities count up to it."""


def auc(good: Tensor, bad: Tensor) -> float:
    """Return the chance that one of `good` is above one of `bad`; a tie counts half."""
    above = good[:, None] - bad[None, :]
    return float((above > 0).float().mean() + (above == 0).float().mean() / 2)


def same(good: Tensor, bad: Tensor) -> float:
    """Return the share of pairs, of the same place in both, in which the good one is above."""
    return float((good > bad).float().mean() + (good == bad).float().mean() / 2)


def with_interval(statistic: Callable[[Tensor, Tensor], float], good: Tensor, bad: Tensor) -> dict[str, float]:
    """Return a statistic of pairs, one per scene, and its interval over scenes."""

    def of_draw(counts: npt.NDArray[np.int64]) -> dict[str, float]:
        drawn = torch.from_numpy(counts)
        return {"of": statistic(good.repeat_interleave(drawn), bad.repeat_interleave(drawn))}

    found = Bootstrap(len(good)).per_draw(of_draw)["of"]
    assert found is not None
    return asdict(found)


def correlations(rewards: Tensor, qualities: Tensor) -> dict[str, float]:
    """Return Pearson's correlation and Spearman's."""
    ranks = [values.argsort().argsort().float() for values in (rewards, qualities)]
    return {
        "pearson": float(torch.corrcoef(torch.stack([rewards, qualities]))[0, 1]),
        "spearman": float(torch.corrcoef(torch.stack(ranks))[0, 1]),
    }


def evaluate(scorer: ImageRewardScorer, scenes: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return the figures by what was compared."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    rewards, qualities = [], []
    for number in range(scenes):
        generator = seeded(seed, "evaluation", number)
        scene = draw_scene(generator, held_out=True)
        time = float(generator.randrange(LENGTH))
        shot = Shot(render(scene, torch.tensor([time]))[0], scene, time)
        spoiled = [corrupt(shot, generator.uniform(*span), generator) for span in STRENGTHS.values()]
        frames = torch.stack([shot.frame, *spoiled])
        found = scorer.score(frames[None], scene.text)
        rewards.append(found)
        qualities.append(still_quality(frames, scene).clamp(max=CEILING))
        for name, reward in zip(STRENGTHS, found[1:], strict=True):
            pairs.setdefault(f"clean against {name}", []).append((float(found[0]), float(reward)))
        for name, other in wrong_scenes(scene, seed, number).items():
            wrong = float(scorer.score(frames[None, :1], other.text))
            pairs.setdefault(f"right prompt against wrong: {name}", []).append((float(found[0]), wrong))
        said, others = open_prompts(scene, seed, number)
        of_right = float(scorer.score(frames[None, :1], said.text))
        for name, other in others.items():
            wrong = float(scorer.score(frames[None, :1], other.text))
            pairs.setdefault(f"right open prompt against wrong: {name}", []).append((of_right, wrong))
    right = torch.stack(rewards)
    figures: dict[str, dict[str, Any]] = {name: _both(*torch.tensor(of).T) for name, of in pairs.items()}
    figures["rewards of spoiled frames and quality"] = correlations(
        right[:, 1:].flatten(), torch.stack(qualities)[:, 1:].flatten()
    )
    figures["right prompts"] = {"mean": float(right.mean()), "deviation": float(right.std())}
    return figures


def wrong_scenes(scene: Scene, seed: int, number: int) -> dict[str, Scene]:
    """Return scenes a frame of `scene` does not show: another one, and some that differ in one word."""
    generator = seeded(seed, "wrong", number)
    found = {"any": draw_scene(generator, held_out=True)}
    found |= {name: changed(scene, name, generator) for name in VISIBLE}
    if scene.other and not scene.other.pace:
        alone = changed(Scene(scene.other, scene.ground), "place", generator)
        found["standing place"] = replace(scene, other=alone.mover)
    return found


def open_prompts(scene: Scene, seed: int, number: int) -> tuple[Scene, dict[str, Scene]]:
    """Return the scene with something left open, and some that differ in a word and leave the same open."""
    generator = seeded(seed, "open", number)
    slots = generator.choice(KINDS_OF_OPEN)
    wrong = {name: changed(scene, name, generator) for name in VISIBLE if name not in slots}
    return opened(scene, slots), {name: opened(other, slots) for name, other in wrong.items()}


def evaluate_pictures(scorer: ImageRewardScorer, files: list[Path]) -> dict[str, float]:
    """Return how rewards of pictures that models made follow the oracle, over all and within a prompt."""
    rewards, qualities = [], []
    for prompt, frames in read_pool(files).items():
        frames = frames.float() / 255
        rewards.append(scorer.score(frames[None], prompt))
        qualities.append(still_quality(frames, parse(prompt)).clamp(max=CEILING))
    return correlations(torch.cat(rewards), torch.cat(qualities)) | {"prompts": float(len(rewards))}


def _both(good: Tensor, bad: Tensor) -> dict[str, dict[str, float]]:
    return {statistic.__name__: with_interval(statistic, good, bad) for statistic in (auc, same)}


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested figures to three digits."""
    return {
        name: rounded(value) if isinstance(value, Mapping) else round(value, 3) for name, value in values.items()
    }


def main() -> None:
    """Measure, print, and write the figures beside the weights."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--weights", type=Path, default=WORK / "reward.safetensors")
    options.add_argument("--scenes", type=int, default=200)
    options.add_argument("--pictures", type=Path, nargs="*", default=[], help="pictures of held-out prompts")
    options.add_argument("--threads", type=int, default=0)
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    scorer = load_image_reward(args.weights)
    found = evaluate(scorer, args.scenes)
    if args.pictures:
        found["pictures of models"] = evaluate_pictures(scorer, args.pictures)
    text = json.dumps(rounded(found), indent=1)
    args.weights.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
