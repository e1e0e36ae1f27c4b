"""`queue`: prompts that servers refuse or fail at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from queue_runs import PROMPTS, check_whole, names, queue, rows

from sdvg_core.pipeline import table

pytestmark = pytest.mark.usefixtures("quick", "interruptible")


def refusal(kind: str = "SDVGTargetLoader") -> dict[str, Any]:
    told = {"type": "value_not_in_list", "message": "Value not in list", "details": "file: 'krea.safetensors'"}
    errors = {"4": {"errors": [told], "class_type": kind, "dependent_outputs": ["5"]}}
    return {"error": {"type": "prompt_outputs_failed_validation", "message": "..."}, "node_errors": errors}


def test_a_server_that_refuses_everything_alike_ends_the_run_early(one, asked, tmp_path, capsys):
    one.refuses = lambda text: refusal()
    assert queue(asked, [one], tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert "node 4 (SDVGTargetLoader): Value not in list: file: 'krea.safetensors'" in err.splitlines()[-1]
    assert one.requests < 10, "it goes on asking"
    assert {line["state"] for line in rows(tmp_path / "out")} == {"waiting"}


def test_of_two_servers_the_one_that_refuses_everything_gets_no_more(two, asked, tmp_path):
    two[0].refuses = lambda text: refusal()
    assert queue(asked, two, tmp_path / "out") == 0
    check_whole(tmp_path / "out")
    assert not two[0].made


def test_a_prompt_that_fails_twice_is_told_at_the_end_and_the_others_are_made(two, asked, tmp_path, capsys):
    for toy in two:
        toy.fails = lambda text: "the drafter made NaN\x1b[2J" if text.endswith("3") else None
    assert queue(asked, two, tmp_path / "out") == 1
    err = capsys.readouterr().err
    assert "video 0004 is tried once more" in err
    told = "sdvg: video 0004 was not made: node 3 (SDVGSpeculativeSampler) failed: the drafter made NaN\\x1b[2J"
    assert told in err.splitlines()
    found = rows(tmp_path / "out")
    assert [line["state"] for line in found] == ["finished"] * 3 + ["failed"] + ["finished"] * 2
    assert found[3]["error"] in told
    assert not (tmp_path / "out" / "0004").exists()


def test_a_prompt_that_ends_every_server_is_given_up(one, asked, tmp_path, capsys):
    """Catches: a video that kills the server it is given to, again and again."""
    one.on_look = lambda: one.forget() if any(job[1] == PROMPTS[1] for job in one.running) else None
    assert queue(asked, [one], tmp_path / "out") == 1
    assert "video 0002 was not made: the server lost it, not for the first time" in capsys.readouterr().err
    assert [line["state"] for line in rows(tmp_path / "out")].count("finished") >= 4


def test_a_workflow_that_is_taken_in_part_is_refused(one, asked, tmp_path, capsys):
    """ComfyUI answers 200 and makes what it can. Catches: a run of which the video is missing."""
    honest = one._post

    def post(path: str, body: Any) -> Any:
        status, content, headers = honest(path, body)
        if path == "/prompt":
            content = json.dumps(
                {**json.loads(content), "node_errors": refusal("SaveVideo")["node_errors"]}
            ).encode()
        return status, content, headers

    one._post = post
    assert queue(asked, [one], tmp_path / "out") == 2
    assert "node 4 (SaveVideo)" in capsys.readouterr().err
    assert names(tmp_path / "out") == [table.CSV, table.LINES]
