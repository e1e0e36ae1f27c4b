"""Restyling: blocks that start from an input clip. Bit for bit, with tiny models."""

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
    latents_of,
    latents_shown,
    make_engine,
    make_framewise,
    planned,
    scripted,
)

from sdvg_core.causal_wan.schedule import get_schedule, lowered, renoise
from sdvg_core.engine.keys import Identities
from sdvg_core.engine.restyle import Strength, read_strength
from sdvg_core.engine.reuse import Reuse
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import Run
from sdvg_core.engine.store import Store
from sdvg_core.errors import BadInput

BLOCKS = 4
STEPS = "1000,900,800,625"
INPUT = torch.randn(1, CONFIG.in_dim, 3 * BLOCKS, *SIZE, generator=generator_of(77))
TARGET_ONLY = RouterConfig(policy="always-target")
DRAFTER_ONLY = RouterConfig(policy="always-draft", forced_blocks=0)
EVERY = (Strength(skip=1), Strength(skip=3), Strength(share=0.6))


def restyle(engine, router, strength=None, *, source=INPUT, blocks=BLOCKS, **options) -> Run:
    """A run of one strength, or of one for each block; without any, from noise alone."""
    if strength is not None:
        strengths = strength if isinstance(strength, tuple) else (strength,) * blocks
        options |= {"source": source, "strengths": strengths}
    return planned(engine, router, blocks=blocks, **options)


def latents(*asked, **options):
    return latents_shown(restyle(*asked, **options))


def engine_of(policy="recompute", **options):
    return make_engine(policy, schedule=STEPS, **options)


# --- the same as what it is made of


@pytest.mark.parametrize("policy", POLICIES)
def test_no_step_left_out_and_the_whole_noise_is_text_to_video(policy):
    """Catches: an input that shows through where none is asked for."""
    plain = latents(engine_of(policy), TARGET_ONLY)
    for strength in (Strength(), read_strength("1")):
        assert torch.equal(latents(engine_of(policy), TARGET_ONLY, strength), plain)


@pytest.mark.parametrize("strength", EVERY)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_rejecting_all_is_the_target_alone_and_keeping_all_the_drafter_alone(policy, context, strength):
    """Catches: another input, step or noise for one of the two models."""
    engine = engine_of(policy)
    rejected = latents(engine, scripted("r" * BLOCKS), strength, drafter_context=context)
    assert torch.equal(rejected, latents(engine_of(policy), TARGET_ONLY, strength))
    kept = latents(engine, scripted("a" * BLOCKS, forced_blocks=0), strength, drafter_context=context)
    assert torch.equal(kept, latents(engine_of(policy), DRAFTER_ONLY, strength))
    assert not torch.equal(kept, rejected)


def test_a_block_starts_from_its_own_part_of_the_input():
    """Another input at block 3 changes block 3 and what follows. Catches: the input of another block."""
    other = INPUT.clone()
    other[:, :, 6:9] += 1
    one, two = (latents(engine_of(), TARGET_ONLY, Strength(skip=2), source=clip) for clip in (INPUT, other))
    assert torch.equal(one[:, :, :6], two[:, :, :6])
    assert not torch.equal(one[:, :, 6:9], two[:, :, 6:9])


@pytest.mark.parametrize("strength", [*EVERY, Strength(skip=2), Strength(share=0.2)])
def test_a_model_that_knows_the_input_returns_it(strength, monkeypatch):
    """With v = (x - z) / sigma every estimate is z. Catches: a lower timestep than there is noise, a wrong mix."""
    engine, seen = engine_of(), []

    def velocity(tree, x, timestep, here):
        sigma = next(step.sigma for step in schedule if step.timestep == timestep)
        seen.append(timestep)
        return (x - INPUT[:, :, :3]) / sigma

    schedule = lowered(get_schedule(STEPS), strength.share)
    monkeypatch.setattr("sdvg_core.causal_wan.generator.denoise_pass", velocity)
    made = latents(engine, TARGET_ONLY, strength, blocks=1)
    assert torch.allclose(made, INPUT[:, :, :3], atol=1e-5)
    assert len(seen) == 4 - strength.skip


@pytest.mark.parametrize("skip", [1, 2, 3])
def test_the_first_step_that_is_made_sees_the_input_under_its_own_noise(skip, monkeypatch):
    seen = []
    engine = engine_of()

    def velocity(tree, x, timestep, here):
        seen.append((timestep, x.clone()))
        return torch.zeros_like(x)

    monkeypatch.setattr("sdvg_core.causal_wan.generator.denoise_pass", velocity)
    run = restyle(engine, TARGET_ONLY, Strength(skip=skip), blocks=1)
    latents_shown(run)
    step = get_schedule(STEPS)[skip]
    timestep, x = seen[0]
    assert timestep == step.timestep
    assert torch.equal(x, renoise(INPUT[:, :, :3], run.noise.draw(run.spans[0], skip), step.sigma))


def test_frame_by_frame_the_input_is_cut_as_the_block_is():
    """A drafter of one latent frame. Catches: each of its frames from the block's first."""
    engine = make_framewise("incremental", schedule=STEPS)
    engine = replace(engine, target=make_engine("incremental", schedule=STEPS).target)
    other = INPUT.clone()
    other[:, :, 2] += 1
    one, two = (latents(engine, DRAFTER_ONLY, Strength(skip=3), source=clip) for clip in (INPUT, other))
    assert torch.equal(one[:, :, :2], two[:, :, :2])
    assert not torch.equal(one[:, :, 2], two[:, :, 2])


def test_every_block_may_have_a_strength_of_its_own():
    mixed = (Strength(skip=1), Strength(skip=1), Strength(share=0.4), Strength(skip=3))
    one, two = (latents(engine_of(), TARGET_ONLY, which) for which in (Strength(skip=1), mixed))
    assert torch.equal(one[:, :, :6], two[:, :, :6])
    assert not torch.equal(one[:, :, 6:9], two[:, :, 6:9])


# --- passes, handover, re-use


@pytest.mark.parametrize(("skip", "drafted", "by_target"), [(0, 2, 2), (1, 1, 2), (2, None, 2), (3, None, 1)])
def test_where_the_input_stands_in_for_all_that_is_handed_over_nothing_is_drafted(skip, drafted, by_target):
    """And the target starts where the input leaves off. Catches: it starts at the handover's step all the same."""
    router = RouterConfig(policy="first", forced_blocks=BLOCKS, handover=2)
    run = restyle(engine_of(), router, Strength(skip=skip) if skip else None)
    made = list(run.blocks())
    draft, target = made[-1].record.draft, made[-1].record.target
    assert (draft and draft.denoising_passes, target.denoising_passes) == (drafted, by_target)
    assert bool(run.notes) == (skip >= 2)
    if skip >= 2:
        assert torch.equal(latents_of(made), latents(engine_of(), TARGET_ONLY, Strength(skip=skip)))


def test_what_is_made_again_is_told_by_input_and_strength():
    """Catches: a block of another input, or of another strength, taken for this one."""
    store, other = Store(), INPUT.clone()
    other[:, :, 9:] += 1
    identities = Identities(drafter="small", target="large", codec="codec", scorer="scorer")

    def again(strength, source=INPUT):
        store.begin_run()
        reuse = Reuse(store=store, identities=identities)
        run = restyle(engine_of(), TARGET_ONLY, strength, source=source, reuse=reuse)
        assert torch.equal(latents_shown(run), latents(engine_of(), TARGET_ONLY, strength, source=source))
        return len(run.reused)

    found = [again(Strength(skip=2)), again(Strength(skip=2)), again(Strength(skip=2), other)]
    assert [*found, again(Strength(skip=1)), again(Strength(share=0.5)), again(None)] == [0, 4, 3, 0, 0, 0]


# --- what is refused


def test_a_strength_is_a_word_or_a_number():
    words = {"light": Strength(skip=3), "medium": Strength(skip=2), "strong": Strength(skip=1)}
    assert {word: read_strength(word) for word in words} == words
    assert read_strength("0.6") == Strength(share=0.6)


@pytest.mark.parametrize("text", ["", "weak", "0", "-1", "1.1", "nan", "inf", "0.6.1"])
def test_anything_else_is_refused(text):
    with pytest.raises(BadInput, match="is no strength; give strong, medium, light or a number"):
        read_strength(text)


@pytest.mark.parametrize(
    ("drafter", "target", "skip", "ways"),
    [
        (STEPS, STEPS, 3, None),
        ("1000,900", STEPS, 2, "share 2 steps, too few to leave out 2; give strong or a number"),
        ("1000,700,600", STEPS, 1, "share 1 steps, too few to leave out 1; give a number"),
        ("1000,900,700,625", STEPS, 3, "share 2 steps, too few to leave out 3; give strong or a number"),
        ("1000,900,700,625", STEPS, 1, None),
    ],
)
def test_both_schedules_must_reach_the_step_that_a_word_says(drafter, target, skip, ways):
    engine = replace(
        engine_of(), drafter=make_engine(schedule=drafter).drafter, target=make_engine(schedule=target).target
    )
    router = scripted("ar" * 2)
    if ways is None:
        restyle(engine, router, Strength(skip=skip))
        return
    with pytest.raises(BadInput, match=ways):
        restyle(engine, router, Strength(skip=skip))


def test_an_input_of_another_size_is_refused():
    with pytest.raises(BadInput, match="use the size it was made in"):
        restyle(engine_of(), TARGET_ONLY, Strength(skip=1), source=INPUT[..., :1])


# --- schedules


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
