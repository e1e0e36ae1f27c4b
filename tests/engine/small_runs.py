"""Runs over the tiny models: what is asked for is one value, and what came of it is noted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
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
    random_tree,
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
