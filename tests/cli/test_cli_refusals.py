"""What the command line refuses: one sentence of at most 400 characters, exit code 2, nothing written, no wait."""

import os
import sys
from unittest.mock import Mock

import pytest
import torch
from cli_runs import SMALL, override, refused
from safetensors.torch import load_file, save_file
from thinned import in_turn

from sdvg_core.cli import doctor, main
from sdvg_core.errors import BadInput
from sdvg_core.videos import batch, maker

LONG = "x" * 300
PATHS = (
    *("--models", "--drafter", "--target", "--vae", "--text-encoder", "--reward", "--vocabulary"),
    *("--tokenizer", "--output", "--reuse", "--continue-from", "--start-image", "--prompt-file"),
)


@pytest.fixture
def command(base, tmp_path, monkeypatch) -> list[str]:
    for room, reader in ((batch, "encode_prompts"), (maker, "load_models")):
        monkeypatch.delattr(room, reader)  # no weight is read before everything else has been judged
    return [*base, *SMALL, "--tau", "0", "--output", str(tmp_path / "out")]


# --- values


@pytest.mark.parametrize(
    "more, part",
    [
        (["--tau", "nan"], "tau is nan; give a number"),
        (["--blocks", "0"], "give 1 to"),
        (["--fps", "1e18"], "give 0.001 to 1000"),
        (["--size", "16400x32"], "H.264 cannot take"),
        (["--size", "0x32"], "width is 0; give 16 or more"),
        (["--size", "40x32"], "width 40 is no multiple of 16; use 32 or 48"),
        (["--size", "32x8"], "height is 8; give 16 or more"),
        (["--drafter-settings", "preset=krea"], "no preset 'krea'; choose among"),
        (["--target-settings", "preset=auto"], "name one, such as custom"),
        (["--schedule", "five"], "four-step"),
        (["--policy", "anchor"], "choose one of reward, first, stride, always-target"),
        (["--seed", "-1"], "seed is -1; give 0 to 18446744073709551615"),
        (["--drafter-settings", "block-frames=0"], "block_frames"),
        (["--target-settings", "block-frames=1"], "do not divide the target's (3 and 1 latent frames)"),
        (
            ["--drafter-settings", "block-frames=1", "--drafter-settings", "context-frames=2"],
            "2 context frames are too few",
        ),
        (["--target-settings", "first-schedule=five"], "four-step"),
        (["--target-settings", "recache=yes"], "recompute keeps no window"),
        (["--device", "cuda:7"], "this machine has no device"),
        (["--handover", "9"], "handover is 9, but drafts stop after 2 steps"),
        (["--budget", "0.5", "--policy", "reward"], "--budget does not heed --policy; leave one of them out"),
        (["--stride", "0"], "stride is 0.0; give 1 to 4096"),
        (["--policy", "reward", "--forced-blocks", "-1"], "forced_blocks is -1; give 0 or more"),
        (["--text-dtype", "float16"], "--text-dtype: invalid choice"),
        (["--reward-dtype", "bfloat16"], "--reward-dtype: invalid choice"),
        (["--drafter-settings", "window=2", "--drafter-settings", "cache=incremental"], "window"),
        (
            ["--drafter-settings", "window=" + "9" * 25, "--drafter-settings", "cache=incremental"],
            "give 1 to 1048576",
        ),
        (["--target-settings", "context-frames=" + "9" * 25], "give 1 to 1048576"),
        (["--drafter-settings", "window=" + "9" * 5000], "; give a whole number"),
        (["--drafter-settings", "draft-steps=x"], "draft-steps is 'x'; give a whole number"),
        (["--blocks", "many"], "invalid int value"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "\n\t"], "the prompt is empty"),
        (["--prompt", "x" * 20_001], "over 20000"),
        (["--prompt", "a\x1b[2J"], "control character"),
        (["--drafter", "nowhere.pt"], "there is no drafter at nowhere.pt; check the path"),
        (["--start-image", "nowhere.png"], "there is no file nowhere.png; check the path"),
        (["--start-image", "."], "cannot be read as a picture (it is a folder); use a PNG or JPEG"),
        (["--continue-from", "nowhere.mp4"], "there is no file nowhere.mp4; check the path"),
        (["--continue-from", "nowhere.safetensors"], "nowhere.safetensors"),
    ],
    ids=lambda value: "_".join(value)[:40].strip("-") if isinstance(value, list) else "",
)
def test_bad_values_are_refused_in_one_sentence_and_nothing_is_written(command, tmp_path, capsys, more, part):
    prompt = [] if "--prompt" in more else ["--prompt", "x"]
    assert part in refused(capsys, override(command, *prompt, *more))
    assert not (tmp_path / "out").exists()


def test_prompts_that_are_no_text_are_refused(base, tmp_path, capsys):
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00\x80")
    assert "UTF-8" in refused(
        capsys, [*base, "--output", str(tmp_path / "o"), "--prompt-file", str(tmp_path / "p.txt")]
    )


def test_latents_of_the_wrong_shape_are_refused(base, tmp_path, capsys):
    for shape, part in (
        ((1, 16, 3, 8, 8), "1 x 16 x 3 x 8 x 8"),
        ((1, 4, 3, 4, 4), "1 x 4 x 3"),
        ((16, 3, 4, 4), "shape"),
    ):
        save_file({"latents": torch.zeros(shape)}, tmp_path / "z.safetensors")
        more = ["--prompt", "x", "--output", str(tmp_path / "out")]
        more += ["--continue-from", str(tmp_path / "z.safetensors")]
        assert part in refused(capsys, override([*base, *SMALL], *more))


def test_parts_of_another_kind_are_refused(base, files, tmp_path, capsys):
    """A model on the wrong option, or a reward with a tensor missing, which the original loads and scores noise."""
    for role, wrong in (
        ("drafter", files.vae),
        ("vae", files.target),
        ("text-encoder", files.reward),
        ("reward", files.vae),
    ):
        more = [f"--{role}", str(wrong), "--gate", "0", "--prompt", "x", "--output", str(tmp_path / "out")]
        assert wrong.name in refused(capsys, override([*base, *SMALL], *more))
    weights = torch.load(files.reward, weights_only=True)
    weights.pop("mlp.layers.0.weight")
    torch.save(weights, tmp_path / "Broken.pt")
    (tmp_path / "vocab.txt").write_bytes((files.reward.parent / "vocab.txt").read_bytes())
    more = ["--reward", str(tmp_path / "Broken.pt"), *more[2:]]
    assert "mlp.layers.0.weight" in refused(capsys, override([*base, *SMALL], *more))


def test_models_with_different_text_widths_are_refused(base, files, tmp_path, capsys):
    weights = load_file(files.target)
    weights["model.text_embedding.0.weight"] = torch.zeros(256, 96)
    save_file(weights, tmp_path / "wide.safetensors")
    more = ["--target", str(tmp_path / "wide.safetensors"), "--prompt", "x", "--output", str(tmp_path / "out")]
    assert "text channels and the target" in refused(capsys, override([*base, *SMALL], *more))


@pytest.mark.parametrize("arguments", [[], ["generate"], ["dance"]], ids=" ".join)
def test_bad_usage_is_one_sentence(capsys, arguments):
    assert "see python -m sdvg_core" in refused(capsys, arguments)


# --- paths, devices, and what the system refuses


@in_turn("option, name", PATHS, [LONG, f"a/{LONG}.safetensors", "a/" * 2100, "a\0b"])
def test_a_path_that_no_system_has_is_refused(command, capsys, option, name):
    prompt = [] if option == "--prompt-file" else ["--prompt", "x"]
    assert "too long or has a NUL byte" in refused(capsys, override(command, *prompt, option, name))


@pytest.mark.parametrize(
    "arguments",
    [["inspect", LONG], ["doctor", "--models", LONG], ["demo", "--output", LONG]],
    ids=lambda arguments: arguments[0],
)
def test_every_command_refuses_such_a_path(capsys, arguments):
    assert "too long or has a NUL byte" in refused(capsys, arguments)


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (OSError(40, "Too many levels of symbolic links", "/a/" + LONG), "Too many levels of symbolic links", 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"), "out of memory", 1),
        (RuntimeError("[x.cpp:117] DefaultCPUAllocator: not enough memory: " + LONG), "out of memory", 1),
        (MemoryError(), "out of memory", 1),
    ],
)
def test_what_the_system_refuses_is_a_refused(capsys, monkeypatch, error, said, code):
    monkeypatch.setattr(doctor, "run", Mock(side_effect=error))
    line = refused(capsys, ["doctor"], code)
    assert said in line
    assert line.endswith(" (troubleshooting: Out of memory)") is (said == "out of memory")


def test_any_other_mistake_of_ours_keeps_its_trace(monkeypatch):
    monkeypatch.setattr(doctor, "run", Mock(side_effect=RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        main(["doctor"])


@in_turn("device, option", ["meta", "hpu", "meta:0", "nope", ""], ["--device", "--side-device"])
def test_a_device_that_cannot_run_a_model_is_refused(command, capsys, device, option):
    assert "; use cpu, cuda" in refused(capsys, [*command, "--prompt", "x", option, device])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes in folders")
@pytest.mark.parametrize("option", ["--prompt-file", "--start-image", "--continue-from"])
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(command, capsys, tmp_path, option):
    os.mkfifo(tmp_path / "pipe.safetensors")
    prompt = [] if option.startswith("--prompt") else ["--prompt", "x"]
    line = refused(capsys, override(command, *prompt, option, str(tmp_path / "pipe.safetensors")))
    assert "regular file" in line or "no weight file" in line


def test_a_message_is_never_longer_than_400_characters_and_keeps_what_to_do():
    escapes = "\x1b" * 500
    message = str(BadInput(f"expected {LONG}, but got {escapes}; use another"))
    assert len(message) <= 400
    assert message.startswith("expected xxx")
    assert message.endswith("; use another")
