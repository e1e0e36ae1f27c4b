"""Spans, noise, schedules, history, drift of colours: the small values everything rests on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from sdvg_core.engine.inputs import BlockCall, KeyedNoise, generator_seed
from sdvg_core.engine.pixels import last_frames
from sdvg_core.engine.types import Block, Condition, Generated, History, Span, plan_spans, spans_of_clip
from sdvg_core.engine.wrappers import ColourHold, drift
from sdvg_core.errors import BadInput
from sdvg_core.settings.schedules import Step, get_schedule, nearest_sigma, shifted_table
from tests.support.tiny import (
    PROMPT,
    SIZE,
    EchoCodec,
    condition,
    generator_of,
    history_of,
    make_engine,
    make_noise,
    run,
    scripted,
)


def block(index: int, start: int, frames: int = 3) -> Block:
    g = torch.Generator().manual_seed(index)
    return Block(Span(index, start, frames), torch.randn(1, 4, frames, 4, 4, generator=g), PROMPT)


# --- spans


def test_start_image_is_one_frame_before_block_0():
    assert plan_spans(2, 3, start=1) == (Span(0, 1, 3), Span(1, 4, 3))
    assert spans_of_clip(7, 3) == (Span(0, 0, 1), Span(0, 1, 3), Span(1, 4, 3))
    assert spans_of_clip(6, 3) == plan_spans(2, 3)


def test_held_picture_takes_a_block_without_number() -> None:
    """Catches: blocks that count from 1 after it, so that they have other noise and no block of the target's."""
    assert plan_spans(2, 3, start=3, start_image_frames=3) == (Span(0, 3, 3), Span(1, 6, 3))
    assert spans_of_clip(9, 3, start_image_frames=3) == (Span(0, 0, 3), Span(0, 3, 3), Span(1, 6, 3))


@pytest.mark.parametrize("blocks", [0, -3, 10**9, "9"])
def test_no_blocks_is_refused(blocks):
    with pytest.raises(BadInput, match="give 1 to"):
        plan_spans(blocks, 3)


# --- noise


def test_seed_keeps_its_noise_in_every_version():
    """Values as they were on 2026-11-22; with others, every saved seed would make another video."""
    assert generator_seed(42, 0, 0) == 7171502091928562060
    assert generator_seed(42, 8, 3) == 4864953297836871192
    assert generator_seed(0, 0, 0, 2) == 4556939435515970246
    assert generator_seed(2**64 - 1, 7, 1) == 8194585723804596705
    source = KeyedNoise(seed=42, channels=16, height=2, width=2)
    first = source.draw(Span(0, 0, 3), 0).flatten()
    second_take = source.draw(Span(3, 9, 3, take=2), 1).flatten()
    assert first[:3].tolist() == pytest.approx([-2.232599973678589, 0.465344101190567, -0.34006160497665405])
    assert second_take[:3].tolist() == pytest.approx([1.123739242553711, 0.11198224127292633, 0.6073417663574219])


def test_no_two_blocks_share_a_generator_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all shots, blocks, slots and takes. Catches: a key that is read as a number, or joined to one."""
    seeds: list[int] = []

    class Seeded(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            seeds.append(seed)
            return super().manual_seed(seed)

    monkeypatch.setattr(torch, "Generator", Seeded)
    keys = ("", "#1", "#2", "#11", "#1a", "#k3f")
    for key, index, slot, take in product(keys, range(13), range(5), (1, 2, 3, 11)):
        KeyedNoise(seed=42, channels=1, height=1, width=1, shot=key).draw(Span(index, 0, 1, take), slot)
    assert len(set(seeds)) == len(seeds) == len(keys) * 13 * 5 * 4
    assert generator_seed(42, "#k3f", 0, 0) == 4788133103580903157, (
        "as on 2026-11-29, or every film would be another"
    )


def test_noise_depends_on_seed_block_and_slot():
    """Catches: noise consumed in order from one generator."""
    source = make_noise()
    span = Span(2, 6, 3)
    noise = source.draw(span, 1)
    source.draw(Span(5, 15, 3), 0)
    torch.manual_seed(1)
    assert torch.equal(source.draw(span, 1), noise)
    assert torch.equal(source.draw(Span(2, 100, 3), 1), noise), "the number of a block counts, not its place"
    for other in (source.draw(span, 2), source.draw(Span(3, 9, 3), 1), make_noise(43).draw(span, 1)):
        assert not torch.equal(other, noise)


def test_noise_is_standard_normal_float32():
    big = KeyedNoise(seed=1, channels=16, height=60, width=104).draw(Span(0, 0, 3), 0)
    assert (big.dtype, big.shape) == (torch.float32, (1, 16, 3, 60, 104))
    # 299,520 draws: the standard error of the mean is 0.0018, of the deviation 0.0013.
    assert abs(float(big.mean())) < 0.009
    assert abs(float(big.std()) - 1) < 0.007


@pytest.mark.parametrize("seed", [-1, 2**64, "42"])
def test_seed_out_of_range_is_refused(seed):
    with pytest.raises(BadInput, match=r"seed is .*; give"):
        KeyedNoise(seed=seed, channels=4, height=2, width=2)


# --- schedules


def test_timesteps_are_those_of_the_published_code():
    """Another last digit would be 5e-5 in the latents of krea4."""
    assert [s.timestep for s in get_schedule("four-step")] == [1000, 937.5, 833.3333129882812, 625]
    assert [s.timestep for s in get_schedule("krea4")] == [1000, 908.8427124023438, 713.9794311523438, 0]
    assert get_schedule("two-step")[1] == get_schedule("four-step")[2]
    rounded = get_schedule("rounded4")
    assert rounded == (Step(1000, 1), Step(938, 0.938), Step(833, 0.833), Step(625, 0.625))


def test_sigma_is_the_nearest_of_the_table():
    """The table ends at 0.00498, so timestep 0 is denoised at that sigma; raw timesteps are not on the table."""
    assert get_schedule("reference5")[-1] == Step(0.0, pytest.approx(0.00498, abs=1e-6))
    assert [s.sigma for s in get_schedule("raw4")] == pytest.approx((1, 0.75, 0.5006, 0.2516), abs=1e-4)
    assert nearest_sigma(937.5) == 0.9375


def test_schedule_table_agrees_with_torch():
    """Catches: a level computed in float64, which makes 223 others.

    A processor that rounds a product before it is added has 34 of torch's sigmas otherwise, in the last bit.
    """
    linear = torch.linspace(1, 0, 1001)[:-1]
    sigmas = 5 * linear / (1 + 4 * linear)
    table = torch.tensor([[step.timestep, step.sigma] for step in shifted_table()], dtype=torch.float64)
    rounded = table.float()
    assert torch.equal(rounded.double(), table)
    torch.testing.assert_close(rounded, torch.stack([sigmas * 1000, sigmas], dim=1), rtol=2.5e-7, atol=0)
    assert (rounded[:, 1] != sigmas).sum() <= 34


@pytest.mark.parametrize("name", ["sf4", "", "500,1000", "1200,3", "nan", "1000,1000", [1000]])
def test_bad_schedule_is_refused(name):
    with pytest.raises(BadInput):
        get_schedule(name)


# --- history


def test_block_that_does_not_follow_is_refused():
    with pytest.raises(ValueError, match="do not follow 3 frames"):
        History().commit(block(0, 0)).commit(block(2, 6))


def test_latents_longer_than_their_span_are_refused():
    with pytest.raises(ValueError, match="3 frames at"):
        History().commit(Block(Span(0, 0, 2), block(0, 0).latents, PROMPT))


def test_blocks_are_joined_on_device_of_the_newest():
    """Catches: a drafter and a target on two GPUs, or a clip that was loaded to go on from."""
    first = block(0, 0)
    newest = Block(Span(1, 3, 3), torch.empty(1, 4, 3, 4, 4, device="meta", dtype=torch.float16), PROMPT)
    joined = History().commit(first).commit(newest).latents(0, 6)
    assert (joined.device.type, joined.dtype, joined.shape[2]) == ("meta", torch.float16, 6)


def test_anchor_is_last_pixel_frame_of_latent_frame():
    """Latent frame j > 0 shows pixel frames 4j - 3 to 4j; latent frame 0 shows pixel frame 0."""
    codec = EchoCodec()
    blocks = tuple(block(i, 3 * i) for i in range(3))
    history, frames = history_of(blocks, codec, horizon=4)
    assert frames.shape[1] == 1 + 4 * 8
    for latent_frame in (5, 6, 7, 8):
        assert torch.equal(history.anchor(latent_frame), frames[:, 4 * latent_frame, None])
    with pytest.raises(ValueError, match="keeps no pixels"):
        history.anchor(4)
    first_anchors = last_frames(frames[:, :9], 3, 4)
    assert torch.equal(torch.cat(first_anchors, 1), frames[:, (0, 4, 8)])


def test_history_keeps_only_pixels_of_its_horizon():
    """Catches: an anchor that keeps its whole block of frames alive."""
    history, _ = history_of(tuple(block(i, 3 * i) for i in range(20)), EchoCodec(), horizon=3)
    anchors = [anchor() for anchor in history.anchors]
    assert len(anchors) == 3
    assert all(anchor.untyped_storage().nbytes() == anchor.nbytes for anchor in anchors)


CUT = replace(condition(6), cut=True)
SPANS = plan_spans(4, 3)


def latents(seed: int) -> Tensor:
    """Return latents of four channels that differ in mean and deviation."""
    normal = torch.randn(1, 4, 3, *SIZE, generator=generator_of(seed))
    deviations = torch.tensor([0.5, 1.0, 2.0, 3.0]).view(1, 4, 1, 1, 1)
    means = seed * torch.arange(4).view(1, 4, 1, 1, 1)
    return normal * deviations + means


def drift_by_channel(block: Tensor, first: Tensor) -> float:
    """Return the drift as its formula is in the design, channel by channel."""
    total = 0.0
    for channel in range(4):
        values = block[0, channel].double()
        reference = first[0, channel].double()
        deviation = reference.std(unbiased=False)
        total += float((values.mean() - reference.mean()) / deviation) ** 2
        total += float(values.std(unbiased=False) / deviation - 1) ** 2
    return (total / 4) ** 0.5


def test_drift_measures_means_and_deviations_of_channels():
    """Catches: a mean over the wrong axis, and deviations that do not count."""
    first = latents(1)
    twice_as_wide = first * 2 - first.mean(dim=(0, 2, 3, 4), keepdim=True)
    assert drift(first, first) == 0
    assert drift(twice_as_wide, first) == pytest.approx(1)
    assert drift(latents(2), first) == pytest.approx(drift_by_channel(latents(2), first), rel=1e-5)


def test_drift_is_measured_from_the_scenes_first_block() -> None:
    """But for the clip's first block, which begins with a latent frame of one pixel frame.

    Catches: drift from the newest block, which stays small while the clip drifts away; drift across a cut.
    """
    emitted = run(
        make_engine(), scripted("rararr"), blocks=6, condition_of=lambda index: CUT if index >= 4 else PROMPT
    )
    blocks = [shown.block.latents for shown in emitted]
    first_scene = [drift(blocks[2], blocks[1]), drift(blocks[3], blocks[1])]
    second_scene = [drift(blocks[5], blocks[4])]
    assert [shown.record.drift for shown in emitted] == [None, None, *first_scene, None, *second_scene]


class FixedModel:
    """Predicts given latents in two steps, whatever it is asked for."""

    name = "model"
    block_frames = 3
    latent_channels = 4
    anchor_horizon = 0
    timesteps = first_timesteps = (1000.0, 500.0)

    def generate(self, call: BlockCall) -> Generated:
        return Generated((latents(8), latents(9))[: call.stop])


def held(hold: float, conditions=(PROMPT, PROMPT, PROMPT), stop=None) -> Generated:
    """Return the last of some blocks, whose colours are held, after blocks of other colours."""
    history = History()
    for span, shown in zip(SPANS, conditions[:-1], strict=False):
        history = history.commit(Block(span, latents(span.index + 1), shown))
    call = BlockCall(history, SPANS[len(conditions) - 1], make_noise(), conditions[-1], stop=stop)
    return ColourHold(FixedModel(), hold).generate(call)


def test_full_hold_restores_the_colours_of_the_scene():
    """And leaves what may be handed over. Catches: estimates of the draft that the target would get changed."""
    block = held(1.0)
    assert drift(block.latents, latents(2)) < 1e-5
    assert torch.equal(torch.stack(block.predictions), torch.stack([latents(8), latents(9)]))


@pytest.mark.parametrize(
    "conditions",
    [
        (PROMPT, PROMPT, PROMPT),
        (PROMPT, PROMPT, PROMPT, PROMPT),
        (PROMPT, CUT, CUT),
        (PROMPT, CUT, CUT, CUT),
    ],
    ids=["third block", "fourth block", "second of a scene", "third of a scene"],
)
def test_colours_are_held_to_the_first_block(conditions: tuple[Condition, ...]) -> None:
    """Catches: the newest block, which has drifted itself. The clip's first block does not count."""
    assert drift(held(1.0, conditions).latents, latents(2)) < 1e-5


@pytest.mark.parametrize(
    "conditions",
    [(PROMPT, PROMPT, CUT), (PROMPT,), (PROMPT, PROMPT)],
    ids=["a cut", "first block", "second block"],
)
def test_first_block_of_a_scene_is_not_held(conditions: tuple[Condition, ...]) -> None:
    """Catches: a hold across a cut, or to the clip's first block."""
    assert torch.equal(held(1.0, conditions).latents, latents(9))


def test_steps_to_be_continued_are_not_held() -> None:
    assert torch.equal(held(1.0, stop=1).latents, latents(8))
