"""What fits where, which layout is chosen, and the table of cards in README and workflows."""

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
from sdvg_core.engine.plan import plan_blocks
from sdvg_core.memory.plan import Plan, plan, plan_text, savings
from sdvg_core.memory.sizes import LAYERS_IN_FLIGHT, PlanRequest, most
from sdvg_core.settings.route import ROUTE_PRESETS, First, Route, TargetOnly
from tests.support.cli_runs import override

GB = 10**9
FULL = PlanRequest()


# --- the choice


@pytest.mark.parametrize("vram", [14.2, 15, 16, 20, 23.9, 24, 30, 31, 44, 48, 139])
def test_no_plan_takes_more_than_the_card(vram):
    chosen = plan(vram, FULL)
    assert chosen.fits
    assert chosen.peak <= vram * GB
    target = chosen.parts["target"]
    assert target["target keys and values"] == 7_667_712_000
    assert target["target"] <= chosen.sizes.weights["target"]


def test_more_memory_never_copies_more():
    """Catches: a choice by layout instead of by bytes, and a streamed target that does not use the room it has."""
    cards = (14.2, 14.5, 15, 16, 18, 21, 22.5, 24, 26, 28, 30, 33, 40, 45, 90)
    plans = [plan(vram, FULL) for vram in cards]
    copied = [sum(chosen.copied.values()) for chosen in plans]
    assert copied == sorted(copied, reverse=True)
    assert copied[0] > 14e9
    assert [chosen.fp8 for chosen in plans] == [True] * 13 + [False] * 2, "rounded only to copy less"


@pytest.mark.parametrize("vram, streamed", [(24, ("target",)), (15, ("target", "drafter"))])
def test_only_layers_without_room_are_streamed(vram, streamed):
    """Catches layers in flight that are not counted, and a model's other weights counted as copied."""
    chosen = plan(vram, FULL)
    assert chosen.fp8
    assert tuple(chosen.streamed) == streamed
    for role, count in chosen.streamed.items():
        layer = chosen.sizes.layers[role]
        on_device = chosen.sizes.weights[role] - (count - LAYERS_IN_FLIGHT) * layer
        assert {step[role] for step in chosen.parts.values()} == {on_device}
        assert chosen.copied[role] == count * layer
    *whole, last = streamed
    assert chosen.peak <= vram * GB < chosen.peak + chosen.sizes.layers[last]
    assert all(chosen.streamed[role] == chosen.request.models[role].config.num_layers for role in whole)


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
def test_only_models_of_the_route_are_counted(route, roles):
    """Catches the scorer of the gate in the plan of a preset."""
    blocks = plan_blocks(route, blocks=9, block_frames={"drafter": 3, "target": 3})
    chosen = plan(80, replace(FULL, needed=blocks.models_needed))
    assert set(chosen.sizes.weights) == roles
    for step in chosen.parts.values():
        models = {part.split()[0] for part in step} - {"working"}
        assert models == roles
    assert ("draft" in chosen.parts) == ("drafter" in roles)
    assert ("target" in chosen.parts) == ("target" in roles)


@pytest.mark.parametrize(
    ("words", "where", "layers", "state"),
    [([], "in ComfyUI", "diffusers", 3.78e9), (["--command-line"], "on the command line", "planes", 7.57e9)],
    ids=["nodes", "command line"],
)
def test_vae_is_planned_as_its_program_runs_it(words, where, layers, state):
    """Catches: the command line's planes, in twice the precision, planned as ComfyUI's layers."""
    [chosen] = planned_by("--vram", "80", *words)
    assert chosen.request.where == where
    assert chosen.request.execution.vae_layers == layers
    assert chosen.parts["decode"]["vae state"] == pytest.approx(state, rel=0.01)


@pytest.mark.parametrize("program", [[], ["--command-line"]], ids=["nodes", "command line"])
@pytest.mark.parametrize(
    "option",
    [
        *("--size 640x352", "--preset paper", "--weight-dtype int8", "--drafter-dtype int8"),
        *("--kv-dtype float8_e4m3fn", "--control", "--vae lightvae", "--side-device"),
    ],
)
def test_every_option_changes_the_plan(option, program):
    """Catches: an option of `doctor --vram` that one of the two programs is planned without."""
    [usual] = planned_by("--vram", "80", *program)
    [other] = planned_by("--vram", "80", *program, *option.split())
    assert (other.parts, other.side_parts) != (usual.parts, usual.side_parts)


def test_control_is_planned_for_both_models():
    """As large as the published modules. Catches: the drafter's, which a card would lack."""
    [chosen] = planned_by("--vram", "80", "--control")
    weights = chosen.sizes.weights
    assert weights["drafter control"] / 1e9 == pytest.approx(1.47, abs=0.01)
    assert weights["target control"] / 1e9 == pytest.approx(6.1, abs=0.1)


def test_misfit_states_what_is_missing():
    misfit = plan(8, FULL)
    assert not misfit.fits
    assert misfit.missing == misfit.peak - 8 * GB > 0
    assert f"{misfit.missing / GB:.1f} GB are missing" in plan_text(misfit)


def test_image_is_planned_in_comfyui_only():
    assert "IMAGE of 105 frames takes 0.5 GB" in plan_text(plan(24, FULL))
    text = plan_text(plan(24, replace(FULL, where="on the command line")))
    assert text.startswith("On the command line: 1.3B drafter, 14B target, ")
    assert "IMAGE" not in text


# --- the command


def test_gpu_of_this_machine_is_planned_by_default(capsys, monkeypatch):
    class Properties:
        total_memory = 24 * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    assert main(["doctor", "--vram"]) == 0
    text = capsys.readouterr().out
    assert "on a card of 24 GB, of which 24.0 GB" in text
    assert "target in fp8" in text


def test_smaller_files_are_planned_for_small_cards(capsys):
    """Catches rows that plan the whole file again, and advice to round where all fits."""
    assert main(["doctor", "--vram", "16", "24", "48"]) == 0
    whole_file, int8, w4a8 = capsys.readouterr().out.split("With a file in ")
    assert int8.startswith("int8")
    assert w4a8.startswith("w4a8")
    assert "24   22.3  target in w4a8, everything stays on the device" in w4a8
    assert "  48 " in whole_file
    assert "  48 " not in int8 + w4a8


def test_smaller_file_is_advised_for_one_card(capsys):
    assert main(["doctor", "--vram", "24"]) == 0
    assert "With a file in w4a8: target in w4a8, everything stays" in capsys.readouterr().out


def test_chosen_file_is_advised_no_more(capsys):
    assert main(["doctor", "--vram", "24", "--weight-dtype", "w4a8"]) == 0
    assert "With a file" not in capsys.readouterr().out


def test_a_smaller_drafter_is_planned_beside_any_target(capsys):
    """Catches a drafter that is counted in bfloat16, whole or by layer, whatever its file is."""
    plans = [planned_by("--vram", "8", *words)[0] for words in ([], ["--drafter-dtype", "int8"])]
    assert [plan.sizes.weights["drafter"] / 1e9 for plan in plans] == pytest.approx([2.84, 1.45], abs=0.01)
    assert plans[1].sizes.layers["drafter"] < 0.51 * plans[0].sizes.layers["drafter"]
    assert plans[0].sizes.weights["target"] == plans[1].sizes.weights["target"]
    assert main(["doctor", "--vram", "24", "--weight-dtype", "w4a8", "--drafter-dtype", "int8"]) == 0
    assert "target in w4a8, drafter in int8, everything stays" in capsys.readouterr().out


def test_plan_states_the_share_that_is_copied(capsys):
    assert main(["doctor", "--vram", "24"]) == 0
    assert "37 % of the target's weights (5.3 GB) are copied" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, fault",
    [
        (["--vram", "0"], "memory"),
        (["--vram", "nan"], "memory"),
        (["--vram", "1e300"], "memory"),
        (["--size", "830x480"], "width 830"),
        (["--size", "832x-16"], "height"),
        (["--blocks", "0"], "0 blocks"),
    ],
)
def test_bad_values_are_refused(capsys, words, fault):
    assert main(override(["doctor", "--vram", "24"], *words)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert fault in line


@pytest.mark.parametrize(
    ("usable", "first"), [(0, "--vae-dtype"), (12_000_000_000, "a TAEHV"), (15_000_000_000, "--vae-dtype")]
)
def test_saving_that_suffices_alone_comes_first(usable, first):
    """Else the one of least cost in quality, and one more.

    Catches: a way that alone is not enough, before one that is; a sentence too long for its remedy.
    """
    request = replace(FULL, where="on the command line", vae_dtype="float32")
    ways = savings(request, usable)
    assert ways[0].startswith(first)
    assert len(ways) == 2


# --- two devices


def test_second_device_holds_vae_and_scorer():
    """Catches: their bytes counted on both devices, or on the first."""
    alone = plan(48, FULL)
    shared = plan(48, replace(FULL, side=True))
    assert shared.peak < alone.peak
    assert "vae" not in shared.parts["decode"]
    assert shared.side_parts["decode"]["vae state"] == alone.parts["decode"]["vae state"]
    assert most(alone.side_parts) == 0


def test_plan_states_the_peak_of_a_second_device():
    assert "second device" not in plan_text(plan(48, FULL))
    assert "7.1 GB" in plan_text(plan(48, replace(FULL, side=True))).partition("second device")[2]


# --- the table of cards


ROOT = Path(__file__).resolve().parents[2]
NOTES = [
    path for path in sorted((ROOT / "workflows").glob("*.json")) if "SDVGTargetLoader" in path.read_text("utf-8")
]
ROW = re.compile(r"^\| ([\d,\s]+)\sGB \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|(?:[^|]*\|)?$", re.MULTILINE)
CHOICES = {
    "kv_dtype": ("--kv-dtype", "float8_e4m3fn"),
    "TAEHV": ("--vae", "tae"),
    "w4a8": ("--weight-dtype", "w4a8"),
    "drafter in int8": ("--drafter-dtype", "int8"),
}
STORED = {"plain": "bfloat16", "fp8": "fp8", "w4a8": "w4a8"}
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
        return STORED[first.stored], copied, *amounts

    return row


@pytest.mark.parametrize("card", CARDS)
def test_plan_leaves_what_cuda_takes_besides(card):
    """Any card and both programs: 0.8 GB for CUDA's context, 1 GB for gaps in the allocator's memory.

    Catches a share or a unit instead: 8 GB of 2^30 bytes leave 0.6 GB, and 24 GB in ComfyUI ran out of memory.
    """
    usable = card * 2**30 - 1_800_000_000
    for more in ([], ["--command-line"]):
        [plan] = planned_by("--vram", str(card), *more)
        assert plan.missing == max(0, plan.peak - usable)
        assert plan.fits == (plan.peak <= usable)


def rows_of(text: str) -> list[tuple[int, str, Row]]:
    """Return the cards, each with what to choose, and its row."""
    rows = []
    for cards, choose, what, balanced, gate in ROW.findall(text):
        copied = [int(share) for share in re.findall(r"(\d+)\s%", what) if int(share)]
        named = [weights for weights in ("fp8", "w4a8") if choose.startswith(weights)]
        weights = named[0] if named else "bfloat16"
        rows += [(int(card), choose, (weights, copied, balanced, gate)) for card in cards.split(",")]
    return rows


def check(text: str, planned: Callable[[int, str], Row]) -> None:
    rows = rows_of(text.replace("\N{NO-BREAK SPACE}", " "))
    assert list(dict.fromkeys(card for card, _, _ in rows)) == CARDS
    for card, choose, row in rows:
        assert row == planned(card, choose), (card, choose)


PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
WHICH_CARD = PAGE.partition("### Which card")[2].partition("\n### ")[0]
OF_COMFYUI, _, OF_COMMAND_LINE = WHICH_CARD.partition("On the\ncommand line ")


def test_performance_page_states_what_is_planned(planned):
    """README's first screen repeats it; see `repository/test_readme.py`."""
    check(OF_COMFYUI, planned)
    short_cards = re.findall(r"(\d+)\sGB\sis\s(\d\.\d\sGB\sshort)", OF_COMFYUI)
    assert short_cards
    for card, shortage in short_cards:
        assert planned(int(card), "fp8")[2] == shortage


def test_performance_page_states_the_command_lines_plan():
    """Catches: a card that is said to be too small where the plan fits, or the other way round."""
    sentence = " ".join(OF_COMMAND_LINE.split())
    plain, in_fp8, of_gate, smaller, shortage = re.match(
        r"(\d+) GB is enough\. With `--weight-dtype fp8_e4m3fn` (\d+) GB is enough for \*balanced\*, and for the "
        r"paper's gate ([\d.]+) GB short without `--kv-dtype float8_e4m3fn`; (\d+) GB is ([\d.]+) GB short\.",
        sentence,
    ).groups()

    def short(card: str, preset: str, *more: str) -> str:
        [plan] = planned_by("--command-line", "--vram", card, "--preset", preset, *more)
        return f"{plan.missing / 1e9:.1f}"

    fp8 = ("--weight-dtype", "fp8_e4m3fn")
    assert [short(plain, preset) for preset in ("balanced", "paper")] == ["0.0", "0.0"]
    assert short(in_fp8, "balanced", *fp8) == "0.0"
    assert short(in_fp8, "balanced") != "0.0"
    assert short(in_fp8, "paper", *fp8) == of_gate
    assert short(in_fp8, "paper", *fp8, "--kv-dtype", "float8_e4m3fn") == "0.0"
    assert short(smaller, "balanced", *fp8) == shortage


def test_workflow_notes_state_what_is_planned(planned):
    for path in NOTES:
        nodes = json.loads(path.read_text(encoding="utf-8"))["nodes"]
        notes = [node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote"]
        [table] = [note for note in notes if ROW.search(note)]
        check(table, planned)
