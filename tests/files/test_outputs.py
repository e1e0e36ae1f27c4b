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
from tests.support.read_only import make_read_only
from tests.support.reuse_folders import contents

BLOCK = "000001.safetensors"
REQUEST = {"seed": "42"}
THINGS_OF_THE_USER = (
    "notes.txt",
    ".hidden/inside.txt",
    ".out.unfinished/deep/file.txt",
    ".writing-1/file.txt",
    "replaced/file.txt",
    "blocks/notes.txt",
    "target-only/video.mp4",
)


@contextmanager
def staged(folder: Path, request: dict[str, str] = REQUEST, *, replace: bool = False) -> Iterator[Path]:
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
    """Return the contents of a whole video, of which every file holds this text."""
    return {f"{BLOCKS_FOLDER}/{BLOCK}" if name == BLOCKS_FOLDER else name: text.encode() for name in VIDEO_FILES}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_run_that_stops_leaves_no_trace(tmp_path, kind):
    """Catches `except Exception`, which an interruption passes by."""
    with pytest.raises(kind):
        stopped_run(tmp_path / "new" / "run", kind)
    assert not list(tmp_path.iterdir())


# --- an earlier video is replaced


class Killed(BaseException):
    """Nothing that comes after it is done, as with SIGKILL."""


CHANGES = ("mkdir", "rename", "replace", "rmdir", "unlink")


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int, stops: type[BaseException], *, after: bool) -> list[int]:
    """Stop before or after a change to the disk; a kill stops all later ones too. Return their count, in a list."""
    count = [0]

    def around(name: str) -> Callable[..., object]:
        honest = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            count[0] += 1
            if stops is Killed and count[0] > number:
                raise Killed
            if count[0] != number:
                return honest(*arguments, **options)
            if after:
                honest(*arguments, **options)
            raise stops

        return call

    for name in CHANGES:
        monkeypatch.setattr(os, name, around(name))
    return count


def put_things_of_the_user(folder: Path) -> dict[str, bytes]:
    """Write them into a folder, and return their contents."""
    for name in THINGS_OF_THE_USER:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return {name: name.encode() for name in THINGS_OF_THE_USER}


def replace_video(folder: Path) -> None:
    """Replace a video in which the user has put things."""
    finish(folder, "new", replace=True)


def count_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many changes to the disk a replacement makes."""
    folder = tmp_path / "counted" / "out"
    finish(folder, "old")
    put_things_of_the_user(folder)
    with monkeypatch.context() as planted:
        count = stop_at(planted, -1, ValueError, after=False)
        replace_video(folder)
    return count[0]


@pytest.mark.parametrize("stops", [OSError, KeyboardInterrupt, Killed])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_stopped_replacement_loses_nothing(tmp_path, monkeypatch, stops, after):
    """Stopped at each change to the disk: one video is whole, and nothing of the user's is gone.

    Catches files of two runs in one folder, and things left behind.
    """
    total = count_changes(tmp_path, monkeypatch)
    assert total > 15
    for number in range(1, total + 1):
        parent = tmp_path / f"{number}"
        folder = parent / "out"
        finish(folder, "old")
        things = put_things_of_the_user(folder)
        with monkeypatch.context() as planted, suppress(stops, BadInput):
            stop_at(planted, number, stops, after=after)
            replace_video(folder)
        video = {name: text for name, text in contents(folder).items() if name not in things}
        assert video in ({}, whole("old"), whole("new")), number
        with lock_folder(folder):
            restored = contents(folder)
        assert restored in ({**whole("old"), **things}, {**whole("new"), **things}), number
        replace_video(folder)
        assert contents(folder) == {**whole("new"), **things}, number
        assert names(parent) == ["out"], number


def test_no_folder_is_renamed_onto_another(tmp_path, monkeypatch):
    """Windows would refuse that."""
    honest = os.rename

    def rename(source: Path, target: Path, **options: object) -> None:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "File exists")
        honest(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)
    (tmp_path / "out").mkdir()
    finish(tmp_path / "out", "old")
    things = put_things_of_the_user(tmp_path / "out")
    replace_video(tmp_path / "out")
    assert contents(tmp_path / "out") == {**whole("new"), **things}


def test_folder_that_cannot_be_renamed_keeps_its_video(tmp_path, monkeypatch):
    """On Windows one with an open file, elsewhere a mount. The new video keeps its blocks."""
    folder = tmp_path / "out"
    finish(folder, "old")

    def rename(source: Path, target: Path, **options: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(BadInput, match=r"cannot be replaced \(Device or .*--reuse"):
        replace_video(folder)
    assert contents(folder) == whole("old")
    assert [path.read_text() for path in unfinished_blocks(folder)] == ["new"]


def test_video_that_came_meanwhile_is_kept(tmp_path, monkeypatch):
    folder = tmp_path / "out"

    def write(work: Path, text: str) -> None:
        write_all(work, text)
        folder.mkdir()
        (folder / VIDEO).write_text("another run's")

    with pytest.raises(BadInput, match=r"has got a video\.mp4 meanwhile"):
        finish(folder, "new", write=write)
    assert contents(folder) == {VIDEO: b"another run's"}
    assert unfinished_blocks(folder)


def test_users_folder_named_like_a_file_is_kept(tmp_path):
    folder = tmp_path / "out"
    finish(folder, "old")
    (folder / VIDEO).unlink()
    (folder / VIDEO).mkdir()
    (folder / VIDEO / "notes.txt").write_text("notes")
    with pytest.raises(BadInput, match=r"replaced/video\.mp4 was in .*out, which has another now"):
        replace_video(folder)
    assert contents(folder) == whole("new")
    assert (tmp_path / ".out.unfinished" / "replaced" / VIDEO / "notes.txt").read_text() == "notes"


def test_folder_made_after_a_stopped_replacement_is_refused(tmp_path):
    """A call was killed between its two renames, and somebody made the folder anew.

    Catches: the earlier video, deleted as if the new one were in its place.
    """
    folder = tmp_path / "out"
    finish(folder, "old")
    with pytest.raises(ZeroDivisionError):
        stopped_run(folder, ZeroDivisionError, blocks=True)
    folder.rename(hidden_folder(folder) / "replaced")
    folder.mkdir()
    (folder / "notes.txt").write_text("notes")
    before = contents(tmp_path)
    with pytest.raises(BadInput, match=r"out is new, .*replaced; move one"), staged(folder):
        pass
    assert contents(tmp_path) == before


def test_video_goes_where_a_link_leads(tmp_path):
    (tmp_path / "far" / "real").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "far" / "real", target_is_directory=True)
    for text in ("old", "new"):
        finish(tmp_path / "out", text, replace=True)
    assert (tmp_path / "out").is_symlink()
    assert contents(tmp_path / "far" / "real") == whole("new")
    assert names(tmp_path / "far") == ["real"]


# --- what a stopped run left


def test_blocks_survive_for_the_same_request_only(tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        stopped_run(folder, ZeroDivisionError, blocks=True)
    hidden = tmp_path / ".out.unfinished"
    assert [path.read_text() for path in unfinished_blocks(folder)] == ["a block"]
    assert sorted(contents(hidden)) == ["request.json", f"video/{BLOCKS_FOLDER}/{BLOCK}"]
    for request, blocks in ((REQUEST, [BLOCK]), ({"seed": "7"}, [])):
        with suppress(ZeroDivisionError), staged(folder, request) as work:
            assert names(work / BLOCKS_FOLDER) == blocks
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_resumption_loses_no_block(tmp_path, monkeypatch, after):
    """At any change to the disk. Catches a request that is written anew, and half there, while there are blocks."""
    for number in range(1, 20):
        folder = tmp_path / f"{number}" / "out"
        with pytest.raises(ZeroDivisionError):
            stopped_run(folder, ZeroDivisionError, blocks=True)
        request = folder.with_name(".out.unfinished") / "request.json"
        before = request.stat().st_mtime_ns
        with monkeypatch.context() as planted, suppress(Killed, ZeroDivisionError):
            stop_at(planted, number, Killed, after=after)
            stopped_run(folder, ZeroDivisionError)
        assert json.loads(request.read_text()) == REQUEST
        assert request.stat().st_mtime_ns == before
        assert [path.read_text() for path in unfinished_blocks(folder)] == ["a block"]


def test_remains_without_a_block_are_removed(tmp_path):
    """Of a video that was killed before its first block."""
    hidden = tmp_path / ".out.unfinished"
    (hidden / "video" / BLOCKS_FOLDER).mkdir(parents=True)
    for path in (hidden / "request.json", hidden / "video" / VIDEO, hidden / "lock"):
        path.write_text("{")
    assert unfinished_blocks(tmp_path / "out") == []
    finish(tmp_path / "out", "whole")
    assert contents(tmp_path / "out") == whole("whole")
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["file", "folder", "link", "blocks that are a link"])
def test_foreign_hidden_folder_is_left_alone(tmp_path, kind):
    """It only has the name of one of ours."""
    with pytest.raises(ZeroDivisionError):
        stopped_run(tmp_path / "elsewhere", ZeroDivisionError, blocks=True)
    hidden = tmp_path / ".out.unfinished"
    other = tmp_path / ".elsewhere.unfinished"
    if kind == "file":
        hidden.write_text("notes")
    elif kind == "folder":
        hidden.mkdir()
        (hidden / VIDEO).write_text("the user's")
        (hidden / "lock").write_text("the user's")
    elif kind == "link":
        hidden.symlink_to(other, target_is_directory=True)
    else:
        (hidden / "video").mkdir(parents=True)
        (hidden / "request.json").write_text("{}")
        (hidden / "video" / BLOCKS_FOLDER).symlink_to(other / "video" / BLOCKS_FOLDER, target_is_directory=True)
    before = contents(tmp_path)
    assert unfinished_blocks(tmp_path / "out") == []
    with pytest.raises(BadInput, match=r"\.out\.unfinished is not ours"), staged(tmp_path / "out"):
        pass
    assert contents(tmp_path) == before


# --- other files


def write_file(path: Path, text: str, then: Callable[[], object] = lambda: None) -> None:
    with whole_file(path) as part:
        part.write_text(text)
        then()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_single_file_is_old_or_new_when_killed(tmp_path, monkeypatch, after):
    """Catches moving the old file away first: a study that is killed then would lose its settings."""
    path = tmp_path / "new" / REPORT
    write_file(path, "old")
    with monkeypatch.context() as planted, pytest.raises(Killed):
        write_file(path, "new", lambda: stop_at(planted, 1, Killed, after=after))
    assert path.read_text() == ("new" if after else "old")


def test_interrupted_file_is_the_old_one(tmp_path):
    write_file(tmp_path / REPORT, "old")
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / REPORT, "half", Mock(side_effect=KeyboardInterrupt))
    assert contents(tmp_path) == {REPORT: b"old"}


def test_folder_that_cannot_be_written_keeps_its_file(tmp_path, monkeypatch):
    """Catches: a raw error at the end of a study, after all its videos."""
    write_file(tmp_path / "out" / REPORT, "old")
    make_read_only(tmp_path / "out", monkeypatch)
    with pytest.raises(BadInput, match=r"Read-only file system.*copy the folder elsewhere"):
        write_file(tmp_path / "out" / REPORT, "new")
    with pytest.raises(BadInput, match=r"Read-only file system.*copy the folder elsewhere"):
        write_file(tmp_path / "out" / "deeper" / REPORT, "new")
    assert contents(tmp_path / "out") == {REPORT: b"old"}


# --- folders that are refused


@pytest.mark.parametrize("target", ["out", "nowhere"], ids=["a circle", "nowhere"])
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_link_that_leads_nowhere_is_refused(tmp_path, target, inside):
    (tmp_path / "out").symlink_to(tmp_path / target)
    with pytest.raises(BadInput, match="out is a link to nowhere"):
        check_output(tmp_path / "out" / inside, renamed=True)


def test_folder_that_cannot_be_renamed_is_refused(tmp_path, monkeypatch):
    """Only where a video replaces it: a folder of many videos keeps its name."""
    monkeypatch.chdir(tmp_path)
    for folder, kind in (
        (Path(), "the folder you are in"),
        (tmp_path, "the folder you are in"),
        (Path("/"), "a disk"),
    ):
        check_output(folder, renamed=False)
        with pytest.raises(BadInput, match=f"is {kind}"):
            check_output(folder, renamed=True)


@pytest.mark.parametrize(("where", "output"), [("v/sub", ".."), ("v/sub/x", "../../../v")])
def test_folder_around_the_working_directory_is_refused(tmp_path, monkeypatch, where, output):
    """Catches a relative path that leads elsewhere after the rename: what lay there stayed in the hidden folder."""
    (tmp_path / where).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / where)
    with pytest.raises(BadInput, match="you are inside"):
        check_output(Path(output), renamed=True)
    check_output(Path(output), renamed=False)
    check_output(tmp_path / "other", renamed=True)


def test_folder_of_many_is_refused_from_inside_one(tmp_path, monkeypatch):
    """It keeps its name, and that of the numbered folder one is in changes."""
    (tmp_path / "0001" / "v" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "0001" / "v" / "sub")
    with pytest.raises(BadInput, match="you are inside"):
        check_output(tmp_path, renamed=False)


def test_desktop_file_in_the_hidden_folder_is_ignored(tmp_path):
    """Catches `.DS_Store`, after which finished blocks were not found; a folder there is the user's."""
    hidden = tmp_path / ".out.unfinished"
    blocks = hidden / "video" / BLOCKS_FOLDER
    blocks.mkdir(parents=True)
    (blocks / BLOCK).write_text("")
    (hidden / ".DS_Store").write_text("")
    assert unfinished_blocks(tmp_path / "out") == [blocks / BLOCK]
    (hidden / ".git").mkdir()
    assert unfinished_blocks(tmp_path / "out") == []


def test_users_file_in_the_hidden_folder_stays(tmp_path):
    """And the run goes on. Catches: blocks that are not found, or a file that is deleted with the folder."""
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        stopped_run(out, ZeroDivisionError, blocks=True)
    note = hidden_folder(out) / "notes.txt"
    note.write_text("notes")
    with pytest.raises(ZeroDivisionError):
        stopped_run(out, ZeroDivisionError)
    assert len(unfinished_blocks(out)) == 1
    for text in ("new", "newer"):
        finish(out, text, replace=True)
        assert contents(out) == whole(text)
        assert names(hidden_folder(out)) == ["notes.txt"]
    assert note.read_text() == "notes"


def test_hidden_folder_without_a_request_is_foreign(tmp_path):
    """With a file of somebody's in it, nothing else shows that the folder is ours."""
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        stopped_run(out, ZeroDivisionError, blocks=True)
    (hidden_folder(out) / "notes.txt").write_text("notes")
    assert len(unfinished_blocks(out)) == 1
    (hidden_folder(out) / "request.json").write_text("")
    assert unfinished_blocks(out) == []


@pytest.mark.parametrize("inside", ["file/new", "file/new/run", "new/" + "n" * 300, "new/\0"])
def test_folder_that_cannot_be_made_is_refused(tmp_path, inside):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BadInput, match="cannot write into the folder"),
        lock_folder(tmp_path / inside),
    ):
        pass
    assert contents(tmp_path) == {"file": b""}
    assert names(tmp_path) == ["file"]
