"""The benchmark at tiny scale: routes by name, what is measured, the page, and the command."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from functools import cache
from statistics import median

import pytest
import torch

from lab.benchmarks.__main__ import main
from lab.benchmarks.measure import Bench, Gauge, Sample
from lab.benchmarks.results import COLUMNS, result_text, summarise_cases
from lab.benchmarks.variants import OURS, Case, Variant, default_routes, parse_route, parse_variant, set_up
from sdvg_core.engine.records import Seconds
from sdvg_core.errors import BadInput
from sdvg_core.settings.execution import Execution
from tests.support import random_models as models
from tests.support.cli_runs import override
from tests.support.random_models import Models, random_models

TINY = replace(models.TINY, blocks=4)
NINE = 9
SHORT = ["--scale", "tiny", "--blocks", "3", "--repeats", "1"]


def case(name: str, execution: Variant = OURS, blocks: int = NINE) -> Case:
    return Case(route=parse_route(name, blocks), variant=execution)


class Clock:
    """Return how often it was called; every interval is a whole number."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return float(self.now)


@cache
def tiny_models() -> Models:
    return random_models(TINY, torch.device("cpu"))


def tiny_bench() -> Bench:
    """Where tiny videos of four blocks are made."""
    setups = set_up([OURS], tiny_models(), TINY)
    return Bench(setups=setups, request=TINY, clock=Clock(), gauge=Gauge(torch.device("cpu")))


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
def test_route_names_state_the_rejected_blocks(name, script):
    assert parse_route(name, NINE).plan == script


def test_execution_has_all_marks_of_its_name():
    """The later of two marks that say the same thing counts: compiled brings layers of its own."""
    variant = parse_variant("compiled+planes+tae")
    assert variant.name == "compiled+planes+tae"
    assert variant.execution == Execution(compile="default", vae_layers="planes")
    assert variant.vae == "tae"
    assert parse_variant("compiled").execution.vae_layers == "planes"
    assert parse_variant("compiled+diffusers").execution.vae_layers == "diffusers"
    assert parse_variant("ours") == OURS


@pytest.mark.parametrize("name", ["stride=0", "first=0", "r=1+", "cascade", "r=1+33"])
def test_unknown_route_is_refused_with_the_known(name):
    with pytest.raises(BadInput, match=r"choose among .*cascade=N.*stride=N"):
        parse_route(name, NINE)


@pytest.mark.parametrize(
    "more, part",
    [
        (["--repeats", "0"], "--repeats is 0"),
        (["--routes", "r=5"], "more than 2 blocks"),
        (["--size", "64"], "'64' is no size"),
        (["--size", "30x32"], "use 16 or 32"),
        (["--device", "gpu"], "there is no device 'gpu'"),
        (["--executions", "ours+planes"], "joined by +"),
    ],
)
def test_bad_values_are_refused(capsys, more, part):
    assert main(override(SHORT, *more)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert part in lines[0]


@pytest.fixture(scope="module")
def bench() -> Bench:
    return tiny_bench()


def test_route_that_was_not_taken_is_refused(bench, monkeypatch):
    monkeypatch.setattr(type(tiny_models().scorer), "score", lambda *_: torch.tensor([float("nan")]))
    with pytest.raises(BadInput, match="was not finite"):
        bench.measure(case("r=1", OURS, 4))


@pytest.mark.parametrize(
    ("name", "passes", "scored"),
    [
        ("target-only", {"drafter_denoising": 0, "drafter_context": 0, "decodes": 4}, []),
        ("r=1+1", {"target_denoising": 4 + 3, "drafter_denoising": 12, "decodes": 5}, [9, 12, 12, 12]),
        ("cascade=1+3", {"target_denoising": 4 + 1, "drafter_denoising": 12, "decodes": 5}, [4, 4, 4]),
        ("stride=2+2", {"target_denoising": 4 + 2, "drafter_denoising": 4 + 2 + 4, "decodes": 4}, []),
    ],
)
def test_routes_take_the_passes_their_names_say(bench, monkeypatch, name, passes, scored):
    """Catches: a cascade whose scorer does no work, or that goes on to the other frames; a handover of nothing."""
    scorer = type(tiny_models().scorer)
    honest = scorer.score
    counts = []

    def score(self, frames, prompt):
        counts.append(frames.shape[1])
        return honest(self, frames, prompt)

    monkeypatch.setattr(scorer, "score", score)
    measured = bench.measure(case(name, OURS, 4)).passes
    assert {kind: measured[kind] for kind in passes} == passes
    assert counts == scored[-len(counts) or len(scored) :]


# --- what is made of the samples


def sample(*arrivals: float, decode: float = 0.0, peak: int | None = None) -> Sample:
    return Sample(arrivals=arrivals, parts=Seconds(decode=decode), passes={}, pixel_frames=105, peak=peak)


def test_ratios_follow_from_the_medians():
    target = case("target-only")
    gate = case("r=1")
    planes = case("r=1", parse_variant("planes"))
    results = summarise_cases(
        {
            target: [sample(1, 10), sample(1, 90), sample(1, 12)],
            gate: [sample(1, 4, decode=3, peak=7), sample(2, 3, decode=1, peak=9), sample(3, 6, decode=2, peak=8)],
            planes: [sample(2, 8)],
            case("r=2"): [],
        }
    )
    base, fast, slow = results
    assert [entry["route"] for entry in results] == ["target-only", "r=1", "r=1"]
    assert base["seconds"]["video"] == median([10, 90, 12])
    assert base["ratio_to_target_only"] == 1
    assert (fast["seconds"]["video"], fast["seconds"]["decode"], fast["peak_bytes"]) == (4, 2, 9)
    assert fast["ratio_to_target_only"] == 12 / 4
    assert fast["block_seconds"] == [2, 3]
    assert fast["first_frame_seconds"] == 2
    assert fast["frames_per_second"] == 105 / 4
    assert slow["ratio_to_target_only"] is None, "no target-only was made in this execution"
    assert slow["ratio_to_ours"] == 4 / 8


@pytest.fixture(scope="module")
def printed() -> dict:
    """Every usual route of a three-block clip, in two executions, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*SHORT, "--executions", "ours", "diffusers", "--json"]) == 0
    (line,) = out.getvalue().splitlines()
    return json.loads(line)


@pytest.mark.heavy
def test_json_line_is_complete(printed):
    names = [(entry["route"], entry["execution"]) for entry in printed["cases"]]
    usual = [route.name for route in default_routes(3)]
    assert names == [(name, execution) for execution in ("ours", "diffusers") for name in usual]
    for entry in printed["cases"]:
        assert set(entry["seconds"]) == {"video", "draft", "decode", "score", "target", "context"}
        assert entry["seconds"]["video"] > 0
        models = {f"{role}_{kind}" for role in ("drafter", "target") for kind in ("denoising", "context")}
        assert set(entry["passes"]) == {*models, "decodes", "encodes"}
        assert entry["repeats"] == len(entry["videos"]) == 1  # the warm-up is none of them
        assert entry["peak_bytes"] is None
    assert printed["memory"]["note"].startswith("peaks are measured on CUDA")
    assert set(printed["warm_up_seconds"]) == {"ours", "diffusers"}
    assert not printed["interrupted"]


@pytest.mark.heavy
def test_rows_of_the_page_show_the_measurements(printed):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result_text(printed).splitlines()]
    [row] = [cells for cells in rows if cells[:2] == ["ours", "anchor-only"]]
    cells = dict(zip(COLUMNS, row, strict=True))
    [case] = [case for case in printed["cases"] if (case["execution"], case["route"]) == ("ours", "anchor-only")]
    assert cells["x target-only"] == f"{case['ratio_to_target_only']:.2f}x"
    assert cells["s per video"] == f"{case['seconds']['video']:.3f}"
    assert cells["draft"] == f"{case['seconds']['draft']:.3f}"
    assert cells["s to first frame"] == f"{case['first_frame_seconds']:.3f}"
    assert (cells["frames per s"], cells["peak memory"]) == (f"{case['frames_per_second']:.1f}", "-")
