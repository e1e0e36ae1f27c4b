"""`--models pocket`, sizes in words, several seeds, and a video made again from its report."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import equal

from sdvg_core import BadInput, LoadOptions, make, read_report
from sdvg_core.cli import main, make_parser
from sdvg_core.cli.again import load_again, prompts_again
from tests.support.cli_runs import OUTPUTS, generate, latents, names, options, override, refused, report
from tests.support.forked import fork_workers

pytestmark = pytest.mark.heavy

POCKET = ["generate", "--models", "pocket", "--blocks", "2"]
WORDS = "a big red ball drifts right from the left over sand\n3 cut: a big blue box"


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A video with one of each: take, direction, gate, cut."""
    out = tmp_path_factory.mktemp("clip") / "out"
    more = "--gate -0.5 --takes 2:2 --directions ..d --drafter-settings context-frames=6 --seed 5"
    asked = ["--prompt", WORDS, "--blocks", "3", "--seed", "5", *more.split()]
    assert main(override(POCKET, *asked, "--output", str(out))) == 0
    return out


# --- the embedded models


def test_embedded_models_make_a_video(tmp_path, capsys):
    """From Python `make` makes the same, and has the command's for its own."""
    assert main([*POCKET, "--prompt", "a whale sings", "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "shown instead: a big" in printed.err
    assert printed.out.count("as fast as the large model alone") <= 1
    settings = report(tmp_path / "out")["settings"]
    assert (settings["width"], settings["height"], settings["device"]) == (64, 64, "cpu")
    assert [settings[role]["preset"] for role in ("drafter", "target")] == ["self-forcing-1.3b", "krea-14b"]
    assert [settings[role]["dtype"] for role in ("drafter", "text_encoder")] == ["float32", "float32"]
    for name in ("out", "other"):
        folder, run = make("a whale sings", out=tmp_path / name, blocks=2)
        assert (folder, run.settings) == (tmp_path / name, settings)
    assert equal(latents(tmp_path / "other"), latents(tmp_path / "out"))


def test_make_refuses_a_folder_without_models():
    with pytest.raises(BadInput, match="found in nowhere"):
        make("a whale sings", models="nowhere")


def test_doctor_lists_the_embedded_models(capsys):
    assert main(["doctor", "--models", "pocket"]) == 0
    printed = capsys.readouterr().out
    assert "Models in pocket\n" in printed
    assert printed.count("pocket/weights") == 6


# --- sizes and seeds


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["--size", "landscape"], (832, 480)),
        (["--size", "portrait"], (480, 832)),
        (["--size", "square"], (624, 624)),
        (["--size", "640x352"], (640, 352)),
    ],
)
def test_a_size_is_a_word_or_pixels(words, size):
    parsed = make_parser().parse_args(["generate", "--prompt", "x", *words])
    assert (parsed.width, parsed.height) == size


def test_each_prompt_is_made_with_each_seed(files, tmp_path):
    """Catches: a seed of another video of the list, or of another place in it."""
    base = [*options(files), "--policy", "first", "--blocks", "1"]
    (tmp_path / "prompts.txt").write_text("a ball\na cube\n", encoding="utf-8")
    listed = ["--prompt-file", str(tmp_path / "prompts.txt"), "--seeds", "3", "4"]
    assert generate(base, tmp_path / "out", *listed) == 0
    with (tmp_path / "out" / "videos.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["prompt"], row["seed"], row["state"]) for row in rows] == [
        *((prompt, seed, "finished") for prompt in ("a ball", "a cube") for seed in ("3", "4"))
    ]
    assert [report(tmp_path / "out" / row["folder"])["settings"]["seed"] for row in rows] == [3, 4, 3, 4]
    assert generate(base, tmp_path / "alone", "--prompt", "a cube", "--seed", "4") == 0
    assert equal(latents(tmp_path / "alone"), latents(tmp_path / "out" / "0004"))
    assert names(tmp_path / "alone") == OUTPUTS


def test_negative_seed_in_a_list_is_refused(base, tmp_path, capsys):
    command = [*base, "--prompt", "x", "--output", str(tmp_path / "out"), "--seeds", "1", "-1"]
    assert "seed is -1" in refused(capsys, command)


# --- this video again


def test_report_makes_the_same_video_again(clip, tmp_path, capsys):
    assert main(["generate", "--from", str(clip), "--output", str(tmp_path / "again")]) == 0
    assert f"The same video as in {clip}, bit for bit." in capsys.readouterr().out
    assert equal(latents(clip), latents(tmp_path / "again"))
    settings = report(clip)["settings"]
    assert report(tmp_path / "again")["settings"] == settings
    assert settings["drafter"]["context_frames"] == 6


def test_options_change_what_a_report_states(clip, tmp_path, capsys):
    """Catches: an option that the report's value replaces, or a difference that is not printed."""
    more = ["--seed", "7", "--gate", "-1", "--output", str(tmp_path / "other")]
    assert main(["generate", "--from", str(clip / "report.json"), *more]) == 0
    changes = "other seed (then 5, now 7), route policy tau (then -0.5, now -1.0)"
    assert f"Not the video of {clip}: {changes}" in capsys.readouterr().out


def test_shots_of_a_budget_are_made_again_by_one(clip, tmp_path, capsys):
    """Catches: a budget refused with the advice to give it."""
    values = report(clip)
    values["settings"]["shots"] = [{"route": {}}]
    (tmp_path / "report.json").write_text(json.dumps(values), encoding="utf-8")
    again = ["generate", "--from", str(tmp_path / "report.json"), "--output", str(tmp_path / "again")]
    assert "add the same --budget" in refused(capsys, again)
    assert main([*again, "--budget", "0.9"]) == 0


def test_private_report_needs_its_prompt(clip, tmp_path, capsys):
    private = ["--private", "--output", str(tmp_path / "private")]
    assert main(["generate", "--from", str(clip), *private]) == 0
    capsys.readouterr()
    again = ["generate", "--from", str(tmp_path / "private"), "--output", str(tmp_path / "again")]
    assert "hashes in place of its prompts" in refused(capsys, again)
    assert main([*again, "--prompt", WORDS]) == 0
    assert "The same video as in" in capsys.readouterr().out


def test_same_latents_at_another_speed_are_named(clip, tmp_path, capsys):
    """Also over the first one. Catches: a video at half the speed that is called the same, or wholly another."""
    out = tmp_path / "out"
    assert main(["generate", "--from", str(clip), "--output", str(out), "--fps", "8"]) == 0
    change = "other fps (then 16.0, now 8.0)"
    assert f"The same latents as in {clip}, bit for bit; {change}.\n" in capsys.readouterr().out
    assert main(["generate", "--from", str(out), "--output", str(out), "--overwrite", "--fps", "16"]) == 0
    change = "other fps (then 8.0, now 16.0)"
    assert f"The same latents as in {out}, bit for bit; {change}.\n" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [(), ("--workers", "1")])
def test_several_videos_are_compared_with_the_report(clip, tmp_path, capsys, monkeypatch, workers):
    fork_workers(monkeypatch)
    more = ["--seeds", "5", "7", "--output", str(tmp_path / "out"), *workers]
    assert main(["generate", "--from", str(clip), *more]) == 0
    printed = capsys.readouterr().out
    same = printed.index(f"The same video as in {clip}, bit for bit.")
    other = printed.index(f"Not the video of {clip}: other seed (then 5, now 7).")
    assert same < other


def test_another_prompt_is_named(clip, tmp_path, capsys):
    other = report(clip)["blocks"][0]["prompt"].replace("sand", "snow")
    more = ["--prompt", other, "--policy", "first", "--output", str(tmp_path / "out")]
    assert main(["generate", "--from", str(clip), *more]) == 0
    assert "other prompt, route policy kind (then Gate, now First)" in capsys.readouterr().out


def test_prompt_encoded_otherwise_is_named(clip, tmp_path, capsys):
    """Catches: *the latents are others*, where the words have other numbers now."""
    shutil.copytree(clip, tmp_path / "clip")
    stated = report(clip)
    (first, digest), *_ = stated["settings"]["embeddings"].items()
    stated["settings"]["embeddings"][first] = digest[::-1]
    (tmp_path / "clip" / "report.json").write_text(json.dumps(stated), encoding="utf-8")
    (tmp_path / "clip" / "latents.safetensors").unlink()
    assert main(["generate", "--from", str(tmp_path / "clip"), "--output", str(tmp_path / "out")]) == 0
    named = f"Not the video of {tmp_path / 'clip'}. The prompt from block 1 on has another embedding than then.\n"
    assert named in capsys.readouterr().out


def test_demo_is_made_again_with_its_decoder(tmp_path, capsys):
    """Without `--models pocket`. Catches the set's other VAE, taken without a word."""
    assert main(["demo", "--blocks", "2", "--output", str(tmp_path / "demo")]) == 0
    assert main(["generate", "--from", str(tmp_path / "demo"), "--output", str(tmp_path / "again")]) == 0
    assert f"The same video as in {tmp_path / 'demo'}, bit for bit." in capsys.readouterr().out
    assert (tmp_path / "again" / "video.mp4").read_bytes() == (tmp_path / "demo" / "video.mp4").read_bytes()


def test_missing_file_of_a_report_is_named(files, tmp_path, capsys):
    """Catches another VAE that is taken in its place."""
    base = [*options(files), "--prompt", "a red ball", "--policy", "first", "--blocks", "1"]
    assert generate(base, tmp_path / "out") == 0
    models = tmp_path / "models"
    shutil.copytree(files.drafter.parent, models)
    (models / files.vae.name).rename(models / "wan_2.1_vae.safetensors")
    capsys.readouterr()
    again = ["generate", "--from", str(tmp_path / "out"), "--models", str(models), "--output", str(tmp_path / "x")]
    assert f"made with the vae {files.vae.name}, which is not in {models}" in refused(capsys, again)
    assert main([*again, "--vae", str(models / "wan_2.1_vae.safetensors")]) == 0
    assert "other vae file (then" in capsys.readouterr().out


def test_report_finds_its_files_by_name(files, tmp_path, capsys):
    """Beside another drafter, which would be taken by its usual name. Their schedule is not their preset's."""
    base = [*options(files), "--prompt", "a red ball", "--blocks", "2"]
    assert generate(base, tmp_path / "out") == 0
    models = files.drafter.parent
    more = ["--models", str(models), "--vocabulary", str(files.vocabulary)] if files.vocabulary else []
    asked = ["generate", "--from", str(tmp_path / "out" / "report.json"), "--models", str(models), *more]
    assert main([*asked, "--output", str(tmp_path / "again")]) == 0
    assert "bit for bit" in capsys.readouterr().out


def test_report_restores_the_state_dict_it_names(clip):
    """Of a checkpoint with two. Catches: the one that the preset states, so raw weights come back as EMA."""
    run = read_report(clip / "report.json")
    drafter = {**run.load["drafter"], "weights": "raw"}
    load = load_again(replace(run, load={**run.load, "drafter": drafter}), LoadOptions(), ())
    assert (load.drafter.weights, load.target.weights) == ("raw", "auto")
    assert (load.drafter.context_frames, load.dtype, load.text_dtype) == (6, "float32", "float32")


@pytest.mark.parametrize(
    ("first", "texts", "cuts", "entries"),
    [
        (0, "aab", [3], ((0, "a"), (2, "b"))),
        (0, "aab", [2, 3], ((0, "a"), (1, "a"), (2, "b"))),
        (2, "bbc", [3], ((0, "b"), (2, "b"), (4, "c"))),
        (2, "bbc", [], ((0, "b"), (4, "c"))),
    ],
)
def test_report_gives_back_every_cut(clip, first, texts, cuts, entries):
    """Catches: a cut under the same prompt, or right after a clip, that is lost, so another video is made."""
    run = read_report(clip / "report.json")
    blocks = [
        replace(block, prompt=text, span=replace(block.span, index=first + place))
        for place, (block, text) in enumerate(zip(run.blocks, texts, strict=True))
    ]
    prompts = prompts_again(replace(run, blocks=tuple(blocks), settings={**run.settings, "cuts": cuts}))
    assert prompts.entries == entries
    assert prompts.cuts == tuple(block - 1 for block in cuts)


def test_report_of_locked_blocks_alone_is_refused(clip, tmp_path, capsys):
    """As of a film that is locked whole. Catches: a traceback for want of a first block."""
    values = report(clip)
    values["settings"]["kept"] = {"blocks": 3, "digest": "0123456789abcdef"}
    (tmp_path / "report.json").write_text(json.dumps({**values, "blocks": []}), encoding="utf-8")
    assert "add it with --prompt" in refused(capsys, ["generate", "--from", str(tmp_path / "report.json")])


@pytest.mark.parametrize("settings", [{}, {"route": None}, {"route": {}, "scorer": {}}])
def test_a_report_without_settings_is_refused(clip, tmp_path, capsys, settings):
    values: dict[str, Any] = report(clip)
    (tmp_path / "report.json").write_text(json.dumps({**values, "settings": settings}), encoding="utf-8")
    assert "no settings of a run" in refused(capsys, ["generate", "--from", str(tmp_path / "report.json")])


@pytest.mark.parametrize(
    "change",
    [
        {"route": {"policy": {"kind": "Fastest"}}},
        {"route": {"policy": "fast"}},
        {"route": {"policy": {"kind": "Gate", "tau": "low"}}},
        {"route": {"policy": {"kind": "Gate", "by": {"kind": "First"}}}},
        {"route": {"policy": {"kind": "Custom", "router": "Mine"}}},
        {"route": {"rate": 0.7}},
        {"cuts": ["a"]},
        {"shots": 5},
        {"shots": ["a"]},
        {"shots": [{"route": {}}]},
        {"request": {"shots": "4:k3f"}},
        {"request": {"drafter_context": "Own"}},
        {"load": {"kind": "LoadOptions", "dtype": "half"}},
    ],
    ids=str,
)
def test_report_changed_by_hand_is_refused(clip, tmp_path, capsys, change):
    values: dict[str, Any] = report(clip)
    route = {**values["settings"]["route"], **change.get("route", {})}
    values["settings"] |= {**change, "route": route}
    for part in ("request", "load"):
        values[part] |= change.get(part, {})
    (tmp_path / "report.json").write_text(json.dumps(values), encoding="utf-8")
    refused(capsys, ["generate", "--from", str(tmp_path / "report.json"), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_report_of_comfyui_is_refused(clip, tmp_path, capsys):
    """Catches: models loaded by the defaults of the command line, in place of those that the nodes had."""
    values = report(clip) | {"load": {}}
    (tmp_path / "report.json").write_text(json.dumps(values), encoding="utf-8")
    command = ["generate", "--from", str(tmp_path / "report.json"), "--output", str(tmp_path / "out")]
    assert "queue its workflow again" in refused(capsys, command)
    assert not (tmp_path / "out").exists()


def test_start_image_of_a_report_is_needed(clip, tmp_path, capsys):
    values = report(clip)
    values["request"]["start_image"] = "red.png"
    (tmp_path / "report.json").write_text(json.dumps(values), encoding="utf-8")
    assert "add --start-image" in refused(capsys, ["generate", "--from", str(tmp_path / "report.json")])
