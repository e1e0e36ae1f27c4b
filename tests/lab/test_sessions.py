"""Live sessions that are finished in several ways: what is drawn, measured and counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from lab.research import sessions as measured
from lab.research.looks import rows_in
from lab.research.sessions import FINISHES, figures, nearness, overlap, parts_of, sessions
from lab.research.world import is_held_out
from sdvg_core.pocket.renderer import render_scene
from sdvg_core.pocket.world import GROUNDS, clash

SCENES = sessions(3)[1]
LENGTHS = (9, *[12] * 8)
PARTS = parts_of(SCENES, LENGTHS)


def shown(scenes) -> torch.Tensor:
    """What the prompts of a session determine, frame by frame."""
    whole = [render_scene(scene, torch.arange(float(sum(LENGTHS)))) for scene in scenes]
    return torch.cat([clip[part.first : part.stop] for clip, part in zip(whole, PARTS, strict=True)])


def test_sessions_recolour_a_held_out_thing():
    """Catches: a prompt that was trained on, a change that the oracle cannot time."""
    drawn = sessions(60)
    assert len({*drawn}) == 60
    for scenes in drawn:
        assert all(is_held_out(scene) and clash(scene) is None for scene in scenes)
        assert not any(scene.relation for scene in scenes)
        ways = {(s.mover.size, s.mover.shape, s.mover.place, s.mover.pace, s.mover.direction) for s in scenes}
        assert len(ways) == 1
        for first, second in pairwise(scenes):
            assert first.mover.colour != second.mover.colour
            assert first.ground != second.ground


def test_parts_begin_with_their_prompts_blocks():
    assert [(part.first, part.stop) for part in PARTS] == [(0, 33), (33, 69), (69, 105)]
    assert tuple(part.scene for part in PARTS) == SCENES


def test_figures_of_the_truth_are_highest():
    """Catches: a part judged by another prompt, or from its own first frame."""
    truth = shown(SCENES)
    made = figures(truth, truth, PARTS, last=93)
    assert made == {name: value for name, value in zip(made, (40.0, 40.0, 1.0) * 2, strict=True)}
    swapped = figures(shown(SCENES[::-1]), truth, PARTS, last=93)
    assert swapped["quality"] < 20
    assert swapped["to_draft"] < 25


def test_last_block_has_figures_of_its_own():
    """Catches: the last block's figures of other frames."""
    truth = shown(SCENES)
    late = truth.clone()
    late[93:] = 0.5
    made = figures(late, truth, PARTS, last=93)
    assert made["last_block_to_draft"] == pytest.approx(float(nearness(late[93:], truth[93:]).mean()))
    assert made["to_draft"] == pytest.approx((93 * 40 + 12 * made["last_block_to_draft"]) / 105)
    assert made["last_block_overlap"] == 0
    assert made["overlap"] == pytest.approx(93 / 105)


def test_overlap_is_of_things_that_the_draft_shows():
    """Catches: frames counted in which neither has the thing, and which so agree."""
    truth = shown(SCENES)
    rows = ((torch.arange(64) + 0.5) / 64).view(64, 1)
    bare = torch.empty_like(truth)
    for part in PARTS:
        top, bottom = (torch.tensor(colour).view(3, 1, 1) for colour in GROUNDS[part.scene.ground])
        bare[part.first : part.stop] = top + (bottom - top) * rows
    assert torch.isnan(overlap(truth, bare, PARTS)).all()
    assert (overlap(bare, truth, PARTS) == 0).all()


def test_measuring_makes_only_missing_rows(tmp_path, monkeypatch):
    """Catches: a refined video that pays for drafts of the session, a row made twice."""
    monkeypatch.setattr(measured, "PROMPTS", 1)
    monkeypatch.setattr(measured, "sessions", lambda count: [scenes[:1] for scenes in sessions(count)])
    monkeypatch.setattr(measured, "FINISHES", FINISHES[:4])
    run = ("--sessions", "1", "--folder", str(tmp_path))
    assert measured.main(run) == 0
    rows = {row["way"]: row for row in rows_in(tmp_path / "sessions.csv")}
    assert [row["route"] for row in rows.values()] == ["ddd", "FFd", "OOO", "OOO"]
    draft, again, light, medium = rows.values()
    assert (draft["to_draft"], draft["overlap"]) == ("40.0000", "1.0000")
    # A step of the target, three times; the drafts' passes are not counted.
    assert float(medium["cost"]) - float(light["cost"]) == pytest.approx(3 * 0.1839, abs=2e-4)
    assert float(light["cost"]) < float(again["cost"])
    before = (tmp_path / "sessions.csv").read_text()
    assert measured.main(run) == 0
    assert (tmp_path / "sessions.csv").read_text() == before
