"""Files appear together and whole, or not at all; and latents come back as they were saved."""

from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from cli_runs import names
from reuse_folders import contents
from safetensors.torch import save_file

from sdvg_core.checkpoints.latents import load_latents, save_latents
from sdvg_core.errors import BadInput
from sdvg_core.files import outputs
from sdvg_core.files.outputs import (
    BLOCKS,
    FILES,
    LATENTS,
    REPORT,
    UNFINISHED,
    VIDEO,
    Staging,
    check_writable,
    staged_outputs,
    unfinished_blocks,
)

BLOCK = "000001.safetensors"
ASKED = {"seed": "42"}


def write_all(staging: Staging, text: str) -> None:
    for name in FILES:
        path = staging.path(name)
        if name == BLOCKS:
            path.mkdir(exist_ok=True)
            path /= BLOCK
        path.write_text(text)


def stopped_run(folder: Path, kind: type[BaseException], *, blocks: bool = False) -> None:
    """Stop a video, after a block or before."""
    with staged_outputs(folder, ASKED) as staging:
        for name in (LATENTS, VIDEO):
            staging.path(name).write_text("half")
        if blocks:
            (staging.path(BLOCKS) / BLOCK).write_text("a block")
        raise kind


def files(folder: Path) -> dict[str, str]:
    """The files in a folder that are not hidden, and those of blocks."""
    found = {path.relative_to(folder).parts[0]: path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if not name.startswith(".")}


def test_files_appear_at_the_end_and_all_together(tmp_path):
    folder = tmp_path / "new" / "run"
    with staged_outputs(folder) as staging:
        write_all(staging, "whole")
        assert all(path.name.startswith(".") for path in folder.iterdir())
    assert files(folder) == dict.fromkeys(FILES, "whole")


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_stops_a_run_leaves_no_trace(tmp_path, kind):
    """Catches `except Exception`, which an interruption passes by."""
    with pytest.raises(kind):
        stopped_run(tmp_path / "new" / "run", kind)
    assert not list(tmp_path.iterdir())


def test_nothing_is_moved_if_one_file_was_never_written(tmp_path):
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


class Stuck(OSError):
    """Nothing can be moved from then on, not even back."""


@pytest.mark.parametrize("stops", [OSError, KeyboardInterrupt, Killed, Stuck])
@pytest.mark.parametrize("call", range(1, 2 * len(FILES) + 1))
def test_wherever_the_moving_stops_no_files_of_two_runs_lie_together(tmp_path, monkeypatch, stops, call):
    """Catches replacing file by file, or the report first: the new video with the old report."""
    with staged_outputs(tmp_path, ASKED) as staging:
        write_all(staging, "old")
    honest, calls = Path.replace, 0

    def replace(path: Path, to: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == call or (stops in (Killed, Stuck) and calls > call):
            raise stops
        return honest(path, to)

    monkeypatch.setattr(Path, "replace", replace)
    if stops is Killed:
        monkeypatch.setattr(outputs, "_tidy", lambda work: None)
    with pytest.raises(stops), staged_outputs(tmp_path, ASKED) as staging:
        write_all(staging, "new")
    left = {name: text for name, text in files(tmp_path).items() if name in FILES}
    assert len(set(left.values())) <= 1
    assert len(left) == len(FILES) if REPORT in left else len(left) < len(FILES)
    if stops not in (Killed, Stuck):
        assert files(tmp_path) == dict.fromkeys(FILES, "old")
        assert len(unfinished_blocks(tmp_path)) == 1
    monkeypatch.undo()
    with staged_outputs(tmp_path, ASKED) as staging:
        write_all(staging, "newer")
    assert files(tmp_path) == dict.fromkeys(FILES, "newer")


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_run_that_is_killed_as_it_tidies_up_is_not_taken_for_somebody_elses(tmp_path, monkeypatch, call):
    left = iter([Path.unlink] * (call - 1))
    with monkeypatch.context() as planted:
        planted.setattr(Path, "unlink", lambda path, **how: next(left, Mock(side_effect=Killed))(path, **how))
        with pytest.raises(Killed):
            stopped_run(tmp_path, ZeroDivisionError)
    with staged_outputs(tmp_path, ASKED) as staging:
        write_all(staging, "whole")
    assert files(tmp_path) == dict.fromkeys(FILES, "whole")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_single_file_is_the_old_or_the_new_one_at_every_moment(tmp_path, monkeypatch, after):
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


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ZeroDivisionError):
        stopped_run(tmp_path, ZeroDivisionError)
    assert files(tmp_path) == {"mine.txt": "mine"}


def test_committed_blocks_survive_for_the_same_request_alone(tmp_path):
    with pytest.raises(ZeroDivisionError):
        stopped_run(tmp_path, ZeroDivisionError, blocks=True)
    assert [path.read_text() for path in unfinished_blocks(tmp_path)] == ["a block"]
    assert names(tmp_path / UNFINISHED) == [BLOCKS, "request.json"]
    for request, kept in ((ASKED, 1), ({"seed": "7"}, 0)):
        with suppress(ZeroDivisionError), staged_outputs(tmp_path, request) as staging:
            assert len(names(staging.path(BLOCKS))) == kept
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_what_a_video_left_that_was_killed_before_its_first_block_is_removed(tmp_path):
    (tmp_path / UNFINISHED / BLOCKS).mkdir(parents=True)
    for name in ("request.json", VIDEO):
        (tmp_path / UNFINISHED / name).write_text("{")
    assert unfinished_blocks(tmp_path) == []
    with staged_outputs(tmp_path, ASKED) as staging:
        write_all(staging, "whole")
    assert files(tmp_path) == dict.fromkeys(FILES, "whole")


@pytest.mark.parametrize("there", ["file", "folder", "link", "blocks that are a link"])
def test_what_only_has_the_name_of_our_hidden_folder_is_left_alone(tmp_path, there):
    with pytest.raises(ZeroDivisionError):
        stopped_run(tmp_path / "elsewhere", ZeroDivisionError, blocks=True)
    (tmp_path / "out").mkdir()
    work = tmp_path / "out" / UNFINISHED
    if there == "file":
        work.write_text("mine")
    elif there == "folder":
        work.mkdir()
        (work / VIDEO).write_text("mine")
    elif there != "link":
        work.mkdir()
        (work / "request.json").write_text("{}")
        (work / BLOCKS).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    else:
        work.symlink_to(tmp_path / "elsewhere" / UNFINISHED, target_is_directory=True)
    before = contents(tmp_path)
    assert unfinished_blocks(tmp_path / "out") == []
    with pytest.raises(BadInput, match="is not ours; move it away"), staged_outputs(tmp_path / "out", ASKED):
        pass
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", [VIDEO, BLOCKS])
def test_a_folder_of_somebody_else_under_our_name_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.txt").write_text("mine")
    with (
        pytest.raises(BadInput, match="is a folder that is not ours; move it away"),
        staged_outputs(tmp_path) as s,
    ):
        s.path(name)


@pytest.mark.parametrize("target", ["out", "nowhere"], ids=["a circle", "nowhere"])
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, target, inside):
    (tmp_path / "out").symlink_to(tmp_path / target)
    with pytest.raises(BadInput, match=r"out is a link to nowhere\); name another folder"):
        check_writable(tmp_path / "out" / inside)


@pytest.mark.parametrize("inside", ["", "new/run"])
def test_checking_a_folder_leaves_no_trace(tmp_path, inside):
    check_writable(tmp_path / inside)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("inside", ["file", "file/new/run", "new/" + "n" * 300, "new/\0"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, inside):
    (tmp_path / "file").write_text("")
    for use in (check_writable, lambda folder: staged_outputs(folder).__enter__()):
        with pytest.raises(BadInput, match=r"cannot write into the folder .* name another folder"):
            use(tmp_path / inside)
    assert files(tmp_path) == {"file": ""}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
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
def test_latents_come_back_bit_for_bit_with_what_was_noted(tmp_path, dtype):
    latents = torch.randn(1, 16, 6, 4, 5, generator=torch.Generator().manual_seed(3)).to(dtype)
    metadata = {"seed": 42, "block_frames": 3, "size": [40, 32], "prompts": ["a red fox"]}
    save_latents(tmp_path / LATENTS, latents, metadata)
    read = load_latents(tmp_path / LATENTS)
    assert torch.equal(read.latents, latents)
    assert read.latents.dtype is dtype
    assert read.metadata == metadata


@pytest.mark.parametrize(
    "name, tensor, sentence",
    [
        ("latent_tensor", torch.zeros(1, 16, 3, 2, 2), "holds latent_tensor, no tensor latents"),
        ("latents", torch.zeros(16, 3, 2, 2), "not that of one video"),
        ("latents", torch.zeros(2, 16, 3, 2, 2), "not that of one video"),
        ("latents", torch.zeros(1, 16, 3, 2, 2, dtype=torch.int8), "latents.safetensors are torch.int8; convert"),
        ("latents", torch.zeros(1, 16, 3, 2, 2, dtype=torch.float64), "are torch.float64; convert"),
        ("latents", torch.full((1, 16, 3, 2, 2), float("nan")), "hold NaN or infinity"),
    ],
)
def test_a_file_that_holds_no_latents_is_refused(tmp_path, name, tensor, sentence):
    save_file({name: tensor}, tmp_path / LATENTS)
    with pytest.raises(BadInput, match=sentence):
        load_latents(tmp_path / LATENTS)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000], ids=["cut", "list", "deep"])
def test_broken_metadata_is_refused(tmp_path, text):
    save_file({"latents": torch.zeros(1, 16, 3, 2, 2)}, tmp_path / LATENTS, {"sdvg": text})
    with pytest.raises(BadInput, match=r"metadata sdvg of latents\.safetensors is no JSON object"):
        load_latents(tmp_path / LATENTS)
