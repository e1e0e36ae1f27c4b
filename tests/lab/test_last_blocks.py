"""What a study says of last blocks and of where the moving thing is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lab.research.folder import Plan
from lab.research.metrics import Oracle
from lab.research.protocol import DRAFT_ONLY, TARGET_ONLY, pick, protocol
from lab.research.statistics import Bootstrap, Record, make_table, metric
from lab.research.summary import page_text, summarise_study, table_of_rows
from sdvg_core.memory.budget import WEIGHTS
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.renderer import render_scene

PROMPT = "a big red ball drifts right from the left over night"
SEAMS = (9, 21)
FRAMES = 33
PROMPTS = tuple(f"prompt {number}" for number in range(12))


def clip_without_mover(first: int) -> torch.Tensor:
    """A true clip whose frames from `first` on show bare ground."""
    frames = render_scene(parse(PROMPT), torch.arange(float(FRAMES)))
    corner = frames[:, :, :, -1:]
    frames[first:] = corner[first:].expand_as(frames[first:])
    return frames


@pytest.mark.parametrize("first", [0, 9, 21, FRAMES])
def test_oracle_counts_frames_with_the_mover(first):
    measured = Oracle().measure(clip_without_mover(first), PROMPT, SEAMS)
    assert measured["at_its_place"] == first / FRAMES
    assert measured["last_block_at_its_place"] == float(first == FRAMES)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7, 8, 10, 11])
def test_share_of_frames_is_exact(count):
    """Catches: a share in single precision, by which 4 of 12 frames are more than a third."""
    measured = Oracle().measure(clip_without_mover(21 + count), PROMPT, SEAMS)
    assert measured["last_block_at_its_place"] == count / 12


def test_oracle_measures_the_last_block_alone():
    """Catches: the last block's figure taken over the clip, or of another block."""
    spoilt = Oracle().measure(clip_without_mover(21), PROMPT, SEAMS)
    whole = Oracle().measure(clip_without_mover(FRAMES), PROMPT, SEAMS)
    assert spoilt["last_block_quality"] == spoilt["worst_block_quality"]
    assert spoilt["last_block_quality"] < whole["last_block_quality"] - 5
    assert (
        Oracle().measure(clip_without_mover(9), PROMPT, SEAMS)["last_block_quality"] == spoilt["last_block_quality"]
    )


# --- prompts without a value


def test_mean_leaves_out_prompts_without_a_value():
    """Also in every resample. Catches: NaN counted as 0, or a sum divided by all prompts."""
    values = np.random.default_rng(1).normal(size=20)
    with_gaps = np.concatenate([values, np.full(5, np.nan)])
    draws = Bootstrap(25).means(with_gaps)
    assert draws[0] == pytest.approx(values.mean())
    weights = Bootstrap(25).weights[:, :20]
    assert draws == pytest.approx(weights @ values / weights.sum(axis=1))


def row_of(name: str, prompt: str, placed: float | None) -> Record:
    quality = 10.0 + int(prompt.split()[1]) % 2 * 4
    metrics = {"quality": quality, "last_block_quality": quality - 1}
    return {
        "configuration": name,
        "prompt": prompt,
        "seed": 1,
        "passes": dict.fromkeys(WEIGHTS, 1),
        "route": "t",
        "accepted": [True],
        "target_calls": 1,
        "draft_calls": 1,
        "metrics": {**metrics, "at_its_place": placed, "last_block_at_its_place": placed},
    }


@pytest.fixture(scope="module")
def study():
    ways = pick(protocol(9, (0.0,)), [TARGET_ONLY, DRAFT_ONLY])
    plan = Plan(prompts=PROMPTS, seeds=(1,), configurations=ways, blocks=9)
    placed = {TARGET_ONLY: [None] * 3 + [1.0] * 9, DRAFT_ONLY: [None] * 4 + [0.25] * 8}
    rows = [
        row_of(way, prompt, value)
        for way, values in placed.items()
        for prompt, value in zip(PROMPTS, values, strict=True)
    ]
    return plan, rows


def test_summary_has_paired_figures_of_last_blocks(study):
    plan, rows = study
    summary = summarise_study(rows, plan)
    draft = next(way for way in summary["configurations"] if way["name"] == DRAFT_ONLY)
    assert draft["metrics"]["at_its_place"]["value"] == 0.25
    assert draft["minus_target"]["at_its_place"]["value"] == -0.75
    assert draft["minus_target"]["last_block_quality"]["value"] == 0
    assert draft["left_out"]["at_its_place"] == 4
    assert draft["median"] == 12.0


def test_page_shows_medians_and_last_blocks(study):
    plan, rows = study
    page = page_text(summarise_study(rows, plan))
    assert "left out: 4 of 12" in page
    cells = next(line.split("|") for line in reversed(page.splitlines()) if DRAFT_ONLY in line)
    shown = [cell.strip().split(" ")[0] for cell in cells[2:-1]]
    assert shown == ["12.00", "11.00", "+0.00", "0.25", "-0.75", "0.25", "-0.75"]


def test_csv_leaves_a_missing_value_empty(study):
    plan, rows = study
    head, first, *_ = table_of_rows(rows, plan, "quality")
    assert head[-4:] == ["quality", "last_block_quality", "at_its_place", "last_block_at_its_place"]
    assert first[-2:] == ["", ""]


def test_mean_over_seeds_leaves_out_missing_values():
    rows = [row_of("way", "prompt 0", 0.5), {**row_of("way", "prompt 0", None), "seed": 2}]
    table = make_table(rows, ["prompt 0"], [1, 2])
    assert table.per_prompt("way", metric("at_its_place")) == [0.5]
    assert math.isnan(metric("at_its_place")(rows[1]))
