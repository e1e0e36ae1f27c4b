"""What the training rests on at open prompts: all blocks that are right, and what to expect of them."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor

from research.world import draw_scene
from sdvg_core.causal_wan.schedule import renoise
from training.families import Families, Family, Right, encode_families, members
from training.open_prompts import completions, draw_open_scene, opened
from training.train_transformer import said_in_part

BLOCK = (16, 3, 8, 8)


def some_right(seed: int = 0) -> Right:
    """Three blocks for each of two samples, of which the second has only two."""
    blocks = torch.randn(2, 3, *BLOCK, generator=torch.Generator().manual_seed(seed))
    return Right(blocks, torch.tensor([[True, True, True], [True, True, False]]))


def noise(seed: int = 1) -> Tensor:
    return torch.randn(2, *BLOCK, generator=torch.Generator().manual_seed(seed))


def test_the_expected_block_has_the_least_squared_error_of_all_answers():
    """Over many draws of block and noise, against the plain mean and against the likeliest block."""
    blocks = 0.1 * some_right().blocks[:1]
    right = Right(blocks.expand(600, -1, -1, -1, -1, -1), torch.ones(600, 3, dtype=torch.bool))
    generator = torch.Generator().manual_seed(3)
    drawn = blocks[0, torch.randint(3, (600,), generator=generator)]
    x = renoise(drawn, torch.randn(drawn.shape, generator=generator), 0.8)
    likeliest = (x[:, None] - 0.2 * blocks).flatten(2).square().sum(dim=2).argmin(dim=1)
    answers = (right.expected(x, 0.8), blocks.mean(dim=1), blocks[0, likeliest])
    errors = [(answer - drawn).square().mean().item() for answer in answers]
    assert errors[0] < min(errors[1:])


def test_a_family_is_drawn_with_all_its_scenes_that_fit_the_words():
    generator = random.Random(2)
    scene = draw_open_scene(generator, held_out=False, slots=("start", "direction"))
    scenes = members(scene)
    blocks = torch.arange(len(scenes))[:, None].float()
    family = Family(scene.open, scenes, blocks)
    kinds = set()
    for _ in range(60):
        prompt, found = family.draw(generator)
        shown = [scenes[int(number)] for number in found[:, 0]]
        said = next(one for one in (opened(shown[0], kind) for kind in KINDS) if one.text == prompt)
        assert not said.held_out
        assert set(shown) == set(completions(said)) & set(scenes)
        kinds.add(said.kind)
    assert kinds == {"start", "direction", "start and direction"}


KINDS = (("start",), ("direction",), ("start", "direction"))


class Means:
    """Stands in for a VAE: the latents are the mean colour of a clip."""

    def encode(self, frames: Tensor) -> Tensor:
        mean = frames.mean(dim=(1, 3, 4))[:, :, None, None, None]
        return mean.repeat(1, 6, 3, 8, 8)[:, :16]


def test_families_are_read_back_as_they_were_written_and_show_nothing_held_out(tmp_path: Path):
    generator = random.Random(4)
    scenes = [draw_open_scene(generator, held_out=False, slots=slots) for slots in (("size",), ("ground", "start"))]
    torch.save(encode_families(Means(), scenes), tmp_path / "00.pt")
    families = Families(tmp_path)
    assert families.refresh() == families.refresh() == 2
    prompts, right = families.draw(generator, 12)
    assert len(prompts) == len(right.blocks) == 12
    assert right.there[:, 0].all()
    assert right.there.sum(dim=1).max() == right.there.shape[1]
    assert not any(one.held_out for scene in scenes for one in members(scene))


def test_what_is_left_unsaid_never_makes_words_that_are_held_out():
    generator = random.Random(5)
    said = [said_in_part(draw_scene(generator, held_out=False), generator, 0.5) for _ in range(400)]
    assert not any(scene.held_out for scene in said)
    assert 120 < sum(bool(scene.open) for scene in said) < 240
