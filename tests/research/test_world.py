"""The small world: what a prompt says is what is rendered, at any moment."""

import random

import pytest
import torch

from research.world import centre, draw_scene, held_out_prompts, is_held_out, render, render_with_mask
from sdvg_core.errors import BadInput
from sdvg_core.pocket.grammar import GRAMMAR, nearest, parse
from sdvg_core.pocket.world import SIZE, Scene, Thing

BALL = Thing("big", "red", "ball", "left", "runs", "right")


def some_scenes(count: int, seed: int = 0) -> list[Scene]:
    generator = random.Random(seed)
    return [draw_scene(generator, held_out=bool(i % 2)) for i in range(count)]


def test_a_prompt_and_its_scene_say_the_same():
    for scene in some_scenes(300):
        assert parse(scene.text) == scene
        assert nearest(scene.text) == scene


def test_training_and_held_out_prompts_are_disjoint_by_construction():
    generator = random.Random(3)
    trained = {draw_scene(generator, held_out=False).text for _ in range(3000)}
    assert not trained & set(held_out_prompts(500))
    assert all(is_held_out(parse(prompt)) for prompt in held_out_prompts(50))


def test_held_out_prompts_are_those_of_earlier_figures():
    assert held_out_prompts(2) == (
        "a big blue ball runs right from the left beside a big red diamond "
        "drifts up from the bottom left over snow",
        "a big orange cross drifts up from the bottom right behind a big black diamond at the right over grass",
    )


def test_a_thing_moves_as_its_words_say():
    mask = render_with_mask(Scene(BALL, "night"), torch.tensor([0.0, 10.0]))[1][:, 0]
    columns = (mask.sum(dim=1) * torch.arange(SIZE)).sum(dim=1) / mask.sum(dim=(1, 2))
    rows = (mask.sum(dim=2) * torch.arange(SIZE)).sum(dim=1) / mask.sum(dim=(1, 2))
    assert columns[0] == pytest.approx(9.5, abs=0.1)
    assert columns[1] - columns[0] == pytest.approx(10, abs=0.1)
    assert rows[0] == pytest.approx(rows[1])


def test_things_bounce_and_never_leave_the_picture():
    for scene in some_scenes(40):
        for thing in scene.things:
            for axis in centre(thing, torch.arange(0, 2000, 0.5)):
                assert axis.min() >= 5.9
                assert axis.max() <= SIZE - 5.9
    across, _ = centre(BALL, torch.tensor([0.0, 44.0, 50.0, 88.0]))
    assert across.tolist() == pytest.approx([10, 54, 48, 10])


@pytest.mark.parametrize(("relation", "in_front"), [("in front of", "red"), ("behind", "white")])
def test_who_is_in_front_hides_the_other(relation, in_front):
    mover = Thing("big", "red", "box", "middle", "crawls", "right")
    other = Thing("big", "white", "box", "middle")
    red, green, _ = render(Scene(mover, "sea", relation, other), torch.tensor([0]))[0, :, 32, 32]
    assert (green < 0.3) == (in_front == "red")
    assert red > 0.6


def test_a_prompt_outside_the_grammar_is_told_the_nearest_one():
    with pytest.raises(BadInput) as refusal:
        parse("a small red ball rums left from the top over sea")
    assert "try the nearest one, 'a small red ball runs left from the top over sea'" in str(refusal.value)
    assert GRAMMAR in str(refusal.value)


def test_a_nearest_prompt_is_always_a_prompt():
    generator = random.Random(7)
    words = [word for line in GRAMMAR.splitlines() for word in line.split()] + ["söx", "ball.", "rde"]
    for _ in range(300):
        text = " ".join(generator.choices(words, k=generator.randint(0, 40)))
        close = nearest(text)
        assert parse(close.text) == close
