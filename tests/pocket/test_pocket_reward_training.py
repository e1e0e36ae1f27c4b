"""What the training of the pocket reward rests on: corruptions, labels, standardisation, the measures."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from research.world import draw_scene, render, render_with_mask
from sdvg_core.pocket.grammar import parse
from sdvg_core.scorers import load_image_reward
from sdvg_core.scorers.tokenizer import MAX_TOKENS, load_tokenizer
from training.corruptions import CORRUPTIONS, Corruption, Shot, corrupt
from training.evaluate_reward import auc, same
from training.open_prompts import opened, still_quality
from training.reward_data import (
    READABLE,
    Group,
    decibels,
    draw_group,
    patch_decibels,
    patch_labels,
    read_pool,
    word_labels,
)
from training.reward_model import (
    SIZES,
    Read,
    file_weights,
    initial_weights,
    normalised,
    read_pairs,
    rewards_of,
    standardised,
    trainable,
    words,
    write_vocabulary,
    write_weights,
)
from training.scene_changes import OPTIONS, changed
from training.train_reward import Teacher
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


def test_corrupting_stays_in_range_repeats_with_its_seed_and_leaves_the_true_frame_alone():
    taken = shot()
    before = taken.frame.clone()
    for seed in range(40):
        frame = corrupt(taken, 1.0, random.Random(seed))
        assert frame.min() >= 0
        assert frame.max() <= 1
        assert torch.equal(frame, corrupt(taken, 1.0, random.Random(seed)))
    assert torch.equal(taken.frame, before)


@pytest.mark.parametrize("attribute", ["ground", *OPTIONS])
def test_a_changed_scene_is_of_the_grammar_and_differs_in_one_attribute(attribute: str):
    generator = random.Random(0)
    for _ in range(30):
        scene = draw_scene(generator, held_out=False)
        other = changed(scene, attribute, generator)
        assert parse(other.text) == other
        differences = [scene.ground != other.ground]
        for thing, new in zip(scene.things, other.things, strict=True):
            differences += [getattr(thing, field.name) != getattr(new, field.name) for field in fields(thing)]
        assert sum(differences) == 1


def test_decibels_are_the_oracles():
    taken = shot()
    frames = torch.stack([corrupt(taken, 0.5, random.Random(seed)) for seed in range(6)])
    found = decibels(frames, *render_with_mask(taken.scene, torch.arange(105.0))).amax(dim=1)
    assert torch.allclose(found, still_quality(frames, taken.scene), atol=0.02)


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


def test_patches_are_labelled_with_the_thing_that_is_there():
    colour, kind = patch_labels(parse(TWO), 0.0)
    assert colour[4, 0] == 0
    assert colour[4, 4] == 3
    assert colour[0, 0] == 8
    assert kind[4, 0] == 2
    assert kind[4, 4] == 3
    assert kind[0, 0] == 0


def test_patch_decibels_fall_only_where_the_picture_is_wrong():
    frame = shot().frame[None]
    wrong = frame.clone()
    wrong[..., 8:16, 16:24] += 0.1
    found = patch_decibels(wrong, frame)[0]
    assert found[1, 2] == pytest.approx(20, abs=0.01)
    assert (found == 40).sum() == 63


def test_words_are_labelled_with_whether_the_picture_shows_them():
    shown = parse("a big red box runs right from the left in front of a small white box at the middle over night")
    found, where = word_labels(parse(TWO), shown)
    asked = {word: int(found[n]) for n, word in enumerate(TWO.split(), 1) if found[n] >= 0}
    assert asked == {"big": 1, "red": 1, "ball": 0, "green": 0, "night": 1}
    places = {word: int(where[n]) for n, word in enumerate(TWO.split(), 1) if where[n] >= 0}
    assert places == {"big": 0, "red": 0, "ball": 0, "night": 8}


def test_words_that_are_left_out_are_not_asked_and_the_others_are_where_they_stand():
    shown = parse("a big red box runs right from the left in front of a small white box at the middle over night")
    said = opened(parse(TWO), ["size", "ground"])
    found, where = word_labels(said, shown)
    text = said.text.split()
    assert {word: int(found[n]) for n, word in enumerate(text, 1) if found[n] >= 0} == {
        "red": 1,
        "ball": 0,
        "green": 0,
    }
    assert {word: int(where[n]) for n, word in enumerate(text, 1) if where[n] >= 0} == {"red": 0, "ball": 0}


def test_words_that_look_at_their_thing_cost_nothing_whatever_the_others_do():
    """Catches labels that do not count being taken for a match, in words and patches alike."""
    group = draw_group(random.Random(4))
    assert (group.own_quality < READABLE).any()
    right = group.shown.patches[:, 0].flatten(1)[:, None, None, :] == group.places[..., None]
    right &= group.places[..., None] >= 0
    looks = right.float() / right.sum(dim=-1, keepdim=True).clamp(min=1)
    looks = torch.cat([torch.zeros_like(looks[..., :1]), looks], dim=-1).flatten(0, 1)
    tokens = torch.zeros(len(looks), MAX_TOKENS, SIZES.text_width)
    found = Teacher().of_words(Read(tokens, tokens, looks), [group])
    assert float(found["looks"].detach()) == pytest.approx(0, abs=1e-5)


def test_a_group_never_holds_a_prompt_that_is_kept_out_of_training():
    generator = random.Random(1)
    for _ in range(10):
        group = draw_group(generator)
        assert not any(scene.held_out for scene in group.scenes)
        assert group.frames.min() >= 0
        assert group.frames.max() <= 1


def test_pictures_that_models_made_are_read_back_by_prompt(tmp_path: Path):
    frames = torch.arange(4).view(4, 1, 1, 1).expand(-1, 3, 64, 64) / 255
    write_pictures(tmp_path / "a.safetensors", [ALONE, TWO, ALONE, TWO], frames)
    pool = read_pool([tmp_path / "a.safetensors"])
    assert {prompt: made[:, 0, 0, 0].tolist() for prompt, made in pool.items()} == {ALONE: [0, 2], TWO: [1, 3]}


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


def test_standardised_rewards_have_mean_0_and_deviation_1(start: Path):
    frames = torch.stack([corrupt(shot(), 0.7, random.Random(seed)) for seed in range(12)])
    rewards = load_image_reward(start).score(frames[None], TWO)
    path = start.parent / "standardised.safetensors"
    write_weights(path, standardised(file_weights(trainable(start).state_dict()), rewards), torch.float32, {})
    found = load_image_reward(path).score(frames[None], TWO)
    assert float(found.mean()) == pytest.approx(0, abs=1e-3)
    assert float(found.std()) == pytest.approx(1, abs=1e-3)


def test_auc_and_same_count_pairs_and_ties():
    good, bad = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 3.0])
    assert auc(good, bad) == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert same(good, bad) == pytest.approx(0.75)
