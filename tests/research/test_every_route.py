"""The room above the first m blocks, from rows whose truth is known; and the command that makes every route."""

import json

import numpy as np
import pytest
from PIL import Image

from research.every_route import every_route, main, room_above
from research.folder import Plan


def routes_of(prompts: int, quality_of) -> tuple[Plan, list]:
    """Rows of every route of four blocks; `quality_of`: by number of the prompt, seed and script."""
    names = tuple(f"prompt {i}" for i in range(prompts))
    plan = Plan(prompts=names, seeds=(1, 2), configurations=every_route(4), blocks=4, gains=False)
    rows = [
        {
            "configuration": c.name,
            "prompt": prompt,
            "seed": seed,
            "metrics": {"quality": quality_of(i, seed, c.router.script)},
        }
        for c in plan.configurations
        for i, prompt in enumerate(names)
        for seed in plan.seeds
    ]
    return plan, rows


def test_hindsight_gains_over_the_first_m_exactly_what_was_put_in():
    """A target call gains 1 dB, in odd prompts 3; at the last block 0.5 more. Catches: a subset of other blocks."""
    plan, rows = routes_of(
        20, lambda i, seed, script: script.count("t") * (3 if i % 2 else 1) + 0.5 * (script[3] == "t")
    )
    room = {at["calls"]: at for at in room_above(rows, plan, "quality")}
    assert set(room) == {1, 2, 3, 4}
    two = room[2]
    assert two["first"].value == pytest.approx(4.0)
    assert two["random"].value == pytest.approx(4.0 + 0.5 / 3)
    assert two["best_minus_first"].value == two["fixed_minus_first"].value == pytest.approx(0.5)
    # At a mean of 2.5 calls, the odd prompts have all four and the even ones one.
    assert two["uneven_first_minus_first"].value > 0.5
    assert two["uneven_minus_first"].value >= two["uneven_first_minus_first"].value
    assert room[1]["best_minus_first"].value == room[4]["best_minus_first"].value == 0


def test_a_fixed_set_is_chosen_without_the_prompt_it_is_tried_on():
    """Noise alone: in its own prompts the best set would gain, chosen on others it does not."""
    draw = np.random.default_rng(0)
    plan, rows = routes_of(40, lambda *_: draw.normal())
    two = room_above(rows, plan, "quality")[1]
    assert two["best_minus_first"].low > 0.5
    assert two["fixed_minus_first"].low < 0 < two["fixed_minus_first"].high


@pytest.mark.heavy
def test_the_command_writes_table_and_picture(tmp_path, capsys):
    """Prompts of a file may have classes."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("[alone] a big red ball drifts up from the left over sand\n", encoding="utf-8")
    asked = ["--output", str(tmp_path / "out"), "--prompt-file", str(prompts), "--workers", "1", "--json"]
    assert main([*asked, "--blocks", "3", "--schedule", "1000,625"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [at["calls"] for at in found["room"]] == [1, 2, 3]
    assert found["room"][1]["best"]["value"] >= found["room"][1]["first"]["value"]
    assert "The room above the first m blocks" in (tmp_path / "out" / "room.md").read_text(encoding="utf-8")
    with Image.open(tmp_path / "out" / "room.png") as picture:
        assert picture.width >= 900
    assert main([*asked, "--blocks", "11"]) == 2
    assert "ask for at most 10 blocks" in capsys.readouterr().err
