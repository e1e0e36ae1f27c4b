"""Odd values, names, files and devices end in one sentence of at most 400 characters, and never hang."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from cli_runs import SMALL, options
from random_set import write_random_set

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import doctor, main
from sdvg_core.errors import BadInput
from sdvg_core.pipeline import videos
from sdvg_core.pipeline.options import LoadOptions
from sdvg_core.report.run_report import read_report

LONG = "x" * 300
PATHS = (
    *("--models", "--drafter", "--target", "--vae", "--text-encoder", "--reward", "--vocabulary", "--judge-vae"),
    *("--tokenizer", "--output", "--reuse", "--continue-from", "--start-image", "--prompt-file"),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("models"))


def sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 2) -> str:
    """Run, and return the one sentence on stderr."""
    try:
        ended: object = main(arguments)
    except SystemExit as stop:  # what argparse does
        ended = stop.code
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended, len(line) <= 400) == (code, True), line
    return line


@pytest.fixture
def command(files: ModelFiles, tmp_path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for reader in ("encode_prompts", "load_models"):
        monkeypatch.delattr(videos, reader)  # no weight is read before everything else has been judged
    return [*options(files), *SMALL, "--output", str(tmp_path / "out")]


@pytest.mark.parametrize("option", PATHS)
@pytest.mark.parametrize("name", [LONG, f"a/{LONG}.safetensors", "a/" * 2100, "a\0b"], ids=["1", "2", "3", "4"])
def test_a_path_that_no_system_has_is_refused(command, capsys, option, name):
    prompt = [] if option == "--prompt-file" else ["--prompt", "x"]
    assert "bytes and no NUL" in sentence(capsys, [*command, *prompt, option, name])


@pytest.mark.parametrize(
    "arguments",
    [["inspect", LONG], ["doctor", "--models", LONG], ["study", "--models", LONG], ["demo", "--judge-vae", LONG]],
    ids=lambda arguments: arguments[0],
)
def test_every_command_refuses_such_a_path(capsys, arguments):
    assert "bytes and no NUL" in sentence(capsys, arguments)


def test_what_the_system_refuses_is_a_sentence(capsys, monkeypatch):
    def refuse(options: object) -> int:
        raise OSError(40, "Too many levels of symbolic links", "/a/" + LONG)

    monkeypatch.setattr(doctor, "run", refuse)
    assert "Too many levels of symbolic links" in sentence(capsys, ["doctor"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 1),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: " + LONG),
            1,
        ),
        (MemoryError(), 1),
    ],
)
def test_a_host_without_memory_is_a_sentence(capsys, monkeypatch, error, code):
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    assert "out of memory" in sentence(capsys, ["doctor"], code)


def test_any_other_mistake_of_ours_keeps_its_trace(monkeypatch):
    def fail(options: object) -> int:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(doctor, "run", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        main(["doctor"])


@pytest.mark.parametrize("device", ["meta", "hpu", "xla", "privateuseone", "meta:0", "nope", ""])
@pytest.mark.parametrize("option", ["--device", "--side-device"])
def test_a_device_that_cannot_run_a_model_is_refused(command, capsys, device, option):
    assert "a device is cpu, cuda" in sentence(capsys, [*command, "--prompt", "x", option, device])


@pytest.mark.parametrize("scale", [["bench", "--scale", "tiny"], ["study"]], ids=lambda command: command[0])
def test_a_device_is_refused_by_every_command(capsys, scale, tmp_path):
    more = ["--output", str(tmp_path)] if scale == ["study"] else []
    assert "device" in sentence(capsys, [*scale, "--device", "meta", *more])


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--fps", "1e18"], "fps must be from 0.001 to 1000"),
        (["--fps", "1e-9"], "fps must be from 0.001 to 1000"),
        (
            ["--drafter-settings", "window=" + "9" * 25, "--drafter-settings", "cache=incremental"],
            "window must be a whole number from 1",
        ),
        (["--target-settings", "context-frames=" + "9" * 25], "context_frames must be a whole number from 1 to"),
        (["--drafter-settings", "window=" + "9" * 5000], "invalid setting value"),
        (["--width", "16400"], "H.264 takes"),
        (["--width", "0"], "width must be a multiple of 16, but is 0"),
        (["--gate-prompt", ""], "the prompt is empty"),
        (["--gate-prompt", "x" * 20_001], "at most 20000 characters"),
        (["--gate-prompt", "a\x1b[2J"], "control character"),
    ],
    ids=lambda value: "_".join(value)[:30].strip("-") if isinstance(value, list) else "",
)
def test_odd_values_are_refused_before_a_model_is_loaded(command, capsys, more, part):
    assert part in sentence(capsys, [*command, "--prompt", "x", *more])


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--width", "0"], "--width must be a multiple of 16"),
        (["--height", "-16"], "--height must be a multiple of 16"),
        (["--width", "9" * 25], "--width must be a multiple of 16"),
        (["--memory", "nan"], "--memory must be from 0"),
        (["--memory", "1e300"], "--memory must be from 0"),
    ],
)
def test_a_study_refuses_odd_values(capsys, tmp_path, more, part):
    assert part in sentence(capsys, ["study", "--output", str(tmp_path / "out"), *more])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes in folders")
@pytest.mark.parametrize("option", ["--prompt-file", "--prompt-schedule", "--start-image", "--continue-from"])
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(command, capsys, tmp_path, option):
    os.mkfifo(tmp_path / "pipe.safetensors")
    prompt = [] if option.startswith("--prompt") else ["--prompt", "x"]
    line = sentence(capsys, [*command, *prompt, option, str(tmp_path / "pipe.safetensors")])
    assert "regular file" in line or "no weight file" in line


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes in folders")
def test_a_report_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "report.json")
    with pytest.raises(BadInput, match="cannot be read"):
        read_report(tmp_path / "report.json")


def test_a_message_is_never_longer_than_400_characters_and_keeps_what_to_do():
    escapes = "\x1b" * 500
    message = str(BadInput(f"expected {LONG}, but got {escapes}; use another"))
    assert len(message) <= 400
    assert message.startswith("expected xxx")
    assert message.endswith("; use another")


def test_an_empty_side_device_is_no_default():
    with pytest.raises(BadInput, match="a device is cpu"):
        _ = LoadOptions(side_device="").side
    assert LoadOptions().side == torch.device("cpu")
