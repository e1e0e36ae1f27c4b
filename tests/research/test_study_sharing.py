"""Configurations that share blocks give the very rows they would have given alone."""

from collections import Counter
from itertools import product

import pytest
import torch
from study_tiny import EVERYTHING, job, made, tiny_models

from research.memo import Memo
from research.protocol import Configuration
from research.routers import planned_route


@pytest.mark.heavy
@pytest.mark.parametrize("policy", ["recompute", pytest.param("incremental", marks=pytest.mark.exhaustive)])
def test_rows_with_and_without_sharing_are_the_same(policy):
    """Catches a key that leaves out the history, the decoder's state, or what a repair was given."""
    shared = made(tiny_models(policy), job())
    alone = [row for c in EVERYTHING for row in made(tiny_models(policy, memo_bytes=0), job([c]))]
    if policy == "incremental":  # whose context passes are those of the row that made a block
        for row in (*shared, *alone):
            del row["passes"]["drafter_context"], row["passes"]["target_context"]
    assert shared == alone
    assert len({row["latents_sha256"] for row in shared}) > len(shared) // 3


def test_what_routes_share_is_made_once(monkeypatch):
    """Catches: a memo that never hits; the rows would be the same, and take twice as long."""
    models, calls, plans = tiny_models(), [], ["t" + "".join(rest) for rest in product("td", repeat=4)]
    every_route = [Configuration(plan, "", planned_route(plan)) for plan in plans]
    honest = models.engine.target.generate

    def counted(call):
        calls.append(call.span.index)
        return honest(call)

    monkeypatch.setattr(models.engine.target, "generate", counted)
    made(models, job(every_route))
    assert Counter(calls) == {0: 1, 1: 1, 2: 2, 3: 4, 4: 8}


def test_a_memo_keeps_its_arguments_so_that_no_id_comes_again():
    """Catches a memo of bare ids: a new tensor may lie where a freed one lay, and be taken for it."""
    memo = Memo()
    for i in range(200):
        value = torch.full((1,), float(i))
        assert float(memo.call("same", (value,), value.clone)) == i
