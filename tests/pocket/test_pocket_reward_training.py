"""What the training of the pocket reward rests on: corruptions, labels, standardisation, the measures."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from research.world import draw_scene, render
from sdvg_core.pocket.grammar import parse
from sdvg_core.scorers.image_reward import load_image_reward
from sdvg_core.scorers.tokenizer import MAX_TOKENS, load_tokenizer
from training.corruptions import CORRUPTIONS, Corruption, Shot
from training.open_prompts import still_quality
from training.reward_data import (
    READABLE,
    Group,
    draw_group,
    read_pool,
)
from training.reward_model import (
    SIZES,
    initial_weights,
    normalised,
    read_pairs,
    rewards_of,
    trainable,
    words,
    write_vocabulary,
    write_weights,
)
from training.vae_pictures import write_pictures

ALONE = "a big red ball runs right from the left over snow"
TWO = "a big red ball runs right from the left in front of a small green box at the middle over night"


def shot(prompt: str = TWO, time: float = 8.0) -> Shot:
    scene = parse(prompt)
    return Shot(render(scene, torch.tensor([time]))[0], scene, time)


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("prompt", [ALONE, TWO])
def test_a_corruption_keeps_the_shape_and_costs_more_quality_when_it_is_strong(corruption: Corruption, prompt: str):
    taken = shot(prompt)
    quality = {}
    for strength in (0.0, 1.0):
        made = [corruption(taken, strength, random.Random(seed)) for seed in range(8)]
        assert all(frame.shape == taken.frame.shape and frame.isfinite().all() for frame in made)
        quality[strength] = float(still_quality(torch.stack(made).clamp(0, 1), taken.scene).mean())
    assert quality[1.0] < min(quality[0.0] - 3, 27)


def drawn_group(*, is_open: bool) -> Group:
    groups = (draw_group(random.Random(seed)) for seed in range(100))
    return next(group for group in groups if all(bool(scene.open) == is_open for scene in group.scenes))


@pytest.mark.parametrize(
    ("is_open", "missed"),
    [
        pytest.param(False, 0.3, id="determined"),
        # The embedded set was trained without open prompts.
        pytest.param(True, 1.0, id="open", marks=pytest.mark.exhaustive),
    ],
)
def test_a_group_knows_what_the_oracle_says_of_every_picture_under_every_prompt(is_open: bool, missed: float):
    group = drawn_group(is_open=is_open)
    expected = torch.stack([still_quality(group.frames, scene) for scene in group.scenes], dim=1)
    # The oracle looks at every moment; the training at every third and the picture's own, and at fewer of the
    # completions that no picture of the group shows.
    assert (expected - group.quality).min() > -0.02
    assert (expected - group.quality).mean() < missed
    own = expected[torch.arange(len(group.origin)), group.origin]
    assert (own - group.own_quality).mean() < 0.3


def test_a_picture_too_bad_to_read_is_not_asked_what_it_shows():
    group = draw_group(random.Random(4))
    unreadable = group.own_quality < READABLE
    assert unreadable.any()
    assert not unreadable.all()
    for labels in (group.shown.patches, group.words, group.places):
        assert (labels[unreadable] == -1).all()
        assert not (labels[~unreadable] == -1).all()


def test_a_group_never_holds_a_prompt_that_is_kept_out_of_training():
    generator = random.Random(1)
    for _ in range(10):
        group = draw_group(generator)
        assert not any(scene.held_out for scene in group.scenes)
        assert group.frames.min() >= 0
        assert group.frames.max() <= 1


def test_pictures_that_models_made_are_judged_under_their_prompt(tmp_path: Path):
    taken = shot(ALONE)
    assert not taken.scene.held_out
    write_pictures(tmp_path / "a.safetensors", [ALONE] * 7, taken.frame.expand(7, -1, -1, -1))
    pool = read_pool([tmp_path / "a.safetensors"])
    groups = [draw_group(random.Random(seed), pool) for seed in range(8)]
    made = [group for group in groups if group.scenes[0] == taken.scene]
    assert made
    assert all((group.own_quality[:7] > 35).all() for group in made)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward") / "reward.safetensors"
    write_weights(path, initial_weights(0), torch.float32, {})
    write_vocabulary(path.parent / "vocab.txt")
    return path


def test_every_prompt_of_the_grammar_is_read_to_its_end_in_known_words(start: Path):
    tokenizer = load_tokenizer(start.parent / "vocab.txt")
    assert tokenizer.size == len(words()) == SIZES.vocabulary
    unknown = words().index("[UNK]")
    generator = random.Random(0)
    for _ in range(300):
        prompt = draw_scene(generator, held_out=False).text
        ids, mask = tokenizer.encode(prompt)
        assert tokenizer.reads(prompt) == prompt
        assert int(mask.sum()) == len(prompt.split()) + 2 <= MAX_TOKENS
        assert unknown not in ids


def test_training_sees_what_the_loaded_scorer_scores(start: Path):
    model, tokenizer = trainable(start), load_tokenizer(start.parent / "vocab.txt")
    frames = torch.stack([shot(ALONE).frame, shot(TWO).frame])
    frames = (frames * 255).floor() / 255
    prompts, picture = [TWO, ALONE, TWO], torch.tensor([0, 0, 1])
    with torch.no_grad():
        images = model.vision(pixel_values=normalised(frames), return_dict=True).last_hidden_state
        read = read_pairs(model, images, tokenizer, prompts, picture)
        rewards = rewards_of(model, read)
    scorer = load_image_reward(start)
    expected = [float(scorer.score(frames[None, [i]] + 1e-4, p)) for p, i in zip(prompts, picture, strict=True)]
    assert rewards.tolist() == pytest.approx(expected, abs=1e-4)
    assert read.looks[0, 0].sum() == pytest.approx(1, abs=1e-4)
