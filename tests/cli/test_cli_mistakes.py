"""What a newcomer mistypes: the sentence says what was meant, and where to look."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_runs import refused
from safetensors.torch import save_file

import sdvg_core
from sdvg_core.cli import main, make_parser
from sdvg_core.cli.options import load_options
from sdvg_core.models.options import LoadOptions, ModelOptions
from sdvg_core.pocket import DEFAULT_PROMPT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1])}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["demo", "--sedd", "3"], "there is no option --sedd (did you mean --seed?)"),
        (["generate", "--promt", "a fox"], "there is no option --promt (did you mean --prompt?)"),
        (["generate", "--prompt", "a fox", "--tua=-1"], "there is no option --tua (did you mean --tau?)"),
    ],
)
def test_a_mistyped_option_is_named_with_the_one_that_was_meant_and_the_help_of_its_command(
    capsys, arguments, said
):
    """Catches a missing option that is reported in place of the one that was mistyped."""
    line = refused(capsys, arguments)
    assert said in line
    assert line.endswith(f"see python -m sdvg_core {arguments[0]} --help")


def test_a_dtype_may_be_of_a_part_and_a_preset_of_one_model():
    words = "--dtype bfloat16 --vae-dtype float16 --text-dtype float32 --drafter-settings preset=krea-14b window=9"
    options = make_parser().parse_args(["generate", *words.split()])
    load = load_options(options, LoadOptions(), embedded=False)
    dtypes = load.dtype, load.vae_dtype, load.text_dtype, load.reward_dtype
    assert dtypes == ("bfloat16", "float16", "float32", "auto")
    assert load.drafter == ModelOptions(preset="krea-14b", window=9)
    assert load.target == ModelOptions()


@pytest.mark.parametrize("text", ["window", "=9", "windwo=9", "cache=fast"])
def test_a_models_setting_that_there_is_not_is_refused_with_those_there_are(capsys, text):
    line = refused(capsys, ["generate", "--prompt", "a", "--drafter-settings", text])
    assert "argument --drafter-settings: " in line
    assert (
        "give NAME=VALUE of preset, cache" in line
        or "there is no cache 'fast'; choose recompute, incremental" in line
    )


@pytest.mark.parametrize("prompt", ["--- a fox ---", "-5"])
def test_a_prompt_may_begin_with_a_dash(capsys, tmp_path, prompt):
    asked = ["generate", "--prompt", prompt, "--models", str(tmp_path)]
    assert "needs vae, text_encoder" in refused(capsys, asked)


@pytest.mark.parametrize(
    "words, said",
    [
        ("--prompt-file nope", "the prompt file nope cannot be read (No such file or directory); check the path"),
        ("--prompt-file .", "the prompt file . cannot be read (it is a folder); check the path"),
        ("--prompt-file latin.txt", "the prompt file latin.txt is not UTF-8 text; save it as UTF-8"),
        ("--prompt '5: x'", "the first block has no prompt; write one before that of block 5, or as block 1"),
        ("--prompt 'x\n5: y\n3: z'", "the prompts start at blocks 1, 5, 3; sort them, and give each block one"),
        ("--from nope", "nope is no run report (No such file or directory); give the report.json of a run"),
        ("--from latin.txt", "latin.txt is no run report (it is not JSON); give the report.json of a run"),
        (f"--prompt '{DEFAULT_PROMPT}' --output latin.txt --resume", "latin.txt is a file; name another folder"),
        (f"--prompt '{DEFAULT_PROMPT}' --output x/../new", "(there is no x); name another folder"),
        (f"--prompt '{DEFAULT_PROMPT}' --output latin.txt/new", "(latin.txt is a file); name another folder"),
        (f"--prompt '{DEFAULT_PROMPT}' --output {'n' * 240}", "n... has 240 bytes; give it one of at most 239"),
    ],
)
def test_a_file_or_a_line_that_cannot_be_read_is_told_with_what_to_do(tmp_path, monkeypatch, capsys, words, said):
    """Catches `nope is not UTF-8 text`, `(JSONDecodeError)`, `the prompts start at blocks 5`."""
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes(b"a caf\xe9")
    lines = refused(capsys, ["generate", "--models", "pocket", *shlex.split(words)])
    assert said in lines
    assert [path.name for path in tmp_path.iterdir()] == ["latin.txt"]


@pytest.mark.parametrize("number", ["-inf", "-1e-3", "-.5", "-2."])
def test_a_number_below_zero_is_a_value_and_no_option(number):
    assert make_parser().parse_args(["generate", "--gate", number]).tau == float(number)


def test_the_latents_of_a_video_are_told_from_weights(tmp_path, capsys):
    save_file({"latents": torch.zeros(1, 16, 3, 8, 8)}, tmp_path / "latents.safetensors")
    assert main(["inspect", str(tmp_path)]) == 2
    told = capsys.readouterr().out
    assert "kind         latents of a video\n" in told
    assert "reason       these are no weights; give them to generate --continue-from\n" in told


@pytest.mark.heavy
def test_without_the_packages_there_is_a_sentence_that_says_how_to_get_them(tmp_path):
    """Catches a traceback for whoever calls it with the Python of the system."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    command = [sys.executable, "-m", "sdvg_core", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "package torch" in line
    assert "python3 dev.py run" in line


@pytest.mark.heavy
def test_a_reader_that_goes_away_ends_the_command_without_a_word():
    """Catches `the system refused a file (Broken pipe)` after `| head -1`."""
    command = f"{sys.executable} -m sdvg_core plan | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stderr == ""
