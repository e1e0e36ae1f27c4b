"""Runs of `generate` without every model, one file in both roles, two sets of weights in one file, a TAEHV."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sdvg_core.cli import main
from sdvg_core.decoders.taehv import Taehv
from sdvg_core.files.video import write_mp4
from sdvg_core.loading import load as loading
from sdvg_core.loading.headers import check_models, file_part_keys
from sdvg_core.settings.load import LoadOptions, ModelOptions, Weights
from sdvg_core.weights.latents import save_latents
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import SMALL, generate, latents, options, override, refused, report, without
from tests.support.cli_runs import options as files_of
from tests.support.random_set import write_random_set
from tests.support.reuse_folders import made, reused, same

DRAFT_ONLY = ("--policy", "first", "--forced-blocks", "0")


def test_route_of_drafts_needs_the_drafter_alone(base, tmp_path):
    (tmp_path / "models").mkdir()
    models = ["--models", str(tmp_path / "models"), "--blocks", "2"]
    arguments = override(without(base, "target", "reward", "tau"), *models)
    # With its memory planned, as on every GPU.
    alone = made(tmp_path / "alone", [*arguments, *DRAFT_ONLY, "--vram", "24"])
    assert [block["author"] for block in alone.report["blocks"]] == ["drafter"] * 2
    assert alone.report["settings"]["target"] is None
    beside = made(tmp_path / "beside", override(without(base, "tau"), "--blocks", "2", *DRAFT_ONLY))
    assert alone.frames == beside.frames


def test_always_target_needs_the_target_alone(base, tmp_path):
    (tmp_path / "models").mkdir()
    models = ["--models", str(tmp_path / "models"), "--blocks", "2"]
    arguments = override(without(base, "drafter", "reward", "tau"), *models)
    alone = made(tmp_path / "alone", [*arguments, "--policy", "always-target"])
    beside = made(tmp_path / "beside", override(without(base, "tau"), "--blocks", "2", "--policy", "always-target"))
    same(alone, beside)
    assert (alone.report["settings"]["drafter"], alone.report["settings"]["scorer"]) == (None, {"name": "none"})
    again = made(tmp_path / "again", [*arguments, "--directions", "tt", "--reuse", str(tmp_path / "beside")])
    assert (again.frames, reused(again)) == (alone.frames, 2)


DRAFTER = "self_forcing_dmd.pt"
TARGET = "krea-realtime-video-14b.safetensors"


@pytest.mark.parametrize(
    ("roles", "more", "keyword", "file"),
    [
        (("drafter",), [], "the route reward needs a drafter", DRAFTER),
        (("drafter", "target"), [], "needs a drafter or target", DRAFTER),
        (("vae",), ["--policy", "first"], "needs vae", "wan_2.1_vae.safetensors"),
        (("drafter",), ["--policy", "always-target", "--directions", "..d"], "directions need a drafter", DRAFTER),
        (("target",), [*DRAFT_ONLY, "--directions", "..t"], "directions need a target", TARGET),
        (("reward",), [*DRAFT_ONLY, "--directions", "..a"], "directions need a reward model", "ImageReward.pt"),
    ],
    ids=str,
)
def test_missing_model_is_named_with_its_source(base, tmp_path, capsys, roles, more, keyword, file):
    given = without(base, *roles, *(["tau"] if more else []))
    line = refused(capsys, [*given, *more, "--models", str(tmp_path), "--output", str(tmp_path / "out")])
    assert keyword in line
    assert f"; get {file} from " in line
    assert line.endswith(" (troubleshooting: Models are not found)")
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_file_of_both_roles_is_loaded_once(base, files, tmp_path):
    """With a schedule for each. Catches: a second copy of the weights, or one schedule for both roles."""
    target = ["--target", str(files.drafter), "--target-settings", "preset=self-forcing-1.3b"]
    schedules = ["--drafter-settings", "schedule=1000,625", "--target-settings", "schedule=four-step"]
    words = override(without(base, "schedule", "tau"), *target, *schedules, "--blocks", "2", "--directions", "td")
    with patch.object(loading, "load_wan", wraps=loading.load_wan) as load:
        run = made(tmp_path / "out", words).report
    assert load.call_count == 1
    assert run["settings"]["drafter"]["file"] == run["settings"]["target"]["file"]
    target_block, draft_block = run["blocks"]
    assert target_block["target"]["denoising_passes"] == 4
    assert draft_block["draft"]["denoising_passes"] == 2


@pytest.mark.heavy
def test_unused_role_is_not_loaded(base, tmp_path):
    with patch.object(loading, "load_wan", wraps=loading.load_wan) as load:
        made(tmp_path / "out", override(without(base, "tau"), "--blocks", "1", "--directions", "d"))
    assert load.call_count == 1


def test_memory_is_planned_for_two_models_alone(base, files, tmp_path, capsys):
    """Catches: a card's memory that is stated, and of which nothing is planned."""
    target = ["--target", str(files.drafter), "--target-settings", "preset=self-forcing-1.3b"]
    schedules = ["--drafter-settings", "schedule=1000,625", "--target-settings", "schedule=four-step"]
    words = override(without(base, "schedule", "tau"), *target, *schedules, "--blocks", "2", "--directions", "td")
    assert main([*words, "--vram", "16", "--output", str(tmp_path / "out")]) == 2
    assert "drafter and target are one" in capsys.readouterr().err


def test_budget_of_one_model_is_refused(base, tmp_path, capsys):
    words = [*without(base, "target", "tau"), "--budget", "0.5", "--models", str(tmp_path)]
    assert "give a drafter and a target" in refused(capsys, [*words, "--output", str(tmp_path / "out")])


def test_shots_of_two_block_lengths_are_refused(base, tmp_path, capsys):
    """Catches: shots of one film in blocks of one and of three frames, which nothing can number."""
    framewise = ["--drafter-settings", "block-frames=1", "cache=incremental"]
    prompt = ["--prompt", "a ball\n3 fresh #b: a storm", "--blocks", "4", "--directions", "ddtt"]
    words = [*override(without(base, "tau"), *prompt), *framewise, "--policy", "always-target"]
    sentence = refused(capsys, [*words, "--output", str(tmp_path / "out")])
    assert "the drafter alone makes the shots #0" in sentence


def test_roles_of_equal_file_and_schedule_are_refused(base, files, tmp_path, capsys):
    """A remade block would be the draft again, and would be found in the store at no cost."""
    target = ["--target", str(files.drafter), "--target-settings", "preset=self-forcing-1.3b"]
    command = override(base, *target, "--output", str(tmp_path / "out"))
    assert "drafter and target are one model with one schedule" in refused(capsys, command)
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_drafter_larger_than_its_target_is_noted(base, earlier, files, tmp_path):
    swapped = ["--drafter", str(files.target), "--target", str(files.drafter), "--blocks", "1"]
    presets = ["--drafter-settings", "preset=krea-14b", "--target-settings", "preset=self-forcing-1.3b"]
    run = made(tmp_path / "swapped", override(without(base, "tau"), *swapped, *presets, "--directions", "r"))
    assert any("has more weights than the target" in note for note in run.report["notes"])
    assert not any("more weights" in note for note in earlier[1].report["notes"])


INCREMENTAL = [word for role in ("drafter", "target") for word in (f"--{role}-settings", "cache=incremental")]
WAYS = {
    "the start image": ["--start-image", "red.png"],
    "the clip to continue": ["--continue-from", "clip.mp4"],
    "the clip to restyle": ["--restyle", "clip.mp4"],
    "a clip shorter than a block": ["--continue-from", "two.safetensors"],
    "the control": ["--control", "clip.mp4"],
}


def tae_options(files: ModelFiles) -> list[str]:
    return [*files_of(files), "--prompt", "a red ball rolls", "--blocks", "2"]


def write_tae(path: Path, *, encoder: bool = True) -> Path:
    net = Taehv(16, (8, 6, 5, 4), (4, 4, 4, 4) if encoder else None)
    draw = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(w.shape, generator=draw) * 0.2 for name, w in net.state_dict().items()}
    weights["decoder.22.bias"] += 0.5
    save_file(weights, path)
    return path


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """A TAEHV without an encoder, and starts that need one."""
    folder = tmp_path_factory.mktemp("half")
    Image.new("RGB", (32, 32), "red").save(folder / "red.png")
    write_mp4(folder / "clip.mp4", torch.zeros(9, 3, 32, 32), fps=16)
    save_latents(folder / "two.safetensors", torch.zeros(1, 16, 2, 4, 4), {})
    return write_tae(folder / "half_taew2_1.safetensors", encoder=False)


@pytest.mark.heavy
def test_report_and_video_name_the_fast_decoder(files, tmp_path):
    tae = write_tae(tmp_path / "tiny_taew2_1.safetensors")
    assert generate(tae_options(replace(files, vae=tae)), tmp_path / "fast") == 0
    run = report(tmp_path / "fast")
    assert run["settings"]["vae"]["tae_kind"] == "taew2_1"
    assert any("Fast decoder (TAEHV)" in note for note in run["notes"])
    with av.open(str(tmp_path / "fast" / "video.mp4")) as video:
        assert "Fast decoder (TAEHV)" in video.metadata["comment"]


def test_taehv_without_encoder_decodes_a_video(files, half, tmp_path):
    """With its memory planned, as on every GPU."""
    words = [*INCREMENTAL, "--preset", "fast", "--vram", "24"]
    assert generate(tae_options(replace(files, vae=half)), tmp_path / "out", *words) == 0


@pytest.mark.parametrize("need", [*WAYS, "the target's context"])
def test_taehv_without_encoder_is_refused_for_encoding(files, half, tmp_path, capsys, need):
    asked = [*tae_options(replace(files, vae=half)), *SMALL, "--output", str(tmp_path / "out")]
    if way := WAYS.get(need):
        asked += [*INCREMENTAL, way[0], str(half.parent / way[1])]
    assert f"the VAE has no encoder, which {need} needs; give the Wan 2.1 VAE" in refused(capsys, asked)
    assert not (tmp_path / "out").exists()


BLOCK = ["--size", "16x16", "--schedule", "1000", "--blocks", "1", "--prompt", "a red ball"]
DRAFTED = ["--policy", "first", "--forced-blocks", "0"]
TAKEN = {"ema": "generator_ema", "raw": "generator"}


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory) -> ModelFiles:
    """A drafter whose raw weights are those of another seed."""
    two_sets = write_random_set(tmp_path_factory.mktemp("models"), vae_blocks=1)
    other = write_random_set(tmp_path_factory.mktemp("others"), seed=1, vae_blocks=1)
    averaged, raw = (torch.load(f.drafter, weights_only=True)["generator_ema"] for f in (two_sets, other))
    torch.save({"generator": raw, "generator_ema": averaged}, two_sets.drafter)
    return two_sets


@pytest.fixture(scope="module")
def two_base(two_sets) -> list[str]:
    return [*options(two_sets), *BLOCK]


def load_options(weights: Weights = "auto", preset: str = "self-forcing-1.3b") -> LoadOptions:
    drafter = ModelOptions(preset=preset, weights=weights)
    return LoadOptions(drafter=drafter, target=ModelOptions(preset="krea-14b"))


def drafted(two_base: list[str], folder: Path, *more: str) -> dict[str, Any]:
    assert main([*override([*two_base, *DRAFTED], *more), "--output", str(folder)]) == 0
    return report(folder)


def test_weights_asked_for_are_run_and_reported(two_base, tmp_path, capsys):
    for weights, dictionary in TAKEN.items():
        run = drafted(two_base, tmp_path / weights, "--drafter-settings", f"weights={weights}")
        assert run["settings"]["drafter"]["dictionary"] == dictionary
        assert not any("sets of weights" in note for note in run["notes"])
    assert not torch.equal(latents(tmp_path / "ema"), latents(tmp_path / "raw"))
    raw = ["--drafter-settings", "weights=raw", "--reuse"]
    again = drafted(two_base, tmp_path / "again", *raw, str(tmp_path / "raw"))
    assert [block["reused"] for block in again["blocks"]] == [True]
    other = drafted(two_base, tmp_path / "other", *raw, str(tmp_path / "ema"))
    assert [block["reused"] for block in other["blocks"]] == [False]


def test_state_dicts_of_a_file_differ_in_key(two_sets):
    """Catches a key of the file alone: both have the same name, the same hash and the same preset."""
    keys = {}
    for weights in ("ema", "raw", "auto"):
        load = load_options(weights)
        keys[weights] = file_part_keys(two_sets, load, check_models(two_sets, load).models)
    assert keys["ema"].drafter != keys["raw"].drafter
    assert keys["ema"].target == keys["raw"].target
    assert keys["auto"].drafter == keys["ema"].drafter, "the same weights, however they were chosen"
