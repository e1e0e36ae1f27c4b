"""Control: blocks that obey a clip, with a random module. Bit for bit, with tiny models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import (
    CONFIG,
    CONTEXTS,
    POLICIES,
    SIZE,
    generator_of,
    latents_shown,
    make_engine,
    make_framewise,
    planned,
    random_module,
    scripted,
)

from sdvg_core.causal_wan import forward
from sdvg_core.engine.control import CHANNELS, ControlClip
from sdvg_core.engine.keys import Identities
from sdvg_core.engine.reuse import Reuse
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.store import Store
from sdvg_core.errors import BadInput

BLOCKS = 6
DEPTH, SCRIBBLE = (torch.randn(1, CHANNELS, 3 * BLOCKS, *SIZE, generator=generator_of(seed)) for seed in (77, 78))
TARGET_ONLY = RouterConfig(policy="always-target")
DRAFTER_ONLY = RouterConfig(policy="always-draft", forced_blocks=0)


def engine_of(policy="recompute", *, blocks=1, framewise=False, **options):
    make = make_framewise if framewise else make_engine
    return make(policy, control=random_module(9, blocks=blocks), **options)


def control(engine, router, *clips, **options):
    return planned(engine, router, blocks=BLOCKS, controls=clips, **options)


def made(engine, router, *clips, **options):
    return latents_shown(control(engine, router, *clips, **options))


def changed_from(clip, frame):
    other = clip.clone()
    other[:, :, frame:] += 1
    return other


@pytest.mark.parametrize("policy", POLICIES)
def test_a_strength_of_zero_is_the_video_without_a_control(policy):
    """Bit for bit. Catches: a branch that changes what it is not asked for."""
    plain = made(engine_of(policy), TARGET_ONLY)
    assert torch.equal(made(engine_of(policy), TARGET_ONLY, ControlClip(DEPTH, 0.0)), plain)
    whole, half = (made(engine_of(policy), TARGET_ONLY, ControlClip(DEPTH, s)) for s in (1.0, 0.5))
    assert (whole - plain).norm() > (half - plain).norm() > 0.05 * plain.norm()


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_rejecting_all_is_the_target_alone_and_keeping_all_the_drafter_alone(policy, context):
    """Catches: a control that one of the models does not see, or another part of it."""
    clips = ControlClip(DEPTH), ControlClip(SCRIBBLE, 0.4)
    rejected = made(engine_of(policy), scripted("r" * BLOCKS), *clips, drafter_context=context)
    assert torch.equal(rejected, made(engine_of(policy), TARGET_ONLY, *clips))
    script = scripted("a" * BLOCKS, forced_blocks=0)
    kept = made(engine_of(policy), script, *clips, drafter_context=context)
    assert torch.equal(kept, made(engine_of(policy), DRAFTER_ONLY, *clips))
    assert not torch.equal(kept, rejected)


@pytest.mark.parametrize("router", [TARGET_ONLY, DRAFTER_ONLY, scripted("rarara")])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_control_that_changes_at_block_five_leaves_the_four_before_as_they_were(policy, router):
    """Catches: a branch that looks beyond its own block, or takes another block's part."""
    other = changed_from(DEPTH, 12)
    one, two = (made(engine_of(policy), router, ControlClip(clip)) for clip in (DEPTH, other))
    assert torch.equal(one[:, :, :12], two[:, :, :12])
    assert not torch.equal(one[:, :, 12:15], two[:, :, 12:15])


@pytest.mark.parametrize("policy", POLICIES)
def test_every_denoising_pass_makes_the_hints_anew_and_no_context_pass_does(policy, monkeypatch):
    """Catches: hints in the keys of the context, and hints of an earlier step."""
    begun, real = [], forward.ControlBranch.begin
    monkeypatch.setattr(forward.ControlBranch, "begin", lambda *inputs: begun.append(1) or real(*inputs))
    works = [one.record.target for one in control(engine_of(policy), TARGET_ONLY, ControlClip(DEPTH)).blocks()]
    assert len(begun) == sum(work.denoising_passes for work in works) == 2 * BLOCKS
    assert sum(work.context_passes for work in works) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_branch_sees_nothing_of_the_history(policy, monkeypatch):
    """The first hint after two given clips is the same. Catches: control blocks that attend to the cache."""
    hints, real = [], forward._hint
    monkeypatch.setattr(forward, "_hint", lambda *inputs: hints.append(real(*inputs)) or hints[-1])
    first = []
    for given in (DEPTH[:, :4, :6], SCRIBBLE[:, :4, :6]):
        hints.clear()
        made(engine_of(policy), TARGET_ONLY, ControlClip(DEPTH, start=6), given=given)
        first.append(hints[0])
    assert torch.equal(*first)


def test_after_a_given_clip_the_control_begins_where_it_is_said_to():
    clip, given = ControlClip(DEPTH, start=3), DEPTH[:, :4, :3]
    other = replace(clip, context=changed_from(DEPTH, 3))
    one, two = (made(engine_of(), TARGET_ONLY, which, given=given) for which in (clip, other))
    assert torch.equal(one[:, :, :3], two[:, :, :3])
    assert not torch.equal(one[:, :, 3:6], two[:, :, 3:6])


@pytest.mark.parametrize("wrong", [DEPTH[:, :, 1:], DEPTH[:, :-1], DEPTH[..., 1:], changed_from(DEPTH, 0) / 0])
def test_a_control_of_another_length_or_size_is_refused(wrong):
    with pytest.raises(BadInput, match="control"):
        made(engine_of(), TARGET_ONLY, ControlClip(wrong))


def test_the_sum_of_two_controls_is_in_the_order_they_are_given():
    """A second control of strength 0 changes nothing, one of 1 does. Catches: only the first, or one strength."""
    first, second = ControlClip(DEPTH), ControlClip(SCRIBBLE)
    alone = made(engine_of(), TARGET_ONLY, first)
    assert torch.equal(made(engine_of(), TARGET_ONLY, first, replace(second, strength=0.0)), alone)
    both = made(engine_of(), TARGET_ONLY, first, second)
    assert not torch.equal(both, alone)
    assert torch.allclose(both, made(engine_of(), TARGET_ONLY, second, first), atol=1e-4)


def test_two_control_blocks_give_their_hints_after_the_layers_they_belong_to():
    """Catches: a second block that never runs."""
    one, two = (made(engine_of(blocks=count), TARGET_ONLY, ControlClip(DEPTH)) for count in (1, 2))
    assert not torch.equal(one, two)


def test_frame_by_frame_a_control_is_cut_as_the_block_is():
    engine = engine_of("incremental", framewise=True)
    one, two = (made(engine, DRAFTER_ONLY, ControlClip(clip)) for clip in (DEPTH, changed_from(DEPTH, 2)))
    assert torch.equal(one[:, :, :2], two[:, :, :2])
    assert not torch.equal(one[:, :, 2], two[:, :, 2])


def test_what_is_made_again_is_told_by_control_and_strength():
    """Also what a stopped run left. Catches: a block of another control, or strength, taken for this one."""
    store = Store()
    identities = Identities(drafter="small", target="large", codec="codec", scorer="scorer")

    def again(*clips):
        store.begin_run()
        run = control(engine_of(), TARGET_ONLY, *clips, reuse=Reuse(store=store, identities=identities))
        assert torch.equal(latents_shown(run), made(engine_of(), TARGET_ONLY, *clips))
        return len(run.reused)

    depth = ControlClip(DEPTH)
    assert [again(depth), again(depth), again(ControlClip(changed_from(DEPTH, 12)))] == [0, 6, 4]
    others = [again(replace(depth, strength=0.5)), again(depth, depth), again()]
    assert [*others, again(replace(depth, strength=0.0))] == [0, 0, 0, 6]


def test_the_keys_of_the_branchs_cross_attention_are_made_once_for_a_prompt(monkeypatch):
    calls = []
    real = forward._text_kv
    monkeypatch.setattr(forward, "_text_kv", lambda *inputs: calls.append(1) or real(*inputs))
    made(engine_of(), TARGET_ONLY, ControlClip(DEPTH))
    assert len(calls) == CONFIG.num_layers + 1


@pytest.mark.parametrize("strength", [-0.1, 11.0, float("nan")])
def test_a_strength_that_is_none_is_refused(strength):
    with pytest.raises(BadInput, match="strength"):
        ControlClip(DEPTH, strength)


def test_a_model_without_the_module_is_refused_by_name():
    with pytest.raises(BadInput, match="the target has no control module"):
        made(make_engine(), TARGET_ONLY, ControlClip(DEPTH))


def test_keys_that_are_rotated_later_change_no_hint():
    """Catches: a control block that reads its own tokens as if they were the window's."""
    both = (
        made(
            engine_of("incremental", window=3 * BLOCKS, sink=0, relative=relative), TARGET_ONLY, ControlClip(DEPTH)
        )
        for relative in (False, True)
    )
    assert torch.equal(*both)
