"""The command line, run on real files of a tiny model set: what it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import av
import jsonschema
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import sdvg_core
from sdvg_core.cli import main
from sdvg_core.model_files import ModelFiles
from sdvg_core.pocket.random_set import write_random_set
from sdvg_core.progress import RouteBar

SCHEMA = json.loads((Path(sdvg_core.__file__).parent / "report.schema.json").read_text())
OUTPUTS = ["latents.safetensors", "report.json", "route.png", "video.mp4"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def base(files) -> list[str]:
    """Options that every `generate` here needs."""
    roles = ("drafter", "target", "vae", "text_encoder", "reward")
    named = [part for role in roles for part in (f"--{role.replace('_', '-')}", str(getattr(files, role)))]
    presets = ["--drafter-preset", "self-forcing-1.3b", "--target-preset", "krea-14b", "--text-dtype", "float32"]
    return ["generate", *named, *presets]


SMALL = ["--width", "32", "--height", "32", "--schedule", "1000,625"]


def generate(base: list[str], output: Path, *more: str) -> int:
    return main([*base, *SMALL, "--output", str(output), *more])


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def latents(folder: Path) -> torch.Tensor:
    return load_file(folder / "latents.safetensors")["latents"]


def report(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def pixel_frames(folder: Path) -> int:
    with av.open(str(folder / "video.mp4")) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.fixture(scope="module")
def clip(base, tmp_path_factory) -> Path:
    """Four blocks by a fixed route: forced, kept, remade, kept."""
    folder = tmp_path_factory.mktemp("clip") / "out"
    more = ["--prompt", "a red ball", "--blocks", "4", "--policy", "scripted", "--script", "rarara"]
    assert generate(base, folder, *more) == 0
    return folder


# --- what it writes


def test_a_prompt_becomes_video_latents_report_and_picture(clip):
    assert names(clip) == OUTPUTS
    assert pixel_frames(clip) == 9 + 3 * 12
    assert latents(clip).shape == (1, 16, 12, 4, 4)
    jsonschema.validate(report(clip), SCHEMA)
    assert [b["author"] for b in report(clip)["blocks"]] == ["target", "drafter", "target", "drafter"]
    with Image.open(clip / "route.png") as picture:
        assert picture.width > 300


def test_the_report_names_files_without_folders(clip, files):
    text = (clip / "report.json").read_text(encoding="utf-8")
    assert files.drafter.name in text
    assert str(files.drafter.parent) not in text


def test_the_same_command_twice_makes_the_same_latents(base, clip, tmp_path):
    more = ["--prompt", "a red ball", "--blocks", "4", "--policy", "scripted", "--script", "rarara"]
    before = torch.random.get_rng_state()
    assert generate(base, tmp_path, *more) == 0
    assert torch.equal(torch.random.get_rng_state(), before), "loading and running must leave the global RNG alone"
    assert (tmp_path / "latents.safetensors").read_bytes() == (clip / "latents.safetensors").read_bytes()


def test_a_clip_that_goes_on_is_the_clip_made_in_one_go(base, clip, tmp_path):
    more = ["--prompt", "a red ball", "--policy", "scripted", "--script", "rarara"]
    assert (
        generate(
            base, tmp_path / "rest", *more, "--blocks", "2", "--continue-from", str(clip / "latents.safetensors")
        )
        == 0
    )
    assert generate(base, tmp_path / "whole", *more, "--blocks", "6") == 0
    assert torch.equal(latents(tmp_path / "rest"), latents(tmp_path / "whole"))
    assert pixel_frames(tmp_path / "rest") == pixel_frames(tmp_path / "whole") == 9 + 5 * 12


def test_going_on_takes_its_size_from_the_latents(base, clip, tmp_path):
    more = [
        "--prompt",
        "x",
        "--blocks",
        "1",
        "--schedule",
        "1000",
        "--continue-from",
        str(clip / "latents.safetensors"),
    ]
    assert main([*base, "--output", str(tmp_path / "out"), *more]) == 0
    assert (report(tmp_path / "out")["settings"]["width"], latents(tmp_path / "out").shape[2]) == (32, 15)


def test_a_start_image_is_the_first_frame(base, tmp_path):
    Image.new("RGB", (50, 80), (200, 30, 30)).save(tmp_path / "red.png")
    more = ["--prompt", "a ball", "--blocks", "1", "--start-image", str(tmp_path / "red.png")]
    assert generate(base, tmp_path / "out", *more) == 0
    assert latents(tmp_path / "out").shape[2] == 1 + 3
    assert pixel_frames(tmp_path / "out") == 1 + 12


def test_a_change_of_prompt_at_a_block_leaves_earlier_blocks_bit_identical(base, clip, tmp_path):
    (tmp_path / "prompts.txt").write_text("1: a red ball\n\n4: a blue cube\n", encoding="utf-8")
    more = ["--blocks", "4", "--policy", "scripted", "--script", "rarara", "--prompt-in-report"]
    assert generate(base, tmp_path / "out", *more, "--prompt-schedule", str(tmp_path / "prompts.txt")) == 0
    assert torch.equal(latents(tmp_path / "out")[:, :, :9], latents(clip)[:, :, :9])
    assert not torch.equal(latents(tmp_path / "out")[:, :, 9:], latents(clip)[:, :, 9:])
    assert [b["prompt"] for b in report(tmp_path / "out")["blocks"]] == ["a red ball"] * 3 + ["a blue cube"]


def test_a_file_of_prompts_makes_a_folder_each(base, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("a ball\na cube\n", encoding="utf-8")
    more = ["--blocks", "1", "--json", "--prompt-in-report"]
    assert generate(base, tmp_path / "out", *more, "--prompt-file", str(tmp_path / "prompts.txt")) == 0
    assert [names(tmp_path / "out" / number) for number in ("0001", "0002")] == [OUTPUTS, OUTPUTS]
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["blocks"][0]["prompt"] for line in lines] == ["a ball", "a cube"]


@pytest.mark.parametrize(
    "more",
    [
        ["--drafter-cache", "incremental", "--target-cache", "incremental", "--target-window", "6"],
        ["--drafter-context", "own", "--repair-step", "1"],
        ["--policy", "percentile", "--crop", "tiles", "--reward-dtype", "float16"],
        ["--policy", "random", "--rate", "0.5", "--dtype", "bfloat16", "--text-dtype", "bfloat16"],
        ["--aggregation", "quantile", "--tau", "0.1", "--bail-out", "2", "--gate-prompt", "ball"],
        ["--target-context-frames", "6", "--schedule", "reference5"],
    ],
    ids=lambda m: m[0].strip("-"),
)
def test_every_option_makes_a_video(base, tmp_path, more):
    assert generate(base, tmp_path / "out", "--prompt", "a red ball", "--blocks", "3", *more) == 0
    jsonschema.validate(report(tmp_path / "out"), SCHEMA)
    if "tiles" in more:
        assert any("tau" in note for note in report(tmp_path / "out")["notes"])


# --- what it refuses


def refused(capsys, arguments: list[str]) -> str:
    """Run, and return the one sentence on stderr."""
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert "Traceback" not in captured.err
    (line,) = [line for line in captured.err.splitlines() if not line.startswith("block ")]
    assert line.startswith("sdvg: expected ")
    return line


@pytest.mark.parametrize(
    "more, part",
    [
        (["--tau", "nan"], "NaN"),
        (["--blocks", "0"], "at least 1 block"),
        (["--blocks", "-2"], "at least 1 block"),
        (["--width", "40"], "width as a multiple of 16, but got 40; use 32 or 48"),
        (["--height", "8"], "height as a multiple of 16"),
        (["--drafter-preset", "krea"], "self-forcing-1.3b, krea-14b, causal-forcing, longlive, custom"),
        (["--target-preset", "auto"], "name the preset"),
        (["--schedule", "five"], "four-step"),
        (["--policy", "scripted"], "--script"),
        (["--policy", "scripted", "--script", "ra"], "script for 9 blocks"),
        (["--policy", "scripted", "--script", "raax"], "letters a and r"),
        (["--seed", "-1"], "seed from 0"),
        (["--fps", "0"], "fps"),
        (["--device", "cuda:7"], "device of this machine"),
        (["--device", "gpu"], "device of this machine"),
        (["--repair-step", "9"], "repair_step below the 2"),
        (["--text-dtype", "float16"], "bfloat16 or float32"),
        (["--reward-dtype", "bfloat16"], "float"),
        (["--drafter-window", "2", "--drafter-cache", "incremental"], "window"),
        (["--drafter", "nowhere.pt"], "there is nothing"),
        (["--start-image", "nowhere.png"], "picture to start from"),
        (["--continue-from", "nowhere.safetensors"], "nowhere.safetensors"),
    ],
    ids=lambda value: "_".join(value).strip("-") if isinstance(value, list) else "",
)
def test_bad_values_are_refused_in_one_sentence_and_nothing_is_written(base, tmp_path, capsys, more, part):
    arguments = [*base, *SMALL, "--output", str(tmp_path / "out"), "--prompt", "x", *more]
    assert part in refused(capsys, arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t"])
def test_an_empty_prompt_is_refused(base, tmp_path, capsys, prompt):
    assert "prompt" in refused(capsys, [*base, "--output", str(tmp_path / "out"), "--prompt", prompt])


@pytest.mark.parametrize(
    "text, part",
    [("", "empty"), ("2: late", "block 1"), ("1: a\n1: b", "rising"), ("0: a", "blocks 0;"), ("a storm", "line 1")],
)
def test_a_bad_prompt_schedule_is_refused(base, tmp_path, capsys, text, part):
    (tmp_path / "p.txt").write_text(text, encoding="utf-8")
    line = refused(capsys, [*base, "--output", str(tmp_path / "out"), "--prompt-schedule", str(tmp_path / "p.txt")])
    assert part in line


def test_prompts_that_are_no_text_are_refused(base, tmp_path, capsys):
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00\x80")
    assert "UTF-8" in refused(
        capsys, [*base, "--output", str(tmp_path / "o"), "--prompt-file", str(tmp_path / "p.txt")]
    )


def test_latents_of_the_wrong_shape_are_refused(base, tmp_path, capsys):
    for shape, part in (((1, 16, 3, 8, 8), "rows"), ((1, 4, 3, 4, 4), "channels"), ((16, 3, 4, 4), "shape")):
        save_file({"latents": torch.zeros(shape)}, tmp_path / "z.safetensors")
        more = [
            "--prompt",
            "x",
            "--output",
            str(tmp_path / "out"),
            "--continue-from",
            str(tmp_path / "z.safetensors"),
        ]
        assert part in refused(capsys, [*base, *SMALL, *more])


def test_parts_of_another_kind_are_refused(base, files, tmp_path, capsys):
    """A model on the wrong option, or a reward with a tensor missing, which the original loads and scores noise."""
    for role, wrong in (
        ("drafter", files.vae),
        ("vae", files.target),
        ("text-encoder", files.reward),
        ("reward", files.vae),
    ):
        more = [f"--{role}", str(wrong), "--prompt", "x", "--output", str(tmp_path / "out")]
        assert wrong.name in refused(capsys, [*base, *SMALL, *more])
    weights = torch.load(files.reward, weights_only=True)
    weights.pop("mlp.layers.0.weight")
    torch.save(weights, tmp_path / "Broken.pt")
    (tmp_path / "vocab.txt").write_bytes((files.reward.parent / "vocab.txt").read_bytes())
    more = ["--reward", str(tmp_path / "Broken.pt"), "--prompt", "x", "--output", str(tmp_path / "out")]
    assert "mlp.layers.0.weight" in refused(capsys, [*base, *SMALL, *more])


def test_models_with_different_text_widths_are_refused(base, files, tmp_path, capsys):
    weights = load_file(files.target)
    weights["model.text_embedding.0.weight"] = torch.zeros(256, 96)
    save_file(weights, tmp_path / "wide.safetensors")
    more = ["--target", str(tmp_path / "wide.safetensors"), "--prompt", "x", "--output", str(tmp_path / "out")]
    assert "same text channels" in refused(capsys, [*base, *SMALL, *more])


def test_weights_that_make_no_numbers_stop_the_run_and_leave_nothing(base, files, tmp_path, capsys):
    weights = load_file(files.target)
    weights["model.head.head.bias"] = torch.full((64,), float("nan"))
    save_file(weights, tmp_path / "nan.safetensors")
    more = ["--target", str(tmp_path / "nan.safetensors"), "--prompt", "x", "--output", str(tmp_path / "out")]
    assert "finite weights in nan.safetensors, but head.head.bias holds" in refused(capsys, [*base, *SMALL, *more])
    assert not (tmp_path / "out").exists()


def test_missing_models_are_named_with_their_source(tmp_path, capsys):
    line = refused(
        capsys, ["generate", "--prompt", "x", "--models", str(tmp_path), "--output", str(tmp_path / "o")]
    )
    assert "self_forcing_dmd.pt" in line
    assert "gdhe17/Self-Forcing" in line


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions")
def test_an_output_folder_that_cannot_be_written_is_refused_before_any_model_is_opened(base, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    more = [
        "--prompt",
        "x",
        "--drafter",
        str(tmp_path / "not-there.pt"),
        "--output",
        str(tmp_path / "file" / "out"),
    ]
    assert "folder to write into" in refused(capsys, [*base, *more])


def test_bad_usage_is_one_sentence_with_exit_code_2(capsys):
    for arguments in ([], ["generate"], ["generate", "--prompt", "x", "--blocks", "many"], ["dance"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_interrupt_leaves_no_half_written_file(base, tmp_path, capsys, monkeypatch):
    """Ctrl-C after two blocks: no file under its name, no traceback; what is kept is tested in tests/faults."""
    honest = RouteBar.block

    def block(self, record):
        honest(self, record)
        if record.span.index == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(RouteBar, "block", block)
    assert generate(base, tmp_path / "out", "--prompt", "x", "--blocks", "4") == 130
    assert "interrupted; no half-written file is left" in capsys.readouterr().err
    assert [path.name[0] for path in (tmp_path / "out").iterdir()] == ["."]


# --- the other commands


def test_inspect_says_what_a_file_is(files, capsys):
    assert main(["inspect", str(files.drafter), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["would_load"]) == ("causal Wan 2.1 transformer", True)
    assert main(["inspect", str(files.vae)]) == 0
    assert "Wan 2.1 VAE" in capsys.readouterr().out
    assert "nothing at" in refused(capsys, ["inspect", "nowhere.safetensors"])


def test_doctor_lists_what_is_missing_and_where_to_get_it(tmp_path, files, capsys):
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "wan_2.1_vae.safetensors").write_bytes(files.vae.read_bytes())
    (tmp_path / "diffusion_models").mkdir()
    (tmp_path / "diffusion_models" / "self_forcing_dmd.pt").write_bytes(b"cut short")
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "MISSING: get ImageReward.pt (1.79 GB) from zai-org/ImageReward" in out
    assert "UNUSABLE" in out
    assert main(["doctor", "--models", str(tmp_path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings["models"]["vae"]["would_load"]
    assert not findings["models"]["drafter"]["would_load"]
    assert not findings["models"]["target"]["found"]


def test_demo_runs_from_an_empty_folder_and_says_what_to_look_at(tmp_path):
    """In a process of its own, as a newcomer would."""
    done = subprocess.run(
        [sys.executable, "-m", "sdvg_core", "demo", "--blocks", "3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "out" / "demo"
    assert set(OUTPUTS) == set(names(folder))
    first, *_, last = done.stdout.splitlines()
    assert "will make 3 blocks" in first
    assert "report.json" in last
    assert "block 3/3" in done.stderr


def test_the_demo_route_has_blocks_of_every_kind(tmp_path, capsys):
    assert main(["demo", "--output", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["totals"]
    assert (found["blocks"], found["forced"]) == (9, 1)
    assert found["accepted"] >= 1
    assert found["rejected"] >= 1


def test_the_core_imports_no_comfyui():
    """Every module of the core, in a fresh process."""
    code = (
        "import importlib, pkgutil, sys, sdvg_core\n"
        "for m in pkgutil.walk_packages(sdvg_core.__path__, 'sdvg_core.'):\n"
        "    if not m.name.endswith('__main__'): importlib.import_module(m.name)\n"
        "host = ('comfy', 'nodes', 'folder_paths', 'comfy_api', 'server')\n"
        "bad = [n for n in sys.modules if n.split('.')[0] in host]\n"
        "print(len([n for n in sys.modules if n.startswith('sdvg_core')]), bad)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    count, bad = out.split(maxsplit=1)
    assert int(count) > 40
    assert bad.strip() == "[]"
