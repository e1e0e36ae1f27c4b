"""Which models a run may ask for, what it says if one of them is missing, and runs that do without."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tiny import latents_of, make_engine, planned, scripted

from sdvg_core.engine.memo import Identities, Reuse, Store
from sdvg_core.engine.plan import MISSING, Lead, ModelSet, RunPlan, plan_blocks
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.router import DIRECTION_LETTERS, ROUTER_PRESETS, RouterConfig
from sdvg_core.errors import BadInput

EVERYTHING = ModelSet()


def route(router: RouterConfig, available: ModelSet = EVERYTHING, **options: Any) -> RunPlan:
    sizes = {role: 3 for role in ("drafter", "target") if getattr(available, role)}
    return plan_blocks(router, **{"blocks": 6, "block_frames": sizes, "scorer": available.scorer, **options})


def asked(router: RouterConfig, **options: Any) -> str:
    """The parts a run may ask for, by their first letters."""
    roles = route(router, **options).models_needed
    return "".join(name[0] for name in ("drafter", "target", "scorer") if getattr(roles, name))


def models(letters: str) -> ModelSet:
    return ModelSet(drafter="d" in letters, target="t" in letters, scorer="s" in letters)


def without(engine: Engine, *roles: str) -> Engine:
    """The engine without one of its parts, as it is built if the file was not given."""
    return replace(engine, **dict.fromkeys(roles))


six = partial(planned, blocks=6)
UNFORCED: dict[str, Any] = {"forced_blocks": 0}
ROLES_OF: list[tuple[RouterConfig, str, str]] = [
    (RouterConfig(), "", "dts"),
    (RouterConfig(**UNFORCED), "", "dts"),
    (RouterConfig(policy="always-target"), "", "t"),
    (RouterConfig(policy="first"), "", "dt"),
    (RouterConfig(policy="first", **UNFORCED), "", "d"),
    (RouterConfig(policy="first", forced_blocks=6), "", "t"),
    (scripted("tttttt"), "", "t"),
    (scripted("dddddd", **UNFORCED), "", "d"),
    (scripted("tdtdtd"), "", "dt"),
    (scripted("aaaaaa", **UNFORCED), "", "dts"),
    (scripted("ddddddt", **UNFORCED), "", "d"),  # the plan goes on behind the run
    (RouterConfig(), "dddddd", "d"),
    (RouterConfig(), "ttttt.", "dts"),
    (RouterConfig(), ".ttttt", "t"),
    (RouterConfig(), "aaaaaa", "dts"),  # a score that is no number still calls the target
    (RouterConfig(policy="first", **UNFORCED), "...t..", "dt"),
    (RouterConfig(policy="always-target"), "...r..", "dts"),
]


@pytest.mark.parametrize(("router", "letters", "parts"), ROLES_OF, ids=str)
def test_a_run_asks_for_the_parts_that_a_block_may_need_and_no_others(
    router: RouterConfig, letters: str, parts: str
) -> None:
    """Catches: a part that is ruled out although a block asks for it."""
    assert asked(router, directions=letters) == parts
    # Only these are needed: the same run is planned and made where nothing else is there.
    assert route(router, models(parts), directions=letters).models_needed == models(parts)
    missing = [role for role in ("drafter", "target", "scorer") if role[0] not in parts]
    made = list(six(without(make_engine(), *missing), router, directions=letters).blocks())
    whole = list(six(make_engine(), router, directions=letters).blocks())
    assert torch.equal(latents_of(made), latents_of(whole))
    assert [one.record.decision for one in made] == [one.record.decision for one in whole]


def test_blocks_after_a_clip_are_what_counts() -> None:
    """Block 1 of the clip is not to be made, so neither its target nor its letters are asked for."""
    assert asked(RouterConfig(policy="first"), lead=Lead(frames=3)) == "d"
    assert asked(RouterConfig(policy="first"), lead=Lead(frames=1)) == "dt", "a start image is before block 1"
    assert asked(scripted("tttdddddd"), lead=Lead(frames=9)) == "d"
    assert asked(scripted("tttdddddd"), lead=Lead(frames=6)) == "dt"


# --- what is missing


@pytest.mark.parametrize(
    ("router", "letters", "parts", "says"),
    [
        (RouterConfig(), "", "ts", "the policy reward needs a drafter"),
        (RouterConfig(), "", "ds", "the policy reward needs a target"),
        (RouterConfig(), "", "dt", "the policy reward needs a reward model"),
        (ROUTER_PRESETS["fast"], "", "d", "the policy fast needs a target"),
        (ROUTER_PRESETS["fast"], "", "t", "the policy fast needs a drafter"),
        (RouterConfig(policy="always-target"), "", "d", "the policy always-target needs a target"),
        (RouterConfig(policy="first", **UNFORCED), "", "t", "the policy first needs a drafter"),
        (RouterConfig(policy="first", forced_blocks=3), "", "d", "the policy first needs a target"),
        (RouterConfig(policy="first", **UNFORCED), "...t..", "d", "the directions need a target"),
        (RouterConfig(policy="always-target"), "...d..", "t", "the directions need a drafter"),
        (RouterConfig(policy="always-target"), "...a..", "dt", "the directions need a reward model"),
    ],
    ids=str,
)
def test_a_part_that_is_missing_is_one_sentence_with_who_needs_it_and_a_way_out(
    router: RouterConfig, letters: str, parts: str, says: str
) -> None:
    with pytest.raises(BadInput) as caught:
        route(router, models(parts), directions=letters)
    sentence = str(caught.value)
    assert sentence.startswith(f"{says}; load one, or ")
    assert sentence.endswith("out of them") == ("directions" in says)
    assert "\n" not in sentence


@pytest.mark.parametrize("role", MISSING)
def test_the_letters_to_take_out_are_those_that_ask_for_a_model(role: str) -> None:
    """Catches: a remedy that does not help."""
    policy = RouterConfig(policy="always-target" if role == "drafter" else "first", forced_blocks=0)
    for letter in DIRECTION_LETTERS:
        asks = letter in re.findall(r"\b\w\b", MISSING[role][2])
        with pytest.raises(BadInput, match=f"take {MISSING[role][2]} out of them") if asks else nullcontext():
            route(policy, ModelSet(**{role: False}), directions=f"..{letter}...")


def test_a_router_of_ones_own_is_named_in_place_of_the_policy() -> None:
    class EveryThird:
        needs_scorer = True

        def keep(self, index: int, score: float | None) -> bool:
            return index % 3 > 0

    with pytest.raises(BadInput, match="the router EveryThird needs a reward model; load one, or take another"):
        route(RouterConfig(part=EveryThird()), models("dt"))


# --- runs without one of the models


@pytest.mark.parametrize(("policy", "role"), [("always-target", "drafter"), ("first", "target")])
def test_a_run_without_a_model_can_be_used_again_and_uses_that_of_a_run_with_it(policy: str, role: str) -> None:
    identities = Identities(drafter="one", target="two", codec="echo", scorer="")
    alone = replace(identities, **{role: ""})
    router = RouterConfig(policy=policy, forced_blocks=0)
    store = Store()
    first = six(without(make_engine(), role), router, reuse=Reuse(store=store, identities=alone))
    made = list(first.blocks())
    again = six(make_engine(), router, blocks=8, reuse=Reuse(store=store, identities=identities))
    longer = list(again.blocks())
    assert [block.record.reused for block in longer] == [True] * 6 + [False] * 2
    assert torch.equal(latents_of(longer[:6]), latents_of(made))
    last = six(without(make_engine(), role), router, blocks=8, reuse=Reuse(store=store, identities=alone))
    assert all(block.record.reused for block in last.blocks())
