"""What a store of earlier results may change of a run: which models are called, and nothing else.

Bit for bit over tiny generators: what is made with a store is compared with what is made from nothing. *Catches*
names the mistake that was planted in a copy of the code to see the test fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from thinned import every_pair, in_turn
from tiny import (
    CONFIG,
    CONTEXTS,
    POLICIES,
    SIZE,
    BrightScorer,
    EchoCodec,
    condition,
    generator_of,
    make_generator,
    make_noise,
    random_tree,
)
from torch import Tensor

from sdvg_core.causal_wan.context import AnchorEncoder
from sdvg_core.causal_wan.generator import go_on
from sdvg_core.engine.history import History
from sdvg_core.engine.keys import Identities, Keys
from sdvg_core.engine.noise import KeyedNoise
from sdvg_core.engine.parts import Engine
from sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_core.engine.reuse import Reuse
from sdvg_core.engine.router import Decision, Reason, RouterConfig
from sdvg_core.engine.run import Run, plan_run
from sdvg_core.engine.several import SeveralBlocks, blocks_back
from sdvg_core.engine.speculate import DrafterContext
from sdvg_core.engine.store import Store
from sdvg_core.engine.types import Block, Condition, Span, Work
from sdvg_core.engine.wrapping import WrappedGenerator
from sdvg_core.text.prompts import Conditions

CPU = torch.device("cpu")
PAPER = RouterConfig(tau=0.3)  # the paper's route; this tau keeps about half of the drafts
ROUTERS = {
    "reward": PAPER,
    "repair": RouterConfig(tau=0.3, handover=1),
    "percentile": RouterConfig(policy="percentile", draft_share=0.5),
    "relative": RouterConfig(policy="relative", tau=-2.4),
    "handover": RouterConfig(policy="random", rate=0.5, handover=1),
}
# Overlap refuses a drafter that needs the pixels of its own drafts.
WAYS = [way for way in product(POLICIES, CONTEXTS, (False, True)) if way != ("recompute", "own", True)]
Call = tuple[str, int]


# --- requests as plain values, and runs of them


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A video that is asked for. `prompts`: first block, seed of the embedding, and gate text of each.

    `drafter`, `target`: seeds of their weights.
    `own_frames`: latent frames of the drafter's own blocks. `clip`: seed and latent frames of a clip to continue.
    """

    policy: str = "recompute"
    context: DrafterContext = "committed"
    ahead: bool = False
    router: RouterConfig = PAPER
    blocks: int = 9
    seed: int = 42
    directions: str = ""
    takes: str = ""
    prompts: tuple[tuple[int, int, str], ...] = ((0, 5, "a red ball"),)
    drafter: int = 1
    target: int = 2
    schedule: str = "1000,625"
    codec: str = "echo"
    own_frames: int = 3
    clip: tuple[int, int] | None = None

    def with_router(self, **changes: Any) -> Asked:
        return replace(self, router=replace(self.router, **changes))


class PaleCodec(EchoCodec):
    """Another codec, so that the same latents look otherwise."""

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        frames, state = super().decode(latents, state)
        return frames * 0.98, state


class ReadingScorer(BrightScorer):
    """Brightness, and the length of the text."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        return super().score(frames, prompt) + 0.2 * (len(prompt) - len("a red ball"))


class NotedGenerator(WrappedGenerator):
    """Writes down which blocks were begun, and which of them were finished."""

    def __init__(self, inner: Any, begun: list[Call], done: list[Call]) -> None:
        super().__init__(inner)
        self._begun, self._done = begun, done

    def generate(self, history: History, span: Span, *arguments: Any) -> Any:
        call = (f"{self.name} after {history.frames}", span.index)
        self._begun.append(call)
        made = self.inner.generate(history, span, *arguments)
        self._done.append(call)
        return made


@dataclass(kw_only=True, eq=False)
class Parts:
    """The parts of one run, and what was asked of its models."""

    engine: Engine
    begun: list[Call]
    done: list[Call]
    codec: EchoCodec
    scorer: ReadingScorer


@dataclass(kw_only=True, eq=False)
class Made:
    """A finished run: all latents, all frames, and everything that was noted."""

    run: Run
    parts: Parts
    latents: Tensor
    frames: Tensor
    records: list[BlockRecord] = field(default_factory=list)

    @property
    def decisions(self) -> list[Decision]:
        return [record.decision for record in self.records]

    @property
    def reused(self) -> int:
        return len(self.run.reused)

    @property
    def calls(self) -> list[Call]:
        return self.parts.begun

    def asked_of(self, model: str) -> list[int]:
        return [index for name, index in self.calls if name.startswith(model)]


tree = lru_cache(random_tree)
CODECS = {"echo": EchoCodec, "pale": PaleCodec}


def parts_of(asked: Asked, before_pass: Callable[[str], None] = go_on) -> Parts:
    codec, scorer = CODECS[asked.codec](), ReadingScorer()
    begun: list[Call] = []
    done: list[Call] = []
    build = partial(
        make_generator,
        codec=codec,
        policy=asked.policy,
        schedule=asked.schedule,
        encoder=AnchorEncoder(codec.encode),
        before_pass=before_pass,
    )
    undo = blocks_back(3 // asked.own_frames, overlap=asked.ahead)
    drafter: Any = build(0, name="drafter", tree=tree(asked.drafter), undo=undo, block_frames=asked.own_frames)
    if asked.own_frames < 3:
        drafter = SeveralBlocks(drafter, 3)
    target = build(0, name="target", tree=tree(asked.target))
    noted = [NotedGenerator(model, begun, done) for model in (drafter, target)]
    engine = Engine(drafter=noted[0], target=noted[1], codec=codec, scorer=scorer)
    return Parts(engine=engine, begun=begun, done=done, codec=codec, scorer=scorer)


def identities(asked: Asked) -> Identities:
    """Models are told apart by weights and schedule alone, so that the same ones in other roles are the same."""
    model = f"{asked.policy}, {asked.schedule}, weights"
    return Identities(
        drafter=f"{model} {asked.drafter}" + (f" in {asked.own_frames}" if asked.own_frames < 3 else ""),
        target=f"{model} {asked.target}",
        codec=asked.codec,
        scorer="reading",
    )


def conditions(asked: Asked) -> Conditions:
    """New objects each time: only their content may count."""
    return Conditions(tuple((first, condition(seed, text)) for first, seed, text in asked.prompts))


def clip_of(asked: Asked) -> Tensor | None:
    if asked.clip is None:
        return None
    seed, frames = asked.clip
    return torch.randn(1, CONFIG.in_dim, frames, *SIZE, generator=generator_of(seed))


def planned(asked: Asked, parts: Parts, store: Store | None) -> Run:
    if store is not None:
        store.begin_run()
    return plan_run(
        parts.engine,
        asked.router,
        conditions(asked),
        blocks=asked.blocks,
        seed=asked.seed,
        width=SIZE[1] * EchoCodec.spatial_stride,
        height=SIZE[0] * EchoCodec.spatial_stride,
        directions=asked.directions,
        takes=asked.takes,
        drafter_context=asked.context,
        given=clip_of(asked),
        reuse=None if store is None else Reuse(store=store, identities=identities(asked)),
        ahead=CPU if asked.ahead else None,
    )


def made(asked: Asked, store: Store | None = None, parts: Parts | None = None) -> Made:
    parts = parts or parts_of(asked)
    run = planned(asked, parts, store)
    assert not parts.begun, "to plan a run, no model is called"
    assert parts.codec.decodes == parts.codec.encodes == parts.scorer.calls == 0
    records, shown = list(run.reused), []
    timeline = run.nothing
    for again in run.replay():
        timeline = again.timeline
        shown.append(again.delivered.frames())
    for emitted in run.blocks(timeline):
        timeline = emitted.timeline
        shown.append(emitted.frames)
        records.append(emitted.record)
    latents = timeline.history.latents(0, timeline.history.frames)
    return Made(run=run, parts=parts, latents=latents, frames=torch.cat(shown, dim=1), records=records)


def what_was_decided(record: BlockRecord) -> BlockRecord:
    """A record without what a block that is re-used need not do again."""
    return replace(record, draft=None, target=None, decodes=0, seconds=Seconds(), reused=False)


def same(one: Made, other: Made) -> None:
    assert torch.equal(one.latents, other.latents)
    assert torch.equal(one.frames, other.frames)
    assert [what_was_decided(record) for record in one.records] == list(map(what_was_decided, other.records))


def same_video(one: Made, other: Made) -> None:
    """The same video by other decisions."""
    assert torch.equal(one.latents, other.latents)
    assert torch.equal(one.frames, other.frames)


def route(one: Made) -> str:
    return "".join("a" if record.author == "drafter" else "r" for record in one.records)


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
    policies = ("reward", "first", "relative", "percentile", "random", "always-draft", "always-target", "scripted")
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
    "draft share": lambda asked, rng: change_router("draft_share", 0.3, 0.8)(
        asked.with_router(policy="percentile"), rng
    ),
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
            policy=rng.choice(("reward", "reward", "reward", "relative", "percentile")),
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
    assert {changed.router.policy for _, _, changed in pairs} >= {"reward", "relative", "percentile", "scripted"}
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


def works(record: BlockRecord) -> list[Work | None]:
    return [work and replace(work, context_seconds=0.0) for work in (record.draft, record.target)]


# --- what is made, and what is not, in counts


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_same_request_again_calls_no_model(way: tuple[str, DrafterContext, bool]) -> None:
    policy, context, ahead = way
    asked = Asked(policy=policy, context=context, ahead=ahead, blocks=6)
    store = Store()
    first, again = made(asked, store), made(asked, store)
    same(again, first)
    assert first.calls
    assert (again.calls, again.parts.scorer.calls) == ([], 0)
    assert again.parts.codec.decodes == asked.blocks, "each block once, to be shown"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_last_draft_that_another_tau_keeps_makes_nothing(policy: str) -> None:
    store = Store()
    strict = made(Asked(policy=policy, router=RouterConfig(tau=0.3)), store)
    mild = made(Asked(policy=policy, router=RouterConfig(tau=0.1)), store)
    assert (route(strict)[:-1], route(strict)[-1], route(mild)[-1]) == (route(mild)[:-1], "r", "a")
    assert (mild.calls, mild.parts.scorer.calls, mild.reused) == ([], 0, 9)
    same(mild, made(Asked(policy=policy, router=RouterConfig(tau=0.1))))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_last_draft_that_another_tau_rejects_costs_the_target_one_block_and_no_draft(policy: str) -> None:
    store = Store()
    made(Asked(policy=policy, router=RouterConfig(tau=0.1)), store)
    strict = made(Asked(policy=policy, router=RouterConfig(tau=0.3)), store)
    assert route(strict)[-1] == "r"
    assert (strict.asked_of("drafter"), strict.asked_of("target"), strict.reused) == ([], [8], 8)
    same(strict, made(Asked(policy=policy, router=RouterConfig(tau=0.3))))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_more_blocks_make_only_those_that_are_new(policy: str, context: DrafterContext) -> None:
    store = Store()
    made(Asked(policy=policy, context=context, blocks=6), store)
    longer = made(Asked(policy=policy, context=context, blocks=9), store)
    assert longer.reused == 6
    assert {index for _, index in longer.calls} == {6, 7, 8}
    same(longer, made(Asked(policy=policy, context=context, blocks=9)))


def test_fewer_blocks_make_nothing() -> None:
    store = Store()
    made(Asked(blocks=9), store)
    shorter = made(Asked(blocks=4), store)
    assert (shorter.calls, shorter.reused) == ([], 4)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_another_prompt_from_block_6_on_re_uses_the_first_five(policy: str, context: DrafterContext) -> None:
    asked, store = Asked(policy=policy, context=context), Store()
    made(asked, store)
    changed = replace(asked, prompts=(*asked.prompts, (5, 6, "a blue cube")))
    again = made(changed, store)
    assert again.reused == 5
    assert min(index for _, index in again.calls) == 5
    assert [record.prompt for record in again.records] == ["a red ball"] * 5 + ["a blue cube"] * 4
    same(again, made(changed))


def test_a_prompt_in_other_words_with_the_same_embedding_and_gate_text_is_told_by_its_new_words() -> None:
    asked, store = Asked(blocks=3), Store()
    made(asked, store)
    parts = parts_of(asked)
    words = Condition(condition(5).embedding, "ein roter Ball", "a red ball")
    run = plan_run(
        parts.engine,
        asked.router,
        lambda _: words,
        blocks=3,
        seed=42,
        width=8,
        height=8,
        reuse=Reuse(store=store, identities=identities(asked)),
    )
    assert [record.prompt for record in run.reused] == ["ein roter Ball"] * 3
    assert all(block.condition is words for block in run.reused_blocks)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_take_of_block_6_re_uses_the_first_five(policy: str, context: DrafterContext) -> None:
    """Catches: a key without the take."""
    asked, store = Asked(policy=policy, context=context), Store()
    first = made(asked, store)
    changed = replace(asked, takes="6:2")
    again = made(changed, store)
    assert again.reused == 5
    assert 5 in {index for _, index in again.calls}
    same(again, made(changed))
    assert not torch.equal(again.latents[:, :, 15:], first.latents[:, :, 15:])


@pytest.mark.parametrize("policy", POLICIES)
def test_another_target_re_uses_nothing_where_it_makes_block_1(policy: str) -> None:
    """Catches: a key without the identity of the model."""
    store = Store()
    made(Asked(policy=policy), store)
    changed = Asked(policy=policy, target=3)
    again = made(changed, store)
    assert again.reused == 0
    same(again, made(changed))


@pytest.mark.parametrize("policy", POLICIES)
def test_another_drafter_re_uses_the_forced_block_1_and_no_more(policy: str) -> None:
    """Catches: a key without the identity of the model."""
    store = Store()
    made(Asked(policy=policy), store)
    changed = Asked(policy=policy, drafter=3)
    again = made(changed, store)
    assert again.reused == 1
    assert again.asked_of("drafter") == list(range(1, 9))
    same(again, made(changed))


def test_models_that_change_roles_are_still_the_same_models() -> None:
    store = Store()
    made(Asked(router=RouterConfig(policy="always-draft", forced_blocks=0)), store)
    swapped = made(Asked(drafter=2, target=1, router=RouterConfig(policy="always-target")), store)
    assert (swapped.calls, route(swapped)) == ([], "r" * 9)


def test_another_clip_to_continue_re_uses_nothing() -> None:
    """Catches: a clip that goes by its shape alone."""
    store = Store()
    made(Asked(clip=(71, 3), blocks=3), store)
    for clip in ((72, 3), (71, 6), None):
        changed = Asked(clip=clip, blocks=3)
        again = made(changed, store)
        assert again.reused == 0
        same(again, made(changed))
    assert made(Asked(clip=(71, 3), blocks=3), store).calls == []


def test_another_prompt_over_the_clip_to_continue_is_another_context() -> None:
    """Catches: a key without the conditions of earlier blocks, which a kept cache is written with."""
    asked = Asked(
        policy="incremental", clip=(71, 3), blocks=2, prompts=((0, 5, "a red ball"), (1, 6, "a blue cube"))
    )
    store = Store()
    first = made(asked, store)
    changed = replace(asked, prompts=((0, 7, "a red ball"), (1, 6, "a blue cube")))
    again = made(changed, store)
    assert again.reused == 0
    same(again, made(changed))
    assert not torch.equal(again.latents, first.latents)


def test_another_gate_text_scores_the_same_drafts_anew() -> None:
    """Catches: scores that are kept without the text they are of."""
    store = Store()
    made(Asked(router=RouterConfig(tau=-9)), store)
    changed = Asked(router=RouterConfig(tau=-9), prompts=((0, 5, "a red ball!"),))
    again = made(changed, store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (1, [], 8)
    same(again, made(changed))


def test_another_codec_re_uses_nothing() -> None:
    store = Store()
    made(Asked(policy="incremental", blocks=3), store)
    changed = Asked(policy="incremental", blocks=3, codec="pale")
    again = made(changed, store)
    assert again.reused == 0
    same(again, made(changed))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_draft_that_was_kept_without_its_first_estimates_is_made_again_for_a_repair(
    policy: str, context: DrafterContext
) -> None:
    """Catches: the block itself handed over to the target as if it were the first estimate."""
    asked, store = Asked(policy=policy, context=context), Store()
    made(asked, store)
    repaired = asked.with_router(handover=1)
    again = made(repaired, store)
    same(again, made(repaired))
    rejected = [n for n, record in enumerate(again.records) if record.decision.reason is Reason.FELL_SHORT]
    assert set(rejected[:1]) <= set(again.asked_of("drafter"))
    assert made(repaired, store).calls == [], "now the first estimates are kept too"
    plain = made(asked, store)
    assert plain.calls == [], "the longer results serve a run without repair as well"
    same(plain, made(asked))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_block_given_to_the_target_takes_over_the_steps_of_its_rejected_draft(
    policy: str, context: DrafterContext
) -> None:
    """Catches: steps of a draft that have another name when they were made as part of a whole one."""
    asked, store = Asked(policy=policy, context=context, router=ROUTERS["repair"]), Store()
    before = made(asked, store)
    fates = "".join("d" if record.decision.accepted else "t" for record in before.records)
    directed = replace(asked, directions=fates)
    again = made(directed, store)
    same_video(again, before)
    assert again.calls == []


def test_steps_that_were_handed_over_are_kept_for_the_next_run() -> None:
    """Catches: a block that is begun anew because only its first steps are there."""
    asked, store = Asked(router=RouterConfig(policy="first", forced_blocks=4, handover=1)), Store()
    made(asked, store)
    more = asked.with_router(forced_blocks=5)
    again = made(more, store)
    assert again.reused == 4
    # Block 4 was drafted whole for the first run, without the estimates that a handover needs from now on.
    assert [call for call in again.calls if call[1] == 4] == [("target after 12", 4)]
    same(again, made(more))
    assert made(asked, store).calls == []


@pytest.mark.parametrize("policy", POLICIES)
def test_another_tau_of_the_relative_gate_scores_nothing_twice(policy: str) -> None:
    """Catches: a last frame's score that is kept under a draft's key, or not at all."""
    asked, store = Asked(policy=policy, router=ROUTERS["relative"]), Store()
    before = made(asked, store)
    assert {"a", "r"} == set(route(before)[1:])
    again = made(asked.with_router(tau=-2.5), store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (9, [], 0)
    same_video(again, before)
    changed = asked.with_router(tau=-100.0)
    same(made(changed, store), made(changed))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_change_to_the_relative_gate_takes_drafts_and_scores_from_the_other(policy: str) -> None:
    """Only the last frames of the target's blocks are scored anew."""
    asked, store = Asked(policy=policy, router=RouterConfig(tau=-100.0)), Store()
    made(asked, store)
    relative = asked.with_router(policy="relative")
    again = made(relative, store)
    assert again.calls == []
    assert again.reused == 1
    same(again, made(relative))


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_that_are_re_used_cost_no_seconds_and_no_passes(policy: str) -> None:
    """Catches: the seconds of looking into the store in the records of re-used blocks."""
    asked, store = Asked(policy=policy), Store()
    first, again = made(asked, store), made(asked, store)
    assert sum(record.seconds.total for record in first.records) > 0
    for before, record in zip(first.records, again.records, strict=True):
        assert record.seconds == Seconds()
        assert works(record) in ([None, None], [Work(), None], [None, Work()], [Work(), Work()])
        assert [work is None for work in works(record)] == [work is None for work in works(before)]
        assert (record.decodes, record.reused, before.reused) == (1, True, False)


def test_a_block_of_an_earlier_run_that_comes_up_in_the_middle_is_not_made_again() -> None:
    """After a block that is made, the loop may meet one that is known: then it costs no passes either."""
    store = Store()
    made(Asked(directions="tttttt", blocks=6), store)
    made(Asked(directions="ttdddd", blocks=6), store)
    # The draft of block 3 is known, but not its scores; the target's block 3 and what follows it are known.
    again = made(Asked(directions="ttrttt", blocks=6), store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (2, [], 1)
    assert [works(record)[1] for record in again.records] == [Work()] * 6
    assert [record.reused for record in again.records] == [True] * 2 + [False] * 4
    same(again, made(Asked(directions="ttrttt", blocks=6)))


# --- runs that were stopped


class Stop(Exception):
    """What a test interrupts a run with."""


def passes_of(asked: Asked) -> int:
    passes: list[str] = []
    made(asked, parts=parts_of(asked, passes.append))
    return len(passes)


@in_turn("way, router", WAYS, ["reward", "repair", "relative", "handover"], ids=str)
def test_a_run_stopped_at_any_pass_makes_no_finished_block_again(
    way: tuple[str, DrafterContext, bool], router: str
) -> None:
    policy, context, ahead = way
    asked = Asked(policy=policy, context=context, ahead=ahead, router=ROUTERS[router], blocks=3)
    alone = replace(asked, ahead=False)
    whole, passes = made(alone), passes_of(alone)
    if router in ("reward", "repair"):
        assert {"a", "r"} == set(route(whole)[1:])
    for number in range(1, passes + 1):
        count, store = 0, Store()

        def before_pass(kind: str, number: int = number) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise Stop

        parts = parts_of(asked, before_pass)
        with pytest.raises(Stop):
            made(asked, store, parts)
        again = made(asked, store)
        same(again, whole)
        assert not set(again.calls) & set(parts.done), f"stopped at pass {number}"
        if not ahead:
            assert sorted(parts.done + again.calls) == sorted(whole.calls)


# --- the store


def test_a_store_that_is_full_forgets_the_oldest_run_first() -> None:
    one, two, three = (Asked(seed=seed, router=RouterConfig(policy="always-target")) for seed in (1, 2, 3))
    measure = Store()
    made(one, measure)
    store = Store(limit=2 * measure.bytes)
    made(one, store)
    made(two, store)
    assert (store.forgotten, store.refused, store.bytes) == (0, 0, store.limit)
    assert made(one, store).calls == [], "now the first run is the newest"
    third = made(three, store)
    assert (store.forgotten, store.refused) == (9, 0)
    same(third, made(three))
    assert made(one, store).calls == []
    assert made(three, store).calls == []
    assert len(made(two, store).calls) == 9


def test_a_store_too_small_for_a_run_keeps_its_beginning_and_changes_no_video() -> None:
    asked = Asked(router=RouterConfig(policy="always-target"))
    measure = Store()
    whole = made(asked, measure)
    store = Store(limit=measure.bytes / 2)
    made(replace(asked, seed=7, blocks=2), store)
    first = made(asked, store)
    assert (store.forgotten, store.refused) == (2, 5)
    same(first, whole)
    again = made(asked, store)
    assert (again.reused, again.asked_of("target")) == (4, [4, 5, 6, 7, 8])
    same(again, whole)
    assert store.bytes <= store.limit


def test_a_smaller_limit_holds_from_the_next_run_on() -> None:
    asked, store = Asked(blocks=3), Store()
    made(asked, store)
    store.begin_run(0.0)
    assert (store.bytes, dict(store.newest)) == (0, {})
    same(made(asked, store), made(asked))
    assert store.bytes == 0
    assert store.refused > 0


def test_the_store_counts_its_bytes() -> None:
    store = Store()
    store.begin_run()
    store.put("a", (torch.ones(4),))
    kept = store.get("a")
    assert kept is not None
    assert (kept[0].tolist(), store.bytes) == ([1.0] * 4, 16)
    assert store.get("b") is None
    store.put("a", (torch.ones(2), torch.ones(3)))
    assert (store.bytes, len(store.newest["a"])) == (20, 2)


def test_what_the_store_gives_out_is_never_changed() -> None:
    """It keeps a run's own tensors, so neither that run nor a later one may write into them."""
    asked, store = Asked(blocks=5, router=ROUTERS["repair"]), Store()
    made(asked, store)
    before = {key: [tensor.clone() for tensor in result] for key, result in store.newest.items()}
    for changed in (asked.with_router(tau=-9), replace(asked, context="own"), replace(asked, takes="3:2"), asked):
        made(changed, store)
    assert before
    assert set(before) == set(store.newest)
    for key, result in store.newest.items():
        assert all(torch.equal(tensor, was) for tensor, was in zip(result, before[key], strict=True))


def test_only_what_the_newest_run_put_in_or_took_out_is_its_own() -> None:
    store = Store()
    made(Asked(blocks=3), store)
    first = set(store.newest)
    made(Asked(blocks=3, seed=7), store)
    assert store.newest
    assert not set(store.newest) & first
    made(Asked(blocks=3), store)
    assert set(store.newest) == first


def test_blocks_that_are_not_finite_are_neither_kept_nor_taken() -> None:
    asked, store = Asked(blocks=3), Store()
    whole = made(asked, store)
    for spoilt in (float("nan"), float("inf"), -float("inf")):
        broken = Store()
        for key, result in store.newest.items():
            bad = tuple(tensor.clone() for tensor in result)
            if bad[-1].ndim > 1:
                bad[-1].view(-1)[0] = spoilt
            broken.put(key, bad)
        again = made(asked, broken)
        assert again.reused == 0
        assert torch.equal(again.latents, whole.latents)


class BlindScorer(ReadingScorer):
    """Sees nothing in the draft it is shown second."""

    blind: Tensor | None = None

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        scores = super().score(frames, prompt)
        if self.blind is None and self.calls == 2:
            type(self).blind = frames
        return scores * float("nan") if self.blind is not None and torch.equal(frames, self.blind) else scores


def test_a_score_that_is_not_finite_is_kept_as_it_is_and_rejects_the_draft_again() -> None:
    asked, store = Asked(blocks=5), Store()

    def blind() -> Parts:
        parts = parts_of(asked)
        scorer = BlindScorer()
        parts.engine = replace(parts.engine, scorer=scorer)
        parts.scorer = scorer
        return parts

    first, again = made(asked, store, blind()), made(asked, store, blind())
    assert first.decisions[2].reason is again.decisions[2].reason is Reason.NOT_FINITE
    assert torch.equal(first.latents, again.latents)
    assert (again.reused, again.calls) == (5, []), "nothing is made or scored again"


def test_a_result_that_is_not_finite_ends_a_second_run_with_the_same_sentence() -> None:
    class Broken(WrappedGenerator):
        def generate(self, history: History, span: Span, *arguments: Any) -> Any:
            result = self.inner.generate(history, span, *arguments)
            return replace(result, predictions=(*result.predictions[:-1], result.latents * float("nan")))

    asked, store = Asked(blocks=3), Store()
    for _ in range(2):
        parts = parts_of(asked)
        parts.engine = replace(parts.engine, drafter=Broken(parts.engine.drafter))
        with pytest.raises(Exception, match="block 1 got NaN or infinity in its drafter latents"):
            made(asked, store, parts)


# --- keys


def block_at(start: int, seed: int, prompt: int = 5) -> Block:
    latents = torch.randn(1, CONFIG.in_dim, 3, *SIZE, generator=generator_of(seed))
    return Block(Span(start // 3, start, 3), latents, condition(prompt))


SECOND = Span(1, 3, 3)
ALL = Identities(drafter="d", target="t", codec="c", scorer="s")


def block_key(
    *,
    identities: Identities = ALL,
    noise: KeyedNoise | None = None,
    model: str = "d",
    blocks: tuple[Block, ...] | None = None,
    span: Span = SECOND,
    prompt: int = 5,
    given: tuple[int, ...] = (),
) -> str:
    history = History(blocks=(block_at(0, 1),) if blocks is None else blocks)
    estimates = [block_at(3, seed).latents for seed in given]
    return Keys(identities, noise or make_noise()).block(model, history, span, condition(prompt), estimates)


def test_everything_a_block_follows_from_is_in_its_key() -> None:
    """Catches: a key without the take, the model, the codec, an earlier block or an earlier condition."""
    keys = [
        block_key(),
        block_key(model="t"),
        block_key(identities=replace(ALL, codec="other")),
        block_key(noise=make_noise(43)),
        block_key(noise=replace(make_noise(), channels=5)),
        block_key(noise=replace(make_noise(), height=6)),
        block_key(noise=replace(make_noise(), width=6)),
        block_key(blocks=()),
        block_key(blocks=(block_at(0, 2),)),
        block_key(blocks=(block_at(0, 1, prompt=6),)),
        block_key(blocks=(block_at(0, 1), block_at(3, 2))),
        block_key(span=Span(2, 3, 3)),
        block_key(span=Span(1, 4, 3)),
        block_key(span=Span(1, 3, 4)),
        block_key(span=Span(1, 3, 3, take=2)),
        block_key(prompt=6),
        block_key(given=(7,)),
        block_key(given=(8,)),
        block_key(given=(7, 8)),
        block_key(given=(8, 7)),
    ]
    assert len(set(keys)) == len(keys)


def test_a_key_goes_by_content_and_not_by_object_or_by_what_no_block_follows_from() -> None:
    assert block_key() == block_key()
    assert block_key(identities=replace(ALL, scorer="other", target="other")) == block_key()
    words = Block(Span(0, 0, 3), block_at(0, 1).latents, Condition(condition(5).embedding, "x", "y"))
    assert block_key(blocks=(words,)) == block_key()


def test_everything_scores_follow_from_is_in_their_key() -> None:
    """Catches: scores that are kept without the codec, the text, or what the draft was decoded after."""

    def key(*arguments: Any, identities: Identities = ALL) -> str:
        return Keys(identities, make_noise()).scores(*arguments)

    keys = [
        key(["a"], "b", "a red ball"),
        key(["a"], "b", "a red ball", identities=replace(ALL, scorer="other")),
        key(["a"], "b", "a red ball", identities=replace(ALL, codec="other")),
        key(["a"], "c", "a red ball"),
        key([], "b", "a red ball"),
        key(["c", "a"], "b", "a red ball"),
        key(["a"], "b", "a blue cube"),
    ]
    assert len(set(keys)) == len(keys)
    assert key(("a",), "b", "a red ball", identities=replace(ALL, drafter="other", target="other")) == keys[0]


def test_a_tensor_that_is_gone_gives_its_name_to_no_other() -> None:
    """An address is used again; a key must not come with it."""
    keys = Keys(ALL, make_noise())
    names = set()
    for value in range(50):
        tensor = torch.full((2, 2), float(value))
        names.add(keys.tensor(tensor))
        del tensor
    assert len(names) == 50
    named = torch.zeros(2, 2)
    keys.name("from a call", (), named)
    assert keys.tensor(named) == "from a call"
    assert keys.tensor(named.clone()) != "from a call"
