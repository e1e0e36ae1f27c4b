"""What a store of earlier results may change of a run: which models are called, and nothing else.

Bit for bit over tiny generators: what is made with a store is compared with what is made from nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.causal_wan.context import AnchorEncoder
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.protocols import Engine, WrappedGenerator
from sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_core.engine.reuse import PartKeys, PixelStore, Reuse, Store, Tensors
from sdvg_core.engine.run import Run
from sdvg_core.engine.types import Condition, Cost
from sdvg_core.engine.wrappers import FramewiseAdapter
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.request import DrafterContext, Strength
from sdvg_core.settings.route import Custom, First, Gate, Mean, Policy, Route, Stride, TargetOnly, WorstFrame
from sdvg_core.text.prompts import Conditions
from tests.support import tiny
from tests.support.routers import PlannedRouter, RandomRouter, planned_route
from tests.support.thinned import every_pair, in_turn
from tests.support.tiny import (
    CONFIG,
    CONTEXTS,
    LONG,
    POLICIES,
    SIZE,
    BrightScorer,
    EchoCodec,
    condition,
    generator_of,
    make_generator,
    planned,
    random_tree,
)

PAPER = Route(Gate(0.3))  # the paper's route; this tau keeps about half of the drafts
ROUTERS = {
    "reward": PAPER,
    "repair": Route(Gate(0.3), handover=1),
    "handover": Route(Custom(RandomRouter(0.5)), handover=1),
    "cascade": Route(Gate(0.3, by=WorstFrame(0.1)), handover=1),
}
# Overlap refuses a drafter that needs the pixels of its own drafts.
WAYS = list(product(POLICIES, CONTEXTS))
Call = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A video that is asked for. `prompts`: first block, seed of the embedding, and text of each.

    `drafter`, `target`: seeds of their weights.
    `own_frames`: latent frames of the drafter's own blocks. `clip`: seed and latent frames of a clip to continue.
    `strength`: of restyling a fixed clip; None restyles nothing.
    """

    policy: str = "recompute"
    context: DrafterContext = "committed"
    route: Route = PAPER
    blocks: int = 9
    seed: int = 42
    directions: str = ""
    takes: str = ""
    prompts: tuple[tuple[int, int, str], ...] = ((0, 5, "a red ball"),)
    drafter: int = 1
    target: int = 2
    schedule: str = "1000,625"
    draft_steps: int | None = None
    codec: str = "echo"
    own_frames: int = 3
    clip: tuple[int, int] | None = None
    cuts: tuple[int, ...] = ()
    hold: float = 0.0
    strength: Strength | None = None

    def by(self, policy: Policy) -> Asked:
        return replace(self, route=replace(self.route, policy=policy))

    def with_policy(self, **changes: Any) -> Asked:
        return self.by(replace(self.route.policy, **changes))


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

    def generate(self, call: BlockCall) -> Any:
        noted = (f"{self.name} after {call.history.frames}", call.span.index)
        self._begun.append(noted)
        made = self.inner.generate(call)
        self._done.append(noted)
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
    """A finished run: all latents, all frames, and everything that was noted. `used`: by block, results by key."""

    run: Run
    parts: Parts
    latents: Tensor
    frames: Tensor
    records: list[BlockRecord] = field(default_factory=list)
    used: list[dict[str, Tensors]] = field(default_factory=list)

    @property
    def decisions(self) -> list[Decision]:
        return [record.decision for record in self.records]

    @property
    def reused(self) -> int:
        """How many blocks come before the first one for which something was made."""
        return next((n for n, record in enumerate(self.records) if not record.reused), len(self.records))

    @property
    def calls(self) -> list[Call]:
        return self.parts.begun

    def asked_of(self, model: str) -> list[int]:
        return [index for name, index in self.calls if name.startswith(model)]


tree = lru_cache(random_tree)
CODECS = {"echo": EchoCodec, "pale": PaleCodec}


def parts_of(asked: Asked, before_pass: Callable[[str], None] = lambda kind: None) -> Parts:
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
    undo = 3 // asked.own_frames - 1
    drafting = {"undo": undo, "block_frames": asked.own_frames, "draft_steps": asked.draft_steps}
    drafter: Any = build(0, name="drafter", tree=tree(asked.drafter), **drafting)
    if asked.own_frames < 3:
        drafter = FramewiseAdapter(drafter, 3)
    target = build(0, name="target", tree=tree(asked.target))
    noted = [NotedGenerator(model, begun, done) for model in (drafter, target)]
    engine = Engine(drafter=noted[0], target=noted[1], codec=codec, scorer=scorer)
    return Parts(engine=engine, begun=begun, done=done, codec=codec, scorer=scorer)


def part_keys(asked: Asked) -> PartKeys:
    """Models are told apart by weights and schedule alone, so that the same ones in other roles are the same."""
    model = f"{asked.policy}, {asked.schedule}, weights"
    return PartKeys(
        drafter=f"{model} {asked.drafter}"
        + (f" in {asked.own_frames}" if asked.own_frames < 3 else "")
        + (f" of {asked.draft_steps}" if asked.draft_steps else ""),
        target=f"{model} {asked.target}",
        codec=asked.codec,
        scorer="reading",
    )


def conditions(asked: Asked) -> Conditions:
    """New objects each time: only their content may count."""
    made = [(first, condition(seed, text)) for first, seed, text in asked.prompts]
    return Conditions(tuple((first, replace(one, cut=first in asked.cuts)) for first, one in made))


def clip_of(asked: Asked) -> Tensor | None:
    if asked.clip is None:
        return None
    seed, frames = asked.clip
    return torch.randn(1, CONFIG.in_dim, frames, *SIZE, generator=generator_of(seed))


def restyled_in(asked: Asked) -> dict[str, Any]:
    """Return the options that restyle a fixed clip as asked for."""
    if asked.strength is None:
        return {}
    source = torch.randn(1, CONFIG.in_dim, 3 * asked.blocks, *SIZE, generator=generator_of(73))
    return {"source": source, "strengths": (asked.strength,) * asked.blocks}


def planned_run(asked: Asked, parts: Parts, store: Store | None, pixels: PixelStore | None = None) -> Run:
    if store is not None:
        store.begin_run()
    return tiny.planned(
        parts.engine,
        asked.route,
        condition_of=conditions(asked),
        blocks=asked.blocks,
        seed=asked.seed,
        directions=asked.directions,
        takes=asked.takes,
        drafter_context=asked.context,
        given=clip_of(asked),
        colour_hold=asked.hold,
        **restyled_in(asked),
        reuse=None if store is None else Reuse(store=store, part_keys=part_keys(asked), pixels=pixels),
    )


def made(
    asked: Asked, store: Store | None = None, parts: Parts | None = None, pixels: PixelStore | None = None
) -> Made:
    parts = parts or parts_of(asked)
    run = planned_run(asked, parts, store, pixels)
    assert not parts.begun, "to plan a run, no model is called"
    assert parts.codec.decodes == parts.codec.encodes == parts.scorer.calls == 0
    records, frames, used = [], [], []
    for one in run.play():
        frames.append(one.frames)
        if one.record:
            records.append(one.record)
            used.append(store.take_used() if store else {})
    latents = one.history.latents(0, one.history.frames)
    return Made(run=run, parts=parts, latents=latents, frames=torch.cat(frames, dim=1), records=records, used=used)


def what_was_decided(record: BlockRecord) -> BlockRecord:
    """A record without what a block that is re-used need not do again."""
    return replace(record, draft=None, target=None, decodes=0, seconds=Seconds(), reused=False)


def same(one: Made, other: Made) -> None:
    same_video(one, other)
    assert [what_was_decided(record) for record in one.records] == list(map(what_was_decided, other.records))


def same_video(one: Made, other: Made) -> None:
    """The same video by other decisions."""
    assert torch.equal(one.latents, other.latents)
    assert torch.equal(one.frames, other.frames)


def route(one: Made) -> str:
    return "".join("a" if record.author == "drafter" else "r" for record in one.records)


def works(record: BlockRecord) -> list[Cost | None]:
    return [work and replace(work, context_seconds=0.0) for work in (record.draft, record.target)]


# --- cut after any block

KINDS_OF_RUN = {
    **{name: {"route": router} for name, router in ROUTERS.items()},
    "bail-out": {"route": planned_route("raarraaaa", bail_out=2)},
    "stride": {"route": Route(Stride(3), handover=1)},
    "frame-wise": {"route": ROUTERS["repair"], "own_frames": 1},
    "short drafts": {"route": ROUTERS["cascade"], "schedule": "1000,800,625", "draft_steps": 1},
    "after a clip": {"clip": (71, 6)},
}


def check_cut(asked: Asked, store: Store, cuts: tuple[int, ...]) -> None:
    """Fill a store by a whole run, which costs nothing; one that knows the blocks up to a cut ends as it did."""
    whole, alone = made(asked, store), made(asked)
    same(whole, alone)
    assert whole.calls == alone.calls
    assert list(map(works, whole.records)) == list(map(works, alone.records))
    for cut in cuts:
        known = Store()
        for used in whole.used[:cut]:
            for key, result in used.items():
                known.put(key, result)
        again = made(asked, known)
        assert again.reused == cut
        same(again, whole)


@in_turn("kind, context, policy", KINDS_OF_RUN, CONTEXTS, POLICIES)
def test_a_run_that_knows_what_its_first_blocks_were_made_from_ends_as_if_it_had_not_been_cut(
    policy, context, kind
):
    """Catches: a first block compared with nothing, rejections in a row forgotten, a score of the block after."""
    asked, store = Asked(policy=policy, context=context, **KINDS_OF_RUN[kind]), Store()
    check_cut(asked, store, (1, 5, 8))


TWO_SCENES = {"prompts": ((0, 5, "a red ball"), (4, 6, "a blue ball")), "cuts": (4,), "hold": 0.3}


@in_turn("policy, context, own_frames", tuple(LONG), CONTEXTS, (1, 3))
def test_a_long_clip_that_was_cut_after_any_block_ends_as_if_it_had_not(policy, context, own_frames):
    """Catches: a scene, a flush or a hold that follows from what a generator happened to see before."""
    asked, store = Asked(policy=policy, context=context, own_frames=own_frames, **TWO_SCENES), Store()
    check_cut(asked, store, (2, 6))
    for change in ({"hold": 0.0}, {"hold": 0.5}, {"cuts": ()}):
        changed = replace(asked, **change)
        again = made(changed, store)
        same(again, made(changed))
        assert again.reused == (4 if "cuts" in change else 0)


def test_the_bail_out_of_these_runs_does_depend_on_what_was_before():
    assert [d.reason for d in made(Asked(**KINDS_OF_RUN["bail-out"])).decisions][-4:] == [Reason.BAILED_OUT] * 4


# --- pairs of runs: each of these is another in the second one

BALL, CUBE, LATER = (0, 5, "a red ball"), (1, 6, "a blue cube"), (5, 6, "a blue cube")
BASES = (
    Asked(blocks=5, route=Route(Gate(0.3), handover=1), directions="...d."),
    Asked(blocks=5, policy="incremental", route=Route(Gate(0.6, bail_out=2)), own_frames=1),
    Asked(blocks=5, policy="incremental", context="own", clip=(71, 3), takes="2:2"),
    Asked(blocks=5, context="own", clip=(71, 4), route=Route(Gate(0.0, forced_blocks=2)), own_frames=1),
)
VARIED: dict[str, dict[str, Any]] = {
    "seed": {"seed": 43},
    "drafter": {"drafter": 3},
    "target": {"target": 3},
    "roles": {"drafter": 2, "target": 1},
    "schedule": {"schedule": "1000,500"},
    "codec": {"codec": "pale"},
    "clip": {"clip": (72, 4)},
    "length of the clip": {"clip": (71, 6)},
    "no clip": {"clip": None},
    "takes": {"takes": "2:3, 4:2"},
    "directions": {"directions": ".rtda"},
    "blocks": {"blocks": 7, "directions": "", "takes": ""},
    "prompt": {"prompts": (BALL, (3, 6, "a red ball"))},
    "text": {"prompts": ((0, 5, "a red ball   "),)},
    "context": {"context": "own"},
    "tau": {"policy": {"tau": 0.8}},
    "cascade": {"policy": {"by": WorstFrame(0.2)}},
    "tau of a cascade": {"policy": {"by": WorstFrame(0.1), "tau": 0.5}},
    "draft steps": {"draft_steps": 1},
    "handover": {"handover": 1},
    "forced blocks": {"policy": {"forced_blocks": 3}},
    "bail-out": {"policy": {"tau": 0.9, "bail_out": 1}},
    "aggregation": {"policy": {"by": Mean()}},
    "first": {"policy": First(1)},
    "stride": {"policy": Stride(2)},
    "target only": {"policy": TargetOnly()},
}


def varied(asked: Asked, change: str) -> Asked:
    changes = dict(VARIED[change])
    policy = changes.pop("policy", {})
    changed = asked.with_policy(**policy) if isinstance(policy, dict) else asked.by(policy)
    route = replace(changed.route, handover=changes.pop("handover", changed.route.handover))
    return replace(changed, **{"route": route, **changes})


ROOMY = 1e9


def check_pair(earlier: Asked, changed: Asked, room: float) -> None:
    """`room`: bytes for decoded frames and decoder states."""
    store, pixels = Store(1e9), PixelStore()
    made(earlier, store, pixels=pixels)
    store.limit = store.bytes + room
    again, nothing = made(changed, store, pixels=pixels), made(changed)
    same(again, nothing)
    called = {index for _, index in again.calls}
    assert not any(record.reused for record in again.records if record.span.index in called)
    assert set(again.calls) <= set(nothing.calls)
    last = made(changed, store, pixels=pixels)
    same(last, nothing)
    assert last.reused == changed.blocks or room < ROOMY, "of the same request nothing is left to make"


@in_turn("change, room, base", VARIED, (ROOMY, ROOMY, 60_000.0, 0.0, ROOMY), BASES)
def test_a_run_after_another_one_is_bit_for_bit_the_run_from_nothing(change: str, room: float, base: Asked) -> None:
    """Both after each other. Catches: every mistake of this file's list that changes a video."""
    check_pair(base, varied(base, change), room)
    check_pair(varied(base, change), base, room)


# --- what is made, and what is not, in counts

BASE, STRICT, MILD = Asked(), Asked(route=Route(Gate(0.3))), Asked(route=Route(Gate(0.1)))
LAX = Asked(route=Route(Gate(-9)), blocks=6)
CLIP = Asked(clip=(71, 3), blocks=3)
NEW_PROMPT = Asked(clip=(71, 3), blocks=2, prompts=(BALL, CUBE))
OTHER_PROMPT = replace(NEW_PROMPT, prompts=((0, 7, "a red ball"), CUBE))
# The earlier request, the changed one, and of the latter: blocks re-used, those asked of each model, and scores.
CHANGES = {
    "a tau that keeps the last draft": (STRICT, MILD, 9, [], [], 0),
    "a tau that rejects the last draft": (MILD, STRICT, 8, [], [8], None),
    "more blocks": (replace(BASE, blocks=6), BASE, 6, None, None, None),
    "another prompt from block 6 on": (BASE, replace(BASE, prompts=(BALL, LATER)), 5, None, None, None),
    "a take of block 6": (BASE, replace(BASE, takes="6:2"), 5, None, None, None),
    "another target": (BASE, replace(BASE, target=3), 0, None, None, None),
    "another drafter": (BASE, replace(BASE, drafter=3), 1, list(range(1, 9)), None, None),
    "another clip": (CLIP, replace(CLIP, clip=(72, 3)), 0, None, None, None),
    "a longer clip": (CLIP, replace(CLIP, clip=(71, 6)), 0, None, None, None),
    "no clip": (CLIP, replace(CLIP, clip=None), 0, None, None, None),
    "another prompt over the clip": (NEW_PROMPT, OTHER_PROMPT, 0, None, None, None),
    "another text": (LAX, replace(LAX, prompts=((0, 5, "a red ball!"),)), 1, [], [], 5),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_change_makes_anew(policy: str, change: str) -> None:
    """Catches: a key without the take, the model, the clip's content or an earlier prompt; scores without text."""
    before, after, reused, drafted, by_target, scored = CHANGES[change]
    before, after, store = replace(before, policy=policy), replace(after, policy=policy), Store()
    first, again = made(before, store), made(after, store)
    same(again, made(after))
    assert again.reused == reused
    assert all(index >= reused for _, index in again.calls)
    assert drafted is None or again.asked_of("drafter") == drafted
    assert by_target is None or again.asked_of("target") == by_target
    assert scored is None or again.parts.scorer.calls == scored
    if "tau" not in change and change not in ("more blocks", "another text", "another prompt over the clip"):
        assert not torch.equal(again.latents[:, :, 3 * reused :], first.latents[:, :, 3 * reused :])


def test_a_prompt_in_other_words_with_the_same_embedding_is_told_by_its_new_words() -> None:
    asked, store = Asked(blocks=3), Store()
    made(asked, store)
    parts = parts_of(asked)
    words = Condition(condition(5).embedding, "ein roter Ball")
    reuse = Reuse(store=store, part_keys=part_keys(asked))
    run = planned(parts.engine, asked.route, condition_of=lambda _: words, blocks=3, reuse=reuse)
    shown = list(run.blocks())
    assert [block.record.prompt for block in shown] == ["ein roter Ball"] * 3
    assert all(block.block.condition is words for block in shown)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_draft_that_was_kept_without_its_first_estimates_is_made_again_for_a_repair(
    policy: str, context: DrafterContext
) -> None:
    """Catches: the block itself handed over to the target as if it were the first estimate."""
    asked, store = Asked(policy=policy, context=context), Store()
    made(asked, store)
    repaired = replace(asked, route=replace(asked.route, handover=1))
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
    """By its policy. Catches: steps of a draft with another name when they were made as part of a whole one."""
    asked, store = Asked(policy=policy, context=context, route=ROUTERS["repair"]), Store()
    before = made(asked, store)
    plan = "".join("d" if record.decision.accepted else "t" for record in before.records)
    again = made(asked.by(Custom(PlannedRouter(plan))), store)
    same_video(again, before)
    assert again.calls == []


def test_a_block_of_an_earlier_run_that_comes_up_in_the_middle_is_not_made_again() -> None:
    """After a block whose draft is scored, the loop meets known ones: they count as made earlier too."""
    store = Store()
    made(Asked(directions="tttttt", blocks=6), store)
    made(Asked(directions="ttdddd", blocks=6), store)
    # The draft of block 3 is known, but not its scores; the target's block 3 and what follows it are known.
    again = made(Asked(directions="ttrttt", blocks=6), store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (2, [], 1)
    assert [works(record)[1] for record in again.records] == [Cost()] * 6
    assert [record.reused for record in again.records] == [True, True, False, True, True, True]
    same(again, made(Asked(directions="ttrttt", blocks=6)))


# --- runs that were stopped


class Stop(Exception):
    """What a test interrupts a run with."""


@in_turn("way, router", WAYS, ["reward", "repair", "handover"], ids=str)
def test_a_run_stopped_at_any_pass_makes_no_finished_block_again(
    way: tuple[str, DrafterContext], router: str
) -> None:
    policy, context = way
    asked = Asked(policy=policy, context=context, route=ROUTERS[router], blocks=3)
    passes: list[str] = []
    whole = made(asked, parts=parts_of(asked, passes.append))
    if router in ("reward", "repair"):
        assert {"a", "r"} == set(route(whole)[1:])
    for number in range(1, len(passes) + 1):
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
        assert sorted(parts.done + again.calls) == sorted(whole.calls)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_draft_whose_every_step_is_handed_over_is_kept_as_any_other(steps):
    """Catches: one step kept without its only prediction, which ended the run; two, never found again."""
    asked = Asked(
        schedule="1000,800,625",
        draft_steps=steps,
        route=Route(TargetOnly(), handover=steps),
        blocks=3,
    )
    store = Store(1 << 30)
    fresh = made(asked)
    same(made(asked, store), fresh)
    again = made(replace(asked, seed=asked.seed), store)
    same(again, fresh)
    assert not again.parts.begun
    further = made(asked.by(Gate(9.0, forced_blocks=0)), store)
    assert len(further.records) == 3
