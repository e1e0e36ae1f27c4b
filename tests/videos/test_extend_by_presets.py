"""Who makes the new blocks of a clip that is extended, and the first blocks that a prompt states."""

from __future__ import annotations

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


def made(folder: Path, arguments: list[str], code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--output", str(folder)]) == code
    return report(folder)


def authors(told: dict[str, Any]) -> str:
    """Return who made each block: `t` the target, `h` the target from the draft's first steps, `d` the drafter."""
    blocks = told["blocks"]
    return "".join("d" if b["author"] == "drafter" else "h" if b["handover"] else "t" for b in blocks)


def test_the_first_blocks_that_a_prompt_states_are_new_blocks(base: list[str], clip: Path, tmp_path: Path) -> None:
    """Catches the clip's blocks added to those that a line of a prompt file states."""
    file = tmp_path / "prompts.txt"
    file.write_text("[first 2] a red fox\n[first 1] a tree\n", encoding="utf-8")
    prompts = [*base[: base.index("--prompt")], "--prompt-file", str(file)]
    words = [*prompts, "--blocks", "3", "--continue-from", str(clip)]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    told = [report(tmp_path / "out" / name) for name in ("0001", "0002")]
    assert [authors(one) for one in told] == ["thd", "tdd"]
    assert any("the target makes the first 2 of 3 blocks" in note for note in told[0]["notes"])


@pytest.mark.parametrize("words", [["--preset", "careful"], ["--tau", "0.1"]], ids=["first", "gate"])
def test_two_new_blocks_and_two_more_are_four_from_latents_and_after_a_stop(
    words: list[str], base: list[str], clip: Path, tmp_path: Path
) -> None:
    """Bit for bit, with the same decisions: what came as pixels is saved with the latents."""
    arguments = [*base, *words, "--continue-from", str(clip)]
    whole = made(tmp_path / "whole", [*arguments, "--blocks", "4"])
    two = made(tmp_path / "two", [*arguments, "--blocks", "2"])
    stopped(tmp_path / "stopped", [*arguments, "--blocks", "4"], 2)
    gone_on = made(tmp_path / "stopped", [*arguments, "--blocks", "4", "--resume"])
    assert decisions(gone_on) == decisions(whole)
    stopped(tmp_path / "kept", [*arguments, "--blocks", "4"], 2, ctrl_c)
    for folder in ("two", "kept"):
        begun = tmp_path / folder / "latents.safetensors"
        more = made(tmp_path / f"{folder} more", [*base, *words, "--continue-from", str(begun), "--blocks", "2"])
        assert decisions(two) + decisions(more) == decisions(whole)
        assert torch.equal(latents(tmp_path / f"{folder} more"), latents(tmp_path / "whole"))
    assert torch.equal(latents(tmp_path / "stopped"), latents(tmp_path / "whole"))


# --- directions


def test_every_block_directed_to_the_target_is_the_targets_whole_whatever_lies_under_it(
    base: list[str], tmp_path: Path
) -> None:
    """It is what the target alone makes, also under `balanced`. `r` is remade as the router remakes.

    The kind: a letter that is certain must not take on what a preset does to the router's own blocks.
    """
    ways = {"directed": ["--directions", "ttt"], "alone": ["--policy", "always-target"]}
    for name, words in ways.items():
        told = made(tmp_path / name, [*base, *words, "--blocks", "3"])
        assert authors(told) == "ttt"
        assert [block["draft"] for block in told["blocks"]] == [None] * 3
        assert torch.equal(latents(tmp_path / name), latents(tmp_path / "directed"))
    told = made(tmp_path / "mixed", [*base, "--preset", "careful", "--blocks", "4", "--directions", ".r.t"])
    assert authors(told) == "thht"


def test_without_a_drafter_every_block_directed_to_the_target_needs_none(base: list[str], tmp_path: Path) -> None:
    """Catches a handover that asks for a drafter where no block is handed over."""
    at = base.index("--drafter")
    alone = [*base[:at], *base[at + 2 :]]
    models = tmp_path / "none"
    models.mkdir()
    words = [*alone, "--models", str(models), "--blocks", "2", "--directions", "tt"]
    assert authors(made(tmp_path / "out", words)) == "tt"


FILE = "[first 2] a red fox\na blue boat\n[First 3] a tree\n"


@pytest.fixture
def prompt_file(tmp_path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text(FILE, encoding="utf-8")
    return path


def forced(folder: Path) -> list[tuple[str, int]]:
    routes = [report(one)["settings"]["route"] for one in sorted(folder.glob("[0-9]*"))]
    policies = [from_json(Route, route).policy for route in routes]
    return [
        (policy_name(policy), policy.n if isinstance(policy, First) else policy.forced_blocks)
        for policy in policies
    ]


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
