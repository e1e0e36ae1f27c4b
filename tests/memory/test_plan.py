"""What fits where, which layout is chosen, the table of cards in README and workflows, and what a budget buys."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from sdvg_core.cli import main, make_parser
from sdvg_core.cli.fitting import plans_for
from sdvg_core.engine.inputs import BlockInputs
from sdvg_core.engine.plan import plan_blocks
from sdvg_core.engine.speculate import speculate
from sdvg_core.engine.types import plan_spans
from sdvg_core.memory.budget import WEIGHTS, BudgetedRun, pass_weights, route_for_budget
from sdvg_core.memory.plan import Plan, plan, plan_text
from sdvg_core.memory.sizes import LAYERS_IN_FLIGHT, PlanRequest, most
from sdvg_core.report.run_report import RunReport
from sdvg_core.settings.context import get_preset
from sdvg_core.settings.route import ROUTE_PRESETS, Budget, First, Route, TargetOnly
from tests.support.cli_runs import override
from tests.support.tiny import PROMPT, make_engine, make_framewise, make_noise, planned_blocks, run

GB = 10**9
FULL = PlanRequest()


# --- the choice


@pytest.mark.parametrize("vram", [14.2, 15, 16, 20, 23.9, 24, 30, 31, 44, 48, 139])
def test_no_plan_uses_more_than_there_is(vram):
    found = plan(vram, FULL)
    assert found.fits
    assert found.peak <= vram * GB
    target = found.parts["target"]
    assert target["target keys and values"] == 7_667_712_000
    assert target["target"] <= found.sizes.weights["target"]


def test_more_memory_never_copies_more():
    """Catches: a choice by layout instead of by bytes, and a streamed target that does not use the room it has."""
    cards = (14.2, 14.5, 15, 16, 18, 21, 22.5, 24, 26, 28, 30, 33, 40, 45, 90)
    plans = [plan(vram, FULL) for vram in cards]
    copied = [sum(one.copied.values()) for one in plans]
    assert copied == sorted(copied, reverse=True)
    assert copied[0] > 14e9
    assert [one.fp8 for one in plans] == [True] * 13 + [False] * 2, "rounded only to copy less"


@pytest.mark.parametrize("vram, streamed", [(24, ("target",)), (15, ("target", "drafter"))])
def test_as_few_layers_are_streamed_as_there_is_no_room_for(vram, streamed):
    """Catches layers in flight that are not counted, and a model's other weights counted as copied."""
    found = plan(vram, FULL)
    assert (found.fp8, tuple(found.streamed)) == (True, streamed)
    for role, count in found.streamed.items():
        layer = found.sizes.layers[role]
        assert 2 * layer * found.request.models[role].config.num_layers > 0.9 * found.sizes.weights[role]
        there = found.sizes.weights[role] - (count - LAYERS_IN_FLIGHT) * layer
        assert {step[role] for step in found.parts.values()} == {there}
        assert found.copied[role] == count * layer
    last = streamed[-1]
    assert found.peak + found.sizes.layers[last] > vram * GB >= found.peak
    assert all(found.streamed[role] == found.request.models[role].config.num_layers for role in streamed[:-1])


@pytest.mark.parametrize(
    "route, roles",
    [
        (Route(), {"target", "drafter", "scorer", "vae"}),
        (ROUTE_PRESETS["balanced"], {"target", "drafter", "vae"}),
        (Route(TargetOnly()), {"target", "vae"}),
        (Route(First(0)), {"drafter", "vae"}),
    ],
    ids=["gate", "balanced", "target", "draft"],
)
def test_only_models_that_the_route_may_load_are_counted(route, roles):
    """Catches the scorer of the gate in the plan of a preset."""
    blocks = plan_blocks(route, blocks=9, block_frames={"drafter": 3, "target": 3})
    found = plan(80, replace(FULL, needed=blocks.models_needed))
    assert set(found.sizes.weights) == roles
    for step in found.parts.values():
        named = {part.split()[0] for part in step} - {"working"}
        assert named == roles
    assert ("draft" in found.parts, "target" in found.parts) == ("drafter" in roles, "target" in roles)


def test_the_command_line_has_layers_and_a_precision_of_its_own_for_the_vae(capsys):
    plans = []
    for more in ([], ["--command-line"]):
        plans += plans_for(make_parser().parse_args(["doctor", "--vram", "80", *more]))
    assert [plan.request.where for plan in plans] == ["in ComfyUI", "on the command line"]
    assert [plan.request.execution.vae_layers for plan in plans] == ["diffusers", "planes"]
    assert [plan.parts["decode"]["vae state"] for plan in plans] == pytest.approx([3.78e9, 7.57e9], rel=0.01)
    assert main(["doctor", "--vram", "80", "--command-line"]) == 0
    assert capsys.readouterr().out.startswith("On the command line: 1.3B drafter, 14B target, 832x480")


def test_misfit_says_what_is_missing():
    misfit = plan(8, FULL)
    assert not misfit.fits
    assert misfit.missing == misfit.peak - 8 * GB > 0
    text = plan_text(misfit)
    assert "Does not fit: even with target in fp8" in text
    assert f"{misfit.missing / GB:.1f} GB are missing" in text
    assert "IMAGE of 105 frames takes 0.5 GB of the computer's memory" in text
    assert "IMAGE" not in plan_text(plan(24, replace(FULL, where="on the command line")))


# --- the command


def test_a_machines_gpu_is_planned_for_if_nothing_else_is_asked(capsys, monkeypatch):
    class Properties:
        total_memory = 24 * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    assert main(["doctor", "--vram"]) == 0
    said = capsys.readouterr().out
    assert "on a card of 24 GB, of which 24.0 GB" in said
    assert "target in fp8" in said


def test_smaller_files_are_planned_for_small_cards(capsys):
    """Catches rows that plan the whole file again, and advice to round where all fits."""
    assert main(["doctor", "--vram", "16", "24", "48"]) == 0
    plain, *tables = capsys.readouterr().out.split("With a file in ")
    assert [table.split(",")[0] for table in tables] == ["int8", "w4a8"]
    assert "  48 " in plain
    assert all("  48 " not in table for table in tables)
    assert "24   22.3  target in w4a8, everything stays on the device" in tables[1]
    assert main(["doctor", "--vram", "24"]) == 0
    assert "With a file in w4a8: target in w4a8, everything stays" in capsys.readouterr().out
    assert main(["doctor", "--vram", "24", "--weight-dtype", "w4a8"]) == 0
    assert "With a file" not in capsys.readouterr().out


def test_a_plan_says_what_is_copied(capsys):
    assert main(["doctor", "--vram", "24"]) == 0
    said = capsys.readouterr().out
    assert "in fp8, 37 % of the target's weights (5.3 GB) are copied over in every pass." in said
    assert "second" not in said


@pytest.mark.parametrize(
    "more, part",
    [
        (["--vram", "0"], "the device's memory is "),
        (["--vram", "nan"], "the device's memory is "),
        (["--vram", "1e300"], "the device's memory is "),
        (["--size", "830x480"], "use 816 or 832"),
        (["--size", "832x-16"], "height"),
        (["--blocks", "0"], "a video cannot have 0 blocks"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(capsys, more, part):
    assert main(override(["doctor", "--vram", "24"], *more)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert part in line


# --- two devices


def test_a_plan_for_two_devices_fits_the_first_and_tells_what_the_second_holds():
    one, two = plan(48, FULL), plan(48, replace(FULL, side=True))
    assert two.peak < one.peak
    assert "vae" not in two.parts["decode"]
    assert two.side_parts["decode"]["vae state"] == one.parts["decode"]["vae state"]
    assert most(one.side_parts) == 0
    assert "second device holds VAE and scorer, with a peak while decoding, 7.1 GB" in plan_text(two)
    assert "second device" not in plan_text(one)


ROOT = Path(__file__).resolve().parents[2]
NOTES = [
    path for path in sorted((ROOT / "workflows").glob("*.json")) if "SDVGTargetLoader" in path.read_text("utf-8")
]
ROW = re.compile(r"^\| ([\d,\s]+)\sGB \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
CHOICES = {"kv_dtype": ("--kv-dtype", "float8_e4m3fn"), "TAEHV": ("--vae", "tae")}
CARDS = [8, 12, 16, 24, 32, 48, 80]

Row = tuple[str, list[int], str, str]
"""The target's weights, the percentages that are copied over, and what *balanced* and the gate copy, or lack."""


def planned_by(*words: str) -> list[Plan]:
    """Return what the command plans."""
    return plans_for(make_parser().parse_args(["doctor", *words]))


@pytest.fixture
def planned() -> Callable[[int, str], Row]:
    """Return a row of a card, with what it is said to choose."""

    @cache
    def row(card: int, choose: str) -> Row:
        options = [word for name, words in CHOICES.items() if name in choose for word in words]
        plans = []
        for preset in ("balanced", "paper"):
            plans += planned_by("--preset", preset, "--vram", str(card), *options)
        first = plans[0]
        copied = [round(100 * size / first.sizes.weights[role]) for role, size in first.copied.items()]
        amounts = [
            f"{sum(plan.copied.values()) / 1e9:.1f} GB" if plan.fits else f"{plan.missing / 1e9:.1f} GB short"
            for plan in plans
        ]
        return "fp8" if first.fp8 else "bfloat16", copied, *amounts

    return row


@pytest.mark.parametrize("card", CARDS)
def test_a_plan_leaves_what_a_gpu_was_measured_to_take_besides(card):
    """Any card and both programs: 0.8 GB for CUDA's context, 1 GB for gaps in the allocator's memory.

    Catches a share or a unit instead: 8 GB of 2^30 bytes leave 0.6 GB, and 24 GB in ComfyUI ran out of memory.
    """
    usable = card * 2**30 - 1_800_000_000
    for more in ([], ["--command-line"]):
        [plan] = planned_by("--vram", str(card), *more)
        assert plan.missing == max(0, plan.peak - usable)
        assert plan.fits == (plan.peak <= usable)


def written(text: str) -> dict[int, tuple[str, Row]]:
    """Return for each card what to choose, and the row."""
    rows = {}
    for cards, choose, what, balanced, gate in ROW.findall(text):
        copied = [int(share) for share in re.findall(r"(\d+)\s%", what) if int(share)]
        weights = "bfloat16" if choose.startswith(("default", "bf16")) else choose[:3]
        rows |= {int(card): (choose, (weights, copied, balanced, gate)) for card in cards.split(",")}
    return rows


def check(text: str, planned: Callable[[int, str], Row]) -> None:
    rows = written(text.replace("\N{NO-BREAK SPACE}", " "))
    assert list(rows) == CARDS
    for card, (choose, row) in rows.items():
        assert row == planned(card, choose), card


def test_the_readme_says_what_the_planner_says(planned):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    check(text, planned)
    without = re.findall(r"(\d+)\sGB\sis\s(\d\.\d\sGB\sshort)", text)
    assert [planned(int(card), "fp8")[2] for card, _ in without] == [short for _, short in without] != []


def test_the_notes_of_workflows_say_what_the_planner_says(planned):
    for path in NOTES:
        nodes = json.loads(path.read_text(encoding="utf-8"))["nodes"]
        notes = [node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote"]
        [table] = [note for note in notes if ROW.search(note)]
        check(table, planned)


PRESETS = {"drafter": get_preset("self-forcing-1.3b"), "target": get_preset("krea-14b")}
NINE = BudgetedRun(presets=PRESETS, blocks=9)
TARGET_ONLY = Route(TargetOnly())


@cache
def cost(route: Route, *, given: int = 0, start: int = 0) -> float:
    """Count the passes of nine new blocks that an engine of tiny models makes, and weigh them.

    `given`: blocks before them. `start`: the first block of the route.
    """
    engine = make_engine(schedule="four-step")
    blocks = planned_blocks(plan_spans(given + 9, 3))
    blocks = tuple(replace(block, place=block.place - start) for block in blocks)
    emitted = list(speculate(engine, route, blocks, BlockInputs(make_noise(), lambda _: PROMPT)))[given:]
    report = RunReport(settings={}, versions={}, blocks=tuple(one.record for one in emitted), fps=1.0)
    return sum(WEIGHTS[name] * count for name, count in report.passes.items())


def first(blocks: int, handover: int = 0) -> Route:
    return Route(First(blocks), handover=handover)


# --- the weights


@pytest.mark.parametrize(
    ("passes", "seconds"),
    [
        ((0, 0, 36, 8, 9, 0), 12.38),
        ((32, 8, 4, 0, 9, 0), 4.02),
        ((30, 8, 6, 1, 9, 0), 4.69),
        ((32, 8, 8, 1, 10, 96), 5.86),
        ((32, 8, 12, 2, 11, 96), 7.30),
    ],
    ids=["target-only", "anchor-only", "first=2+2", "r=1", "r=2"],
)
def test_the_weights_give_back_the_videos_that_were_measured_on_an_h200(passes, seconds):
    """As shares of target-only: a budget and a study compare routes."""
    names = ("drafter_denoising", "drafter_context", "target_denoising", "target_context", "decodes", "scores")

    def weighed(counts: tuple[int, ...]) -> float:
        return (
            sum(WEIGHTS[name] * count for name, count in zip(names, counts, strict=True)) + 7 * WEIGHTS["encodes"]
        )

    assert weighed(passes) / weighed((0, 0, 36, 8, 9, 0)) == pytest.approx(seconds / 12.38, abs=0.01)


def test_the_weights_are_in_target_blocks_and_follow_the_frames_of_a_pass():
    assert cost(TARGET_ONLY) == pytest.approx(9, abs=0.2), "the first block has no context"
    framewise = pass_weights({"drafter": get_preset("causal-forcing-framewise"), "target": PRESETS["target"]})
    assert pass_weights(PRESETS) == pytest.approx(dict(WEIGHTS))
    ratios = {name: framewise[name] / weight for name, weight in WEIGHTS.items()}
    thirds = {name for name, ratio in ratios.items() if ratio == pytest.approx(1 / 3)}
    assert thirds == {"drafter_denoising", "drafter_context"}


# --- what a budget buys


@pytest.mark.parametrize("budget", [0.34, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_a_budget_is_kept_and_the_next_route_would_break_it(budget):
    """By the passes of a run. Catches: a count of blocks that is one off, a handover that is counted as whole."""
    route, note = route_for_budget(Budget(budget), NINE)
    whole = cost(TARGET_ONLY)
    share = cost(route) / whole
    assert float(note.split()[-1].rstrip(".")) == pytest.approx(share, abs=0.006)
    assert share <= budget + 0.001
    if route.policy.n < 9:
        assert cost(first(route.policy.n + 1, 2)) / whole > budget
    elif route.handover:
        assert cost(first(9, route.handover - 1)) / whole > budget


@pytest.mark.parametrize("given, start", [(0, 0), (2, 0), (7, 7), (7, 5)])
def test_a_budget_counts_the_block_that_is_never_handed_over_as_whole(given, start):
    """Catches: a route that costs more than its budget, because its first block was counted as handed over.

    `start`: where the route begins, after a clip given as pixels. Catches a clip's blocks counted as the route's,
    or the first new one at the price of a clip's first.
    """
    after = replace(NINE, given_blocks=given, route_blocks=given - start)
    route, note = route_for_budget(Budget(0.6), after)
    assert 1 < route.policy.n - (given - start) < 9, "blocks of this run are bought"
    share = cost(route, given=given, start=start) / cost(TARGET_ONLY, given=given)
    assert float(note.split()[-1].rstrip(".")) == pytest.approx(share, abs=0.006)


def test_the_whole_budget_is_target_only_and_half_of_the_steps_come_first():
    assert route_for_budget(Budget(1.0), NINE)[0] == first(9)
    assert route_for_budget(Budget(0.5), NINE)[0] == ROUTE_PRESETS["careful"]
    routes = [route_for_budget(Budget(share / 100), NINE)[0] for share in range(33, 101)]
    assert [(route.policy.n, route.handover) for route in dict.fromkeys(routes)] == [
        *((1, 0), *((m, 2) for m in range(2, 10)), (9, 1), (9, 0))
    ]


def test_a_budget_below_the_cheapest_route_takes_that_and_says_so():
    below, note = route_for_budget(Budget(0.1), NINE)
    enough, usual = route_for_budget(Budget(0.34), NINE)
    assert below == enough == ROUTE_PRESETS["fast"]
    assert "0.33" in note
    assert "No route costs less" in note
    assert "No route" not in usual


def test_models_with_two_schedules_hand_nothing_over():
    two = replace(NINE, presets=PRESETS | {"target": replace(PRESETS["target"], schedule="1000,625")})
    assert (NINE.most_handover, two.most_handover) == (2, 0)
    assert route_for_budget(Budget(0.8), two)[0].handover == 0


def test_a_drafter_of_single_frames_finishes_all_of_a_block_but_the_last_that_it_hands_over():
    """By the passes of a run, to a hundredth: its cache also takes in the blocks that are not its own."""
    single = get_preset("causal-forcing-framewise")
    budgeted = replace(NINE, presets={"drafter": single, "target": PRESETS["target"]})
    bought, note = route_for_budget(Budget(0.6), budgeted)
    weights = pass_weights(budgeted.presets)
    shares = []
    for route in (bought, TARGET_ONLY):
        drafter = make_framewise("incremental", schedule="four-step", window=21, sink=0).drafter
        engine = replace(make_engine(schedule="four-step"), drafter=drafter)
        report = RunReport(
            settings={}, versions={}, blocks=tuple(one.record for one in run(engine, route)), fps=1.0
        )
        shares.append(sum(weights[name] * count for name, count in report.passes.items()))
    assert float(note.split()[-1].rstrip(".")) == pytest.approx(shares[0] / shares[1], abs=0.01)
