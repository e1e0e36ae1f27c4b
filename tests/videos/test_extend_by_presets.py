"""Who makes the new blocks of a clip that is extended, and the first blocks that a prompt states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.files.video import write_mp4
from sdvg_core.settings.fields import from_json
from sdvg_core.settings.route import First, Route, policy_name
from sdvg_core.text.prompt_files import read_prompt_list
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import SMALL, generate, latents, options, refused, report
from tests.support.reuse_folders import PROMPT, ctrl_c, decisions, stopped


@pytest.fixture(scope="module")
def base(files: ModelFiles) -> list[str]:
    return [*options(files), *SMALL, *PROMPT]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of 25 frames: seven latent frames, two blocks and one frame."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_mp4(path, torch.rand(25, 3, 32, 32, generator=torch.Generator().manual_seed(3)), fps=16)
    return path


def run(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Make a video; return its report."""
    assert main([*arguments, "--output", str(folder)]) == 0
    return report(folder)


def authors(report: dict[str, Any]) -> str:
    """Return who made each block: `t` the target, `h` the target from the draft's first steps, `d` the drafter."""
    blocks = report["blocks"]
    return "".join("d" if b["author"] == "drafter" else "h" if b["handover"] else "t" for b in blocks)


def test_stated_first_blocks_are_new_blocks(base: list[str], clip: Path, tmp_path: Path) -> None:
    """Catches the clip's blocks added to those that a line of a prompt file states."""
    file = tmp_path / "prompts.txt"
    file.write_text("[first 2] a red fox\n[first 1] a tree\n", encoding="utf-8")
    prompts = [*base[: base.index("--prompt")], "--prompt-file", str(file)]
    words = [*prompts, "--blocks", "3", "--continue-from", str(clip)]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    first = report(tmp_path / "out" / "0001")
    second = report(tmp_path / "out" / "0002")
    assert [authors(first), authors(second)] == ["thd", "tdd"]
    assert any("the target makes the first 2 of 3 blocks" in note for note in first["notes"])


def test_stated_first_blocks_follow_a_clip_of_latents(base: list[str], tmp_path: Path) -> None:
    """Its blocks are the route's first. Catches: new blocks that they are counted against."""
    run(tmp_path / "begun", [*base, "--blocks", "2"])
    file = tmp_path / "prompts.txt"
    file.write_text("[first 1] a tree\n", encoding="utf-8")
    prompts = [*base[: base.index("--prompt")], "--prompt-file", str(file)]
    words = [*prompts, "--blocks", "2", "--continue-from", str(tmp_path / "begun" / "latents.safetensors")]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    made = report(tmp_path / "out" / "0001")
    assert authors(made) == "hd"
    assert any("the target makes the first 3 of 4 blocks" in note for note in made["notes"])


def make_two_blocks(folder: Path, arguments: list[str]) -> None:
    run(folder, [*arguments, "--blocks", "2"])


def keep_two_blocks(folder: Path, arguments: list[str]) -> None:
    stopped(folder, [*arguments, "--blocks", "4"], 2, ctrl_c)


@pytest.mark.parametrize(
    "words, begin",
    [(["--preset", "careful"], make_two_blocks), (["--tau", "0.1"], keep_two_blocks)],
    ids=["first", "gate"],
)
def test_extending_in_two_steps_equals_one(
    words: list[str], begin: Callable[..., None], base: list[str], clip: Path, tmp_path: Path
) -> None:
    """Bit for bit, with the same decisions: what came as pixels is saved with the latents."""
    arguments = [*base, *words, "--continue-from", str(clip)]
    whole = run(tmp_path / "whole", [*arguments, "--blocks", "4"])
    begin(tmp_path / "begun", arguments)
    saved = tmp_path / "begun" / "latents.safetensors"
    rest = run(tmp_path / "rest", [*base, *words, "--continue-from", str(saved), "--blocks", "2"])
    assert decisions(rest) == decisions(whole)[2:]
    assert torch.equal(latents(tmp_path / "rest"), latents(tmp_path / "whole"))


def test_stopped_extension_resumes_to_the_same_video(base: list[str], clip: Path, tmp_path: Path) -> None:
    arguments = [*base, "--preset", "careful", "--continue-from", str(clip), "--blocks", "4"]
    whole = run(tmp_path / "whole", arguments)
    stopped(tmp_path / "stopped", arguments, 2)
    resumed = run(tmp_path / "stopped", arguments)
    assert decisions(resumed) == decisions(whole)
    assert torch.equal(latents(tmp_path / "stopped"), latents(tmp_path / "whole"))


# --- first blocks stated by a prompt

FILE = "[first 2] a red fox\na blue boat\n[First 3] a tree\n"


@pytest.fixture
def prompt_file(tmp_path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text(FILE, encoding="utf-8")
    return path


def forced(folder: Path) -> list[tuple[str, int]]:
    """Return the policy of each video of a list, and the blocks that it gives the target first."""
    routes = [report(video)["settings"]["route"] for video in sorted(folder.glob("[0-9]*"))]
    policies = [from_json(Route, route).policy for route in routes]
    return [
        (policy_name(policy), policy.n if isinstance(policy, First) else policy.forced_blocks)
        for policy in policies
    ]


def test_prompt_line_states_its_first_blocks(prompt_file):
    prompts = [(prompt.first, prompt.texts) for prompt in read_prompt_list(prompt_file)]
    assert prompts == [(2, ("a red fox",)), (0, ("a blue boat",)), (3, ("a tree",))]


@pytest.mark.parametrize("line", ["[first 0] a", "[first 2.5] a", "[first -1] a", "[first 9999999] a", "[first 3]"])
def test_bad_count_of_first_blocks_is_refused(prompt_file, line):
    """Catches: a count that becomes words of the prompt."""
    prompt_file.write_text(line, encoding="utf-8")
    with pytest.raises(BadInput, match=r"first blocks|the prompt is empty"):
        read_prompt_list(prompt_file)


def test_words_after_first_stay_in_the_prompt(prompt_file):
    prompt_file.write_text("[first light] over a lake", encoding="utf-8")
    assert read_prompt_list(prompt_file)[0].texts == ("[first light] over a lake",)


def test_video_of_a_list_equals_one_alone(files, tmp_path, prompt_file):
    """A gate makes the others, so that the batch needs more models than the first video.

    Catches: one route for all; a video that depends on its batch; a scorer asked for a block of a stated route.
    """
    base = [*options(files), "--blocks", "3", "--tau", "-0.5"]
    assert generate(base, tmp_path / "out", "--prompt-file", str(prompt_file)) == 0
    assert forced(tmp_path / "out") == [("first", 2), ("reward", 1), ("first", 3)]
    alone = [*options(files), "--blocks", "3", "--preset", "fast", "--handover", "0"]
    for number, (prompt, first) in {1: ("a red fox", "2"), 3: ("a tree", "3")}.items():
        more = ["--forced-blocks", first, "--prompt", prompt]
        assert generate(alone, tmp_path / f"alone{number}", *more) == 0
        assert latents(tmp_path / f"alone{number}").equal(latents(tmp_path / "out" / f"{number:04d}"))
    assert generate(base, tmp_path / "out", "--prompt-file", str(prompt_file)) == 0


def test_too_many_first_blocks_are_refused(files, tmp_path, prompt_file, capsys):
    base = [*options(files), "--blocks", "2", "--prompt-file", str(prompt_file), "--output", str(tmp_path / "out")]
    assert "states 3 first blocks" in refused(capsys, base)


def test_stated_first_blocks_exclude_a_budget(files, tmp_path, prompt_file, capsys):
    base = [*options(files), "--blocks", "3", "--prompt-file", str(prompt_file), "--budget", "1"]
    message = refused(capsys, [*base, "--output", str(tmp_path / "out")])
    assert "a budget chooses" in message
