"""What the training of the pocket reward rests on: corruptions, labels, standardisation, the measures."""

import random
from pathlib import Path

import pytest
import torch

from research.world import draw_scene, render
from sdvg_core.pocket.grammar import parse
from sdvg_core.scorers.image_reward import load_image_reward
from sdvg_core.scorers.tokenizer import MAX_TOKENS, load_tokenizer
from training.corruptions import Shot
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

ALONE = "a big red ball runs right from the left over snow"
TWO = "a big red ball runs right from the left in front of a small green box at the middle over night"


def shot(prompt: str = TWO, time: float = 8.0) -> Shot:
    scene = parse(prompt)
    return Shot(render(scene, torch.tensor([time]))[0], scene, time)


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reward") / "reward.safetensors"
    write_weights(path, initial_weights(0), torch.float32, {})
    write_vocabulary(path.parent / "vocab.txt")
    return path


def test_every_prompt_of_the_grammar_is_read_to_its_end_in_known_words(start):
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


def test_training_sees_what_the_loaded_scorer_scores(start):
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
