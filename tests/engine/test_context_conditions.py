"""Under which block's condition a model passes the blocks before the one it makes."""

from __future__ import annotations

import pytest
from tiny import condition, make_engine, run, scripted

from sdvg_core.causal_wan.context import Model

FIRST, SECOND = condition(5, "a red ball"), condition(6, "a blue cube")


@pytest.fixture
def passed(monkeypatch):
    """The text and the number of latent frames of each context pass."""
    heard, honest = [], Model.write_context

    def write_context(model, clean, condition, cache, place):
        heard.append((condition.text, clean.shape[2]))
        honest(model, clean, condition, cache, place)

    monkeypatch.setattr(Model, "write_context", write_context)
    return heard


def texts(passed, policy):
    run(make_engine(policy), scripted("rrrr"), blocks=4, condition_of=lambda n: (FIRST, SECOND)[n >= 2])
    assert {frames for _, frames in passed} == {3}
    return [text for text, _ in passed]


def test_a_recomputed_window_is_passed_under_the_condition_of_the_block_to_be_made(passed):
    """Catches: a window passed under the condition of the blocks in it. Both models make every block here."""
    assert texts(passed, "recompute") == [FIRST.text] * 2 + [SECOND.text] * 4


def test_a_growing_cache_is_passed_block_by_block_under_the_condition_of_each(passed):
    assert texts(passed, "incremental") == [FIRST.text] * 4 + [SECOND.text] * 2
