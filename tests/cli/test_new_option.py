"""What a new option takes: one field of the request; a command or a policy: one file. Widgets: tests/comfyui."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cli_runs import report
from scratch_option import copy_with_option

COMMAND = '''
"""Say good day."""

def add_arguments(parser):
    parser.add_argument("name")

def run(options):
    print("good day,", options.name)
    return 0
'''
POLICY = {
    '"always-target"]': '"always-target", "odd"]',
    '    "always-target": (),': '    "always-target": (),\n    "odd": (),',
    '    if config.policy == "stride":': """    if config.policy == "odd":
        return UNSEEN_DRAFT if place % 2 else UNSEEN_TARGET
    if config.policy == "stride":""",
}
"""What it changes in the router's file."""
PROGRAM = """
import sys
from pathlib import Path
from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.request.request import VideoRequest

try:
    main(["generate", "--help-all"])
except SystemExit:
    pass
asked = ["--models", "pocket", "--preset", "fast", "--blocks", "1", "--prompt", "a big red ball", "--grain"]
assert main(["greet", "Ann"]) == 0
assert main(["generate", *asked[:2], *asked[6:8], "--policy", "odd", "--blocks", "2", "--output", "odd"]) == 0
assert main(["generate", *asked, "0.25", "--output", "made"]) == 0
assert main(["generate", "--from", "made", "--output", "again"]) == 0
assert main(["generate", *asked, "2", "--output", "refused"]) == 2
try:
    VideoRequest(grain="much")
except BadInput as error:
    print(error)
"""


def test_a_new_option_is_one_field_and_a_new_command_or_policy_one_file(tmp_path: Path) -> None:
    """In the help, the report, `--from` and the checks of a copy. Catches: a list of options beside the fields."""
    place = copy_with_option(tmp_path / "copy")
    (place / "sdvg_core" / "cli" / "greet.py").write_text(COMMAND, encoding="utf-8")
    router = place / "sdvg_core" / "engine" / "router.py"
    text = router.read_text(encoding="utf-8")
    for old, new in POLICY.items():
        text = text.replace(old, new, 1)
    router.write_text(text, encoding="utf-8")
    program = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--grain GRAIN         how much film grain (0)" in done.stdout
    assert "grain is 'much'; give a number" in done.stdout
    assert "good day, Ann" in done.stdout
    assert [block["author"] for block in report(tmp_path / "odd")["blocks"]] == ["target", "drafter"]
    assert "sdvg: grain is 2.0; give 0 to 1" in done.stderr
    assert "The same video as in made, bit for bit." in done.stdout
    settings = [report(tmp_path / folder)["settings"]["grain"] for folder in ("made", "again")]
    assert settings == [0.25, 0.25]
    assert not (tmp_path / "refused").exists()
