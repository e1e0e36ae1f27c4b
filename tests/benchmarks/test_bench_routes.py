"""The routes that are timed, by name."""

from itertools import pairwise

import pytest
from bench_parts import NINE

from benchmarks.variants import AS_PUBLISHED, OURS, evenly, parse_route, parse_variant
from sdvg_core.devices.execution import Execution
from sdvg_core.errors import BadInput


@pytest.mark.parametrize(
    "name, script, limit",
    [
        ("target-only", "rrrrrrrrr", 1.0),
        ("draft-only", "aaaaaaaaa", None),
        ("anchor-only", "raaaaaaaa", 9.0),
        ("r=1", "raaaaraaa", 4.5),
        ("r=4", "rarararar", 1.8),
        ("r=8", "rrrrrrrrr", 1.0),
        ("bail-out", "rrrrrrrrr", 1.0),
        ("first=2", "rraaaaaaa", 4.5),
        ("first=9+1", "rrrrrrrrr", None),
    ],
)
def test_routes_reject_as_many_blocks_as_their_name_says(name, script, limit):
    route = parse_route(name, NINE)
    assert route.script == script
    assert route.limit == limit


@pytest.mark.parametrize("blocks", [2, 5, 9, 64])
def test_rejected_blocks_are_different_and_evenly_spread(blocks):
    for count in range(1, blocks):
        chosen = evenly(count, blocks)
        assert len(set(chosen)) == count
        assert 1 <= chosen[0] <= chosen[-1] < blocks
        gaps = [b - a for a, b in pairwise(chosen)]
        assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    "name, part",
    [
        ("r=9", "rejects more than 8 blocks"),
        ("r=x", "choose among target-only"),
        ("first=0", "choose among target-only"),
        ("first=10", "more than the 9 blocks"),
    ],
)
def test_a_route_that_does_not_exist_is_refused(name, part):
    with pytest.raises(BadInput, match=part):
        parse_route(name, NINE)


def test_an_execution_is_ours_and_all_the_marks_in_its_name():
    """The later of two marks that say the same thing counts: compiled brings layers of its own."""
    both = parse_variant("compiled+planes+tae")
    assert both.name == "compiled+planes+tae"
    assert both.execution == Execution(compile="default", vae_layers="planes")
    assert both.vae == "tae"
    assert parse_variant("compiled").execution.vae_layers == "planes"
    assert parse_variant("compiled+diffusers").execution.vae_layers == "diffusers"
    assert not both.as_published
    assert both.schedule == OURS.schedule
    assert [parse_variant(name) for name in ("ours", "as-published")] == [OURS, AS_PUBLISHED]
