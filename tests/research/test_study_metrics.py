"""What videos are measured by, and the protocol's configurations."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from research.metrics import Oracle, SeamChange, parse_external
from research.protocol import PAPER_TAUS, POCKET_TAUS, pick, protocol
from research.world import held_out_prompts, render
from sdvg_core.engine.router import RouterConfig
from sdvg_core.errors import BadInput
from sdvg_core.pocket.grammar import parse

PROMPT = held_out_prompts(1)[0]
FRAMES = torch.rand(9, 3, 16, 16, generator=torch.Generator().manual_seed(0))


# --- metrics


def test_the_oracle_finds_the_truth_good_and_the_worst_block_bad():
    clip = render(parse(PROMPT), torch.arange(21.0))
    found = Oracle().measure(clip, PROMPT, [9])
    assert found["quality"] > 35
    spoilt = clip.clone()
    spoilt[9:] = spoilt[9:].flip(1)
    worse = Oracle().measure(spoilt, PROMPT, [9])
    assert worse["worst_block_quality"] < found["quality"] - 10
    assert worse["worst_block_quality"] < worse["quality"] < found["quality"]
    assert set(found) == {"quality", "worst_block_quality", "lag", "temporal_error", "seam_error"}
    assert Oracle().frame_quality(spoilt, PROMPT, [9])[:9].min() > 35


def test_a_jump_at_a_border_is_a_seam_and_one_inside_a_block_is_none():
    still = torch.full((8, 3, 4, 4), 0.2)
    at_border, inside = still.clone(), still.clone()
    at_border[4:] += 0.1
    inside[6:] += 0.1
    assert SeamChange().measure(at_border, "", [4])["seam_change"] == pytest.approx(25.5, rel=1e-4)
    assert SeamChange().measure(inside, "", [4])["seam_change"] == pytest.approx(-25.5 / 6, rel=1e-4)
    assert SeamChange().measure(at_border, "", [])["seam_change"] == 0


# --- an external command


def external(code: str, timeout: float = 60.0):
    return replace(parse_external(f'"{sys.executable}" -c "{code}" {{video}} {{prompt}}'), timeout=timeout)


def test_an_external_command_gets_video_and_prompt_whole_and_its_last_line_counts():
    code = (
        "import sys, os; print('loading'); print(os.path.getsize(sys.argv[1]) > 100 and len(sys.argv[2])); print()"
    )
    prompt = 'a "red" ball; $(rm) {video}'
    assert external(code).measure(FRAMES, prompt, []) == {"external": float(len(prompt))}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('fine')", "could not convert string to float: 'fine'"),
        ("print('nan')", "it printed nan"),
        ("pass", "could not convert string to float: ''"),
        ("raise SystemExit('no weights')", "returned non-zero exit status 1"),
        ("import time; time.sleep(30)", r"timed out after 2\.0 seconds"),
    ],
)
def test_an_external_command_without_a_number_is_refused(code, message):
    with pytest.raises(BadInput, match=message):
        external(code, 2.0).measure(FRAMES, "a ball", [])


def test_an_external_command_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="no-such-program-here"):
        parse_external("no-such-program-here {video}").measure(FRAMES, "a ball", [])


@pytest.mark.parametrize("text", ["score.py {prompt}", "score.py '{video}", "", "score.py --video={video}"])
def test_a_command_that_takes_no_video_is_refused(text):
    with pytest.raises(BadInput):
        parse_external(text)


# --- the protocol


def test_names_are_unique_and_say_what_they_are():
    configurations = protocol(9, POCKET_TAUS)
    names = [c.name for c in configurations]
    assert len(set(names)) == len(names)
    by_name = {c.name: c for c in configurations}
    assert by_name["reward-mean@-0.5"].router.aggregation == "mean"
    assert by_name["first@3"].router == RouterConfig(policy="first", forced_blocks=3)
    assert by_name["handover-2@4"].router == RouterConfig(policy="first", forced_blocks=4, handover=2)
    assert by_name["passes-2@4"].target_schedule == "1000,625"
    assert by_name["passes-1@9"].target_schedule == "1000"
    assert by_name["relative@-0.5"].router == RouterConfig(policy="relative", tau=-0.5)
    assert by_name["every@3"].router.script == "tddtddtdd"
    assert not by_name["random-open@0.5"].router.forced_blocks
    assert by_name["own@-0.7"].drafter_context == "own"
    assert {c.router.handover for c in configurations if c.group == "repair"} == {1, 2, 3}


def test_a_repair_leaves_the_target_a_step():
    two = protocol(9, PAPER_TAUS, timesteps=(1000.0, 625.0))
    assert [c.name for c in two if c.group == "repair"] == ["repair-1@-1"]
    assert {c.group for c in two if c.group.startswith(("handover", "passes"))} == {"handover-1"}


def test_short_videos_have_no_route_that_is_another_by_name():
    names = {c.name for c in protocol(3, (0.0,))}
    assert "first@2" in names
    assert not {"first@3", "first@5", "every@3"} & names
    assert "handover-2@3" in names


def test_configurations_are_picked_by_name_and_pattern_in_the_protocols_order():
    everything = protocol(9, POCKET_TAUS)
    names = [c.name for c in pick(everything, ["reward-min@*", "target-only"])]
    assert names[0] == "target-only"
    assert len(names) == 7
    assert pick(everything, []) == everything
    with pytest.raises(
        BadInput, match=r"'nothing@\*' is no configuration's name or pattern; choose among target-only, "
    ):
        pick(everything, ["nothing@*"])
