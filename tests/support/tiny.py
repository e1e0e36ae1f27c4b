"""Tiny models and doubles with known behaviour, shared by the tests."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.context import AnchorEncoder, ModelContext, RecomputedContext, RollingContext, Wan
from sdvg_core.causal_wan.forward import PLAIN_STAGES, Stages
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.causal_wan.modules import ControlTree, WanTree
from sdvg_core.engine.inputs import BlockCall, BlockInputs, KeyedNoise
from sdvg_core.engine.pixels import Decoder
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.routing import PlannedBlock
from sdvg_core.engine.run import Run, plan_run
from sdvg_core.engine.speculate import EmittedBlock, speculate
from sdvg_core.engine.types import Anchor, Block, Condition, Generated, History, Span, plan_spans
from sdvg_core.engine.wrappers import FramewiseAdapter
from sdvg_core.settings.context import Preset
from sdvg_core.settings.request import ROUTE_DECIDES, DrafterContext
from sdvg_core.settings.route import Route
from tests.support.routers import planned_route

CONFIG = WanConfig(
    dim=24, ffn_dim=32, num_layers=2, num_heads=2, text_dim=8, freq_dim=16, text_len=4, in_dim=4, out_dim=4
)
SIZE = (4, 4)
POLICIES = ("recompute", "incremental")
LONG = {
    "relative": ("incremental", {"relative": True, "flush": True}),
    "means": ("incremental", {"relative": True, "means": True}),
    "first kept": ("recompute", {"keep_first": True}),
}
"""Policies with the options of long clips."""
Net = TypeVar("Net", bound=nn.Module)
CONTEXTS = ("committed", "own")


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_tree(seed: int, config: WanConfig = CONFIG) -> WanTree:
    """A tree whose every weight matters: what it makes depends on context, prompt, position and timestep."""
    return _randomised(WanTree(config), seed)


@cache
def shared_tree(seed: int, config: WanConfig = CONFIG) -> WanTree:
    """Return that tree, one for all tests: what changes or watches it takes a `random_tree` of its own."""
    return random_tree(seed, config)


def random_module(seed: int, config: WanConfig = CONFIG, blocks: int = 1) -> ControlTree:
    """A control module whose every weight matters."""
    return _randomised(ControlTree(config, blocks), seed)


def _randomised(tree: Net, seed: int) -> Net:
    g = generator_of(seed)
    with torch.no_grad():
        for name, p in tree.named_parameters():
            fan_in = max(p[0].numel(), 1) if p.ndim > 1 else 1
            scale = 0.3 if p.ndim == 1 or "modulation" in name else 1.4 / fan_in**0.5
            p.copy_(
                torch.randn(p.shape, generator=g) * scale + (1.0 if "norm" in name and "weight" in name else 0.0)
            )
    return tree.requires_grad_(False).eval()


class EchoCodec:
    """A codec double: four pixel frames a latent frame, one for the clip's first; each also shows the two before.

    The state holds the two latest latent frames, so decoding from a wrong state cannot go unseen.
    """

    latent_channels = CONFIG.in_dim
    temporal_stride = 4
    spatial_stride = 2

    def __init__(self) -> None:
        self.decodes = 0
        self.encodes = 0

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.decodes += 1
        shown = []
        for x in latents.unbind(2):
            steps = 0.1 * torch.arange(1 if state is None else 4, dtype=x.dtype, device=x.device)
            older, old = state if state else (torch.zeros_like(x), torch.zeros_like(x))
            mixed = (x + 0.5 * old - 0.25 * older)[:, None, :3] + steps.view(-1, 1, 1, 1)
            large = F.interpolate(torch.sigmoid(mixed).flatten(0, 1), scale_factor=2.0, mode="nearest")
            shown.append(large.unflatten(0, mixed.shape[:2]))
            state = (old, x)
        return torch.cat(shown, dim=1), state

    def encode(self, frames: Tensor) -> Tensor:
        self.encodes += 1
        small = F.avg_pool2d(frames[:, ::4].flatten(0, 1), 2).unflatten(0, (frames.shape[0], -1))
        return torch.cat((small, small.mean(2, keepdim=True)), dim=2).transpose(1, 2) * 4 - 2


@dataclass
class BrightScorer:
    """A scorer double: a frame's score is its mean brightness, moved to spread around zero."""

    scale: float = 40.0
    calls: int = 0
    prompts: list[str] = field(default_factory=list)

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        self.calls += 1
        self.prompts.append(prompt)
        return (frames[0].flatten(1).mean(1) - 0.5).float() * self.scale

    def describe(self) -> Mapping[str, Any]:
        return {"name": "brightness", "notes": ()}

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        return ()


class CountingGenerator(CausalWanGenerator):
    """The real generator, which also writes down what it was asked for."""

    calls: tuple[tuple[int, int], ...] = ()

    def generate(self, call: BlockCall) -> Generated:
        self.calls = (*self.calls, (call.span.index, call.history.frames))
        return super().generate(call)


def make_generator(
    seed: int,
    codec: EchoCodec,
    policy: str = "recompute",
    *,
    name: str = "model",
    window: int = 9,
    sink: int = 3,
    undo: int = 0,
    recache: bool = False,
    relative: bool = False,
    trained: int | None = None,
    flush: bool = False,
    means: bool = False,
    keep_first: bool = False,
    frames: int = 3,
    block_frames: int = 3,
    schedule: str = "1000,625",
    first_schedule: str | None = None,
    draft_steps: int | None = None,
    encoder: AnchorEncoder | None = None,
    before_pass: Callable[[str], None] = lambda kind: None,
    tree: WanTree | None = None,
    tree_of: Callable[[int], WanTree] = shared_tree,
    stages: Stages = PLAIN_STAGES,
    ops: TorchOps | None = None,
    control: Any = None,
) -> CountingGenerator:
    context: ModelContext
    policy, long = LONG.get(policy, (policy, {}))
    if policy == "recompute":
        encode = encoder or AnchorEncoder(codec.encode)
        keep_first = keep_first or "keep_first" in long
        context = RecomputedContext(encode_anchor=encode, frames=frames, keep_first=keep_first)
    else:
        chosen: dict[str, Any] = {
            "recache": recache,
            "relative": relative,
            "trained": trained,
            "flush": flush,
            "means": means,
            **long,
        }
        context = RollingContext(window=window, sink=sink, undo=undo, **chosen)
    wan = Wan(
        tree=tree or tree_of(seed),
        ops=ops or TorchOps(torch.float32),
        preset=Preset(
            name=name,
            block_frames=block_frames,
            schedule=schedule,
            first_schedule=first_schedule,
            draft_steps=draft_steps,
        ),
        device=torch.device("cpu"),
        stages=stages,
        control=control,
    )
    return CountingGenerator(wan, name=name, context=context, before_pass=before_pass)


def make_engine(policy: str = "recompute", *, draft_steps: int | None = None, **options: Any) -> Engine:
    """A drafter and a target with different weights, and the doubles."""
    codec = EchoCodec()
    encoder = AnchorEncoder(codec.encode)
    drafter = make_generator(1, codec, policy, name="drafter", encoder=encoder, draft_steps=draft_steps, **options)
    target = make_generator(2, codec, policy, name="target", encoder=encoder, **options)
    return Engine(drafter=drafter, target=target, codec=codec, scorer=BrightScorer())


def make_framewise(policy: str = "recompute", *, own_frames: int = 1, **options: Any) -> Engine:
    """The same with a drafter whose own blocks are smaller than the target's three latent frames."""
    engine = make_engine(policy)
    assert isinstance(engine.codec, EchoCodec)
    pieces = 3 // own_frames
    small = make_generator(
        1, engine.codec, policy, name="drafter", block_frames=own_frames, undo=pieces - 1, **options
    )
    return replace(engine, drafter=FramewiseAdapter(small, 3))


def condition(seed: int = 5, text: str = "a red ball") -> Condition:
    embedding = torch.randn(1, CONFIG.text_len, CONFIG.text_dim, generator=generator_of(seed))
    return Condition(embedding, text)


def make_noise(seed: int = 42) -> KeyedNoise:
    return KeyedNoise(seed=seed, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])


PROMPT = condition()


class Script(NamedTuple):
    """A route, and a direction for each block of the clip."""

    route: Route
    directions: str = ""


def planned_blocks(spans: Sequence[Span], directions: str = "") -> tuple[PlannedBlock, ...]:
    """Blocks of a route that begins with the clip. `directions`: of the clip's blocks."""
    letters = directions.ljust(spans[-1].index + 1, ROUTE_DECIDES)
    return tuple(PlannedBlock(span=span, place=span.index, direction=letters[span.index]) for span in spans)


def run(
    engine: Engine,
    route: Route | Script,
    *,
    blocks: int = 9,
    seed: int = 42,
    drafter_context: DrafterContext = "committed",
    condition_of: Callable[[int], Condition] = lambda _: PROMPT,
    start: History | None = None,
) -> list[EmittedBlock]:
    assert engine.target is not None
    first = start.frames if start else 0
    spans = plan_spans(blocks, engine.target.block_frames, first)
    script = route if isinstance(route, Script) else Script(route)
    return list(
        speculate(
            engine,
            script.route,
            planned_blocks(spans, script.directions),
            BlockInputs(make_noise(seed), condition_of),
            drafter_context=drafter_context,
            start=start,
        )
    )


def planned(
    engine: Engine,
    route: Route,
    *,
    condition_of: Callable[[int], Condition] = lambda _: PROMPT,
    **options: Any,
) -> Run:
    """Plan a run as the study does: nine blocks of seed 42 in the doubles' size, unless told otherwise."""
    return plan_run(engine, route, condition_of, **{"blocks": 9, "seed": 42, "width": 8, "height": 8, **options})


def latents_shown(run: Run) -> Tensor:
    """Play a run, and return the latents of the blocks that have a record, made again or not."""
    blocks = [shown.block for shown in run.play() if shown.record]
    return torch.cat([block.latents for block in blocks], dim=2)


def history_of(blocks: tuple[Block, ...], codec: Any, horizon: int) -> tuple[History, Tensor]:
    """The history that ends with `blocks`, decoded from the start, and its frames."""
    shown = []
    history = History(horizon=horizon)
    for block in blocks:
        pixels = Decoder(codec).pixels(history, block)
        shown.append(pixels.frames())
        pixels.store()
        history = history.commit(block, pixels.anchors, pixels.state)
    return history, torch.cat(shown, dim=1)


def as_anchors(*frames: Tensor) -> tuple[Anchor, ...]:
    """Anchors of a history that is put together by hand."""
    return tuple(lambda frame=frame: frame for frame in frames)


def latents_of(emitted: Sequence[EmittedBlock]) -> Tensor:
    return torch.cat([e.block.latents for e in emitted], dim=2)


def frames_of(emitted: Sequence[EmittedBlock]) -> Tensor:
    return torch.cat([e.frames for e in emitted], dim=1)


def scripted(pattern: str, **options: Any) -> Route | Script:
    """A route by letters: a plan, with scores or without, or directions if it is mixed."""
    mixed = set(pattern) & set("ar") and set(pattern) & set("dt")
    return Script(Route(**options), pattern) if mixed else planned_route(pattern, **options)


def can_compile() -> bool:
    """Whether torch's own compiler finds what it needs for a CPU."""
    return bool(shutil.which("c++")) and Path(sysconfig.get_path("include"), "Python.h").is_file()
