"""What a newcomer mistypes: the sentence says what was meant, and where to look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import refused

import sdvg_core
from sdvg_core.cli import main, make_parser
from sdvg_core.cli.demo import outlook
from sdvg_core.cli.gone import GONE
from sdvg_core.engine.router import ROUTER_PRESETS
from sdvg_core.pipeline.request import VideoRequest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1])}


def refused_by_the_parser(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    "words, said",
    [
        (["study", "--blocks", "3"], "the command study was taken out; use python3 dev.py study;"),
        (["bench"], "the command bench was taken out; use python3 dev.py bench;"),
        (["queue", "--help"], "the command queue was taken out; use the example in docs/headless.md;"),
    ],
)
def test_a_command_that_was_taken_out_is_named_with_what_to_use_instead(capsys, words, said):
    assert said in refused_by_the_parser(capsys, words)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["demo", "--sedd", "3"], "there is no option --sedd (did you mean --seed?)"),
        (["generate", "--promt", "a fox"], "there is no option --promt (did you mean --prompt?)"),
        (["generate", "--prompt", "a fox", "--tua=-1"], "there is no option --tua (did you mean --tau?)"),
        (["demo", "--xyzzy"], "there is no option --xyzzy"),
    ],
)
def test_a_mistyped_option_is_named_with_the_one_that_was_meant_and_the_help_of_its_command(
    capsys, arguments, said
):
    """Catches a missing option that is reported in place of the one that was mistyped."""
    line = refused_by_the_parser(capsys, arguments)
    assert said in line
    assert line.endswith(f"see python -m sdvg_core {arguments[0]} --help")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (
            ["generate", "--target-window", "9"],
            "--target-window was taken out; give --target-settings window=VALUE;",
        ),
        (["generate", "--no-drafter-recache"], "give --drafter-settings recache=no;"),
        (["generate", "--quantile=0.1"], "--quantile was taken out; give it to --aggregation, such as"),
        (["generate", "--draft-share", "0.5"], "--draft-share was taken out; give --budget SHARE"),
        (["demo", "--fps", "8"], "--fps was taken out; generate has it;"),
        (["plan", "--pcie", "8"], "--pcie was taken out; 20 GB per second is planned;"),
    ],
)
def test_an_option_of_earlier_versions_is_refused_with_what_to_give_instead(capsys, arguments, said):
    assert said in refused_by_the_parser(capsys, arguments)


def test_no_option_is_both_there_and_taken_out():
    """Catches an option that came back, or a command that has none of that name."""
    for name, command in make_parser()._subparsers._group_actions[0].choices.items():
        assert not GONE.get(name, {}).keys() & command._option_string_actions.keys()


@pytest.mark.parametrize("text", ["window", "window=", "=9", "windwo=9", "cache=fast", "weights=", "recache=maybe"])
def test_a_models_setting_that_there_is_not_is_refused_with_those_there_are(capsys, text):
    line = refused_by_the_parser(capsys, ["generate", "--prompt", "a", "--drafter-settings", text])
    assert "argument --drafter-settings: " in line
    assert "give NAME=VALUE of cache, window" in line or "; choose one" in line


def test_a_policy_of_earlier_versions_is_refused_with_what_to_choose_instead(capsys):
    line = refused(capsys, ["demo", "--policy", "percentile"])
    assert "the policy percentile was taken out; choose a budget" in line


def test_a_mistyped_option_before_the_command_is_named_too(capsys):
    assert "there is no option --versoin (did you mean --version?)" in refused_by_the_parser(
        capsys, ["--versoin", "demo"]
    )


@pytest.mark.parametrize("prompt", ["--- a fox ---", "-5"])
def test_a_prompt_may_begin_with_a_dash(capsys, tmp_path, prompt):
    asked = ["generate", "--prompt", prompt, "--models", str(tmp_path)]
    assert "needs drafter, target" in refused(capsys, asked)


@pytest.mark.parametrize(
    "budget, said",
    [
        ("50", "for 50 % write 0.5"),
        ("0", "0.5 is usual"),
        ("101", "but is 101; 0.5 is usual"),
        ("nan", "but is nan; 0.5 is usual"),
    ],
)
def test_a_budget_that_is_no_share_is_refused_before_anything_else_is_said(capsys, budget, said):
    assert said in refused(capsys, ["demo", "--budget", budget])


def test_a_budget_in_percent_says_how_to_write_it(capsys):
    line = refused_by_the_parser(capsys, ["demo", "--budget", "5%"])
    assert "a share is a number such as 0.5, but got '5%'" in line


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


def test_a_reader_that_goes_away_ends_the_command_without_a_word():
    """Catches `the system refused a file (Broken pipe)` after `| head -1`."""
    command = f"{sys.executable} -m sdvg_core plan | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stderr == ""


def test_missing_models_are_listed_with_the_folder_that_does_not_exist(capsys, tmp_path):
    nowhere = tmp_path / "nowhere"
    line = refused(capsys, ["generate", "--preset", "balanced", "--prompt", "a fox", "--models", str(nowhere)])
    assert "needs drafter, target, vae and text_encoder" in line
    assert "(no such folder)" in line
    assert len(line) < 400
    main(["doctor", "--models", str(nowhere)])
    said = capsys.readouterr().out
    assert f"Models in {nowhere} (no such folder)" in said
    assert "get self_forcing_dmd.pt (5.7 GB) into diffusion_models/" in said
    assert "Apache-2.0; an older copy of the card says CC-BY-NC-SA-4.0 (read 2026-11-22)\n" in said
    assert "get vocab.txt (0.2 MB) into image_reward/" in said


def test_a_prompt_file_that_is_missing_is_named_once(capsys):
    line = refused(capsys, ["generate", "--prompt-file", "nowhere.txt"])
    assert "nowhere.txt cannot be read (No such file or directory); check the file" in line


def test_an_output_that_is_a_file_is_called_that(capsys, tmp_path):
    (tmp_path / "notes").write_text("mine")
    line = refused(capsys, ["demo", "--output", str(tmp_path / "notes")])
    assert f"{tmp_path / 'notes'} (it is a file); name another folder" in line


@pytest.mark.parametrize(
    "request_, scored",
    [
        (VideoRequest(), True),
        (VideoRequest(router=ROUTER_PRESETS["fast"]), False),
        (VideoRequest(router=ROUTER_PRESETS["fast"], directions="........a"), True),
        (VideoRequest(directions="t" * 9), False),
    ],
)
def test_the_demo_says_beforehand_whether_drafts_are_scored(request_, scored):
    """Catches a promise of scores where the route gives none."""
    said = outlook(request_, "a ball")
    assert said.startswith("Two tiny models will make 9 blocks of 'a ball'. ")
    assert ("every frame of a draft is scored" in said) is scored
    assert ("Nothing is scored" in said) is not scored


def test_what_is_loaded_is_named_before_it_is_and_a_demo_without_rejected_drafts_speaks_of_none(capsys, tmp_path):
    """Catches minutes of silence while large files are read."""
    assert main(["demo", "--blocks", "1", "--preset", "fast", "--output", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if "loading" in line] == [
        "loading pocket_umt5.safetensors, to read the prompt",
        "loading pocket_wan_2.1_vae.safetensors, pocket_krea.safetensors",
    ]
    assert "loading" not in err
    assert "will make 1 block of" in out
    assert "rejected drafts" not in out
    assert "predicted from 1 block that the target generated" in out
