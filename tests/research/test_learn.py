"""What a study learns of its prompts: the regression by brute force, and made-up studies whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learned_routes import SHAPE, a_route

from research.learn import PENALTIES, learn, left_out, out_of_fold, price_table, ridge, shape_of, write_learned
from research.protocol import ANCHOR_ONLY, TARGET_ONLY
from research.statistics import Table, make_table
from sdvg_core.errors import BadInput
from sdvg_core.pipeline.learned import open_learned

pytestmark = pytest.mark.heavy

BLOCKS, WIDTH = 9, 12
MODELS = {"drafter": "a" * 64, "target": "b" * 64, "text_encoder": "c" * 64}


def data(prompts: int = 23, width: int = 40) -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    return draw.normal(2.0, 3.0, (prompts, width)), draw.normal(1.0, 1.0, prompts)


def primal(z: Any, gains: Any, penalty: float) -> Any:
    """Ridge with a free intercept, by the normal equations of all columns: `(c + 1,)`, the intercept last."""
    columns = np.column_stack([z, np.ones(len(z))])
    held = np.diag([penalty] * z.shape[1] + [0.0])
    return np.linalg.solve(columns.T @ columns + held, columns.T @ gains)


@pytest.mark.parametrize("penalty", PENALTIES[[0, 5, 15]])
@pytest.mark.parametrize("width", [5, 40])
def test_the_dual_ridge_and_its_leave_one_out_are_those_of_brute_force(penalty, width):
    """Catches: a shrunk intercept, a leverage without the share of the mean, a prompt that predicts itself."""
    read, gains = data(width=width)
    z = (read - read.mean(axis=0)) / read.std(axis=0)
    assert np.allclose([*ridge(z, gains, penalty), gains.mean()], primal(z, gains, penalty))
    for one, found in enumerate(left_out(z, gains, penalty)):
        rest = np.arange(len(z)) != one
        *weights, intercept = primal(z[rest], gains[rest], penalty)
        assert found == pytest.approx(z[one] @ weights + intercept)


def test_what_is_out_of_a_fold_does_not_know_the_fold():
    """Catches a mean, a penalty or a regression that saw the prompt it predicts."""
    read, gains = data(30)
    before = out_of_fold(read, gains)
    fold = np.array_split(np.random.default_rng(0).permutation(30), 10)[0]
    changed = gains.copy()
    changed[fold] += 100
    after = out_of_fold(read, changed)
    assert np.allclose(after[fold], before[fold])
    assert not np.allclose(np.delete(after, fold), np.delete(before, fold))


def test_the_shape_is_that_of_the_rows_or_the_usual_one():
    usual = [0, 0.20, 0.40, 0.55, 0.68, 0.79, 0.89, 0.96, 1]
    assert np.allclose(shape_of(9, None), usual, atol=0.025)
    assert np.allclose(shape_of(3, np.array([[0.0, 3, 4], [2, 3, 4]])), [0, 2 / 3, 1])


def made_up(prompts: int, noise: float, *, firsts: bool = True) -> tuple[Table, dict[str, torch.Tensor]]:
    """Gains that follow from the embedding, which has zeros after the prompt; `noise`: of each seed's gain."""
    draw, rows, embeddings = np.random.default_rng(4), [], {}
    for i in range(prompts):
        embedding = torch.zeros(1, 20, WIDTH)
        embedding[0, : 3 + i % 5] = torch.tensor(draw.normal(size=WIDTH))
        embeddings[f"prompt {i}"] = embedding
        gain = 1.5 + float(embedding[0, 0, 0])
        for seed in (1, 2):
            own, base = gain + noise * draw.normal(), 10 * draw.normal()
            for m in (1, *(range(2, BLOCKS) if firsts else ()), BLOCKS):
                name = {1: ANCHOR_ONLY, BLOCKS: TARGET_ONLY}.get(m, f"first@{m}")
                metrics = {"quality": base + own * SHAPE[m - 1], "reward_mean": 0.0}
                rows.append({"configuration": name, "prompt": f"prompt {i}", "seed": seed, "metrics": metrics})
    return make_table(rows, [*embeddings], (1, 2)), embeddings


@pytest.mark.parametrize("firsts", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_study_whose_gains_follow_from_the_prompts_is_learned_and_its_file_says_so(tmp_path, firsts):
    """Catches: a mean over the zeros after a prompt, a price of the wrong sign, a gain at another mean cost."""
    table, embeddings = made_up(60, 0.1, firsts=firsts)
    route, figures = learn(table, embeddings, "quality", BLOCKS, MODELS)
    assert figures["agreement of two seeds"].low > 0.9
    assert figures["recommended"] == "yes"
    write_learned(tmp_path / "route.safetensors", route)
    read = open_learned(tmp_path / "route.safetensors")
    assert (read.models, read.metric, tuple(read.gain), read.measured) == (
        *(MODELS, "quality", route.gain, route.measured),
    )
    assert read.gain[1] > 0.05
    unseen = [torch.zeros(1, 9, WIDTH), torch.zeros(1, 9, WIDTH)]
    unseen[0][0, :4, 0], unseen[1][0, :4, 0] = -1.5, 1.5
    low, high = (read.gain_of("another", one) for one in unseen)
    assert low == pytest.approx(0.0, abs=0.3)
    assert high == pytest.approx(3.0, abs=0.3)
    few, many = read.choose([low, high], 4, BLOCKS, together=False)
    assert few < 4 < many
    best, least = (
        np.mean([row["metrics"]["quality"] for (p, _), row in table.rows[name].items() if p == "prompt 5"])
        for name in (TARGET_ONLY, ANCHOR_ONLY)
    )
    assert read.gain_of(" prompt  5", None) == pytest.approx(best - least), "measured, and so its own value"


@pytest.mark.parametrize(
    ("prompts", "noise", "name", "said"),
    [
        (40, 8.0, "quality", "no prompt router can work"),
        (12, 0.1, "reward_mean", "undefined: no prompt router"),
        (9, 0.1, "quality", "10 prompts with 2 seeds"),
    ],
    ids=["seeds that do not agree", "no gains", "too few"],
)
def test_a_study_that_nothing_can_be_learned_from_is_refused(prompts, noise, name, said):
    with pytest.raises(BadInput, match=said):
        learn(*made_up(prompts, noise), name, BLOCKS, MODELS)


def test_embeddings_that_say_nothing_of_the_gains_are_not_recommended():
    """The gains agree between seeds, but nothing in the text tells them."""
    table, _ = made_up(40, 0.1)
    draw = np.random.default_rng(7)
    other = {prompt: torch.tensor(draw.normal(size=(1, 5, WIDTH))) for prompt in table.prompts}
    route, figures = learn(table, other, "quality", BLOCKS, MODELS)
    assert route.gain[1] <= 0
    assert figures["recommended"].startswith("no")
    models = dict.fromkeys(MODELS, None)
    assert any("is not recommended" in note for note in route.notes(models, BLOCKS))


def test_a_price_from_the_table_takes_its_mean_of_prompts_such_as_the_studys():
    numbers = np.random.default_rng(3).normal(1.0, 1.0, 40)
    route = a_route()
    assert (np.diff(route.prices[:, 1]) <= 0).all(), "more blocks, a lower price"
    assert np.allclose(price_table(route, numbers), route.prices)
    for mean in (2, 3.5, 5, 6):
        chosen = route.choose([*numbers], mean, BLOCKS, together=False)
        assert np.mean(chosen) == pytest.approx(mean, abs=0.15)
