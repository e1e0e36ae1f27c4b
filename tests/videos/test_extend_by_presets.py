"""Who makes the new blocks of a clip that is extended, in one run and in several, on files of a tiny model set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import SMALL, latents, options, report
from reuse_folders import PROMPT, ctrl_c, decisions, stopped

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import main
from sdvg_core.files.video import write_mp4


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
