"""First blocks of open prompts: all that are right, and what to expect of them in the midst of denoising.

    python -m training.families --families 1024 [--seed 0]

What the mean squared error asks of a model at an open prompt is the mean of all right blocks, each as likely as
the noisy input makes it. The world is so small that all of them can be encoded, and the mean is a closed formula.
So the model is told it, instead of one right block drawn at random: with less noise in its gradients, and also for
inputs that come from its own estimate, which are of no drawn block.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from research.world import is_held_out
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import Scene

from .common import WORK, save_checkpoint, seeded
from .make_latents import codec, encode_beginnings
from .open_prompts import KINDS_OF_OPEN, completions, draw_open_scene, left_open, opened

FAMILIES = WORK / "families"
SHARD = 32
"""Families of a shard; one has about 20 members."""


@dataclass(frozen=True, slots=True, eq=False)
class Right:
    """The blocks that are right for each sample of a batch.

    `blocks`: `b m c t h w`. `there`: `b m`, which of them are there and not padding; the first always is, and is
    the one that contexts and noisy inputs are made of.
    """

    blocks: Tensor
    there: Tensor

    @classmethod
    def only(cls, blocks: Tensor) -> Right:
        """Return the single right block `b c t h w` of each sample."""
        return cls(blocks[:, None], torch.ones(len(blocks), 1, dtype=torch.bool))

    @property
    def is_open(self) -> bool:
        """Whether there is a choice."""
        return self.blocks.shape[1] > 1

    @property
    def drawn(self) -> Tensor:
        """One right block of each sample, `b c t h w`."""
        return self.blocks[:, 0]

    def rows(self, here: slice) -> Right:
        """Return those of some of the samples."""
        return Right(self.blocks[here], self.there[here])

    def expected(self, x: Tensor, sigma: float) -> Tensor:
        """Return the mean of the right blocks after noisy blocks `x`, `b c t h w`, at a noise level.

        x = (1 - sigma) block + sigma noise, so the likelihood of each block is that of the noise it would need.
        """
        if not self.is_open:
            return self.drawn
        noise = (x[:, None] - (1 - sigma) * self.blocks) / sigma
        likelihood = -noise.flatten(2).square().sum(dim=2) / 2
        share = likelihood.masked_fill(~self.there, -torch.inf).softmax(dim=1)
        return torch.einsum("bm,bmcthw->bcthw", share, self.blocks)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The training scenes that an open prompt allows, and their first blocks, `m c 3 h w`."""

    slots: tuple[str, ...]
    scenes: tuple[Scene, ...]
    blocks: Tensor

    def draw(self, generator: random.Random) -> tuple[str, Tensor]:
        """Return a prompt of some of its scenes, and their blocks, one of them drawn to be the first.

        What the prompt leaves open is the family's, or a part of it.
        """
        chosen = generator.randrange(len(self.scenes))
        kinds = [kind for kind in KINDS_OF_OPEN if set(kind) <= set(self.slots)]
        scenes = {kind: opened(self.scenes[chosen], kind) for kind in kinds}
        kind = generator.choice([kind for kind, scene in scenes.items() if not is_held_out(scene)])
        fitting = [number for number, one in enumerate(self.scenes) if opened(one, kind) == scenes[kind]]
        return scenes[kind].text, self.blocks[[chosen, *(number for number in fitting if number != chosen)]]


class Families:
    """The families of a folder; looks for new ones when asked."""

    def __init__(self, folder: Path = FAMILIES) -> None:
        self._folder = folder
        self._families: dict[Path, list[Family]] = {}

    def refresh(self) -> int:
        """Read shards that are new, and return how many families there are."""
        for path in sorted(self._folder.glob("*.pt")):
            if path not in self._families:
                self._families[path] = _read(torch.load(path, weights_only=True))
        return sum(map(len, self._families.values()))

    def draw(self, generator: random.Random, count: int) -> tuple[list[str], Right]:
        """Return prompts, and the blocks that are right for each."""
        shards = generator.choices(list(self._families.values()), k=count)
        drawn = [generator.choice(shard).draw(generator) for shard in shards]
        longest = max(len(blocks) for _, blocks in drawn)
        blocks = torch.zeros(count, longest, *drawn[0][1].shape[1:])
        there = torch.zeros(count, longest, dtype=torch.bool)
        for row, (_, found) in enumerate(drawn):
            blocks[row, : len(found)], there[row, : len(found)] = found.float(), True
        return [prompt for prompt, _ in drawn], Right(blocks, there)


def members(scene: Scene) -> tuple[Scene, ...]:
    """Return the scenes an open prompt of training may show: its completions that are not held out themselves."""
    return tuple(one for one in completions(scene) if not is_held_out(one))


def encode_families(vae: WanCodec, scenes: list[Scene]) -> dict[str, Any]:
    """Return what the scenes leave open, a line each; the prompts of their members and how many; first blocks."""
    found = [members(scene) for scene in scenes]
    flat = [one for of_scene in found for one in of_scene]
    return {
        "slots": [" ".join(left_open(scene)) for scene in scenes],
        "counts": [len(of_scene) for of_scene in found],
        **encode_beginnings(vae, flat),
    }


def _read(shard: dict[str, Any]) -> list[Family]:
    scenes = [parse(prompt) for prompt in shard["prompts"]]
    families, first = [], 0
    for slots, count in zip(shard["slots"], shard["counts"], strict=True):
        here = slice(first, first + count)
        families.append(Family(tuple(slots.split()), tuple(scenes[here]), shard["latents"][here]))
        first += count
    return families


def draw_family(generator: random.Random) -> Scene:
    """Draw an open scene of training with at least two members."""
    while True:
        scene = draw_open_scene(generator, held_out=False)
        if len(members(scene)) > 1:
            return scene


def main() -> None:
    """Write the shards that are not there yet."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--families", type=int, default=1024)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    torch.set_num_threads(1)
    vae = codec()
    for number in range(args.families // SHARD):
        path = FAMILIES / f"{args.seed:02d}-{number:05d}.pt"
        if not path.exists():
            generator = seeded(args.seed, "families", number)
            save_checkpoint(path, **encode_families(vae, [draw_family(generator) for _ in range(SHARD)]))


if __name__ == "__main__":
    main()
