"""Control and restyling: blocks that obey a clip, and blocks that start from one. Bit for bit, with tiny models."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from guided import (
    BLOCKS,
    CONTROL,
    DEPTH,
    INPUT,
    LIGHT,
    SCRIBBLE,
    STEPS,
    controlled,
    engine_of,
    made,
    restyled,
    run_of,
)

from sdvg_core.causal_wan import forward
from sdvg_core.causal_wan.generator import renoise
from sdvg_core.engine.inputs import ControlClip
from sdvg_core.engine.plan import NOT_HANDED_OVER, Lead, plan_blocks
from sdvg_core.engine.reuse import PartKeys, Reuse, Store
from sdvg_core.engine.routing import handover_at
from sdvg_core.errors import BadInput
from sdvg_core.settings.request import Strength, read_strength
from sdvg_core.settings.route import First, Route, TargetOnly
from sdvg_core.settings.schedules import get_schedule, lowered
from tests.support.thinned import every_pair
from tests.support.tiny import (
    CONFIG,
    CONTEXTS,
    POLICIES,
    latents_of,
    latents_shown,
    make_engine,
    scripted,
)

TARGET_ONLY = Route(TargetOnly())
DRAFTER_ONLY = Route(First(0))
PLAIN: dict[str, object] = {}


def changed_from(clip, frame):
    other = clip.clone()
    other[:, :, frame:] += 1
    return other


# --- of both


@pytest.mark.parametrize(
    "guide", [controlled(ControlClip(DEPTH, 0.0)), restyled(Strength()), restyled(read_strength("1"))]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_guide_without_strength_is_the_video_without_it(policy, guide):
    """Catches: a branch that changes what it is not asked for, an input that shows through."""
    assert torch.equal(made(engine_of(policy), TARGET_ONLY, guide), made(engine_of(policy), TARGET_ONLY, PLAIN))


STRENGTHS = (Strength(skip=1), Strength(skip=3), Strength(share=0.6))
GUIDES = (controlled(ControlClip(DEPTH), ControlClip(SCRIBBLE, 0.4)), *map(restyled, STRENGTHS))


@every_pair("guide, policy, context", GUIDES, POLICIES, CONTEXTS)
def test_rejecting_all_is_the_target_alone_and_keeping_all_the_drafter_alone(guide, policy, context):
    """Catches: a guide that one of the models does not see, or another part, step or noise of it."""
    rejected = made(engine_of(policy), scripted("r" * BLOCKS), guide, drafter_context=context)
    assert torch.equal(rejected, made(engine_of(policy), TARGET_ONLY, guide))
    kept = made(engine_of(policy), scripted("a" * BLOCKS, forced_blocks=0), guide, drafter_context=context)
    assert torch.equal(kept, made(engine_of(policy), DRAFTER_ONLY, guide))
    assert not torch.equal(kept, rejected)


EITHER = {
    "control": lambda clip: controlled(ControlClip(clip)),
    "input": lambda clip: restyled(LIGHT, source=clip[:, : CONFIG.in_dim]),
}


@every_pair("guide, router, policy", tuple(EITHER), (TARGET_ONLY, DRAFTER_ONLY, scripted("rara")), POLICIES)
def test_a_guide_that_changes_at_block_three_leaves_the_two_before_as_they_were(guide, router, policy):
    """Catches: a branch that looks beyond its own block, or takes another block's part."""
    one, two = (made(engine_of(policy), router, EITHER[guide](clip)) for clip in (DEPTH, changed_from(DEPTH, 6)))
    assert torch.equal(one[:, :, :6], two[:, :, :6])
    assert not torch.equal(one[:, :, 6:9], two[:, :, 6:9])


@pytest.mark.parametrize("guide", EITHER)
def test_frame_by_frame_a_guide_is_cut_as_the_block_is(guide):
    """A drafter of one latent frame. Catches: each of its frames from the block's first."""
    engine = replace(engine_of("incremental", framewise=True), target=engine_of("incremental").target)
    one, two = (made(engine, DRAFTER_ONLY, EITHER[guide](clip)) for clip in (DEPTH, changed_from(DEPTH, 2)))
    assert torch.equal(one[:, :, :2], two[:, :, :2])
    assert not torch.equal(one[:, :, 2], two[:, :, 2])


AGAIN = {
    "control": [
        *((controlled(CONTROL), 0), (controlled(CONTROL), 4), (controlled(ControlClip(changed_from(DEPTH, 9))), 3)),
        *((controlled(replace(CONTROL, strength=0.5)), 0), (controlled(CONTROL, CONTROL), 0), (PLAIN, 0)),
        (controlled(replace(CONTROL, strength=0.0)), 4),
    ],
    "input": [
        *((restyled(LIGHT), 0), (restyled(LIGHT), 4), (restyled(LIGHT, source=changed_from(INPUT, 9)), 3)),
        *((restyled(Strength(skip=1)), 0), (restyled(Strength(share=0.5)), 0), (PLAIN, 0)),
    ],
}


@pytest.mark.parametrize("requests", AGAIN.values(), ids=AGAIN)
def test_what_is_made_again_is_told_by_the_guide_and_its_strength(requests):
    """Also what a stopped run left. Catches: a block of another guide, or strength, taken for this one."""
    store, part_keys = Store(), PartKeys(drafter="small", target="large", codec="codec", scorer="scorer")
    for guide, reused in requests:
        store.begin_run()
        run = run_of(engine_of(), TARGET_ONLY, guide, reuse=Reuse(store=store, part_keys=part_keys))
        shown = list(run.blocks())
        assert torch.equal(latents_of(shown), made(engine_of(), TARGET_ONLY, guide))
        assert sum(block.record.reused for block in shown) == reused


WRONG = [DEPTH[:, :, 1:], DEPTH[:, :-1], DEPTH[..., 1:], changed_from(DEPTH, 0) / 0]


@pytest.mark.parametrize(
    ("guide", "says"),
    [
        *((controlled(ControlClip(clip)), "control") for clip in WRONG),
        (restyled(Strength(skip=1), source=INPUT[..., :1]), "use the size it was made in"),
    ],
)
def test_a_guide_of_another_length_or_size_is_refused(guide, says):
    with pytest.raises(BadInput, match=says):
        made(engine_of(), TARGET_ONLY, guide)


# --- control


@pytest.mark.parametrize("policy", POLICIES)
def test_every_denoising_pass_makes_the_hints_anew_and_no_context_pass_does(policy, monkeypatch):
    """Catches: hints in the keys of the context, and hints of an earlier step."""
    begun, real = [], forward.ControlBranch.begin
    monkeypatch.setattr(forward.ControlBranch, "begin", lambda *inputs: begun.append(1) or real(*inputs))
    works = [one.record.target for one in run_of(engine_of(policy), TARGET_ONLY, controlled(CONTROL)).blocks()]
    assert len(begun) == sum(work.denoising_passes for work in works) == 4 * BLOCKS
    assert sum(work.context_passes for work in works) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_branch_sees_nothing_of_the_history(policy, monkeypatch):
    """The first hint after two given clips is the same. Catches: control blocks that attend to the cache."""
    hints, real = [], forward._hint
    monkeypatch.setattr(forward, "_hint", lambda *inputs: hints.append(real(*inputs)) or hints[-1])
    first = []
    for given in (DEPTH[:, :4, :6], SCRIBBLE[:, :4, :6]):
        hints.clear()
        made(engine_of(policy), TARGET_ONLY, controlled(ControlClip(DEPTH, start=6)), given=given, blocks=2)
        first.append(hints[0])
    assert torch.equal(*first)


def test_after_a_given_clip_the_control_begins_where_it_is_said_to():
    clip = ControlClip(DEPTH, start=3)
    guides = (controlled(clip), controlled(replace(clip, context=changed_from(DEPTH, 3))))
    one, two = (made(engine_of(), TARGET_ONLY, guide, given=INPUT[:, :, :3], blocks=3) for guide in guides)
    assert torch.equal(one[:, :, :3], two[:, :, :3])
    assert not torch.equal(one[:, :, 3:6], two[:, :, 3:6])


def test_the_sum_of_two_controls_is_in_the_order_they_are_given():
    """A second control of strength 0 changes nothing, one of 1 does. Catches: only the first, or one strength."""
    second = ControlClip(SCRIBBLE)
    orders = ((CONTROL,), (CONTROL, replace(second, strength=0.0)), (CONTROL, second), (second, CONTROL))
    alone, with_none, both, turned = (made(engine_of(), TARGET_ONLY, controlled(*clips)) for clips in orders)
    assert torch.equal(with_none, alone)
    assert not torch.equal(both, alone)
    assert torch.allclose(both, turned, atol=1e-4)


def test_a_model_without_the_module_is_refused_by_name():
    with pytest.raises(BadInput, match="the target has no control module"):
        made(make_engine(), TARGET_ONLY, controlled(CONTROL))


def test_keys_that_are_rotated_later_change_no_hint():
    """Catches: a control block that reads its own tokens as if they were the window's."""
    window = {"window": 3 * BLOCKS, "sink": 0}
    both = (
        made(engine_of("incremental", relative=relative, **window), TARGET_ONLY, controlled(CONTROL))
        for relative in (False, True)
    )
    assert torch.equal(*both)


# --- restyling


@pytest.mark.parametrize("strength", [*STRENGTHS, Strength(skip=2), Strength(share=0.2)])
def test_a_model_that_knows_the_input_starts_from_it_under_its_own_noise_and_returns_it(strength, monkeypatch):
    """With v = (x - z) / sigma every estimate is z. Catches: a lower timestep than there is noise, a wrong mix."""
    seen, schedule = [], lowered(get_schedule(STEPS), strength.share)

    def velocity(tree, x, timestep, here):
        seen.append((timestep, x.clone()))
        return (x - INPUT[:, :, :3]) / next(step.sigma for step in schedule if step.timestep == timestep)

    monkeypatch.setattr("sdvg_core.causal_wan.generator.denoise_pass", velocity)
    run = run_of(engine_of(), TARGET_ONLY, restyled(strength, blocks=1), blocks=1)
    assert torch.allclose(latents_shown(run), INPUT[:, :, :3], atol=1e-5)
    assert [timestep for timestep, _ in seen] == [step.timestep for step in schedule[strength.skip :]]
    noise = run.inputs.noise.draw(run.plan.spans[0], strength.skip)
    assert torch.equal(seen[0][1], renoise(INPUT[:, :, :3], noise, schedule[strength.skip].sigma))


def test_every_block_may_have_a_strength_of_its_own():
    mixed = (Strength(skip=1), Strength(skip=1), Strength(share=0.4), Strength(skip=3))
    one, two = (made(engine_of(), TARGET_ONLY, restyled(*which)) for which in (mixed[:1], mixed))
    assert torch.equal(one[:, :, :6], two[:, :, :6])
    assert not torch.equal(one[:, :, 6:9], two[:, :, 6:9])


@pytest.mark.parametrize(("skip", "drafted", "by_target"), [(0, 2, 2), (1, 1, 2), (2, None, 2), (3, None, 1)])
def test_where_the_input_stands_in_for_all_that_is_handed_over_nothing_is_drafted(skip, drafted, by_target):
    """And the target starts where the input leaves off. Catches: it starts at the handover's step all the same."""
    router = Route(First(BLOCKS), handover=2)
    guide = restyled(Strength(skip=skip)) if skip else PLAIN
    run = run_of(engine_of(), router, guide)
    blocks = list(run.blocks())
    draft, target = blocks[-1].record.draft, blocks[-1].record.target
    assert (draft and draft.denoising_passes, target.denoising_passes) == (drafted, by_target)
    sizes = {"drafter": 3, "target": 3}
    plan = plan_blocks(router, blocks=BLOCKS, block_frames=sizes, strengths=guide.get("strengths", ()))
    assert plan.notes == (NOT_HANDED_OVER,) * (skip >= 2)
    if skip >= 2:
        assert torch.equal(latents_of(blocks), made(engine_of(), TARGET_ONLY, guide))


def test_after_a_clip_strengths_are_of_the_new_blocks():
    """Catches: strengths counted from the clip's first block, by which other blocks are handed over."""
    router = Route(First(9), handover=2)
    strengths = tuple(Strength(skip=skip) for skip in (1, 2, 1))
    sizes = {"drafter": 3, "target": 3}
    plan = plan_blocks(router, blocks=3, block_frames=sizes, lead=Lead(frames=6), strengths=strengths)
    assert [handover_at(plan.route, block) for block in plan.blocks] == [2, 0, 2]
    emitted = list(run_of(engine_of(), router, restyled(*strengths), given=INPUT[:, :, :6], blocks=3).blocks())
    assert [shown.record.handover for shown in emitted] == [2, 0, 2]
    assert [shown.record.target.denoising_passes for shown in emitted] == [2, 2, 2]


def test_a_strength_is_a_word_or_a_number():
    words = {"light": Strength(skip=3), "medium": Strength(skip=2), "strong": Strength(skip=1)}
    assert {word: read_strength(word) for word in words} == words
    assert read_strength("0.6") == Strength(share=0.6)


@pytest.mark.parametrize("text", ["", "weak", "0", "-1", "1.1", "nan", "inf", "0.6.1"])
def test_anything_else_is_refused(text):
    with pytest.raises(BadInput, match="is not a strength; give strong, medium, light or a number"):
        read_strength(text)


@pytest.mark.parametrize(
    ("drafter", "target", "skip", "ways"),
    [
        (STEPS, STEPS, 3, ""),
        ("1000,900", STEPS, 2, "share 2 steps, too few to leave out 2; give strong or a number"),
        ("1000,700,600", STEPS, 1, "share 1 steps, too few to leave out 1; give a number"),
        ("1000,900,700,625", STEPS, 3, "share 2 steps, too few to leave out 3; give strong or a number"),
        ("1000,900,700,625", STEPS, 1, ""),
    ],
)
def test_both_schedules_must_reach_the_step_that_a_word_says(drafter, target, skip, ways):
    engine = replace(engine_of(schedule=target), drafter=engine_of(schedule=drafter).drafter)
    with pytest.raises(BadInput, match=ways) if ways else nullcontext():
        run_of(engine, scripted("arar"), restyled(Strength(skip=skip)))


@pytest.mark.parametrize(
    ("share", "timesteps"),
    [
        (0.8, (952.4, 882.4, 769.2, 555.6, 0)),
        (0.6, (882.4, 803.6, 681.8, 468.8, 0)),
        (0.5, (833.3, 750, 625, 416.7, 0)),
        (0.2, (555.6, 468.8, 357.1, 208.3, 0)),
    ],
)
def test_a_share_lowers_the_steps_as_kreas_strength_does(share, timesteps):
    """Against figures computed by hand: positions linspace(1000 p, 0, 5), shifted by 5."""
    steps = lowered(get_schedule("reference5"), share)
    assert [round(step.timestep, 1) for step in steps] == list(timesteps)
    assert all(step.sigma == pytest.approx(step.timestep / 1000, abs=5.1e-3) for step in steps)
