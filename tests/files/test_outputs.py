"""Files appear together and whole, or not at all; and latents come back as they were saved."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import (
    BLOCKS,
    LATENTS,
    PICTURE,
    REPORT,
    VIDEO,
    Staging,
    check_writable,
    staged_outputs,
    unfinished_in,
)
from sdvg_core.pipeline.latents import load_latents, save_latents

NAMES = (VIDEO, LATENTS, BLOCKS, PICTURE, REPORT)


def write_all(staging: Staging, text: str) -> None:
    for name in NAMES:
        staging.path(name).write_text(text)


def stopped_run(folder: Path, kind: type[BaseException]) -> None:
    with staged_outputs(folder) as staging:
        write_all(staging, "half")
        raise kind


def files(folder: Path) -> dict[str, str]:
    """What lies in a folder, but for the lock that some versions of filelock leave there."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != ".lock"}


def test_files_appear_at_the_end_and_all_together(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with staged_outputs(folder) as staging:
        write_all(staging, "whole")
        assert all(path.name.startswith(".") for path in folder.iterdir())
    assert files(folder) == dict.fromkeys(NAMES, "whole")


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_stops_a_run_leaves_no_trace(tmp_path: Path, kind: type[BaseException]) -> None:
    """Catches `except Exception`, which an interruption passes by."""
    with pytest.raises(kind):
        stopped_run(tmp_path / "new" / "run", kind)
    assert not list(tmp_path.iterdir())


def test_a_failed_run_leaves_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    with staged_outputs(tmp_path) as staging:
        write_all(staging, "old")
    with pytest.raises(KeyboardInterrupt):
        stopped_run(tmp_path, KeyboardInterrupt)
    assert files(tmp_path) == dict.fromkeys(NAMES, "old")


def test_a_later_run_replaces_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with staged_outputs(tmp_path) as staging:
            write_all(staging, text)
    assert files(tmp_path) == dict.fromkeys(NAMES, "new")


def test_nothing_is_moved_if_one_file_was_never_written(tmp_path: Path) -> None:
    """Catches moving file by file: the video would lie there without its report."""

    def half_a_run() -> None:
        with staged_outputs(tmp_path) as staging:
            staging.path(VIDEO).write_text("whole")
            staging.path(REPORT)

    with pytest.raises(FileNotFoundError):
        half_a_run()
    assert files(tmp_path) == {}


class Killed(BaseException):
    """Nothing that comes after it is done, as with SIGKILL."""


@pytest.mark.parametrize("stops", [OSError, KeyboardInterrupt, Killed])
@pytest.mark.parametrize("call", range(1, 2 * len(NAMES) + 1))
def test_wherever_the_moving_stops_no_files_of_two_runs_lie_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: type[BaseException], call: int
) -> None:
    """Catches replacing file by file: the new video beside the old report. What can be undone is."""
    with staged_outputs(tmp_path) as staging:
        write_all(staging, "old")
    honest, calls = Path.replace, 0

    def replace(path: Path, to: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == call or (stops is Killed and calls > call):
            raise stops
        return honest(path, to)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(stops), staged_outputs(tmp_path) as staging:
        write_all(staging, "new")
    left = {(tmp_path / name).read_text() for name in NAMES if (tmp_path / name).is_file()}
    assert len(left) <= 1
    if stops is not Killed:
        assert files(tmp_path) == dict.fromkeys(NAMES, "old")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_single_file_is_the_old_or_the_new_one_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Catches moving the old file away first: a study that is killed then would lose its settings."""
    (tmp_path / REPORT).write_text("old")
    honest = Path.replace

    def replace(path: Path, to: Path) -> Path:
        if after:
            honest(path, to)
        raise Killed

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Killed), staged_outputs(tmp_path) as staging:
        staging.path(REPORT).write_text("new")
    assert (tmp_path / REPORT).read_text() == ("new" if after else "old")


def test_two_runs_into_one_folder_do_not_write_into_each_other(tmp_path: Path) -> None:
    with staged_outputs(tmp_path) as first, staged_outputs(tmp_path) as second:
        write_all(first, "first")
        write_all(second, "second")
    assert files(tmp_path) == dict.fromkeys(NAMES, "first")


def test_the_path_of_a_file_stays_the_same(tmp_path: Path) -> None:
    with staged_outputs(tmp_path) as staging:
        staging.path(VIDEO).write_text("whole")
        assert staging.path(VIDEO).read_text() == "whole"


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ZeroDivisionError):
        stopped_run(tmp_path, ZeroDivisionError)
    assert files(tmp_path) == {"mine.txt": "mine"}


def hidden(folder: Path, name: str = ".unfinished-abcdefgh") -> Path:
    (folder / name).mkdir(parents=True)
    return folder / name


@pytest.mark.parametrize("name", [".unfinished-notes", ".unfinished-abcdefgh"])
def test_a_hidden_folder_that_no_run_of_ours_made_is_left_alone(tmp_path: Path, name: str) -> None:
    (hidden(tmp_path, name) / "mine.txt").write_text("mine")
    with staged_outputs(tmp_path) as staging:
        write_all(staging, "whole")
    assert (tmp_path / name / "mine.txt").read_text() == "mine"
    assert unfinished_in(tmp_path) == ()


@pytest.mark.parametrize("left", [["lock"], ["lock", "video.mp4"], []])
def test_what_a_run_left_that_died_before_its_first_block_is_removed(tmp_path: Path, left: list[str]) -> None:
    work = hidden(tmp_path)
    for name in left:
        (work / name).write_text("")
    with staged_outputs(tmp_path) as staging:
        write_all(staging, "whole")
    assert not work.exists()


def test_a_link_under_the_name_of_a_hidden_folder_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("lock", "journal/000000.safetensors"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_text("mine")
    before = sorted(elsewhere.rglob("*"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".unfinished-abcdefgh").symlink_to(elsewhere, target_is_directory=True)
    assert unfinished_in(tmp_path / "out") == ()
    with staged_outputs(tmp_path / "out") as staging:
        write_all(staging, "whole")
    assert sorted(elsewhere.rglob("*")) == before
    assert (elsewhere / "lock").read_text() == "mine"


def test_a_file_under_the_name_of_a_hidden_folder_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-abcdefgh").write_text("mine")
    with staged_outputs(tmp_path) as staging:
        write_all(staging, "whole")
    assert files(tmp_path) == {".unfinished-abcdefgh": "mine", **dict.fromkeys(NAMES, "whole")}


@pytest.mark.parametrize("target", ["out", "nowhere"], ids=["a circle", "nowhere"])
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, target: str, inside: str) -> None:
    (tmp_path / "out").symlink_to(tmp_path / target)
    with pytest.raises(BadInput, match=r"out is a link to nowhere\); name another folder"):
        check_writable(tmp_path / "out" / inside)


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no folder that is in use")
def test_a_current_folder_that_was_deleted_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(BadInput, match="the current folder, but that was deleted; change into another one"):
        check_writable(Path("out"))


def test_a_folder_under_a_files_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / VIDEO).mkdir()
    with (
        pytest.raises(BadInput, match=r"there is a folder of that name; move it away"),
        staged_outputs(tmp_path) as s,
    ):
        s.path(VIDEO)


@pytest.mark.parametrize("inside", ["", "new", "new/run"])
def test_checking_a_folder_leaves_no_trace(tmp_path: Path, inside: str) -> None:
    check_writable(tmp_path / inside)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("inside", ["file", "file/new", "file/new/run", "n" * 300, "new/" + "n" * 300, "new/\0"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("")
    for use in (check_writable, lambda folder: staged_outputs(folder).__enter__()):
        with pytest.raises(BadInput, match=r"cannot write into the folder .* name another folder"):
            use(tmp_path / inside)
    assert files(tmp_path) == {"file": ""}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full or read-only lets the folder be there and takes no file."""

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sdvg_core.files.outputs.tempfile.TemporaryFile", full)
    with pytest.raises(BadInput, match="No space left on device"):
        check_writable(tmp_path / "new")
    with pytest.raises(BadInput, match="No space left on device"), staged_outputs(tmp_path / "new"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_latents_come_back_bit_for_bit_with_what_was_noted(tmp_path: Path, dtype: torch.dtype) -> None:
    latents = torch.randn(1, 16, 6, 4, 5, generator=torch.Generator().manual_seed(3)).to(dtype)
    metadata = {"seed": 42, "block_frames": 3, "size": [40, 32], "prompts": ["a red fox"]}
    save_latents(tmp_path / LATENTS, latents, metadata)
    read = load_latents(tmp_path / LATENTS)
    assert torch.equal(read.latents, latents)
    assert read.latents.dtype is dtype
    assert read.metadata == metadata


def test_saved_latents_are_the_same_bytes_whatever_the_order_of_the_metadata(tmp_path: Path) -> None:
    latents = torch.zeros(1, 16, 3, 2, 2)
    save_latents(tmp_path / "one.safetensors", latents, {"seed": 1, "size": 2, "a": 3})
    save_latents(tmp_path / "two.safetensors", latents, {"a": 3, "size": 2, "seed": 1})
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()


def test_a_slice_of_latents_is_saved_as_it_looks(tmp_path: Path) -> None:
    latents = torch.arange(1 * 2 * 6 * 2 * 2.0).view(1, 2, 6, 2, 2)[:, :, 3:]
    save_latents(tmp_path / LATENTS, latents, {})
    assert torch.equal(load_latents(tmp_path / LATENTS).latents, latents)


@pytest.mark.parametrize(
    "name, tensor, sentence",
    [
        ("latent_tensor", torch.zeros(1, 16, 3, 2, 2), "no tensor named latents in .*, which holds latent_tensor"),
        ("latents", torch.zeros(16, 3, 2, 2), r"shape \(1, channels, latent frames, height, width\)"),
        ("latents", torch.zeros(2, 16, 3, 2, 2), "give the latents of one video"),
        ("latents", torch.zeros(1, 16, 0, 2, 2), "give the latents of one video"),
        (
            "latents",
            torch.zeros(1, 16, 3, 2, 2, dtype=torch.int8),
            "those in latents.safetensors are torch.int8",
        ),
        (
            "latents",
            torch.zeros(1, 16, 3, 2, 2, dtype=torch.float64),
            "are torch.float64; convert",
        ),
        ("latents", torch.full((1, 16, 3, 2, 2), float("nan")), "latents must be finite, but some in"),
    ],
)
def test_a_file_that_holds_no_latents_is_refused(
    tmp_path: Path, name: str, tensor: torch.Tensor, sentence: str
) -> None:
    save_file({name: tensor}, tmp_path / LATENTS)
    with pytest.raises(BadInput, match=sentence):
        load_latents(tmp_path / LATENTS)


def test_latents_of_another_program_have_no_metadata(tmp_path: Path) -> None:
    save_file({"latents": torch.zeros(1, 16, 3, 2, 2)}, tmp_path / LATENTS)
    assert load_latents(tmp_path / LATENTS).metadata == {}


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000], ids=["cut", "list", "deep"])
def test_broken_metadata_is_refused(tmp_path: Path, text: str) -> None:
    save_file({"latents": torch.zeros(1, 16, 3, 2, 2)}, tmp_path / LATENTS, {"sdvg": text})
    with pytest.raises(BadInput, match=r"metadata sdvg of latents\.safetensors must be a JSON object"):
        load_latents(tmp_path / LATENTS)
