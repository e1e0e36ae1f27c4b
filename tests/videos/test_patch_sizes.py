"""Files of models whose tokens are of other sizes than those of the published ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_core.cli import main
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import options
from tests.support.random_set import TARGET, TEXT_WIDTH, write_random_set
from tests.support.tiny import generator_of


def write_model(path: Path, config: WanConfig) -> None:
    source = generator_of(3)
    weights = {name: torch.randn(shape, generator=source) * 0.05 for name, shape in wan_shapes(config).items()}
    save_file(weights, path, {"config": f'{{"transformer": {{"text_dim": {TEXT_WIDTH}}}}}'})


@pytest.fixture
def fine(tmp_path: Path) -> ModelFiles:
    """A random set whose target has tokens of one latent pixel, and states nothing of them."""
    files = write_random_set(tmp_path / "fine", vae_blocks=1)
    write_model(files.target, replace(TARGET, patch_size=(1, 1, 1)))
    return files


def test_size_is_a_multiple_of_the_larger_patch(fine, tmp_path, capsys):
    """Catches: a size that is asked of the target's tokens alone, or of a model that is not loaded."""
    video = ["--size", "40x24", "--blocks", "1", "--schedule", "1000,625", "--prompt", "a", "--seed", "1"]
    both = options(fine)
    assert main([*both, *video, "--output", str(tmp_path / "both")]) == 2
    assert "width 40 is no multiple of 16" in capsys.readouterr().err
    drafter = both.index("--drafter")
    target_only = [*both[:drafter], *both[drafter + 2 :], "--policy", "always-target"]
    assert main([*target_only, *video, "--output", str(tmp_path / "alone")]) == 0


def test_token_of_two_latent_frames_is_refused(tmp_path, capsys):
    """A cache has a slot for each latent frame."""
    write_model(tmp_path / "long.safetensors", replace(TARGET, patch_size=(2, 2, 2)))
    assert main(["doctor", str(tmp_path / "long.safetensors")]) == 2
    assert "tokens of 2 latent frames, not 1" in capsys.readouterr().out
