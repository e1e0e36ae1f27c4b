"""What a store of earlier results may change of a run: which models are called, and nothing else.

Bit for bit over tiny generators: what is made with a store is compared with what is made from nothing. *Catches*
names the mistake that was planted in a copy of the code to see the test fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from reuse_runs import ROUTERS, WAYS, Asked, Made, made, same, works
from tiny import POLICIES

from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.store import Store
from sdvg_core.engine.types import DrafterContext

# --- forty pairs of runs, and many more in the exhaustive tier

Kind = Callable[[Asked, random.Random], tuple[Asked, Asked]]
LONGEST = 12  # the clip's blocks and the run's


def another(values: tuple[Any, ...], now: Any, rng: random.Random) -> Any:
    return rng.choice([value for value in values if value != now])


def letters(choice: str, count: int, rng: random.Random) -> str:
    return "".join(rng.choice(choice) for _ in range(count))


def other_letter(text: str, choice: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + another(tuple(choice), text[at], rng) + text[at + 1 :]


def change_policy(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    policies = ("reward", "first", "relative", "random", "always-draft", "always-target", "scripted")
    script = letters("ardt", LONGEST, rng)
    return asked, asked.with_router(policy=another(policies, asked.router.policy, rng), script=script)


def change_script(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    script = letters("ardt", LONGEST, rng)
    # A letter of the run itself, not of the clip or behind its end.
    at = rng.randrange(1, 4) + (asked.clip[1] // 3 if asked.clip else 0)
    other = script[:at] + other_letter(script[at], "ardt", rng) + script[at + 1 :]
    scripted = asked.with_router(policy="scripted", script=script)
    return scripted, scripted.with_router(script=other)


def change_directions(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    before = letters("ardt....", asked.blocks, rng)
    return replace(asked, directions=before), replace(asked, directions=other_letter(before, "ardt.", rng))


def change_blocks(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    blocks = another((3, 4, 5, 6, 7, 8), asked.blocks, rng)
    more = asked.directions and asked.directions.ljust(blocks, ".")[:blocks]
    return replace(asked, takes=""), replace(asked, blocks=blocks, directions=more, takes="")


def change_prompt(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    first, seed, text = asked.prompts[0]
    later = rng.randrange(1, asked.blocks + 2)
    return asked, replace(asked, prompts=((first, seed, text), (later, seed + 1, text)))


def change_gate_text(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    first, seed, text = asked.prompts[0]
    return asked, replace(asked, prompts=((first, seed, text + " " * rng.randrange(1, 6)), *asked.prompts[1:]))


def change_clip(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    clips = (None, *((seed, frames) for seed in (71, 72) for frames in (1, 3, 4, 6)))
    return asked, replace(asked, clip=another(clips, asked.clip, rng))


def change_context(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    alone = replace(asked, ahead=asked.ahead and asked.policy != "recompute")
    return replace(alone, context="committed"), replace(alone, context="own")


def change_bail_out(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    strict = asked.with_router(policy="reward", tau=0.9, bail_out=rng.choice((0, 1)))
    return strict, strict.with_router(bail_out=another((0, 1, 2, 3), strict.router.bail_out, rng))


def change_aggregation(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
    scored = asked.with_router(policy="reward")
    return scored, scored.with_router(aggregation=another(("min", "mean", "quantile"), "min", rng), quantile=0.6)


def change_router(name: str, *values: Any) -> Kind:
    def change(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
        return asked, asked.with_router(**{name: another(values, getattr(asked.router, name), rng)})

    return change


def change(name: str, *values: Any) -> Kind:
    def changed(asked: Asked, rng: random.Random) -> tuple[Asked, Asked]:
        return asked, replace(asked, **{name: another(values, getattr(asked, name), rng)})

    return changed


KINDS: dict[str, Kind] = {
    "tau": change_router("tau", -1.0, -0.3, 0.0, 0.3, 0.8),
    "policy": change_policy,
    "script": change_script,
    "directions": change_directions,
    "takes": change("takes", "", "1:2", "3:2", "2:3, 4:2", "4:3"),
    "blocks": change_blocks,
    "prompt": change_prompt,
    "gate text": change_gate_text,
    "drafter": change("drafter", 1, 2, 3),
    "target": change("target", 1, 2, 3),
    "schedule": change("schedule", "1000,625", "1000,500"),
    "handover": change_router("handover", 0, 1),
    "forced blocks": change_router("forced_blocks", 0, 1, 2, 4),
    "bail-out": change_bail_out,
    "drafter context": change_context,
    "seed": change("seed", 42, 43),
    "clip": change_clip,
    "aggregation": change_aggregation,
    "difference": lambda asked, rng: change_router("tau", -0.5, 0.0)(asked.with_router(policy="relative"), rng),
    "codec": change("codec", "echo", "pale"),
}
PAIRS = [pytest.param(n, marks=() if n < 2 * len(KINDS) else pytest.mark.exhaustive) for n in range(400)]


def pair(number: int) -> tuple[str, Asked, Asked]:
    """The name of what changes, an earlier request, and the changed one. Each number has its own, always the same.

    Every kind of change meets both policies, and in turn both contexts, with and without overlap.
    """
    rng = random.Random(f"pair {number}")
    kind, round_ = list(KINDS)[number % len(KINDS)], number // len(KINDS)
    policy, context, ahead = rng.choice([way for way in WAYS if way[0] == POLICIES[(round_ + number) % 2]])
    blocks = rng.randrange(4, 7)
    base = Asked(
        policy=policy,
        context=context,
        ahead=ahead,
        blocks=blocks,
        router=RouterConfig(
            policy=rng.choice(("reward", "reward", "reward", "relative")),
            tau=rng.choice((0.0, 0.3, 0.6)),
            forced_blocks=rng.choice((0, 1, 1, 2)),
            handover=rng.choice((0, 0, 1)),
            bail_out=rng.choice((0, 0, 0, 2)),
        ),
        directions=rng.choice(("", "", letters("ardt........", blocks, rng))),
        takes=rng.choice(("", "", "2:2")),
        clip=rng.choice((None, None, (71, 4), (71, 3))),
        own_frames=1 if number % 3 == 2 else 3,
    )
    earlier, changed = KINDS[kind](base, rng)
    if round_ >= 2 and rng.random() < 0.5:  # two changes at once
        second = rng.choice([name for name in KINDS if name not in (kind, "script", "blocks", "drafter context")])
        changed = KINDS[second](changed, rng)[1]
    if changed.context == "own" and changed.policy == "recompute":
        earlier, changed = replace(earlier, ahead=False), replace(changed, ahead=False)
    if changed.directions and len(changed.directions) != changed.blocks:
        changed = replace(changed, directions="")
    return kind, earlier, changed


def check_pair(earlier: Asked, changed: Asked) -> tuple[Made, Made, Made]:
    store = Store()
    before = made(earlier, store)
    again, nothing = made(changed, store), made(replace(changed, ahead=False))
    same(again, nothing)
    assert all(record.reused for record in again.records[: again.reused])
    assert not any(record.reused for record in again.records[again.reused :])
    if not changed.ahead:  # a guess may begin blocks that nobody asks for
        assert set(again.calls) <= set(nothing.calls)
    last = made(changed, store)
    same(last, nothing)
    assert last.reused == changed.blocks, "of the same request nothing is left to make"
    return before, again, nothing


@pytest.mark.parametrize("number", PAIRS)
def test_a_run_after_another_one_is_bit_for_bit_the_run_from_nothing(number: int) -> None:
    """Catches: every mistake of this file's list that changes a video."""
    check_pair(*pair(number)[1:])


def test_the_forty_pairs_meet_every_change_with_both_policies_and_all_the_rest() -> None:
    pairs = [pair(number) for number in range(2 * len(KINDS))]
    assert len(pairs) == 40
    assert {changed.router.policy for _, _, changed in pairs} >= {"reward", "relative", "scripted"}
    assert all(earlier != changed for _, earlier, changed in pairs)
    assert {(kind, changed.policy) for kind, _, changed in pairs} == {(k, p) for k in KINDS for p in POLICIES}
    assert {(changed.policy, changed.context, changed.ahead) for _, _, changed in pairs} == set(WAYS)


def test_the_pairs_differ_and_re_use_now_all_now_some_and_now_nothing() -> None:
    """What the comparison of pairs rests on: another video each time, of which there is something to take."""
    shares, differ = [], []
    for _, earlier, changed in map(pair, range(0, 40, 2)):
        store = Store()
        before, again = made(earlier, store), made(changed, store)
        shares.append(again.reused / changed.blocks)
        differ.append(not torch.equal(before.latents, again.latents) or before.decisions != again.decisions)
    assert (0 in shares, sum(0 < share < 1 for share in shares) >= 4, sum(differ) >= 12) == (True, True, True)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("router", ROUTERS)
def test_a_run_with_an_empty_store_is_the_run_without(way: tuple[str, DrafterContext, bool], router: str) -> None:
    policy, context, ahead = way
    asked = Asked(policy=policy, context=context, router=ROUTERS[router], blocks=5, ahead=ahead)
    one, other = made(asked, Store()), made(asked)
    same(one, other)
    if not ahead:  # a wrong guess is stopped sooner or later
        assert one.calls == other.calls
        assert [works(record) for record in one.records] == [works(record) for record in other.records]
