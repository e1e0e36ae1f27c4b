"""What is measured of clips that are given: rows of each way, and that they go on where they stopped."""

from __future__ import annotations

import pytest
import torch

from lab.research import given
from lab.research.looks import rows_in
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.renderer import centre, render_scene

SCENE = parse("a big red ball drifts right from the left over night")
TIMES = torch.arange(float(given.FRAMES))


def test_clips_to_restyle_show_another_thing():
    """Catches: a clip with the prompt's own colours, another path that is the prompt's."""
    inputs = given.inputs_for(SCENE, given.seeded(1, "inputs"))
    for path, shown in inputs.items():
        assert shown.ground != SCENE.ground
        assert shown.mover.colour != SCENE.mover.colour
        on_its_path = all(
            torch.equal(one, two)
            for one, two in zip(centre(shown.mover, TIMES), centre(SCENE.mover, TIMES), strict=True)
        )
        assert on_its_path == (path == given.ON_ITS_PATH)
        assert (given.dressed(SCENE, shown) == SCENE) == on_its_path


def test_share_of_blocks_counts_the_nearer_scene():
    other = given.inputs_for(SCENE, given.seeded(1, "inputs"))[given.ELSEWHERE]
    clip = render_scene(SCENE, TIMES)
    clip[given.SEAMS[0] :] = render_scene(other, TIMES)[given.SEAMS[0] :]
    assert given.share_of_blocks(clip, other, SCENE) == 0.75
    assert given.share_of_blocks(clip, SCENE, other) == 0.25


def test_late_frames_are_judged_at_their_best_moment():
    """Catches: an early frame taken for a late one, a lag that knows no end."""
    shown = render_scene(SCENE, torch.arange(20.0, 32.0))
    for late in (0, given.LATE, -given.REACH):
        assert given.decibels(shown, SCENE, 20 + late).mean() == given.BEST
    for late in (given.LATE + 6, -given.REACH - 6):
        assert given.decibels(shown, SCENE, 20 + late).mean() < 20


@pytest.fixture
def few(monkeypatch):
    """One way of each kind."""
    monkeypatch.setattr(given, "RESTYLED", (("same-path", "draft", "medium"), ("other-path", "draft", "light")))
    monkeypatch.setattr(given, "GIVEN", (3,))


def test_restyled_rows_go_on_where_they_stopped(tmp_path, few):
    """Catches: a row made twice, a prompt that is taken for finished, a share on the prompt's own path."""
    run = ["restyle", "--prompts", "1", "--folder", str(tmp_path)]
    file = tmp_path / "restyled.csv"
    assert given.main(run) == 0
    whole = file.read_text()
    rows = rows_in(file)
    assert [row["way"] for row in rows] == ["draft/same-path/medium", "draft/other-path/light"]
    assert [bool(row["nearer_to_the_clip"]) for row in rows] == [False, True]
    assert {row["seed"] for row in rows} == {"33"}
    file.write_text("".join(whole.splitlines(keepends=True)[:2]))
    assert given.main(run) == 0
    assert file.read_text() == whole
    assert given.main(run) == 0
    assert file.read_text() == whole


def test_extended_rows_have_a_whole_clips_too(tmp_path, few):
    """Catches: frames of the given clip in the quality, the whole clip's own last block for the same frames."""
    assert given.main(["extend", "--prompts", "1", "--folder", str(tmp_path)]) == 0
    rows = rows_in(tmp_path / "extended.csv")
    assert [row["way"] for row in rows] == ["given-3", "whole-3"]
    assert rows[0]["quality"] != rows[1]["quality"]
    assert all(float(row["quality"]) < given.BEST for row in rows)
    assert [row["way"] for row in rows_in(tmp_path / "seams.csv")] == [*given.PARTS]
