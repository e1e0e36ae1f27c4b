"""Odd values, names, files and devices end in one sentence of at most 400 characters, and never hang."""

import os
import sys

import pytest
from cli_runs import SMALL, options
from thinned import in_turn

from sdvg_core.cli import doctor, main
from sdvg_core.errors import BadInput
from sdvg_core.pipeline import batch, videos

LONG = "x" * 300
PATHS = (
    *("--models", "--drafter", "--target", "--vae", "--text-encoder", "--reward", "--vocabulary", "--judge-vae"),
    *("--tokenizer", "--output", "--reuse", "--continue-from", "--start-image", "--prompt-file"),
)


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
def command(files, tmp_path, monkeypatch) -> list[str]:
    for room, reader in ((batch, "encode_prompts"), (videos, "load_models")):
        monkeypatch.delattr(room, reader)  # no weight is read before everything else has been judged
    return [*options(files), *SMALL, "--gate", "0", "--output", str(tmp_path / "out")]


@in_turn("option, name", PATHS, [LONG, f"a/{LONG}.safetensors", "a/" * 2100, "a\0b"])
def test_a_path_that_no_system_has_is_refused(command, capsys, option, name):
    prompt = [] if option == "--prompt-file" else ["--prompt", "x"]
    assert "bytes and no NUL" in sentence(capsys, [*command, *prompt, option, name])


@pytest.mark.parametrize(
    "arguments",
    [["inspect", LONG], ["doctor", "--models", LONG], ["demo", "--output", LONG]],
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
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: " + LONG), 1),
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


@in_turn("device, option", ["meta", "hpu", "meta:0", "nope", ""], ["--device", "--side-device"])
def test_a_device_that_cannot_run_a_model_is_refused(command, capsys, device, option):
    assert "a device is cpu, cuda" in sentence(capsys, [*command, "--prompt", "x", option, device])


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--fps", "1e18"], "give 0.001 to 1000"),
        (
            ["--drafter-settings", "window=" + "9" * 25, "--drafter-settings", "cache=incremental"],
            "choose a whole number from 1",
        ),
        (["--target-settings", "context-frames=" + "9" * 25], "choose a whole number from 1 to"),
        (["--drafter-settings", "window=" + "9" * 5000], "invalid setting value"),
        (["--width", "16400"], "H.264 cannot take"),
        (["--width", "0"], "width 0 is no multiple of 16"),
        (["--gate-prompt", ""], "the prompt is empty"),
        (["--gate-prompt", "x" * 20_001], "over 20000"),
        (["--gate-prompt", "a\x1b[2J"], "control character"),
    ],
    ids=lambda value: "_".join(value)[:30].strip("-") if isinstance(value, list) else "",
)
def test_odd_values_are_refused_before_a_model_is_loaded(command, capsys, more, part):
    assert part in sentence(capsys, [*command, "--prompt", "x", *more])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes in folders")
@pytest.mark.parametrize("option", ["--prompt-file", "--prompt-schedule", "--start-image", "--continue-from"])
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(command, capsys, tmp_path, option):
    os.mkfifo(tmp_path / "pipe.safetensors")
    prompt = [] if option.startswith("--prompt") else ["--prompt", "x"]
    line = sentence(capsys, [*command, *prompt, option, str(tmp_path / "pipe.safetensors")])
    assert "regular file" in line or "no weight file" in line


def test_a_message_is_never_longer_than_400_characters_and_keeps_what_to_do():
    escapes = "\x1b" * 500
    message = str(BadInput(f"expected {LONG}, but got {escapes}; use another"))
    assert len(message) <= 400
    assert message.startswith("expected xxx")
    assert message.endswith("; use another")
