"""`queue`: every video once in the output, and a table of all of them."""

from __future__ import annotations

import errno
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from queue_runs import PROMPTS, check_whole, queue, rows
from toy_comfyui import BLOCKS, pocket

from sdvg_core.cli import main
from sdvg_core.pipeline import table

pytestmark = pytest.mark.usefixtures("quick", "interruptible")


def test_two_servers_make_every_prompt_with_every_seed_once(two, asked, tmp_path, capsys):
    """Catches: more than two at a time with one server; a seed or prompt that does not get there."""
    assert queue(asked, two, tmp_path / "out", "--seeds", "7", "8") == 0
    check_whole(tmp_path / "out", seeds=(7, 8))
    assert two[0].made + two[1].made == Counter({(prompt, seed): 1 for prompt in PROMPTS for seed in (7, 8)})
    assert all(toy.made and toy.most_at_once == 2 for toy in two)
    said = capsys.readouterr()
    assert "12 of 12 videos finished" in said.out
    assert "12/12 videos, 0:00 left" in said.err
    assert not any(
        prompt in text for prompt in PROMPTS for text in (said.err, (tmp_path / "out" / table.CSV).read_text())
    )


def test_the_folder_becomes_a_page(one, asked, tmp_path, capsys):
    assert queue(asked, [one], tmp_path / "out") == 0
    assert main(["report", "--html", str(tmp_path / "out"), "--json"]) == 0
    page = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (page["videos"], page["unreadable"]) == (len(PROMPTS), {})


@pytest.mark.parametrize("name", ["write_text", "replace"])
@pytest.mark.parametrize("nth", [3, 6, 9])
def test_a_fault_at_any_step_of_the_tables_writing_loses_no_line(
    one, asked, tmp_path, monkeypatch, capsys, name, nth
):
    """The disk is full in the middle of a run. Catches: a video whose line is gone, or that is made again."""
    honest, calls = getattr(Path, name), []

    def failing(self: Path, *arguments: Any, **options: Any) -> Any:
        if ".unfinished-" in str(self) and self.name in (table.CSV, table.LINES):
            calls.append(self)
            if len(calls) == nth:
                raise OSError(errno.ENOSPC, "no space left on device")
        return honest(self, *arguments, **options)

    out = tmp_path / "out"
    with monkeypatch.context() as planted:
        planted.setattr(Path, name, failing)
        assert queue(asked, [one], out) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert len(rows(out)) == len(PROMPTS), "the table of before is whole"
    there = [path.parent.name for path in out.glob("*/video.mp4")]
    assert queue(asked, [one], out, "--resume") == 0
    check_whole(out)
    assert there
    for folder in there:
        assert one.made[PROMPTS[int(folder) - 1], 42] == 1, "a video that was there is made again"


def test_a_table_says_which_videos_were_stopped_early(one, asked, tmp_path):
    """Someone pressed Stop on the server. Catches: a short video that counts as finished, or is not made again."""
    workflow = pocket()
    workflow["3"]["inputs"]["blocks"] = BLOCKS + 1
    (tmp_path / "workflow.json").write_text(json.dumps(workflow), encoding="utf-8")
    assert queue(asked, [one], tmp_path / "out") == 0
    assert {line["state"] for line in rows(tmp_path / "out")} == {"stopped"}
    assert queue(asked, [one], tmp_path / "out", "--resume") == 0
    assert set(one.made.values()) == {2}
