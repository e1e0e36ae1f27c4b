"""The table of cards, in the README and in the notes of the workflows, says what the planner says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sdvg_core.cli import main

ROOT = Path(__file__).resolve().parents[2]
NOTES = [path for path in sorted((ROOT / "workflows").glob("*.json")) if "pocket" not in path.name]
ROW = re.compile(r"^\| ([\d,\s]+)\sGB \| (\w+) \|(.*)\| (\d+)\ss \| (\d+)\ss \|$", re.M)


@pytest.fixture
def planned(capsys) -> dict[str, list[dict[str, Any]]]:
    """For both routes, a plan for each card."""
    cards, plans = ["12", "16", "24", "32", "48", "80"], {}
    for preset in ("balanced", "paper"):
        main(["plan", "--json", "--preset", preset, "--vram", *cards])
        plans[preset] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return plans


def rows_of(planned: dict[str, list[dict[str, Any]]]) -> dict[int, tuple[str, int, str, str]]:
    """For each card: the target's weights, the percentage that is copied, seconds of *balanced* and of the gate."""
    rows = {}
    for balanced, paper in zip(planned["balanced"], planned["paper"], strict=True):
        weights = "fp8" if "float8" in balanced["target_weights"] else "bfloat16"
        seconds = (f"{plan['seconds']['video']:.0f}" for plan in (balanced, paper))
        rows[int(balanced["vram_gb"])] = (weights, round(100 * balanced["target_streamed_share"]), *seconds)
    return rows


def written(text: str) -> dict[int, tuple[str, int, str, str]]:
    rows = {}
    for cards, weights, what, balanced, gate in ROW.findall(text):
        copied = re.search(r"(\d+)\s%", what)
        row = (
            "bfloat16" if weights in ("default", "bf16") else weights.split("_")[0],
            int(copied[1]) if copied else 0,
            balanced,
            gate,
        )
        rows |= {int(card): row for card in cards.split(",")}
    return rows


def test_the_readme_says_what_the_planner_says(planned):
    assert written((ROOT / "README.md").read_text(encoding="utf-8")) == rows_of(planned)


def test_the_notes_of_workflows_say_what_the_planner_says(planned):
    for path in NOTES:
        notes = [
            node["widgets_values"][0]
            for node in json.loads(path.read_text(encoding="utf-8"))["nodes"]
            if node["type"] == "MarkdownNote"
        ]
        tables = [written(note) for note in notes if ROW.search(note)]
        assert tables == [rows_of(planned)], path.name
        assert any("never measured" in note for note in notes), path.name
