"""What a new option takes: one field of the request; a command or a policy: one file. Widgets: tests/comfyui."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.cli_runs import report
from tests.support.forked import fork
from tests.support.scratch_option import copy_with_option

COMMAND = '''
"""Say good day."""

def add_arguments(parser):
    parser.add_argument("name")

def run(options):
    print("good day,", options.name)
    return 0
'''
POLICY = {
    "NamedPolicy = ": """@dataclass(frozen=True, slots=True)
class Odd:
    needs_scorer: ClassVar[bool] = False

    def decide_early(self, place, past):
        return UNSEEN_DRAFT if place % 2 else UNSEEN_TARGET


NamedPolicy = Odd | """,
    '    "always-target": TargetOnly,': '    "always-target": TargetOnly,\n    "odd": Odd,',
}
"""What it changes in the router's file."""


def work(place: Path, folder: Path) -> None:
    """Call the copy in `place`, with results in `folder`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sdvg_core"]:
        del sys.modules[name]
    sys.path.insert(0, str(place))
    os.chdir(folder)
    from sdvg_core.cli import main
    from sdvg_core.errors import BadInput
    from sdvg_core.settings.request import VideoRequest

    with suppress(SystemExit):
        main(["generate", "--help-all"])
    asked = ["--models", "pocket", "--preset", "fast", "--blocks", "1", "--prompt", "a big red ball", "--grain"]
    assert main(["greet", "Ann"]) == 0
    assert main(["generate", *asked[:2], *asked[6:8], "--policy", "odd", "--blocks", "2", "--output", "odd"]) == 0
    assert main(["generate", *asked, "0.25", "--output", "made"]) == 0
    assert main(["generate", "--from", "made", "--output", "again"]) == 0
    assert main(["generate", *asked, "2", "--output", "refused"]) == 2
    with pytest.raises(BadInput, match="grain is 'much'; give a number"):
        VideoRequest(grain="much")


def test_a_new_option_is_one_field_and_a_new_command_or_policy_one_file(tmp_path: Path) -> None:
    """In the help, the report, `--from` and the checks of a copy. Catches: a list of options beside the fields."""
    place = copy_with_option(tmp_path / "copy")
    (place / "sdvg_core" / "cli" / "greet.py").write_text(COMMAND, encoding="utf-8")
    router = place / "sdvg_core" / "settings" / "route.py"
    text = router.read_text(encoding="utf-8")
    for old, new in POLICY.items():
        text = text.replace(old, new, 1)
    router.write_text(text, encoding="utf-8")
    process = fork(partial(work, place, tmp_path), str(tmp_path / "output"), str(tmp_path / "errors"))
    process.join(600)
    output, errors = ((tmp_path / name).read_text(encoding="utf-8") for name in ("output", "errors"))
    assert process.exitcode == 0, errors
    assert "--grain GRAIN         how much film grain (0)" in output
    assert "good day, Ann" in output
    assert [block["author"] for block in report(tmp_path / "odd")["blocks"]] == ["target", "drafter"]
    assert "sdvg: grain is 2.0; give 0 to 1" in errors
    assert "The same video as in made, bit for bit." in output
    settings = [report(tmp_path / folder)["request"]["grain"] for folder in ("made", "again")]
    assert settings == [0.25, 0.25]
    assert not (tmp_path / "refused").exists()
