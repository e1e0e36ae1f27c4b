"""The benchmark at tiny scale: that its numbers are complete and consistent, not that they are fast."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
import torch
from tiny import BrightScorer, EchoCodec, latents_of, make_engine, make_generator, run

from sdvg_core.bench.execution import AS_PUBLISHED, OURS, Case, Execution, as_published, cases
from sdvg_core.bench.gauges import NoGauge, metered
from sdvg_core.bench.measure import Sample, Studio, one_of_each, rounds
from sdvg_core.bench.models import random_models
from sdvg_core.bench.published import OnceABlock
from sdvg_core.bench.results import summarise_cases
from sdvg_core.bench.routes import default_routes, evenly, parse_route
from sdvg_core.bench.scales import SCALES
from sdvg_core.causal_wan.context import AnchorEncoder, Recompute
from sdvg_core.cli import bench, main
from sdvg_core.errors import BadInput
from sdvg_core.plan import PlanRequest
from sdvg_core.records import Seconds
from sdvg_core.report import Passes

TINY = replace(SCALES["tiny"].request, blocks=4)
NINE = 9


def case(name: str, execution: Execution = OURS, blocks: int = NINE) -> Case:
    return Case(route=parse_route(name, blocks), execution=execution)


# --- routes


@pytest.mark.parametrize(
    "name, script, limit",
    [
        ("target-only", "rrrrrrrrr", 1.0),
        ("draft-only", "aaaaaaaaa", None),
        ("anchor-only", "raaaaaaaa", 9.0),
        ("r=0", "raaaaaaaa", 9.0),
        ("r=1", "raaaaraaa", 4.5),
        ("r=2", "raaraaara", 3.0),
        ("r=4", "rarararar", 1.8),
        ("r=8", "rrrrrrrrr", 1.0),
        ("bail-out", "rrrrrrrrr", 1.0),
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


@pytest.mark.parametrize("name, part", [("r=9", "at most 8"), ("r=x", "a route among"), ("fast", "a route among")])
def test_a_route_that_does_not_exist_is_refused(name, part):
    with pytest.raises(BadInput, match=part):
        parse_route(name, NINE)


def test_a_short_clip_has_only_the_routes_that_fit_it():
    names = [route.name for route in default_routes(3)]
    assert names == ["target-only", "draft-only", "anchor-only", "r=1", "r=2", "bail-out"]


def test_the_authors_have_no_bail_out():
    found = cases(default_routes(NINE), (OURS, AS_PUBLISHED))
    assert [c.route.name for c in found if c.execution is AS_PUBLISHED] == [
        route.name for route in default_routes(NINE) if route.name != "bail-out"
    ]


# --- as published, counted


class Watched:
    """A generator that writes down each call: block, and how many steps were given."""

    def __init__(self, inner):
        self.inner = inner
        for name in ("name", "block_frames", "latent_channels", "timesteps", "anchor_horizon"):
            setattr(self, name, getattr(inner, name))
        self.calls = []

    def generate(self, history, span, noise, condition, given=()):
        self.calls.append((span.index, len(given)))
        return self.inner.generate(history, span, noise, condition, given)


class Frames(BrightScorer):
    """Writes down how many frames each call brings."""

    def __init__(self):
        super().__init__()
        self.frames = []

    def score(self, frames, prompt):
        self.frames.append(frames.shape[1])
        return super().score(frames, prompt)


def watched_engine():
    engine = make_engine()
    return replace(engine, drafter=Watched(engine.drafter), target=Watched(engine.target), scorer=Frames())


@pytest.mark.parametrize("name", ["r=2", "anchor-only"])
def test_as_published_drafts_block_0_and_fills_the_targets_context_before_every_block(name):
    engine, chosen = watched_engine(), case(name, AS_PUBLISHED)
    made = run(as_published(engine, chosen.route), chosen.router)
    steps = len(engine.target.timesteps)
    assert [index for index, _ in engine.drafter.calls] == list(range(NINE))
    fills = [index for index, given in engine.target.calls if given == steps]
    remakes = [index for index, given in engine.target.calls if given == 0]
    assert fills == list(range(NINE))
    assert remakes == [i for i, keep in enumerate(chosen.route.keeps) if not keep]
    assert [e.record.decision.accepted for e in made] == list(chosen.route.keeps)


def test_as_published_scores_frame_by_frame_and_block_0_too():
    engine, chosen = watched_engine(), case("r=2", AS_PUBLISHED)
    run(as_published(engine, chosen.route), chosen.router)
    assert engine.scorer.frames == [1] * (9 + 8 * 12)
    unscored, anchor = watched_engine(), case("anchor-only", AS_PUBLISHED)
    run(as_published(unscored, anchor.route), anchor.router)
    assert unscored.scorer.frames == []


def test_ours_drafts_no_block_0_and_asks_the_target_only_for_what_it_makes():
    engine, chosen = watched_engine(), case("r=2")
    run(engine, chosen.router)
    assert [index for index, _ in engine.drafter.calls] == list(range(1, NINE))
    assert engine.target.calls == [(i, 0) for i, keep in enumerate(chosen.route.keeps) if not keep]
    assert engine.scorer.frames == [12] * 8


def test_a_context_is_prepared_once_a_block_and_the_same_as_if_it_were_prepared_anew():
    passes: Counter[str] = Counter()

    def count(kind: str) -> None:
        passes[kind] += 1

    codec = EchoCodec()
    plain = make_engine()
    drafter = make_generator(1, codec, name="drafter", encoder=AnchorEncoder(codec.encode))
    target = make_generator(2, codec, name="target", before_pass=count)
    target._context = OnceABlock(Recompute(encode_anchor=AnchorEncoder(codec.encode), frames=3))
    engine = replace(plain, drafter=drafter, target=target, codec=codec)
    chosen = case("r=4", AS_PUBLISHED)
    made = run(as_published(engine, chosen.route), chosen.router)
    assert passes == {"context": 8, "denoise": 5 * len(target.timesteps)}
    assert sum(e.record.draft.context_passes for e in made) == 8 + 8  # the drafter's, and the target's filled early
    assert sum(e.record.target.context_passes for e in made if e.record.target) == 0
    assert torch.equal(latents_of(made), latents_of(run(plain, case("r=4").router)))


# --- videos of random models


@pytest.fixture(scope="module")
def studio() -> Studio:
    return Studio(models=random_models(TINY, torch.device("cpu")), request=TINY, clock=Clock(), gauge=NoGauge())


class Clock:
    """Counts how often it was asked; every interval is a whole number."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return float(self.now)


def test_as_published_runs_five_passes_where_ours_runs_four(studio):
    four, five = (studio.film(case("r=1", execution, 4)).passes for execution in (OURS, AS_PUBLISHED))
    assert four == Passes(
        drafter_denoising=3 * 4,
        drafter_context=3,
        target_denoising=2 * 4,
        target_context=1,
        decodes=5,
        encodes=2,
    )
    assert five == Passes(
        drafter_denoising=4 * 5,
        drafter_context=3 + 3,
        target_denoising=2 * 5,
        target_context=0,
        decodes=6,
        encodes=2,
    )


def test_parts_and_gaps_add_up_to_the_video(studio):
    sample = studio.film(case("r=1", OURS, 4))
    assert sample.video == sample.arrivals[0] + sum(sample.gaps)
    assert len(sample.arrivals) == 4
    assert 0 < sample.parts.total < sample.video
    assert sample.pixel_frames == 9 + 3 * 12


def test_a_route_that_was_not_taken_is_no_result(studio, monkeypatch):
    monkeypatch.setattr(type(studio.models.scorer), "score", lambda *_: torch.tensor([float("nan")]))
    with pytest.raises(BadInput, match="no finite number"):
        studio.film(case("r=1", OURS, 4))


def test_rounds_are_interleaved(studio, monkeypatch):
    filmed = []
    monkeypatch.setattr(Studio, "film", lambda self, asked: filmed.append(asked))
    todo = (case("target-only"), case("r=1"))
    list(rounds(studio, todo, 3))
    assert filmed == [*todo, *todo, *todo]


class Rising:
    """A gauge whose every reading is higher than the last."""

    def __init__(self):
        self.cleared = self.read = 0

    def clear(self):
        self.cleared += 1

    def peak(self):
        self.read += 1
        return self.read


def test_memory_is_read_around_every_part_of_the_work():
    gauge, peaks = Rising(), {}
    run(metered(make_engine(), gauge, peaks), case("r=2").router)
    assert set(peaks) == {"draft", "decode", "score", "target"}
    assert gauge.cleared == gauge.read == 8 + 8 + 3 + (8 + 3)
    assert max(peaks.values()) == gauge.read


def test_one_warm_up_for_every_execution_with_both_models_where_there_is_one():
    todo = cases(default_routes(4), (OURS, AS_PUBLISHED))
    assert [c.execution for c in one_of_each(todo)] == [OURS, AS_PUBLISHED]
    assert all(c.route.routed for c in one_of_each(todo))


# --- what the samples say


def sample(*arrivals: float, decode: float = 1.0, peak: int | None = None) -> Sample:
    none = dict.fromkeys(Passes.__slots__, 0)
    parts = Seconds(decode=decode)
    return Sample(arrivals=arrivals, parts=parts, passes=Passes(**none), pixel_frames=105, peak=peak)


def test_ratios_limits_and_shares_follow_from_the_medians():
    target, one, published = case("target-only"), case("r=1"), case("r=1", AS_PUBLISHED)
    found = summarise_cases(
        {
            target: [sample(1, 10), sample(1, 90), sample(1, 12)],
            one: [
                sample(1, 4, decode=3.0, peak=7),
                sample(2, 3, decode=1.0, peak=9),
                sample(3, 6, decode=2.0, peak=8),
            ],
            published: [sample(2, 8)],
            case("r=2"): [],
        }
    )
    base, fast, slow = found
    assert [entry["route"] for entry in found] == ["target-only", "r=1", "r=1"]
    assert base["seconds"]["video"] == median([10, 90, 12])
    assert base["ratio_to_target_only"] == base["share_of_limit"] == 1
    assert (fast["seconds"]["video"], fast["seconds"]["decode"], fast["peak_bytes"]) == (4, 2, 9)
    assert fast["ratio_to_target_only"] == 12 / 4
    assert (fast["limit"], fast["share_of_limit"]) == (4.5, 3 / 4.5)
    assert fast["ratio_to_as_published"] == 8 / 4
    assert fast["gap_seconds"] == {"median": 3, "worst": 3}
    assert fast["block_seconds"] == [2, 3]
    assert fast["first_frame_seconds"] == 2
    assert fast["frames_per_second"] == 105 / 4
    # No target-only was made as published, and nobody is measured against himself.
    assert slow["ratio_to_target_only"] is slow["ratio_to_as_published"] is None


# --- the command

CASE_KEYS = {
    *("route", "execution", "script", "rejected", "repeats", "seconds", "videos", "block_seconds"),
    *(
        "first_frame_seconds",
        "gap_seconds",
        "pixel_frames",
        "frames_per_second",
        "passes",
        "peak_bytes",
        "ratio_to_target_only",
    ),
    *("limit", "share_of_limit", "ratio_to_as_published"),
}
CONDITIONS = {
    *("versions", "device", "processor", "threads", "gpu", "drafter", "target", "dtype", "target_weights"),
    *("vae_dtype", "reward_dtype", "presets", "executions"),
}
SHORT = ["bench", "--scale", "tiny", "--blocks", "3", "--repeats", "1"]


@pytest.fixture(scope="module")
def printed() -> dict:
    """Every usual route of a three-block clip, in both executions, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*SHORT, "--json"]) == 0
    (line,) = out.getvalue().splitlines()
    return json.loads(line)


def test_the_json_line_is_complete(printed):
    names = [(entry["route"], entry["execution"]) for entry in printed["cases"]]
    usual = [route.name for route in default_routes(3)]
    ours = [(name, "ours") for name in usual]
    assert names == ours + [(name, "as-published") for name in usual if name != "bail-out"]
    assert set(printed["conditions"]) == CONDITIONS
    assert set(printed["conditions"]["executions"]["ours"]) == {
        "schedule", "as_published", "attention", "compile", "overlap",
    }  # fmt: skip
    for entry in printed["cases"]:
        assert set(entry) == CASE_KEYS
        assert set(entry["seconds"]) == {"video", "draft", "decode", "score", "target", "context"}
        assert entry["seconds"]["video"] > 0
        assert set(entry["passes"]) == set(Passes.__slots__)
        assert entry["peak_bytes"] is None
    assert printed["memory"]["note"].startswith("peaks are measured on CUDA")
    assert not printed["interrupted"]


def test_ratios_are_those_of_the_seconds_beside_them(printed):
    seconds = {(e["route"], e["execution"]): e["seconds"]["video"] for e in printed["cases"]}
    for entry in printed["cases"]:
        name, execution = entry["route"], entry["execution"]
        assert entry["ratio_to_target_only"] == seconds["target-only", execution] / seconds[name, execution]
        parts = sum(value for part, value in entry["seconds"].items() if part != "video")
        assert parts <= entry["seconds"]["video"]
        if execution == "ours" and name != "bail-out":
            assert entry["ratio_to_as_published"] == seconds[name, "as-published"] / seconds[name, "ours"]


def test_predicted_weights_are_those_that_lie_there(printed):
    weights = printed["memory"]["weights"]
    assert set(weights) == {"target", "drafter", "vae", "scorer"}
    assert all(found["deviation"] == 0 for found in weights.values())
    assert set(printed["memory"]["peak"]) == {"draft", "decode", "score", "target"}


def test_the_table_names_every_case_and_the_rejected_blocks(capsys):
    assert main([*SHORT, "--routes", "target-only", "r=1", "--executions", "ours"]) == 0
    captured = capsys.readouterr()
    assert "r=1 rejects block 3." in captured.out
    assert "say nothing about quality" in captured.out
    assert "video 2/2: r=1, ours" in captured.err


def test_half_precision_and_fp8_make_finite_numbers(capsys):
    more = ["--routes", "r=1", "--executions", "ours", "--dtype", "bfloat16", "--fp8", "--json"]
    assert main([*SHORT, *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conditions"]["target_weights"] == "float8_e4m3fn"
    assert all(entry["deviation"] == 0 for entry in found["memory"]["weights"].values())


def test_an_interrupt_prints_what_there_is(capsys, monkeypatch):
    honest, filmed = Studio.film, []

    def film(self, asked):
        if filmed:
            raise KeyboardInterrupt
        filmed.append(asked)
        return honest(self, asked)

    monkeypatch.setattr(Studio, "film", film)
    assert main([*SHORT, "--routes", "target-only", "r=1", "--executions", "ours", "--json"]) == 130
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["interrupted"]
    assert [entry["route"] for entry in found["cases"]] == ["target-only"]
    assert "interrupted" in captured.err


def test_without_cuda_the_full_scale_says_what_still_works(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bench --scale tiny" in line
    assert main(["bench", "--device", "cpu"]) == 2
    capsys.readouterr()


def test_too_little_memory_prints_the_plan_instead(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 * 10**9, 25 * 10**9))
    with pytest.raises(BadInput, match=r"has 24\.0 GB free of the 44"):
        bench._check_room(PlanRequest(), torch.device("cuda"), False)
    shown = capsys.readouterr().err
    assert "Fits: target in fp8" in shown
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * 10**9, 80 * 10**9))
    bench._check_room(PlanRequest(), torch.device("cuda"), False)


@pytest.mark.parametrize(
    "more, part",
    [
        (["--repeats", "0"], "--repeats of at least 1"),
        (["--blocks", "0"], "blocks of at least 1"),
        (["--routes", "r=5"], "at most 2"),
        (["--size", "64"], "such as 832x480"),
        (["--size", "30x32"], "use 32"),
        (["--device", "gpu"], "device of this machine"),
        (["--reward-dtype", "bfloat16"], "float16"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(capsys, more, part):
    assert main([*SHORT, *more]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert part in lines[0]
