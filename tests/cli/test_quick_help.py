"""The command line says what there is before it imports what does the work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sdvg_core
from sdvg_core.cli import COMMANDS

HEAVY = ("torch", "diffusers", "transformers", "matplotlib", "PIL", "numpy", "av", "safetensors", "einops")
NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]
ASKED = [["--version"], ["--help"], *([name, "--help"] for name in NAMES), ["plan", "--vram", "many"]]
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
