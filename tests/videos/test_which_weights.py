"""Averaged and raw weights of one file: which are run, what the report says, and the keys."""

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import latents, options, override, report
from random_set import write_random_set

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.checkpoints.pickles import Weights
from sdvg_core.cli import main
from sdvg_core.models.headers import check_models, part_fingerprints
from sdvg_core.models.options import LoadOptions, ModelOptions

ONE = ["--size", "16x16", "--schedule", "1000", "--blocks", "1", "--prompt", "a red ball"]
DRAFTED = ["--policy", "first", "--forced-blocks", "0"]
TAKEN = {"ema": "generator_ema", "raw": "generator"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> ModelFiles:
    """A drafter whose raw weights are those of another seed."""
    files = write_random_set(tmp_path_factory.mktemp("models"))
    other = write_random_set(tmp_path_factory.mktemp("others"), seed=1)
    averaged, raw = (torch.load(f.drafter, weights_only=True)["generator_ema"] for f in (files, other))
    torch.save({"generator": raw, "generator_ema": averaged}, files.drafter)
    return files


@pytest.fixture(scope="module")
def base(files) -> list[str]:
    return [*options(files), *ONE]


def load_options(weights: Weights = "auto", preset: str = "self-forcing-1.3b") -> LoadOptions:
    drafter = ModelOptions(preset=preset, weights=weights)
    return LoadOptions(drafter=drafter, target=ModelOptions(preset="krea-14b"))


def drafted(base: list[str], folder: Path, *more: str) -> dict[str, Any]:
    assert main([*override([*base, *DRAFTED], *more), "--output", str(folder)]) == 0
    return report(folder)


def test_the_weights_asked_for_are_run_and_named_in_the_report(base, tmp_path, capsys):
    made = {}
    for weights, taken in TAKEN.items():
        there = drafted(base, tmp_path / weights, "--drafter-settings", f"weights={weights}")
        assert there["settings"]["drafter"]["dictionary"] == taken
        assert not any("sets of weights" in note for note in there["notes"])
        made[weights] = latents(tmp_path / weights)
    assert not torch.equal(made["ema"], made["raw"])
    raw = ["--drafter-settings", "weights=raw", "--reuse"]
    again = drafted(base, tmp_path / "again", *raw, str(tmp_path / "raw"))
    assert [block["reused"] for block in again["blocks"]] == [True]
    other = drafted(base, tmp_path / "other", *raw, str(tmp_path / "ema"))
    assert [block["reused"] for block in other["blocks"]] == [False]


def test_the_two_state_dicts_of_one_file_never_share_a_key(files):
    """Catches a key of the file alone: both have the same name, the same hash and the same preset."""
    found = {}
    for weights in TAKEN:
        load = load_options(weights)
        found[weights] = part_fingerprints(files, load, check_models(files, load).models)
    assert found["ema"].drafter != found["raw"].drafter
    assert found["ema"].target == found["raw"].target
    auto = part_fingerprints(files, load_options(), check_models(files, load_options()).models)
    assert auto.drafter == found["ema"].drafter, "the same weights, however they were chosen"
