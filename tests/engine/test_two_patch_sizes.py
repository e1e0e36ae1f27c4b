"""A target whose token is one latent pixel beside a drafter of 2 x 2: what the design promises, bit for bit.

Latents, VAE and text are what two models must share; into how many tokens each cuts a frame is its own matter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from cli_runs import options
from random_set import TARGET, TEXT_WIDTH, write_random_set
from safetensors.torch import save_file
from test_exactness import check_pattern
from thinned import every_pair
from tiny import (
    CONFIG,
    CONTEXTS,
    POLICIES,
    latents_shown,
    make_engine,
    make_framewise,
    make_generator,
    planned,
    random_module,
    random_tree,
    scripted,
)

from sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import main
from sdvg_core.engine.inputs import CONTROL_CHANNELS, ControlClip
from sdvg_core.engine.protocols import Engine
from sdvg_core.errors import BadInput
from sdvg_core.memory import sizes
from sdvg_core.memory.sizes import PlanRequest

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
def test_every_block_is_what_its_author_makes_from_what_was_emitted(policy, context, make, route):
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
    assert main(["inspect", str(tmp_path / "long.safetensors")]) == 2
    assert "tokens of 2 latent frames, not 1" in capsys.readouterr().out


def test_tokens_are_counted_by_model_in_memory():
    """Four times the tokens: four times the cache."""
    plain = PlanRequest()
    target = replace(plain.target, preset=replace(plain.target.preset, policy="incremental"))
    plain = replace(plain, target=target)
    small = replace(plain, target=replace(target, config=replace(target.config, patch_size=(1, 1, 1))))
    states = [sizes.state_bytes(request) for request in (plain, small)]
    assert states[1]["target keys and values"] == 4 * states[0]["target keys and values"]
    assert states[1]["drafter keys and values"] == states[0]["drafter keys and values"]
    working = [sizes.working_bytes(request, fp8=False) for request in (plain, small)]
    assert working[1]["target"] == pytest.approx(4 * working[0]["target"], rel=1e-6)
    assert working[1]["draft"] == working[0]["draft"]
    replace(small, drafter=small.target, width=840, height=488)
    with pytest.raises(BadInput, match="width 840 is no multiple of 16"):
        replace(small, width=840)
    thirds = replace(target, config=replace(target.config, patch_size=(1, 3, 3)))
    with pytest.raises(BadInput, match="height 496 is no multiple of 48"):
        replace(plain, target=thirds, width=816, height=480 + 16)
