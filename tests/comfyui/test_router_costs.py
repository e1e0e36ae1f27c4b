"""What is said of the presets: their costs as counted, and their decibels as measured, wherever they stand."""

import json
import re

import pytest
from running_server import ROOT
from sdvg_pack.sdvg_core.memory.budget import WEIGHTS, BudgetedRun, route_shares
from sdvg_pack.sdvg_core.memory.sizes import PlanRequest

pytestmark = pytest.mark.comfyui

NAMED = ("fast", "balanced", "careful")

PAPER_REJECTED = 1.44
"""Of the eight blocks after the first, at tau -0.7, by the paper's table."""


@pytest.fixture(scope="module")
def costs():
    """The cost of each preset as a share of target-only's, as it is written: to two places."""
    request = PlanRequest()
    run = BudgetedRun(presets={role: model.preset for role, model in request.models.items()}, blocks=9)
    shares = route_shares(run)
    weights = WEIGHTS
    whole = 36 * weights["target_denoising"] + 8 * (weights["target_context"] + weights["encodes"])
    once = whole + 9 * weights["decodes"]

    def gated(frames, steps):
        """The cost of a gate that scores so many frames of a block, and remakes a rejected one in so many steps."""
        remade = steps * weights["target_denoising"] + weights["target_context"] + weights["decodes"]
        return by_name["fast"] + (8 * frames * weights["scores"] + PAPER_REJECTED * remade) / once

    by_name = {"fast": shares[1, 0], "careful": shares[4, 2]}
    # Where blocks stand costs nothing: as three first blocks, but with three steps of the last two handed over.
    by_name["balanced"] = shares[3, 2] + 2 * (weights["drafter_denoising"] - weights["target_denoising"]) / once
    by_name |= {"paper": gated(12, 4), "hybrid": gated(4, 1)}
    return {name: f"{share:.2f}" for name, share in by_name.items()}


GATES = {"paper": "reward-min@-0.7", "hybrid": "hybrid@-0.7"}
"""The ways that they are in the study."""


def table_rows():
    """The rows of the study's tables by their first cell; the first row of a name."""
    table = [[cell.strip() for cell in line.split("|")[1:]] for line in read("docs/study.md").splitlines()]
    return {row[0]: row for row in reversed(table) if row}


def measured_below():
    """Decibels below target-only on the miniature, to one place, from the study's tables."""
    rows = table_rows()
    below = {name: rows[GATES.get(name, name)][3] for name in (*NAMED, *GATES)}
    return {preset: f"{abs(float(text.split()[0])):.1f}" for preset, text in below.items()}


FIGURES = r"(?<![\d.])\d\.\d(?!\d)"
SHARES = r"\b0\.\d\d(?!\d)"


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def shares_of(costs, names):
    return [costs[name] for name in names]


def losses_of(names):
    return [measured_below()[name] for name in names]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tooltip_states_computed_costs(language, costs):
    """Catches: a figure rounded wrongly, of another preset, or left as it was when weights or pair changed."""
    words = json.loads(read(f"locales/{language}/nodeDefs.json"))["SDVGQualityRouter"]
    tooltip = words["inputs"]["policy"]["tooltip"]
    assert re.findall(SHARES, tooltip) == shares_of(costs, (*NAMED, "paper"))
    assert re.findall(FIGURES, tooltip) == losses_of(NAMED)


def test_readme_states_computed_costs(costs):
    """Catches: as with the tooltip."""
    sentence = read("README.md").split("On the miniature (")[1].split("(docs/study")[0]
    assert re.findall(FIGURES, sentence.split(";")[0]) == losses_of(NAMED)
    assert re.findall(SHARES, sentence) == shares_of(costs, NAMED)


@pytest.mark.parametrize(
    "workflow, names",
    [("03_text_to_video", (*NAMED, "paper")), ("04_app", (*NAMED, "paper")), ("05_quick_preview", ("fast",))],
)
def test_workflow_note_states_computed_costs(workflow, names, costs):
    """Catches: as with the tooltip; a figure that does not say where it was measured."""
    nodes = json.loads(read(f"workflows/sdvg_{workflow}.json"))["nodes"]
    notes = [node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote"]
    of_costs = [note for note in notes if "ost" in note and re.search(SHARES, note)]
    assert [share for note in of_costs for share in re.findall(SHARES, note)] == shares_of(costs, names)
    assert all("measured on an H200" in note for note in of_costs)


@pytest.mark.parametrize("page", ["SDVGQualityRouter.md", "SDVGQualityRouter/zh.md"])
def test_help_page_states_computed_costs(page, costs):
    """Catches: a row of the table with another preset's figure, or an older one; a gate's at another cost."""
    row = r"^\| (\w[\w-]*).*\| (0\.\d\d|1) \| ([\d.]+)(?:\D+ (0\.\d\d))? \|$"
    rows = re.findall(row, read(f"nodes/web/docs/{page}"), re.MULTILINE)
    below = measured_below()
    there = {name: table_rows()[way][4] for name, way in GATES.items()}
    assert rows[:6] == [
        *((name, costs[name], below[name], "") for name in NAMED),
        ("reward", costs["paper"], below["paper"], there["paper"]),
        ("hybrid", costs["hybrid"], below["hybrid"], there["hybrid"]),
        ("always-target", "1", "0", ""),
    ]
