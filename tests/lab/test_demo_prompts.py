"""Which prompts the demo shows: chosen by rule from what was measured, not by eye."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lab.research.world import held_out_prompts
from lab.training.demo_prompts import candidates, chosen, figures, is_hard, kind_of, measured
from sdvg_core.engine.types import Condition
from sdvg_core.pocket import CHOSEN, DEFAULT_PROMPT, EXAMPLE_PROMPTS, HELPED_PROMPTS, UNHELPED_PROMPTS
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.renderer import render_scene

BIG = "a big yellow ball runs right from the left over night"
SMALL = "a small yellow ball runs right from the left over night"
PAIR = "a big yellow ball runs right from the left beside a big red ball runs left from the right over night"


def row(prompt: str, small: float | None, both: float, large: float, gain: float = 1.0) -> dict[str, Any]:
    placed = {"small": small, "both": both, "large": large}
    dB = {"small": 10.0, "both": 10.0 + gain, "large": 20.0}
    return {"prompt": prompt, **{name: {"at_its_place": placed[name], "dB": dB[name]} for name in placed}}


@pytest.mark.parametrize(
    "placed, kind",
    [
        ((1 / 3, 2 / 3, 2 / 3), "helps"),
        ((0.0, 0.6, 1.0), ""),
        ((0.0, 1.0, 0.6), ""),
        ((2 / 3, 2 / 3 + 1 / 12, 1.0), "does not help"),
        ((2 / 3, 0.9, 1.0), ""),
        ((0.9, 0.2, 1.0), "does not help"),
        ((None, 1.0, 1.0), ""),
    ],
)
def test_prompt_helps_by_what_is_at_its_place(placed, kind):
    assert kind_of(row(BIG, *placed)) == kind


def test_prompt_without_other_videos_is_of_no_kind():
    assert kind_of({"prompt": BIG, "small": {"at_its_place": 0.5, "dB": 10.0}}) == ""


def clip_of(prompt: str, count: int) -> torch.Tensor:
    """Return a true clip, but of the last block's frames only so many show the mover."""
    frames = render_scene(parse(prompt), torch.arange(105.0))
    frames[93 + count :] = frames[93 + count :, :, :, -1:]
    return frames


@pytest.mark.parametrize("count, names", [(4, 4), (5, 2), (7, 2), (8, 4)])
def test_border_of_a_third_is_measured_whole(count, names):
    """Catches: 4 of 12 frames taken for more than a third, or 8 for less than two, by a share that is rounded."""
    text = "a big yellow ball drifts right from the left over night"
    row = measured(lambda *_: figures(clip_of(text, count), parse(text)), Condition(torch.empty(0), text))
    assert row["small"]["at_its_place"] == count / 12
    assert len(row) == names


@pytest.mark.parametrize("prompt, hard", [(BIG, False), (SMALL, True), (PAIR, True)])
def test_small_things_and_pairs_are_hard(prompt, hard):
    assert is_hard({"prompt": prompt}) == hard


def test_median_gain_comes_first():
    """And of four, two are of small things or pairs. Catches: the best prompts, or the easiest."""
    easy = [row(BIG, 0.0, 1.0, 1.0, gain) for gain in (1.0, 5.0, 9.0, 4.0, 6.0)]
    hard = [row(PAIR, 0.0, 1.0, 1.0, gain) for gain in (0.5, 2.0, 7.0, 8.0)]
    idle = [row(SMALL, 1.0, 1.0, 1.0, gain) for gain in (0.1, 0.2, 0.3, 0.4)]
    result = chosen([*easy, *hard, *idle, row(BIG, 0.0, 1 / 3, 1.0)])
    assert result["counts"] == {"prompts": 14, "helps": 9, "does not help": 4, "lost by both": 1}
    gains = [picked["both"]["dB"] - 10 for picked in result["helps"]]
    assert gains == pytest.approx([5.0, 6.0, 2.0, 7.0])
    assert [is_hard(picked) for picked in result["helps"]] == [False, False, True, True]
    assert [picked["both"]["dB"] - 10 for picked in result["does not help"]] == pytest.approx([0.2, 0.3])


@pytest.mark.parametrize("placed, first", [(1.0, 9.0), (0.5, 5.0)])
def test_chosen_prompt_stays_while_it_helps(placed, first):
    """Catches: another prompt in every template after each measuring, a prompt that helps no more."""
    colours = ("red", "orange", "green", "yellow")
    texts = [f"a big {colour} ball runs right from the left over night" for colour in colours]
    easy = [row(text, 0.0, 1.0, 1.0, gain) for text, gain in zip(texts, (1.0, 5.0, 6.0, 9.0), strict=True)]
    hard = [row(PAIR, 0.0, 1.0, 1.0, 2.0)]
    idle = row(SMALL, 1.0, 1.0, 1.0, 0.1)
    before = {"helps": [easy[-1], easy[0], *hard, *hard], "does not help": [idle, idle]}
    easy[-1] = row(texts[-1], 0.0, placed, 1.0, 9.0)
    result = chosen([*easy, *hard, idle], before)
    assert result["helps"][0]["both"]["dB"] - 10 == pytest.approx(first)
    assert [picked["prompt"] for picked in result["does not help"]] == [SMALL, SMALL]


@pytest.mark.parametrize("kind", ["helps", "does not help"])
def test_committed_prompts_are_of_their_kind(kind):
    """Catches: a list that was edited by hand, or chosen by another rule."""
    counts = CHOSEN["counts"]
    assert {kind_of(row) for row in CHOSEN[kind]} == {kind}
    assert {row["prompt"] for row in CHOSEN[kind]} < set(candidates(counts["prompts"]))
    assert counts["helps"] + counts["does not help"] + counts["lost by both"] <= counts["prompts"]


def test_default_prompt_is_the_first_that_helps():
    assert [row["prompt"] for row in CHOSEN["helps"]] == [*HELPED_PROMPTS]
    assert (DEFAULT_PROMPT, *HELPED_PROMPTS[1:], *UNHELPED_PROMPTS) == EXAMPLE_PROMPTS
    assert sum(map(is_hard, CHOSEN["helps"])) == 2


def test_studied_prompts_are_no_candidates():
    assert not set(candidates(20)) & set(held_out_prompts(200))
    assert len(candidates(20)) == 20
