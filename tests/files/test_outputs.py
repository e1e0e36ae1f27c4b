"""A video is its folder all at once, or not at all."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import (
    BLOCKS_FOLDER,
    LATENTS,
    REPORT,
    VIDEO,
    VIDEO_FILES,
    check_output,
    hidden_folder,
    lock_folder,
    staged_video,
    unfinished_blocks,
    whole_file,
)
from tests.support.cli_runs import names
from tests.support.reuse_folders import contents

BLOCK = "000001.safetensors"
ASKED = {"seed": "42"}
THINGS_OF_THE_USER = (
    "notes.txt",
    ".hidden/inside.txt",
    ".out.unfinished/deep/file.txt",
    ".writing-1/file.txt",
    "replaced/file.txt",
    "blocks/mine.txt",
    "target-only/video.mp4",
)


@contextmanager
def staged(folder: Path, request: dict[str, str] = ASKED, *, replace: bool = False) -> Iterator[Path]:
    with lock_folder(folder), staged_video(folder, request, replace=replace) as work:
        yield work


def write_all(work: Path, text: str) -> None:
    for name in VIDEO_FILES:
        (work / name / BLOCK if name == BLOCKS_FOLDER else work / name).write_text(text)


def finish(
    folder: Path, text: str, *, replace: bool = False, write: Callable[[Path, str], None] = write_all
) -> None:
    with staged(folder, replace=replace) as work:
        write(work, text)


def stopped_run(folder: Path, kind: type[BaseException], *, blocks: bool = False) -> None:
    """Stop a video, after a block or before."""
    with staged(folder) as work:
        for name in (LATENTS, VIDEO):
            (work / name).write_text("half")
        if blocks:
            (work / BLOCKS_FOLDER / BLOCK).write_text("a block")
        raise kind


def whole(text: str) -> dict[str, bytes]:
    return {f"{BLOCKS_FOLDER}/{BLOCK}" if name == BLOCKS_FOLDER else name: text.encode() for name in VIDEO_FILES}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_stops_a_run_leaves_no_trace(tmp_path, kind):
    """Catches `except Exception`, which an interruption passes by."""
    with pytest.raises(kind):
        stopped_run(tmp_path / "new" / "run", kind)
    assert not list(tmp_path.iterdir())


# --- an earlier video is replaced


class Killed(BaseException):
    """Nothing that comes after it is done, as with SIGKILL."""


CHANGES = ("mkdir", "rename", "replace", "rmdir", "unlink")


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int, stops: type[BaseException], *, after: bool) -> list[int]:
    """Stop before or after a change to the disk; a kill stops all that come later too. Returns their counter."""
    calls = [0]

    def around(name: str) -> Callable[..., object]:
        honest = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            calls[0] += 1
            if stops is Killed and calls[0] > number:
                raise Killed
            if calls[0] != number:
                return honest(*arguments, **options)
            if after:
                honest(*arguments, **options)
            raise stops

        return call

    for name in CHANGES:
        monkeypatch.setattr(os, name, around(name))
    return calls


def put_things_of_the_user(folder: Path) -> dict[str, bytes]:
    for name in THINGS_OF_THE_USER:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return {name: name.encode() for name in THINGS_OF_THE_USER}


def replacing(folder: Path) -> None:
    """Replace a video in which the user has put things."""
    finish(folder, "new", replace=True)


def changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many changes to the disk a replacement makes."""
    folder = tmp_path / "counted" / "out"
    finish(folder, "old")
    put_things_of_the_user(folder)
    with monkeypatch.context() as planted:
        calls = stop_at(planted, -1, ValueError, after=False)
        replacing(folder)
    return calls[0]


@pytest.mark.parametrize("stops", [OSError, KeyboardInterrupt, Killed])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_wherever_a_replacement_stops_one_video_is_whole_and_nothing_of_the_user_is_lost(
    tmp_path, monkeypatch, stops, after
):
    """Before and after each change to the disk. Catches files of two runs in one folder, and things left behind."""
    total = changes(tmp_path, monkeypatch)
    assert total > 15
    for number in range(1, total + 1):
        parent = tmp_path / f"{number}"
        folder = parent / "out"
        finish(folder, "old")
        mine = put_things_of_the_user(folder)
        with monkeypatch.context() as planted, suppress(stops, BadInput):
            stop_at(planted, number, stops, after=after)
            replacing(folder)
        seen = {name: text for name, text in contents(folder).items() if name not in mine}
        assert seen in ({}, whole("old"), whole("new")), number
        with lock_folder(folder):
            left = contents(folder)
        assert left in ({**whole("old"), **mine}, {**whole("new"), **mine}), number
        replacing(folder)
        assert contents(folder) == {**whole("new"), **mine}, number
        assert names(parent) == ["out"], number


def test_no_folder_is_renamed_onto_another_as_windows_would_refuse_that(tmp_path, monkeypatch):
    honest = os.rename

    def rename(source: Path, target: Path, **options: object) -> None:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "File exists")
        honest(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)
    (tmp_path / "out").mkdir()
    finish(tmp_path / "out", "old")
    mine = put_things_of_the_user(tmp_path / "out")
    replacing(tmp_path / "out")
    assert contents(tmp_path / "out") == {**whole("new"), **mine}


def test_a_folder_that_cannot_be_renamed_keeps_its_video_and_the_new_one_its_blocks(tmp_path, monkeypatch):
    """On Windows a folder with an open file, elsewhere one that is a mount."""
    folder = tmp_path / "out"
    finish(folder, "old")

    def rename(source: Path, target: Path, **options: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(
        BadInput, match=r"cannot be replaced \(Device or .* name another one, and add --reuse .*out for"
    ):
        replacing(folder)
    assert contents(folder) == whole("old")
    assert [path.read_text() for path in unfinished_blocks(folder)] == ["new"]


def test_a_video_that_came_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    folder = tmp_path / "out"

    def write(work: Path, text: str) -> None:
        write_all(work, text)
        folder.mkdir()
        (folder / VIDEO).write_text("mine")

    with pytest.raises(BadInput, match=r"cannot be replaced \(it has got a video.mp4 meanwhile\)"):
        finish(folder, "new", write=write)
    assert contents(folder) == {VIDEO: b"mine"}
    assert unfinished_blocks(folder)


def test_a_folder_of_the_users_under_the_name_of_a_file_is_kept_and_named(tmp_path):
    folder = tmp_path / "out"
    finish(folder, "old")
    (folder / VIDEO).unlink()
    (folder / VIDEO).mkdir()
    (folder / VIDEO / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"replaced/video.mp4 was in .*out, which has another now; move it away"):
        replacing(folder)
    assert contents(folder) == whole("new")
    assert (tmp_path / ".out.unfinished" / "replaced" / VIDEO / "mine.txt").read_text() == "mine"


def test_a_link_stays_and_the_video_goes_where_it_leads(tmp_path):
    (tmp_path / "far" / "real").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "far" / "real", target_is_directory=True)
    for text in ("old", "new"):
        finish(tmp_path / "out", text, replace=True)
    assert (tmp_path / "out").is_symlink()
    assert contents(tmp_path / "far" / "real") == whole("new")
    assert names(tmp_path / "far") == ["real"]


# --- what a stopped run left


def test_committed_blocks_survive_for_the_same_request_alone(tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        stopped_run(folder, ZeroDivisionError, blocks=True)
    hidden = tmp_path / ".out.unfinished"
    assert [path.read_text() for path in unfinished_blocks(folder)] == ["a block"]
    assert sorted(contents(hidden)) == ["request.json", f"video/{BLOCKS_FOLDER}/{BLOCK}"]
    for request, kept in ((ASKED, 1), ({"seed": "7"}, 0)):
        with suppress(ZeroDivisionError), staged(folder, request) as work:
            assert len(names(work / BLOCKS_FOLDER)) == kept
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_change_to_the_disk_loses_no_block_of_a_run_that_goes_on(tmp_path, monkeypatch, after):
    """Catches a request that is written anew, and half there, while there are blocks."""
    for number in range(1, 20):
        folder = tmp_path / f"{number}" / "out"
        with pytest.raises(ZeroDivisionError):
            stopped_run(folder, ZeroDivisionError, blocks=True)
        request = folder.with_name(".out.unfinished") / "request.json"
        before = request.stat().st_mtime_ns
        with monkeypatch.context() as planted, suppress(Killed, ZeroDivisionError):
            stop_at(planted, number, Killed, after=after)
            stopped_run(folder, ZeroDivisionError)
        assert json.loads(request.read_text()) == ASKED
        assert request.stat().st_mtime_ns == before
        assert [path.read_text() for path in unfinished_blocks(folder)] == ["a block"]


def test_what_a_video_left_that_was_killed_before_its_first_block_is_removed(tmp_path):
    hidden = tmp_path / ".out.unfinished"
    (hidden / "video" / BLOCKS_FOLDER).mkdir(parents=True)
    for path in (hidden / "request.json", hidden / "video" / VIDEO, hidden / "lock"):
        path.write_text("{")
    assert unfinished_blocks(tmp_path / "out") == []
    finish(tmp_path / "out", "whole")
    assert contents(tmp_path / "out") == whole("whole")
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("there", ["file", "folder", "link", "blocks that are a link"])
def test_what_only_has_the_name_of_our_hidden_folder_is_left_alone(tmp_path, there):
    with pytest.raises(ZeroDivisionError):
        stopped_run(tmp_path / "elsewhere", ZeroDivisionError, blocks=True)
    hidden, other = tmp_path / ".out.unfinished", tmp_path / ".elsewhere.unfinished"
    if there == "file":
        hidden.write_text("mine")
    elif there == "folder":
        hidden.mkdir()
        (hidden / VIDEO).write_text("mine")
        (hidden / "lock").write_text("mine")
    elif there == "link":
        hidden.symlink_to(other, target_is_directory=True)
    else:
        (hidden / "video").mkdir(parents=True)
        (hidden / "request.json").write_text("{}")
        (hidden / "video" / BLOCKS_FOLDER).symlink_to(other / "video" / BLOCKS_FOLDER, target_is_directory=True)
    before = contents(tmp_path)
    assert unfinished_blocks(tmp_path / "out") == []
    with pytest.raises(BadInput, match=r"\.out\.unfinished is not ours; move it away"), staged(tmp_path / "out"):
        pass
    assert contents(tmp_path) == before


# --- other files


def write_file(path: Path, text: str, then: Callable[[], object] = lambda: None) -> None:
    with whole_file(path) as part:
        part.write_text(text)
        then()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_single_file_is_the_old_or_the_new_one_at_every_moment(tmp_path, monkeypatch, after):
    """Catches moving the old file away first: a study that is killed then would lose its settings."""
    path = tmp_path / "new" / REPORT
    write_file(path, "old")
    with monkeypatch.context() as planted, pytest.raises(Killed):
        write_file(path, "new", lambda: stop_at(planted, 1, Killed, after=after))
    assert path.read_text() == ("new" if after else "old")
    with pytest.raises(KeyboardInterrupt):
        write_file(path, "half", Mock(side_effect=KeyboardInterrupt))
    assert path.read_text() == ("new" if after else "old")
    assert len(names(path.parent)) <= 2  # of the kill


# --- folders that are refused


@pytest.mark.parametrize("target", ["out", "nowhere"], ids=["a circle", "nowhere"])
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, target, inside):
    (tmp_path / "out").symlink_to(tmp_path / target)
    with pytest.raises(BadInput, match=r"out is a link to nowhere\); name another folder"):
        check_output(tmp_path / "out" / inside, renamed=True)


def test_a_folder_that_cannot_take_another_name_is_refused_for_a_video_and_not_for_many(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, kind in (
        (Path(), "the folder you are in"),
        (tmp_path, "the folder you are in"),
        (Path("/"), "a disk"),
    ):
        check_output(folder, renamed=False)
        with pytest.raises(BadInput, match=f"is {kind}.*, and a video comes as a new folder; name one in it"):
            check_output(folder, renamed=True)


@pytest.mark.parametrize(("where", "output"), [("v/sub", ".."), ("v/sub/x", "../../../v")])
@pytest.mark.parametrize("more", [False, True], ids=["one", "numbered"])
def test_a_folder_is_not_renamed_under_the_feet_of_who_stands_in_it(tmp_path, monkeypatch, where, output, more):
    """Catches a relative path that leads elsewhere after the rename: what lay there stayed in the hidden folder."""
    base = tmp_path / "0001" if more else tmp_path
    (base / where).mkdir(parents=True)
    monkeypatch.chdir(base / where)
    with pytest.raises(BadInput, match=r"you are inside .*, which a new video replaces; go out of it"):
        check_output(Path(output), renamed=True)
    check_output(Path(output), renamed=False)
    if more:
        with pytest.raises(BadInput, match="you are inside"):
            check_output(tmp_path, renamed=False)
    check_output(base / "other", renamed=True)


def test_a_desktops_own_file_in_the_hidden_folder_is_no_reason_to_begin_again(tmp_path):
    """Catches `.DS_Store`, after which finished blocks were not found; a folder there is somebody's."""
    hidden = tmp_path / ".out.unfinished"
    blocks = hidden / "video" / BLOCKS_FOLDER
    blocks.mkdir(parents=True)
    (blocks / "000001.safetensors").write_text("")
    (hidden / ".DS_Store").write_text("")
    assert unfinished_blocks(tmp_path / "out") == [blocks / "000001.safetensors"]
    (hidden / ".git").mkdir()
    assert unfinished_blocks(tmp_path / "out") == []


def test_somebodys_file_in_the_hidden_folder_of_a_stopped_run_stays_and_the_run_goes_on(tmp_path):
    """The kind: any file that is not ours. Without a request nothing shows that the folder is."""
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        stopped_run(out, ZeroDivisionError, blocks=True)
    note = hidden_folder(out) / "notes.txt"
    note.write_text("mine")
    assert len(unfinished_blocks(out)) == 1
    with pytest.raises(ZeroDivisionError):
        stopped_run(out, ZeroDivisionError)
    assert len(unfinished_blocks(out)) == 1
    request = (hidden_folder(out) / "request.json").read_text()
    (hidden_folder(out) / "request.json").write_text("")
    assert unfinished_blocks(out) == []
    (hidden_folder(out) / "request.json").write_text(request)
    for text in ("new", "newer"):
        finish(out, text, replace=True)
        assert contents(out) == whole(text)
        assert names(hidden_folder(out)) == ["notes.txt"]
    assert note.read_text() == "mine"


@pytest.mark.parametrize("inside", ["file/new", "file/new/run", "new/" + "n" * 300, "new/\0"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, inside):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BadInput, match=r"cannot write into the folder .* name another folder"),
        lock_folder(tmp_path / inside),
    ):
        pass
    assert contents(tmp_path) == {"file": b""}
    assert names(tmp_path) == ["file"]
