"""The command line says what there is before it imports what does the work."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sdvg_core
from sdvg_core.cli import COMMANDS, main, make_parser

HEAVY = ("torch", "diffusers", "transformers", "matplotlib", "PIL", "numpy", "av", "safetensors", "einops")
MOST_OPTIONS = 90
NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]
ASKED = [
    ["--version"],
    ["--help"],
    ["generate", "--help-all"],
    *([name, "--help"] for name in NAMES),
    ["plan", "--vram", "many"],
]
PROGRAM = f"""
import sys
from sdvg_core.__main__ import run
try:
    run(sys.argv[1:])
except SystemExit as end:
    print("code", end.code)
print("loaded", [name for name in {HEAVY!r} if name in sys.modules])
"""


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_help_version_and_bad_usage_import_nothing_heavy(arguments):
    """Catches a parser that takes a word from a room that does the work; it cost 2 seconds."""
    here = {**os.environ, "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=here)
    *_, code, loaded = done.stdout.splitlines()
    assert code == f"code {2 if 'many' in arguments else 0}"
    assert loaded == "loaded []"


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_names_no_option_that_it_lacks(capsys, name):
    """Catches --restyle in the help of the demo."""
    parser = next(action for action in make_parser()._actions if action.choices).choices[name]
    word = "--help-all" if "--help-all" in parser._option_string_actions else "--help"
    with pytest.raises(SystemExit):
        main([name, word])
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", capsys.readouterr().out)
    assert set(named) - set(parser._option_string_actions) == set()


def test_the_help_of_generate_has_twelve_options_and_three_examples_and_the_rest_is_behind_another(capsys):
    said = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit, match="0"):
            main(["generate", word])
        said.append(capsys.readouterr().out)
    short, whole = (re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE) for text in said)
    assert len(short) == 13
    assert short[-1] == "--help-all"
    assert set(short) < set(whole)
    assert {"--tokenizer", "--budget", "--private"} < set(whole)
    examples = [line for line in said[0].splitlines() if line.startswith("  python -m sdvg_core generate")]
    assert len(examples) == 3
    for line in examples:
        assert make_parser().parse_args(shlex.split(line)[3:])
    assert "the blocks after it, which follow from it" in " ".join(said[0].split())


def test_all_commands_together_have_no_more_options_than_a_person_can_look_through():
    """A new one takes the place of one that nobody would miss."""
    (commands,) = (one for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction))
    options = [one for parser in commands.choices.values() for one in parser._actions if one.option_strings]
    seen = [one for one in options if one.dest not in ("help", "help_all")]
    assert len(seen) <= MOST_OPTIONS
