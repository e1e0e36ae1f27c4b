"""Control and restyling: blocks that obey a clip, and blocks that start from one. Bit for bit, with tiny models."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

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
    guided_latents,
    restyled,
    run_of,
)

from sdvg_core.causal_wan import forward
from sdvg_core.causal_wan.generator import renoise
from sdvg_core.engine.inputs import ControlClip
from sdvg_core.engine.plan import NOT_HANDED_OVER, plan_blocks
from sdvg_core.engine.reuse import PartKeys, Reuse, Store
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
    """Return a clip that is another from this latent frame on."""
    other = clip.clone()
    other[:, :, frame:] += 1
    return other


# --- control and restyling


@pytest.mark.parametrize(
    "guide", [controlled(ControlClip(DEPTH, 0.0)), restyled(Strength()), restyled(read_strength("1"))]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_guide_without_strength_changes_no_bit(policy, guide):
    """Catches: a branch that changes what it is not asked for, an input that shows through."""
    assert torch.equal(
        guided_latents(engine_of(policy), TARGET_ONLY, guide), guided_latents(engine_of(policy), TARGET_ONLY, PLAIN)
    )


TWO_CONTROLS = controlled(ControlClip(DEPTH), ControlClip(SCRIBBLE, 0.4))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_rejecting_all_controlled_drafts_is_target_only(policy, context):
    """Catches: a control that the target does not see after a draft, or another part, step or noise of it.

    The same of restyling, and of many other options: test_pairs_of_options.py.
    """
    rejected = guided_latents(engine_of(policy), scripted("r" * BLOCKS), TWO_CONTROLS, drafter_context=context)
    assert torch.equal(rejected, guided_latents(engine_of(policy), TARGET_ONLY, TWO_CONTROLS))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_keeping_all_controlled_drafts_is_draft_only(policy, context):
    """Catches: a control that the drafter does not see, or another part, step or noise of it."""
    keep_all = scripted("a" * BLOCKS, forced_blocks=0)
    kept = guided_latents(engine_of(policy), keep_all, TWO_CONTROLS, drafter_context=context)
    assert torch.equal(kept, guided_latents(engine_of(policy), DRAFTER_ONLY, TWO_CONTROLS))


GUIDES = {
    "control": lambda clip: controlled(ControlClip(clip)),
    "input": lambda clip: restyled(LIGHT, source=clip[:, : CONFIG.in_dim]),
}


@every_pair("guide, router, policy", tuple(GUIDES), (TARGET_ONLY, DRAFTER_ONLY, scripted("rara")), POLICIES)
def test_guide_changes_no_earlier_block(guide, router, policy):
    """Catches: a branch that looks beyond its own block, or takes another block's part."""
    video = guided_latents(engine_of(policy), router, GUIDES[guide](DEPTH))
    changed = guided_latents(engine_of(policy), router, GUIDES[guide](changed_from(DEPTH, 6)))
    assert torch.equal(changed[:, :, :6], video[:, :, :6])
    assert not torch.equal(changed[:, :, 6:9], video[:, :, 6:9])


@pytest.mark.parametrize("guide", GUIDES)
def test_frame_by_frame_guide_is_cut_into_frames(guide):
    """A drafter of one latent frame. Catches: each of its frames from the block's first."""
    engine = replace(engine_of("incremental", framewise=True), target=engine_of("incremental").target)
    video = guided_latents(engine, DRAFTER_ONLY, GUIDES[guide](DEPTH))
    changed = guided_latents(engine, DRAFTER_ONLY, GUIDES[guide](changed_from(DEPTH, 2)))
    assert torch.equal(changed[:, :, :2], video[:, :, :2])
    assert not torch.equal(changed[:, :, 2], video[:, :, 2])


# One run after the other: its guide, and how many of its four blocks are there already.
RUNS = {
    "control": [
        (controlled(CONTROL), 0),
        (controlled(CONTROL), 4),
        (controlled(ControlClip(changed_from(DEPTH, 9))), 3),
        (controlled(replace(CONTROL, strength=0.5)), 0),
        (controlled(CONTROL, CONTROL), 0),
        (PLAIN, 0),
        (controlled(replace(CONTROL, strength=0.0)), 4),
    ],
    "input": [
        (restyled(LIGHT), 0),
        (restyled(LIGHT), 4),
        (restyled(LIGHT, source=changed_from(INPUT, 9)), 3),
        (restyled(Strength(skip=1)), 0),
        (restyled(Strength(share=0.5)), 0),
        (PLAIN, 0),
    ],
}


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
def test_reuse_goes_by_guide_and_strength(runs):
    """Catches: a block of another guide, or strength, taken for this one."""
    store = Store()
    reuse = Reuse(store=store, part_keys=PartKeys(drafter="small", target="large", codec="codec", scorer="scorer"))
    for guide, reused in runs:
        store.begin_run()
        emitted = list(run_of(engine_of(), TARGET_ONLY, guide, reuse=reuse).blocks())
        assert torch.equal(latents_of(emitted), guided_latents(engine_of(), TARGET_ONLY, guide))
        assert sum(shown.record.reused for shown in emitted) == reused


WRONG = [DEPTH[:, :, 1:], DEPTH[:, :-1], DEPTH[..., 1:], changed_from(DEPTH, 0) / 0]


@pytest.mark.parametrize(
    ("guide", "fault"),
    [
        *((controlled(ControlClip(clip)), "control") for clip in WRONG),
        (restyled(Strength(skip=1), source=INPUT[..., :1]), "size"),
    ],
)
def test_guide_of_another_length_or_size_is_refused(guide, fault):
    with pytest.raises(BadInput, match=fault):
        guided_latents(engine_of(), TARGET_ONLY, guide)


# --- control


@pytest.mark.parametrize("policy", POLICIES)
def test_only_denoising_passes_compute_hints(policy, monkeypatch):
    """Catches: hints in the keys of the context, and hints of an earlier step."""
    begin = Mock(wraps=forward.ControlBranch.begin)
    monkeypatch.setattr(forward.ControlBranch, "begin", lambda *inputs: begin(*inputs))
    emitted = list(run_of(engine_of(policy), TARGET_ONLY, controlled(CONTROL)).blocks())
    costs = [shown.record.target for shown in emitted]
    assert begin.call_count == sum(cost.denoising_passes for cost in costs) == 4 * BLOCKS
    assert sum(cost.context_passes for cost in costs) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_control_branch_sees_nothing_of_the_history(policy, monkeypatch):
    """The first hint after two given clips is the same. Catches: control blocks that attend to the cache."""
    hints = []
    compute_hint = forward._hint

    def keep_hint(*inputs):
        hints.append(compute_hint(*inputs))
        return hints[-1]

    monkeypatch.setattr(forward, "_hint", keep_hint)
    guide = controlled(ControlClip(DEPTH, start=6))
    guided_latents(engine_of(policy), TARGET_ONLY, guide, given=DEPTH[:, :4, :6], blocks=1)
    after_another_clip = len(hints)
    guided_latents(engine_of(policy), TARGET_ONLY, guide, given=SCRIBBLE[:, :4, :6], blocks=1)
    assert torch.equal(hints[0], hints[after_another_clip])


def test_control_after_a_clip_begins_at_its_start():
    """The clip counts from there. Catches: a control that is read from the frame of the given clip's end."""
    video, changed = (
        guided_latents(
            engine_of(), TARGET_ONLY, controlled(ControlClip(clip, start=3)), given=INPUT[:, :, :3], blocks=3
        )
        for clip in (DEPTH, changed_from(DEPTH, 3))
    )
    assert torch.equal(changed[:, :, :3], video[:, :, :3])
    assert not torch.equal(changed[:, :, 3:6], video[:, :, 3:6])


def test_two_controls_are_added():
    """A second one of strength 0 changes nothing. Catches: only the first, or one strength for both."""
    scribble = ControlClip(SCRIBBLE, 0.5)
    depth_alone, muted, both, turned = (
        guided_latents(engine_of(), TARGET_ONLY, controlled(*clips))
        for clips in (
            (CONTROL,),
            (CONTROL, replace(scribble, strength=0.0)),
            (CONTROL, scribble),
            (scribble, CONTROL),
        )
    )
    assert torch.equal(muted, depth_alone)
    assert not torch.equal(both, depth_alone)
    assert torch.allclose(both, turned, atol=1e-4)


def test_control_without_a_module_is_refused():
    with pytest.raises(BadInput, match="the target has no control module"):
        guided_latents(make_engine(), TARGET_ONLY, controlled(CONTROL))


def test_late_rotation_of_keys_changes_no_hint():
    """Catches: a control block that reads its own tokens as if they were the window's."""
    window = {"window": 3 * BLOCKS, "sink": 0}
    early, late = (
        guided_latents(engine_of("incremental", relative=relative, **window), TARGET_ONLY, controlled(CONTROL))
        for relative in (False, True)
    )
    assert torch.equal(early, late)


# --- restyling


STRENGTHS = [*(Strength(skip=skip) for skip in (1, 2, 3)), *(Strength(share=share) for share in (0.6, 0.2))]


@pytest.mark.parametrize("strength", STRENGTHS)
def test_restyling_starts_from_the_noised_input(strength, monkeypatch):
    """By a model that knows the input z, whose velocity is (x - z) / sigma; so every estimate is z.

    Catches: a lower timestep than there is noise, a wrong mix.
    """
    schedule = lowered(get_schedule(STEPS), strength.share)
    sigma = {step.timestep: step.sigma for step in schedule}
    z = INPUT[:, :, :3]
    passes = []

    def velocity(tree, x, timestep, place):
        passes.append((timestep, x.clone()))
        return (x - z) / sigma[timestep]

    monkeypatch.setattr("sdvg_core.causal_wan.generator.denoise_pass", velocity)
    run = run_of(engine_of(), TARGET_ONLY, restyled(strength, blocks=1), blocks=1)
    assert torch.allclose(latents_shown(run), z, atol=1e-5)
    assert [timestep for timestep, _ in passes] == [step.timestep for step in schedule[strength.skip :]]
    noise = run.inputs.noise.draw(run.plan.spans[0], strength.skip)
    _, first_input = passes[0]
    assert torch.equal(first_input, renoise(z, noise, schedule[strength.skip].sigma))


def test_each_block_has_its_own_strength():
    strong = Strength(skip=1)
    even = guided_latents(engine_of(), TARGET_ONLY, restyled(strong))
    mixed = guided_latents(
        engine_of(), TARGET_ONLY, restyled(strong, strong, Strength(share=0.4), Strength(skip=3))
    )
    assert torch.equal(mixed[:, :, :6], even[:, :, :6])
    assert not torch.equal(mixed[:, :, 6:9], even[:, :, 6:9])


HANDING_OVER = Route(First(BLOCKS), handover=2)
BLOCK_FRAMES = {"drafter": 3, "target": 3}


@pytest.mark.parametrize(("skip", "drafted", "by_target"), [(0, 2, 2), (1, 1, 2), (2, None, 2), (3, None, 1)])
def test_input_replaces_handed_over_steps(skip, drafted, by_target):
    """Where it replaces all of them nothing is drafted. Catches: a target that starts at the handover's step."""
    guide = restyled(Strength(skip=skip)) if skip else PLAIN
    emitted = list(run_of(engine_of(), HANDING_OVER, guide).blocks())
    record = emitted[-1].record
    assert (record.draft and record.draft.denoising_passes) == drafted
    assert record.target.denoising_passes == by_target
    if drafted is None:
        assert torch.equal(latents_of(emitted), guided_latents(engine_of(), TARGET_ONLY, guide))


@pytest.mark.parametrize(("skip", "notes"), [(1, ()), (2, (NOT_HANDED_OVER,)), (3, (NOT_HANDED_OVER,))])
def test_plan_notes_a_handover_that_restyling_replaces(skip, notes):
    strengths = (Strength(skip=skip),) * BLOCKS
    plan = plan_blocks(HANDING_OVER, blocks=BLOCKS, block_frames=BLOCK_FRAMES, strengths=strengths)
    assert plan.notes == notes


def test_strengths_after_a_clip_count_new_blocks():
    """Catches: strengths counted from the clip's first block, by which other blocks are handed over."""
    router = Route(First(9), handover=2)
    strengths = tuple(Strength(skip=skip) for skip in (1, 2, 1))
    emitted = list(run_of(engine_of(), router, restyled(*strengths), given=INPUT[:, :, :6], blocks=3).blocks())
    assert [shown.record.handover for shown in emitted] == [2, 0, 2]
    assert [shown.record.target.denoising_passes for shown in emitted] == [2, 2, 2]


def test_strength_is_a_word_or_a_number():
    words = {"light": Strength(skip=3), "medium": Strength(skip=2), "strong": Strength(skip=1)}
    assert {word: read_strength(word) for word in words} == words
    assert read_strength("0.6") == Strength(share=0.6)


@pytest.mark.parametrize("text", ["", "weak", "0", "-1", "1.1", "nan", "inf", "0.6.1"])
def test_other_strengths_are_refused(text):
    with pytest.raises(BadInput, match="is not a strength"):
        read_strength(text)


@pytest.mark.parametrize(
    ("drafter", "target", "skip", "fault"),
    [
        (STEPS, STEPS, 3, ""),
        ("1000,900", STEPS, 2, "share 2 steps.* strong or a number"),
        ("1000,700,600", STEPS, 1, "share 1 steps.* give a number"),
        ("1000,900,700,625", STEPS, 3, "share 2 steps.* strong or a number"),
        ("1000,900,700,625", STEPS, 1, ""),
    ],
)
def test_both_schedules_must_share_the_skipped_steps(drafter, target, skip, fault):
    engine = replace(engine_of(schedule=target), drafter=engine_of(schedule=drafter).drafter)
    with pytest.raises(BadInput, match=fault) if fault else nullcontext():
        run_of(engine, scripted("arar"), restyled(Strength(skip=skip)))


@pytest.mark.parametrize(
    ("share", "timesteps"),
    [
        (0.8, (952.4, 882.4, 769.2, 555.6, 0)),
        (0.6, (882.4, 803.6, 681.8, 468.8, 0)),
        (0.5, (833.3, 750, 625, 416.7, 0)),
        (0.333, (714.0, 623.7, 498.8, 311.6, 0)),
        (0.2, (555.6, 468.8, 357.1, 208.3, 0)),
    ],
)
def test_share_lowers_the_steps_as_krea_does(share, timesteps):
    """Against figures computed by hand: positions linspace(1000 p, 0, 5), rounded down, shifted by 5.

    Catches: positions rounded to the nearest.
    """
    steps = lowered(get_schedule("reference5"), share)
    assert [round(step.timestep, 1) for step in steps] == list(timesteps)
    assert all(step.sigma == pytest.approx(step.timestep / 1000, abs=5.1e-3) for step in steps)
