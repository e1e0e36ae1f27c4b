"""What videos are measured by, and the protocol's configurations."""

import sys
from dataclasses import replace

import pytest
import torch

from research.metrics import Oracle, parse_external
from research.plots import LOOKS
from research.protocol import POCKET_TAUS, pick, protocol
from research.routers import RandomRouter
from research.world import held_out_prompts, render
from sdvg_core.engine.router import POLICIES, RouterConfig, router_preset
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
    assert set(found) == {"quality", "worst_block_quality", "lag"}


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
        ("raise SystemExit('no weights')", "it ended with exit status 1"),
        ("import time; time.sleep(30)", r"it took over 0\.5 s"),
    ],
)
def test_an_external_command_without_a_number_is_refused(code, message):
    """The kind: a message that a long path cuts. Catches a reason that is cut off behind the command."""
    with pytest.raises(BadInput, match=message):
        external(f"{code}  # {'long ' * 100}", 0.5 if "sleep" in code else 60.0).measure(FRAMES, "a ball", [])


# --- the protocol


def test_names_are_unique_and_say_what_they_are():
    configurations = protocol(9, POCKET_TAUS)
    names = [c.name for c in configurations]
    assert len(set(names)) == len(names)
    by_name = {c.name: c for c in configurations}
    assert len(names) == 39
    assert by_name["hybrid@-0.7"].router == router_preset("hybrid")
    assert [name for name in names if name.startswith("hybrid")] == [f"hybrid@{t:g}" for t in (-1.25, -0.7, -0.4)]
    assert by_name["stride@3"].router == RouterConfig(policy="stride", stride=3)
    assert by_name["stride-3@4"].router == RouterConfig(policy="stride", stride=4, handover=3)
    assert by_name["handover-3@2"].router == RouterConfig(policy="first", forced_blocks=2, handover=3)
    short = by_name["drafts-3:hybrid@-0.7"]
    assert (short.router, short.draft_steps) == (router_preset("hybrid"), 3)
    assert {c.group for c in configurations} - {"ends", "anchor-only"} == {*LOOKS}, "each is drawn"
    assert by_name["reward-mean@-0.7"].router.aggregation == "mean"
    assert by_name["first@3"].router == RouterConfig(policy="first", forced_blocks=3)
    assert by_name["handover-2@4"].router == RouterConfig(policy="first", forced_blocks=4, handover=2)
    assert by_name["random@0.8"].router == RouterConfig(part=RandomRouter(0.8))
    assert by_name["random-unforced@0.7"].router == RouterConfig(part=RandomRouter(0.7), forced_blocks=0)
    assert by_name["anchor-only"].router == RouterConfig(policy="first", forced_blocks=1)
    assert by_name["draft-only"].router == RouterConfig(policy="first", forced_blocks=0)
    assert by_name["own@-0.7"].drafter_context == "own"


def test_every_policy_of_the_table_has_a_configuration():
    """Catches: a policy that the study leaves out."""
    assert {configuration.router.policy for configuration in protocol(9, POCKET_TAUS)} == {*POLICIES}


def test_configurations_are_picked_by_name_and_pattern_in_the_protocols_order():
    everything = protocol(9, POCKET_TAUS)
    names = [c.name for c in pick(everything, ["reward-min@*", "target-only"])]
    assert names[0] == "target-only"
    assert len(names) == 5
    assert pick(everything, []) == everything
    with pytest.raises(BadInput, match=r"called 'nothing@\*'; choose among target-only, "):
        pick(everything, ["nothing@*"])
