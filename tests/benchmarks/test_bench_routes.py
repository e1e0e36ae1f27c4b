"""The routes that are timed, by name, and what the benchmark cannot do here, said before anything is made."""

import pytest
from bench_parts import NINE, SHORT
from cli_runs import override

from benchmarks.__main__ import main
from benchmarks.variants import OURS, parse_route, parse_variant
from sdvg_core.devices.execution import Execution
from sdvg_core.errors import BadInput


@pytest.mark.parametrize(
    "name, script",
    [
        ("target-only", "rrrrrrrrr"),
        ("draft-only", "aaaaaaaaa"),
        ("anchor-only", "raaaaaaaa"),
        ("r=4", "rarararar"),
        ("first=2", "rraaaaaaa"),
        ("first=9+1", "rrrrrrrrr"),
        ("r=4+3", "rarararar"),
        ("cascade=4", "rarararar"),
        ("stride=4+2", "raaaraaar"),
    ],
)
def test_routes_reject_as_many_blocks_as_their_name_says(name, script):
    assert parse_route(name, NINE).plan == script


def test_an_execution_is_ours_and_all_the_marks_in_its_name():
    """The later of two marks that say the same thing counts: compiled brings layers of its own."""
    both = parse_variant("compiled+planes+tae")
    assert both.name == "compiled+planes+tae"
    assert both.execution == Execution(compile="default", vae_layers="planes")
    assert both.vae == "tae"
    assert parse_variant("compiled").execution.vae_layers == "planes"
    assert parse_variant("compiled+diffusers").execution.vae_layers == "diffusers"
    assert parse_variant("ours") == OURS


@pytest.mark.parametrize("name", ["stride=0", "first=0", "r=1+", "cascade", "r=1+33"])
def test_a_route_that_is_none_is_refused_with_those_there_are(name):
    with pytest.raises(BadInput, match=r"choose among .*cascade=N.*stride=N"):
        parse_route(name, NINE)


@pytest.mark.parametrize(
    "more, part",
    [
        (["--repeats", "0"], "--repeats is 0"),
        (["--routes", "r=5"], "more than 2 blocks"),
        (["--size", "64"], "'64' is no size"),
        (["--size", "30x32"], "use 16 or 32"),
        (["--device", "gpu"], "there is no device 'gpu'; use cpu, cuda"),
        (["--executions", "ours+planes"], "joined by +"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(capsys, more, part):
    assert main(override(SHORT, *more)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert part in lines[0]
