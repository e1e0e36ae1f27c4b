"""How many first blocks the target makes, prompt by prompt: stated in a file of prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import generate, latents, options, refused, report

from sdvg_core.errors import BadInput
from sdvg_core.text.prompts import read_prompt_list

FILE = "[first 2] a red fox\na blue boat\n[First 3] a tree\n"


@pytest.fixture
def prompt_file(tmp_path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text(FILE, encoding="utf-8")
    return path


def forced(folder: Path) -> list[tuple[str, int]]:
    routers = [report(one)["settings"]["router"] for one in sorted(folder.glob("[0-9]*"))]
    return [(router["policy"], router["forced_blocks"]) for router in routers]


def test_a_line_states_its_first_blocks_and_a_bad_count_is_never_part_of_the_prompt(tmp_path, prompt_file):
    read = [(one.first, one.texts) for one in read_prompt_list(prompt_file)]
    assert read == [(2, ("a red fox",)), (0, ("a blue boat",)), (3, ("a tree",))]
    for line in ("[first 0] a", "[first 2.5] a", "[first -1] a", "[first 9999999] a", "[first 3]"):
        prompt_file.write_text(line, encoding="utf-8")
        with pytest.raises(BadInput, match=r"first blocks; give|the prompt is empty"):
            read_prompt_list(prompt_file)
    prompt_file.write_text("[first light] over a lake", encoding="utf-8")
    assert read_prompt_list(prompt_file)[0].texts == ("[first light] over a lake",)


def test_each_prompt_of_a_file_has_its_own_first_blocks_and_its_video_is_that_of_the_prompt_alone(
    files, tmp_path, prompt_file
):
    """A gate makes the others, so that the batch needs more models than the first video.

    Catches: one route for all; a video that depends on its batch; a scorer asked for a block of a stated route.
    """
    base = [*options(files), "--blocks", "3", "--tau", "-0.5"]
    assert generate(base, tmp_path / "out", "--prompt-file", str(prompt_file)) == 0
    assert forced(tmp_path / "out") == [("first", 2), ("reward", 1), ("first", 3)]
    alone = [*options(files), "--blocks", "3", "--preset", "fast", "--handover", "0"]
    for number, (prompt, first) in {1: ("a red fox", "2"), 3: ("a tree", "3")}.items():
        more = ["--forced-blocks", first, "--prompt", prompt]
        assert generate(alone, tmp_path / f"one{number}", *more) == 0
        assert latents(tmp_path / f"one{number}").equal(latents(tmp_path / "out" / f"{number:04d}"))
    assert generate(base, tmp_path / "out", "--prompt-file", str(prompt_file), "--resume") == 0


def test_more_first_blocks_than_the_video_has_are_refused(files, tmp_path, prompt_file, capsys):
    base = [*options(files), "--blocks", "2", "--prompt-file", str(prompt_file), "--output", str(tmp_path / "out")]
    assert "a prompt states 3 first blocks, but the video has 2" in refused(capsys, base)


def test_first_blocks_and_a_budget_are_refused_together(files, tmp_path, prompt_file, capsys):
    base = [*options(files), "--blocks", "3", "--prompt-file", str(prompt_file), "--budget", "1"]
    message = refused(capsys, [*base, "--output", str(tmp_path / "out")])
    assert "a prompt states 2 first blocks, and a budget chooses as many for all; leave one of them out" in message
