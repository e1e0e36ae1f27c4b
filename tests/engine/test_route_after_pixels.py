"""Where the route begins: with the clip, or with the first new block after a clip that was given as pixels.

The kind: whatever counts blocks for a decision counts those that a model of this engine made. Noise, takes,
directions and the blocks' numbers go on counting the clip's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.engine.inputs import BlockInputs, StartClip
from sdvg_core.engine.plan import NO_TARGET_BLOCK, Lead, RunPlan, plan_blocks
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.routing import decide_early, handover_at
from sdvg_core.engine.run import Run
from sdvg_core.engine.speculate import EmittedBlock
from sdvg_core.engine.wrappers import drift
from sdvg_core.errors import BadInput
from sdvg_core.settings.decision import Decision
from sdvg_core.settings.route import ROUTE_PRESETS, At, Custom, First, Gate, Route, Stride, TargetOnly
from tests.support.routers import RandomRouter
from tests.support.thinned import in_turn
from tests.support.tiny import (
    POLICIES,
    PROMPT,
    SIZE,
    generator_of,
    latents_of,
    make_engine,
    make_framewise,
    make_noise,
    scripted,
)

SIZES = {"drafter": 3, "target": 3}
CLIP_BLOCKS = 7
EIGHT = 8
FIRST_TWO = Route(First(2), handover=2)


@dataclass
class EveryOther:
    """A custom router that remembers the places it was asked for. Without a hash, as dataclasses are."""

    asked: list[int] = field(default_factory=list)
    needs_scorer: bool = False

    def keep(self, index: int, score: float | None) -> bool:
        self.asked.append(index)
        return index % 2 == 1


ROUTERS = {
    **ROUTE_PRESETS,
    "four first": Route(First(4), handover=1),
    "stride": Route(Stride(3), handover=1),
    "plan": scripted("tdtdtdtd", forced_blocks=0),
    "scored plan": scripted("rraarara"),
    "random": Route(Custom(RandomRouter(0.5), forced_blocks=0), handover=1),
    "drafter": Route(First(0)),
    "custom": Route(Custom(EveryOther(), forced_blocks=0)),
    "custom, scored": Route(Custom(EveryOther(needs_scorer=True)), handover=1),
}


def small(route: Route) -> Route:
    """Return a route for the tiny models, which have two steps, and of whose drafts a tau of 0.3 keeps some."""
    policy = replace(route.policy, tau=0.3) if isinstance(route.policy, Gate) else route.policy
    return replace(route, policy=policy, handover=min(route.handover, 1))


def clip_of(frames: int) -> Tensor:
    return torch.randn(1, 4, frames, *SIZE, generator=generator_of(9))


def blocks_after(
    router: Route, given: Tensor, from_pixels: int, blocks: int, engine: Engine | None = None, **options: Any
) -> list[EmittedBlock]:
    """Return the blocks of a run after `given`, whose first latent frames came as pixels."""
    engine = engine or make_engine()
    plan = planned(router, given.shape[2], from_pixels, blocks)
    inputs = BlockInputs(make_noise(), lambda _: PROMPT, StartClip(given))
    return list(Run(engine=engine, plan=plan, inputs=inputs, **options).blocks())


def planned(router: Route, frames: int, from_pixels: int, blocks: int = EIGHT, **options: Any) -> RunPlan:
    lead = Lead(frames=frames, from_pixels=from_pixels)
    return plan_blocks(router, blocks=blocks, **{"block_frames": SIZES, "lead": lead, **options})


def authors(blocks: list[EmittedBlock]) -> str:
    """Return who made each: `t` the target, `h` the target from the drafter's first steps, `d` the drafter."""
    return "".join("h" if block.record.handover else block.record.author[0] for block in blocks)


def decisions(plan: RunPlan) -> list[tuple[Decision | None, int]]:
    """Return what is known of each block before it is drafted: its decision, and the steps that are handed over."""
    return [(decide_early(plan.route, block, ()), handover_at(plan.route, block)) for block in plan.blocks]


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("frames", [3, 7, 3 * CLIP_BLOCKS])
def test_route_after_pixels_begins_anew(name: str, frames: int) -> None:
    """By what each block may be before a draft is scored, and by the steps that are handed over."""
    router = small(ROUTERS[name])
    plan = planned(router, frames, frames)
    new_clip = planned(router, 0, 0)
    assert plan.spans[0].index == frames // 3
    assert plan.models_needed == new_clip.models_needed
    assert plan.notes == new_clip.notes == ()
    assert decisions(plan) == decisions(new_clip)


@pytest.mark.parametrize("name", ROUTERS)
def test_route_after_start_image_is_a_new_clips(name: str) -> None:
    """Numbers of blocks, and so noise, takes and directions, too. Catches: a start image that counts as a block."""
    router = small(ROUTERS[name])
    options = {"takes": "2:3", "directions": ".td....d"}
    plan = planned(router, 0, 0, lead=Lead(picture=True), **options)
    new_clip = planned(router, 0, 0, **options)
    assert [span.index for span in plan.spans] == [span.index for span in new_clip.spans]
    assert [span.take for span in plan.spans] == [span.take for span in new_clip.spans]
    assert plan.models_needed == new_clip.models_needed
    assert decisions(plan) == decisions(new_clip)


def test_block_after_a_start_image_is_the_first() -> None:
    """By its steps, and as what drift is measured from. Catches: a first block told by its frame, or its number."""
    engine = make_engine("incremental", first_schedule="1000,800,625")
    plan = planned(Route(TargetOnly()), 3, 0, 3, lead=Lead(frames=3, start_image_frames=3))
    inputs = BlockInputs(make_noise(), lambda _: PROMPT, StartClip(clip_of(3)))
    emitted = list(Run(engine=engine, plan=plan, inputs=inputs).blocks())
    first, second, third = (shown.block.latents for shown in emitted)
    assert [shown.record.target.denoising_passes for shown in emitted] == [3, 2, 2]
    assert [shown.record.drift for shown in emitted] == [None, drift(second, first), drift(third, first)]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_start_image_alone_is_shown_as_one_frame(odd: int) -> None:
    """A drafter of single frames made the clip, which is continued in threes. Catches: an odd beginning lost."""
    engine = make_engine()
    clip = clip_of(3 + odd)
    lead = Lead(frames=3 + odd, start_image_frames=3)
    run = Run(
        engine=engine,
        plan=planned(Route(TargetOnly()), 3, 0, 1, lead=lead),
        inputs=BlockInputs(make_noise(), lambda _: PROMPT, StartClip(clip)),
    )
    first = next(iter(run.play())).frames
    decoded = engine.codec.decode(clip)[0]
    assert first.shape[1] == 1 + 4 * odd
    assert torch.equal(first, torch.cat([decoded[:, :1], decoded[:, 9:]], dim=1))


@pytest.mark.parametrize("needs_scorer", [False, True])
def test_custom_router_sees_places_after_the_clip(needs_scorer: bool) -> None:
    router = EveryOther(needs_scorer=needs_scorer)
    blocks = blocks_after(Route(Custom(router, forced_blocks=0)), clip_of(9), 9, 4)
    assert authors(blocks) == "tdtd"
    assert set(router.asked) == {0, 1, 2, 3}


@in_turn("name, policy", ROUTERS, POLICIES)
def test_two_runs_of_two_blocks_equal_one(name: str, policy: str) -> None:
    """The second goes on from the latents of the first. Catches a count that begins anew with every run."""
    router = small(ROUTERS[name])
    clip = clip_of(7)
    at_once = blocks_after(router, clip, 7, 4, make_engine(policy))
    first = blocks_after(router, clip, 7, 2, make_engine(policy))
    longer = torch.cat([clip, latents_of(first)], dim=2)
    both = first + blocks_after(router, longer, 7, 2, make_engine(policy))
    assert [shown.block.span for shown in both] == [shown.block.span for shown in at_once]
    assert [shown.record.decision for shown in both] == [shown.record.decision for shown in at_once]
    assert torch.equal(latents_of(both), latents_of(at_once))


def test_noise_after_pixels_follows_the_clip() -> None:
    """So do the first timesteps. Catches a block that is numbered by its place."""
    clip = clip_of(3 * CLIP_BLOCKS)
    after_pixels, after_latents = (
        blocks_after(
            Route(TargetOnly()), clip, frames, 3, make_engine("incremental", first_schedule="1000,800,625")
        )
        for frames in (clip.shape[2], 0)
    )
    assert [shown.block.span.index for shown in after_pixels] == [7, 8, 9]
    assert torch.equal(latents_of(after_pixels), latents_of(after_latents))


def test_smaller_drafter_begins_at_the_same_block() -> None:
    router = small(FIRST_TWO)
    assert authors(blocks_after(router, clip_of(9), 9, 3, make_framewise())) == "thd"


def test_drafter_alone_counts_its_own_smaller_blocks() -> None:
    plan = planned(Route(First(0)), 9, 9, block_frames={"drafter": 1})
    assert plan.blocks[0].place == 0
    assert plan.spans[0].index == 9


def test_drafts_of_a_stride_keep_the_target_size() -> None:
    """Catches: the drafter's smaller blocks, counted by the same stride, in a run without a target block."""
    router = Route(Stride(4))
    plan = planned(router, 6, 0, 2, block_frames={"drafter": 1, "target": 3})
    assert [(span.index, span.frames) for span in plan.spans] == [(2, 3), (3, 3)]
    assert plan.models_needed >= {"target"}, "whose blocks these are"
    assert plan.notes == (NO_TARGET_BLOCK,)


@pytest.mark.parametrize(
    ("router", "frames", "from_pixels", "options", "noted"),
    [
        (FIRST_TWO, 9, 0, {}, True),
        (ROUTE_PRESETS["careful"], 9, 0, {}, False),  # its fourth block is the first new one
        (ROUTE_PRESETS["careful"], 12, 0, {}, True),
        (Route(First(1)), 9, 0, {}, True),
        (Route(At((3,))), 9, 0, {}, True),
        (Route(At((3, 4))), 9, 0, {}, False),
        (FIRST_TWO, 9, 9, {}, False),
        (FIRST_TWO, 18, 9, {}, True),
        (FIRST_TWO, 9, 0, {"directions": ".......t"}, False),
        (FIRST_TWO, 9, 0, {"directions": "d" * EIGHT}, False),
        (Route(), 9, 0, {}, False),
        (Route(First(0)), 9, 0, {}, False),
        (Route(Stride(11)), 9, 0, {}, True),
        (Route(Stride(10)), 9, 0, {}, False),
        (Route(Stride(11)), 9, 9, {}, False),
        (Route(First(1)), 9, 0, {"block_frames": {"drafter": 3}}, False),
    ],
)
def test_route_without_a_target_block_is_noted(
    router: Route, frames: int, from_pixels: int, options: Any, noted: bool
) -> None:
    """Only where it is the count that leaves none: not the directions, nor a route that never asks for it."""
    assert (NO_TARGET_BLOCK in planned(router, frames, from_pixels, **options).notes) is noted


@pytest.mark.parametrize(
    "frames", [{"from_pixels": 10}, {"from_pixels": -1}, {"from_pixels": 9, "start_image_frames": 3}], ids=str
)
def test_impossible_frames_from_pixels_are_refused(frames: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="given as pixels"):
        Lead(frames=9, **frames)
