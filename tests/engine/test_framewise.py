"""A drafter whose own blocks are smaller than the target's, or whose tokens are larger, bit for bit.

Latents, VAE and text are what two models must share; into how many tokens each cuts a frame is its own matter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from replayed import check_pattern
from safetensors.torch import save_file

from sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_core.cli import main
from sdvg_core.engine.inputs import CONTROL_CHANNELS, BlockCall, ControlClip, KeyedNoise
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.types import Block, History, Span, plan_spans
from sdvg_core.engine.wrappers import FramewiseAdapter
from sdvg_core.errors import BadInput
from sdvg_core.memory import sizes
from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.settings.context import Rolling
from sdvg_core.settings.route import First, Route
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import options
from tests.support.random_set import TARGET, TEXT_WIDTH, write_random_set
from tests.support.thinned import every_pair
from tests.support.tiny import (
    CONFIG,
    CONTEXTS,
    LONG,
    POLICIES,
    PROMPT,
    SIZE,
    history_of,
    latents_of,
    latents_shown,
    make_engine,
    make_framewise,
    make_generator,
    make_noise,
    planned,
    random_module,
    random_tree,
    run,
    scripted,
)

DRAFTS = Route(First(0))


class SameNoise(KeyedNoise):
    """Noise of three latent frames, handed to blocks of one, for a model that runs on its own."""

    def draw(self, span, slot):
        whole = Span(span.start // 3, span.start // 3 * 3, 3)
        place = span.start - whole.start
        return KeyedNoise.draw(self, whole, slot)[:, :, place : place + span.frames].contiguous()


def alone(policy: str, blocks: int, **options) -> list[Block]:
    """What the small model makes by itself, one block of its own after the other, decoded on the way."""
    codec = make_engine().codec
    model = make_generator(1, codec, policy, block_frames=1, **options)
    noise, made = SameNoise(seed=42, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1]), []
    for span in plan_spans(3 * blocks, 1):
        history = history_of(tuple(made), codec, 3)[0] if made else History(horizon=3)
        made.append(Block(span, model.generate(BlockCall(history, span, noise, PROMPT)).latents, PROMPT))
    return made


# --- the same as alone


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("steps", [{}, {"schedule": "1000,625", "first_schedule": "1000,900,625"}])
def test_in_spans_of_three_it_makes_what_it_makes_alone_block_by_block(policy, steps):
    """Catches: the second piece drawn from the first one's noise; pieces that do not see each other."""
    made = run(make_framewise(policy, **steps), DRAFTS, blocks=4)
    own = alone(policy, 4, **steps)
    assert torch.equal(latents_of(made), torch.cat([block.latents for block in own], dim=2))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rejected_draft_costs_only_the_passes_over_what_replaced_it(policy):
    """Catches: a window that cannot go back, and passes the whole clip again."""
    made = run(make_framewise(policy), scripted("rrrrrrara"))
    works = [e.record.draft for e in made]
    # Three frames of the remake, and the first two of the draft. In a kept draft only the third is new.
    expected = [0, *[5] * 6, 3, 5] if policy == "incremental" else [0, *[9] * 8]
    assert [work.context_passes if work else 0 for work in works] == expected


# --- what the engine promises of every model


@every_pair("policy, context, own", (*POLICIES, *LONG), CONTEXTS, (1, 3))
@pytest.mark.parametrize("route", ["raraarrar", "tdatrdadd"])
def test_every_block_is_what_its_author_makes_from_what_was_emitted(policy, context, own, route):
    """Catches: a cache that still holds pieces of a rejected draft; pieces kept for another block's."""
    check_pattern(route, partial(make_framewise, policy, own_frames=own), context)


@pytest.mark.parametrize("step", [1, 2])
def test_a_handover_gives_the_first_steps_of_every_piece(step):
    """Only the last piece is left unfinished: the others are what it continues from."""
    four = {"schedule": "1000,900,625"}
    engine = replace(make_framewise("incremental", **four), target=make_engine("incremental", **four).target)
    made = run(engine, scripted("ttt", handover=step), blocks=3)
    assert [e.record.draft.denoising_passes for e in made[1:]] == [6 + step] * 2
    whole = make_framewise("incremental", **four).drafter
    history = History((made[0].block,))
    draft = whole.generate(BlockCall(history, made[1].block.span, make_noise(), PROMPT))
    assert len(made[1].draft.predictions) == step
    assert torch.equal(made[1].draft.latents, draft.predictions[step - 1])
    finished = whole.generate(
        BlockCall(history, made[1].block.span, make_noise(), PROMPT, draft.predictions[:step])
    )
    assert torch.equal(finished.latents, draft.latents)


# --- the first block's own steps


def test_the_first_blocks_steps_are_for_block_0_of_the_clip_alone():
    """Catches: the first-block list applied to a continued clip's first new block."""
    steps = {"schedule": "1000,625", "first_schedule": "1000,900,800,625"}
    made = run(make_engine("incremental", **steps), scripted("tt"), blocks=2)
    assert [e.record.target.denoising_passes for e in made] == [4, 2]
    after = run(make_engine("incremental", **steps), scripted("ttttt"), blocks=2, start=made[-1].history)
    assert [e.record.target.denoising_passes for e in after] == [2, 2]
    plain = run(make_engine("incremental", schedule="1000,900,800,625"), scripted("t"), blocks=1)
    assert torch.equal(made[0].block.latents, plain[0].block.latents), "slot i of a block is what it was"


def test_a_handover_asks_nothing_of_the_lists_of_block_0_which_is_never_handed_over():
    router = Route(First(2), handover=1)
    engine = make_engine(schedule="1000,625", first_schedule="1000,900,625")
    run(engine, router, blocks=2)
    other = replace(engine, drafter=make_engine(schedule="1000,625").drafter)
    run(other, router, blocks=2)
    pieces = make_framewise(schedule="1000,625", first_schedule="1000,900,625")
    run(replace(pieces, target=engine.target), router, blocks=2)


# --- what does not fit


def test_blocks_that_do_not_divide_are_refused_in_one_sentence():
    engine = make_engine()
    with pytest.raises(BadInput, match=r"do not divide the target's \(2 and 3"):
        FramewiseAdapter(make_generator(1, engine.codec, block_frames=2), 3)
    with pytest.raises(BadInput, match="2 context frames are too few"):
        FramewiseAdapter(make_generator(1, engine.codec, block_frames=1, frames=2), 3)
    FramewiseAdapter(make_generator(1, engine.codec, "incremental", block_frames=1), 3)


FINE = replace(CONFIG, patch_size=(1, 1, 1))


def fine_target(engine: Engine, policy: str, **options: object) -> Engine:
    target = make_generator(2, engine.codec, policy, name="target", tree=random_tree(2, FINE), **options)
    return replace(engine, target=target)


def pair(policy: str = "recompute", **options: object) -> Engine:
    return fine_target(make_engine(policy, **options), policy, **options)


def framewise(policy: str) -> Engine:
    return fine_target(make_framewise(policy), policy)


@every_pair("policy, context, make", POLICIES, CONTEXTS, (pair, framewise))
@pytest.mark.parametrize("route", ["raraarrar", "tdatrdadd"])
def test_of_two_patch_sizes_every_block_is_what_its_author_makes(policy, context, make, route):
    """Catches: a cache, a rotary table or a grid of one model used for the other."""
    check_pattern(route, partial(make, policy), context)


def test_each_model_obeys_the_control_module_of_its_own_patches():
    """Both models' blocks differ from those without it, and a module of strength 0 changes no bit."""
    engine, plain = make_engine(control=random_module(9)), pair()
    engine = replace(engine, target=fine_target(engine, "recompute", control=random_module(9, FINE)).target)
    context = torch.randn(1, CONTROL_CHANNELS, 6, 4, 4, generator=torch.Generator().manual_seed(77))
    for author in "td":
        whole, none, without = (
            latents_shown(planned(of, scripted("t" + author), blocks=2, controls=clips))
            for of, clips in (
                (engine, (ControlClip(context, 1.0),)),
                (engine, (ControlClip(context, 0.0),)),
                (plain, ()),
            )
        )
        assert torch.equal(none, without)
        assert not torch.equal(whole[:, :, :3], without[:, :, :3])
        assert not torch.equal(whole[:, :, 3:], without[:, :, 3:])


# --- files, sizes, plans


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A random set whose target has tokens of one latent pixel, and states nothing of them."""
    files = write_random_set(tmp_path_factory.mktemp("fine"))
    write(files.target, replace(TARGET, patch_size=(1, 1, 1)))
    return files


def write(path: Path, config: WanConfig) -> None:
    g = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(shape, generator=g) * 0.05 for name, shape in wan_shapes(config).items()}
    save_file(weights, path, {"config": f'{{"transformer": {{"text_dim": {TEXT_WIDTH}}}}}'})


def test_a_size_is_a_multiple_of_the_larger_patch_of_the_models_that_are_given(fine, tmp_path, capsys):
    video = ["--blocks", "1", "--schedule", "1000,625", "--prompt", "a", "--seed", "1", "--output"]
    size = ["--size", "40x24"]
    assert main([*options(fine), *size, *video, str(tmp_path / "both")]) == 2
    assert "width 40 is no multiple of 16; use 32 or 48" in capsys.readouterr().err
    words = options(fine)
    at = words.index("--drafter")
    alone = [*words[:at], *words[at + 2 :], *size, "--policy", "always-target", *video]
    assert main([*alone, str(tmp_path / "alone")]) == 0


def test_a_token_of_two_latent_frames_is_refused(fine, tmp_path, capsys):
    """A cache has a slot for each latent frame."""
    write(tmp_path / "long.safetensors", replace(TARGET, patch_size=(2, 2, 2)))
    assert main(["doctor", str(tmp_path / "long.safetensors")]) == 2
    assert "tokens of 2 latent frames, not 1" in capsys.readouterr().out


def test_tokens_are_counted_by_model_in_memory():
    """Four times the tokens: four times the cache."""
    plain = PlanRequest()
    target = replace(plain.target, preset=replace(plain.target.preset, context=Rolling(window=6)))
    plain = replace(plain, target=target)
    small = replace(plain, target=replace(target, config=replace(target.config, patch_size=(1, 1, 1))))
    states = [sizes.state_bytes(request) for request in (plain, small)]
    assert states[1]["target keys and values"] == 4 * states[0]["target keys and values"]
    assert states[1]["drafter keys and values"] == states[0]["drafter keys and values"]
    working = [sizes.working_bytes(request, stored="plain") for request in (plain, small)]
    assert working[1]["target"] == pytest.approx(4 * working[0]["target"], rel=1e-6)
    assert working[1]["draft"] == working[0]["draft"]
    replace(small, drafter=small.target, width=840, height=488)
    with pytest.raises(BadInput, match="width 840 is no multiple of 16"):
        replace(small, width=840)
    thirds = replace(target, config=replace(target.config, patch_size=(1, 3, 3)))
    with pytest.raises(BadInput, match="height 496 is no multiple of 48"):
        replace(plain, target=thirds, width=816, height=480 + 16)
