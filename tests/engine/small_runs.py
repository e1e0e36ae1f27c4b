"""Runs over the tiny models: a request is one value, and a finished run holds what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from sdvg_core.causal_wan.context import AnchorEncoder
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.protocols import Engine, WrappedGenerator
from sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_core.engine.reuse import PartKeys, PixelStore, Reuse, Store, Tensors
from sdvg_core.engine.run import Run
from sdvg_core.engine.wrappers import FramewiseAdapter
from sdvg_core.settings.decision import Decision
from sdvg_core.settings.request import DrafterContext, Strength
from sdvg_core.settings.route import Custom, Gate, Policy, Route, WorstFrame
from sdvg_core.text.prompts import Conditions
from tests.support import tiny
from tests.support.routers import RandomRouter
from tests.support.tiny import (
    CONFIG,
    SIZE,
    BrightScorer,
    EchoCodec,
    condition,
    generator_of,
    make_generator,
    shared_tree,
)

PAPER = Route(Gate(0.3))  # the paper's route; this tau keeps about half of the drafts
ROUTERS = {
    "reward": PAPER,
    "repair": Route(Gate(0.3), handover=1),
    "handover": Route(Custom(RandomRouter(0.5)), handover=1),
    "cascade": Route(Gate(0.3, by=WorstFrame(0.1)), handover=1),
}
Call = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class TinyRequest:
    """A video of the tiny models. `prompts`: first block, seed of the embedding, and text of each.

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

    def with_policy(self, policy: Policy) -> TinyRequest:
        return replace(self, route=replace(self.route, policy=policy))

    def with_gate(self, **changes: Any) -> TinyRequest:
        """Change values of the policy, a gate."""
        return self.with_policy(replace(self.route.policy, **changes))


class PaleCodec(EchoCodec):
    """Another codec, so that the same latents look otherwise."""

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        frames, state = super().decode(latents, state)
        return frames * 0.98, state


class ReadingScorer(BrightScorer):
    """Brightness, and the length of the text."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        return super().score(frames, prompt) + 0.2 * (len(prompt) - len("a red ball"))


class RecordingGenerator(WrappedGenerator):
    """Writes down which blocks were begun, and which of them were finished."""

    def __init__(self, inner: Any, begun: list[Call], done: list[Call]) -> None:
        super().__init__(inner)
        self._begun = begun
        self._done = done

    def generate(self, call: BlockCall) -> Any:
        record = (f"{self.name} after {call.history.frames}", call.span.index)
        self._begun.append(record)
        generated = self.inner.generate(call)
        self._done.append(record)
        return generated


@dataclass(kw_only=True, eq=False)
class Parts:
    """The parts of a run, and which blocks its models began and finished."""

    engine: Engine
    begun: list[Call]
    done: list[Call]
    codec: EchoCodec
    scorer: ReadingScorer


@dataclass(kw_only=True, eq=False)
class FinishedRun:
    """All latents and frames of a run, and its records. `used`: by block, results by key."""

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
        """How many blocks come before the first for which something was generated."""
        return next((n for n, record in enumerate(self.records) if not record.reused), len(self.records))

    @property
    def calls(self) -> list[Call]:
        return self.parts.begun

    def blocks_of(self, model: str) -> list[int]:
        """Return the blocks that a model was called for."""
        return [index for name, index in self.calls if name.startswith(model)]


CODECS = {"echo": EchoCodec, "pale": PaleCodec}


def parts_of(request: TinyRequest, before_pass: Callable[[str], None] = lambda kind: None) -> Parts:
    codec = CODECS[request.codec]()
    scorer = ReadingScorer()
    begun: list[Call] = []
    done: list[Call] = []
    build = partial(
        make_generator,
        codec=codec,
        policy=request.policy,
        schedule=request.schedule,
        encoder=AnchorEncoder(codec.encode),
        before_pass=before_pass,
    )
    undo = 3 // request.own_frames - 1
    drafting = {"undo": undo, "block_frames": request.own_frames, "draft_steps": request.draft_steps}
    drafter: Any = build(0, name="drafter", tree=shared_tree(request.drafter), **drafting)
    if request.own_frames < 3:
        drafter = FramewiseAdapter(drafter, 3)
    target = build(0, name="target", tree=shared_tree(request.target))
    engine = Engine(
        drafter=RecordingGenerator(drafter, begun, done),
        target=RecordingGenerator(target, begun, done),
        codec=codec,
        scorer=scorer,
    )
    return Parts(engine=engine, begun=begun, done=done, codec=codec, scorer=scorer)


def part_keys(request: TinyRequest) -> PartKeys:
    """Models are told apart by weights and schedule alone, so that the same ones in other roles are the same."""
    model = f"{request.policy}, {request.schedule}, weights"
    return PartKeys(
        drafter=f"{model} {request.drafter}"
        + (f" in {request.own_frames}" if request.own_frames < 3 else "")
        + (f" of {request.draft_steps}" if request.draft_steps else ""),
        target=f"{model} {request.target}",
        codec=request.codec,
        scorer="reading",
    )


def conditions(request: TinyRequest) -> Conditions:
    """New objects each time: only their content may count."""
    return Conditions(
        tuple(
            (first, replace(condition(seed, text), cut=first in request.cuts))
            for first, seed, text in request.prompts
        )
    )


def clip_of(request: TinyRequest) -> Tensor | None:
    if request.clip is None:
        return None
    seed, frames = request.clip
    return torch.randn(1, CONFIG.in_dim, frames, *SIZE, generator=generator_of(seed))


def restyled_in(request: TinyRequest) -> dict[str, Any]:
    """Return the options that restyle a fixed clip."""
    if request.strength is None:
        return {}
    source = torch.randn(1, CONFIG.in_dim, 3 * request.blocks, *SIZE, generator=generator_of(73))
    return {"source": source, "strengths": (request.strength,) * request.blocks}


def planned_run(request: TinyRequest, parts: Parts, store: Store | None, pixels: PixelStore | None = None) -> Run:
    if store is not None:
        store.begin_run()
    return tiny.planned(
        parts.engine,
        request.route,
        condition_of=conditions(request),
        blocks=request.blocks,
        seed=request.seed,
        directions=request.directions,
        takes=request.takes,
        drafter_context=request.context,
        given=clip_of(request),
        colour_hold=request.hold,
        **restyled_in(request),
        reuse=None if store is None else Reuse(store=store, part_keys=part_keys(request), pixels=pixels),
    )


def play(
    request: TinyRequest, store: Store | None = None, parts: Parts | None = None, pixels: PixelStore | None = None
) -> FinishedRun:
    parts = parts or parts_of(request)
    run = planned_run(request, parts, store, pixels)
    assert not parts.begun, "to plan a run, no model is called"
    assert parts.codec.decodes == parts.codec.encodes == parts.scorer.calls == 0
    frames = []
    records = []
    used = []
    for shown in run.play():
        frames.append(shown.frames)
        if shown.record:
            records.append(shown.record)
            used.append(store.take_used() if store else {})
    latents = shown.history.latents(0, shown.history.frames)
    return FinishedRun(
        run=run, parts=parts, latents=latents, frames=torch.cat(frames, dim=1), records=records, used=used
    )


@cache
def fresh_run(request: TinyRequest) -> FinishedRun:
    """Play a request once for all tests, without a store; nobody may change what it returns."""
    return play(request)


@cache
def stored_run(request: TinyRequest) -> FinishedRun:
    """Play a request once for all tests with an empty store, which changes nothing, as test_reuse.py proves."""
    return play(request, Store())


def store_after(run: FinishedRun, blocks: int | None = None) -> Store:
    """Return a store with what the first blocks of a `stored_run` left in one; None: all of them."""
    store = Store()
    store.begin_run()
    for used in run.used[:blocks]:
        for key, result in used.items():
            store.put(key, result)
    return store


def decided(record: BlockRecord) -> BlockRecord:
    """Return a record without what a block that is re-used need not do again."""
    return replace(record, draft=None, target=None, decodes=0, seconds=Seconds(), reused=False)


def assert_same_run(run: FinishedRun, expected: FinishedRun) -> None:
    """The same video by the same decisions."""
    assert_same_video(run, expected)
    assert [decided(record) for record in run.records] == [decided(record) for record in expected.records]


def assert_same_video(run: FinishedRun, expected: FinishedRun) -> None:
    """The same video, by whatever decisions."""
    assert torch.equal(run.latents, expected.latents)
    assert torch.equal(run.frames, expected.frames)


def authors(run: FinishedRun) -> str:
    """Return who made each block: `d` the drafter, `t` the target."""
    return "".join(record.author[0] for record in run.records)
