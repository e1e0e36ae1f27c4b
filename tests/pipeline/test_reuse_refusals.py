"""`generate --reuse` of folders that do not serve: empty, damaged, tampered with, or of other models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from cli_runs import refused
from reuse_folders import Made, contents, made, reused, same, tampered
from torch import Tensor

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import main
from sdvg_core.files.outputs import BLOCKS
from sdvg_core.pipeline import loading


@pytest.mark.parametrize("empty", ["nowhere", "empty", "file"])
def test_a_folder_without_a_video_is_refused_before_anything_is_read(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], empty: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("{}")
    with patch.object(loading, "load_wan", None):
        line = refused(capsys, [*base, "--output", str(tmp_path / "out"), "--reuse", str(tmp_path / empty)])
    assert f"there is nothing to re-use in {tmp_path / empty}, for it has no {BLOCKS}; give the folder of" in line
    assert not (tmp_path / "out").exists()


def test_a_video_of_other_models_is_refused_and_left_as_it_is(
    base: list[str],
    others: ModelFiles,
    earlier: tuple[Path, Made],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(earlier[0])
    both = ["--drafter", str(others.drafter), "--target", str(others.target), "--reuse", str(earlier[0])]
    line = refused(capsys, [*base, *both, "--output", str(tmp_path / "out")])
    assert f"nothing in {earlier[0]} can be re-used, for its drafter and target or their settings are not" in line
    line = refused(capsys, [*base, "--schedule", "1000,500", *both[4:], "--output", str(earlier[0])])
    assert "give the same files and settings, or leave --reuse out" in line
    assert not (tmp_path / "out").exists()
    assert contents(earlier[0]) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-100],
        lambda whole: whole[:50],
        lambda whole: b"",
        lambda whole: b"x" * 500,
        lambda whole: whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:],
    ],
    ids=["cut short", "header cut short", "empty", "something else", "one bit"],
)
def test_a_damaged_file_is_one_sentence_and_nothing_is_made(
    base: list[str],
    earlier: tuple[Path, Made],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[bytes], bytes],
) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / BLOCKS).write_bytes(damage((earlier[0] / BLOCKS).read_bytes()))
    arguments = [*base, "--reuse", str(tmp_path / "damaged"), "--output", str(tmp_path / "out")]
    assert BLOCKS in refused(capsys, arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_results_that_are_not_finite_are_made_again(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    folder = tampered(earlier[0], tmp_path / "nan", lambda tensor: tensor * float("nan"))
    again = made(tmp_path / "out", [*base, "--reuse", str(folder)])
    same(again, earlier[1])
    assert reused(again) == 0


def of_latents(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda tensor: change(tensor) if tensor.dim() == 6 else tensor


def of_scores(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda tensor: change(tensor) if tensor.dim() == 2 else tensor


WRONG = {
    "fewer channels": of_latents(lambda tensor: tensor[:, :, :8]),
    "fewer frames": of_latents(lambda tensor: tensor[:, :, :, :2]),
    "fewer rows": of_latents(lambda tensor: tensor[..., :1, :]),
    "two videos": of_latents(lambda tensor: torch.cat([tensor, tensor], dim=1)),
    "whole numbers": of_latents(lambda tensor: (tensor * 10).to(torch.int64)),
    "half precision": of_latents(lambda tensor: tensor.bfloat16()),
    "no block": of_latents(lambda tensor: torch.zeros(1, 9)),
    "fewer scores": of_scores(lambda tensor: tensor[:, :3]),
    "no scores": of_scores(lambda tensor: torch.zeros(1, 1, 16, 3, 2, 2)),
}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(name, marks=pytest.mark.heavy if number % 4 == 0 else pytest.mark.exhaustive)
        for number, name in enumerate(WRONG)
    ],
)
def test_results_of_a_wrong_shape_are_refused_or_made_again(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path, wrong: str
) -> None:
    folder = tampered(earlier[0], tmp_path / "wrong", WRONG[wrong])
    arguments = [*base, "--reuse", str(folder), "--output", str(tmp_path / "out")]
    if main(arguments) == 0:
        same(made(tmp_path / "out", arguments), earlier[1])
    else:
        assert not (tmp_path / "out").exists()
