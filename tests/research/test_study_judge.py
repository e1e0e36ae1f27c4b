"""A judge against the full VAE: what the figures mean, and the command that finds them."""

import json
from typing import Any

import numpy as np
import pytest

from research.__main__ import main
from research.calibrate import compare_judge

PROMPTS = tuple(f"prompt {n}" for n in range(20))


def drafts(judge_of: Any) -> list[dict[str, Any]]:
    """Eight drafts of each prompt, whose judge's score follows from the full VAE's."""
    draw, found = np.random.default_rng(0), []
    for prompt in PROMPTS:
        for block in range(1, 9):
            full = float(draw.normal(-0.7, 0.5))
            judge = float(judge_of(full, draw))
            found.append({"prompt": prompt, "block": block, "worst_score": full, "judge_worst_score": judge})
    return found


def test_a_judge_that_only_shifts_scores_decides_alike_at_its_own_tau():
    found = compare_judge(drafts(lambda full, _: full + 0.4), PROMPTS, -0.7)
    assert found["shift"].value == pytest.approx(0.4)
    assert found["spread"].value == pytest.approx(0, abs=1e-9)
    assert found["rank_correlation"].value == pytest.approx(1.0)
    assert found["changed"].value > 0.2
    assert found["judge_tau"].value == pytest.approx(-0.3, abs=0.05)
    assert found["changed_there"].value == 0


def test_a_judge_that_sees_something_else_decides_differently_at_any_tau():
    found = compare_judge(drafts(lambda _, draw: draw.normal(-0.7, 0.5)), PROMPTS, -0.7)
    assert abs(found["rank_correlation"].value) < 0.2
    assert found["changed_there"].value > 0.3
    assert found["changed_there"].low < found["changed_there"].value < found["changed_there"].high


@pytest.mark.heavy
def test_the_command_compares_a_judge_on_the_embedded_set(tmp_path, capsys):
    small = ["--prompts", "2", "--blocks", "2", "--workers", "1", "--output", str(tmp_path / "study")]
    arguments = [*small, "--calibrate", "--judge-vae", "pocket", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["drafts"], found["prompts"], found["tau"]) == (2, 2, -0.7)
    assert main([*arguments, "--tau", "-1.2"]) == 0, "the rows that are there are read again"
    assert json.loads(capsys.readouterr().out)["tau"] == -1.2
    assert main([*arguments, "--tau", "-1", "0"]) == 2
    assert "one --tau" in capsys.readouterr().err
