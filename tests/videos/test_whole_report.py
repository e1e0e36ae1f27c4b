"""The whole report of one film, counted by hand from its request: what other tests look at in part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sdvg_core.cli import main
from sdvg_core.files.video import write_mp4
from sdvg_core.report.run_report import hide_prompt
from sdvg_core.settings.fields import as_json
from sdvg_core.settings.request import VideoRequest
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import SMALL, options, report

PROMPT = """a red ball
2 cut: a blue cube
3 clip #end 0.5-1.0:
3 fresh #b: a storm
5 fresh #c from #b: a lake"""
WORDS = [
    *("--prompt", PROMPT, "--blocks", "6", "--seed", "7", "--preset", "careful"),
    *("--directions", "tdtrd.", "--takes", "2:3,4:2"),
]
# Costs are denoising passes, context passes and encoded frames. By the route the last block is handed over, and so
# is that of the direction r. The shot after another follows its picture, which is a block that is not new.
BLOCKS = """
index start frames take pixels author  reason          draft target handover decodes prompt
0     0     3      1    9      target  directed_target -     2/0/0  0        1       a red ball
1     3     3      3    12     drafter directed_draft  2/1/0 -      0        1       a blue cube
0     0     3      1    9      target  directed_target -     2/0/0  0        1       a storm
1     3     3      2    12     target  directed_remade 2/1/0 1/1/0  1        2       a storm
0     3     3      1    12     drafter directed_draft  2/1/0 -      0        1       a lake
1     6     3      1    12     target  forced          1/1/1 1/1/0  1        1       a lake
"""
TOTALS = {
    "blocks": 6,
    "forced": 1,
    "scored": 1,
    "accepted": 2,
    "rejected": 1,
    "by_target": 4,
    "acceptance_rate": 0.0,
    "acceptance_rate_unforced": 2 / 5,
    "draft_share": 2 / 6,
    "pixel_frames": 9 + 12 + 8 + 9 + 12 + 12 + 12,
    "reasons": {"directed_target": 2, "directed_draft": 2, "directed_remade": 1, "forced": 1},
    "passes": {
        "drafter_denoising": 7,
        "drafter_context": 4,
        "target_denoising": 6,
        "target_context": 2,
        "decodes": 7,
        "encodes": 1,
    },
}
# Of two steps one can be handed over, of the two of the preset. The clip of half a second has eight frames.
SETTINGS = {
    "route": {"kind": "Route", "policy": {"kind": "First", "n": 4}, "handover": 1, "target_steps": 0},
    "seed": 7,
    "blocks": 6,
    "width": 32,
    "height": 32,
    "takes": {"2": 3, "4": 2},
    "cuts": [2],
    "shots": [
        {"key": "#0", "first_block": 1, "first_frame": 0, "frames": 9 + 12},
        {"key": "#b", "first_block": 3, "first_frame": 9 + 12 + 8, "frames": 9 + 12},
        {"key": "#c", "first_block": 5, "first_frame": 9 + 12 + 8 + 9 + 12, "frames": 12 + 12},
    ],
    "clips": [
        {
            "name": "#end",
            "file": "clip.mp4",
            "in": 0.5,
            "out": 1.0,
            "frames": 8,
            "before_block": 3,
            "first_frame": 9 + 12,
        }
    ],
    "drafter_context": "committed",
    "latent_frames_given": 0,
}
ASKED = {
    "blocks": 6,
    "seed": 7,
    "width": 32,
    "height": 32,
    "route": {"kind": "Route", "policy": {"kind": "First", "n": 4}, "handover": 2, "target_steps": 0},
    "directions": "tdtrd.",
    "takes": "2:3,4:2",
    "shots": "1:#0,3:#b,5:#c from #b",
    "shown_clips": "3:#end 0.5-1.0",
    "clips": [{"kind": "ClipFile", "name": "#end", "path": "clip.mp4"}],
}
PARTS = ("drafter", "target", "vae", "text_encoder", "device", "side_device", "compile", "scorer")


@pytest.fixture(scope="module")
def film(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("film")
    clip = folder / "clip.mp4"
    write_mp4(clip, torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(0)), fps=16)
    words = [*options(files), *SMALL, *WORDS, "--clip", f"end={clip}", "--output", str(folder / "out")]
    assert main(words) == 0
    return report(folder / "out")


def cost_of(cost: dict[str, Any] | None) -> str:
    """Return the passes of a model, as `BLOCKS` has them."""
    return "/".join(str(cost[name]) for name in ("denoising_passes", "context_passes", "encodes")) if cost else "-"


def test_blocks_are_as_counted_by_hand(film):
    """Catches: a take, a number or a pass that is another block's, or another model's."""
    names = ("index", "start", "latent_frames", "take", "pixel_frames", "author", "reason")
    rows = [
        [
            *(str(block[name]) for name in names),
            cost_of(block["draft"]),
            cost_of(block["target"]),
            *(str(block[name]) for name in ("handover", "decodes", "prompt")),
        ]
        for block in film["blocks"]
    ]
    _, *expected = BLOCKS.strip().splitlines()
    assert rows == [line.split(maxsplit=11) for line in expected]


def test_totals_follow_from_the_blocks(film):
    measured = ("seconds", "target_only_seconds", "speed_up")
    assert {name: value for name, value in film["totals"].items() if name not in measured} == TOTALS


def test_settings_say_what_was_made(film):
    """But for the parts, in test_every_setting.py, the joins, in test_joins.py, and digests of embeddings."""
    settings = {name: value for name, value in film["settings"].items() if name not in PARTS}
    for name in ("shots", "clips"):
        settings[name] = [{key: value for key, value in part.items() if key != "join"} for part in settings[name]]
    prompts = {hide_prompt(line["prompt"]) for line in film["blocks"]}
    assert settings.pop("embeddings").keys() == prompts
    assert settings == SETTINGS
    joined = [part.get("key") or part["name"] for part in _in_order(film["settings"]) if "join" in part]
    assert joined == ["#end", "#b", "#c"]


def _in_order(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted((*settings["shots"], *settings["clips"]), key=lambda part: part["first_frame"])


def test_request_says_what_was_asked(film):
    """And nothing else: the other fields have their defaults. Catches: what was made in place of what was asked."""
    assert film["request"] == {**as_json(VideoRequest()), **ASKED}


def test_notes_name_each_change_once(film):
    handed_over, shown, joins = film["notes"]
    assert handed_over.startswith("1 step of a block handed over in place of 2")
    assert shown.endswith("Shown are 8 frames from 0.5 s on.")
    assert joins.startswith("Steps at the joins, in levels of 255: to #end brightness")
