"""What a newcomer mistypes: the sentence says what was meant, and where to look."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import refused

import sdvg_core
from sdvg_core.cli import make_parser
from sdvg_core.cli.options import load_options
from sdvg_core.models.options import LoadOptions, ModelOptions

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
    "budget, said",
    [
        ("50", "budget is 50.0; give 0.01 to 1"),
        ("nan", "budget is nan; give 0.01 to 1"),
    ],
)
def test_a_budget_that_is_no_share_is_refused_before_anything_else_is_said(capsys, budget, said):
    assert said in refused(capsys, ["generate", "--models", "pocket", "--prompt", "x", "--budget", budget])


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
