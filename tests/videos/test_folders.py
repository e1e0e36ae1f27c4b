"""Which folder the videos of a call go into, and what it has of them: it is new, unfinished or finished."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from sdvg_core.files.outputs import (
    BLOCKS_FOLDER,
    LATENTS,
    REPORT,
    VIDEO,
    VIDEOS_TABLE,
    TakenFolder,
    hidden_folder,
    lock_folder,
    next_free,
    staged_video,
)
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.load import LoadOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos import folders
from sdvg_core.videos.asked import Batch
from sdvg_core.videos.fingerprint import Fingerprint, digest_of
from sdvg_core.videos.folders import State, claim_folder
from sdvg_core.weights.latents import save_latents
from sdvg_core.weights.model_files import ModelFiles
from tests.support.forked import CAN_FORK, fork
from tests.support.reuse_folders import contents
from tests.support.sample_reports import report

THIS = {"seed": "42"}
OTHER = {"seed": "7"}
BLOCKS_ASKED = 3


def put_video(folder: Path, request: Fingerprint = THIS, blocks: int = BLOCKS_ASKED) -> None:
    """Put a finished video of so many blocks there."""
    folder.mkdir(parents=True)
    (folder / VIDEO).write_text("video")
    save_latents(folder / LATENTS, torch.zeros(1, 16, 3, 2, 2), {"request": digest_of(request)})
    decisions = [Decision(accepted=False, reason=Reason.FORCED)] * blocks
    (folder / REPORT).write_text(report(decisions).to_json(), encoding="utf-8")


def put_blocks(folder: Path, request: Fingerprint = THIS) -> None:
    """Leave what a run that is stopped after a block leaves."""
    with suppress(ZeroDivisionError), lock_folder(folder), staged_video(folder, request) as work:
        (work / BLOCKS_FOLDER / "000001.safetensors").write_text("a block")
        raise ZeroDivisionError


def put_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of the user")


def batch(output: Path, *, named: bool = True, listed: bool = False, overwrite: bool = False) -> Batch:
    return Batch(
        files=ModelFiles(vae=Path("vae"), text_encoder=Path("text")),
        load=LoadOptions(),
        request=VideoRequest(blocks=BLOCKS_ASKED),
        prompts=(one_prompt("a red ball"),),
        output=output,
        named=named,
        listed=listed,
        overwrite=overwrite,
    )


def state(output: Path, *, overwrite: bool = False) -> State:
    with claim_folder(batch(output, overwrite=overwrite), [THIS]) as (folder, states):
        assert list(states) == [folder] == [output]
        return states[folder]


def number(output: Path, *requests: Fingerprint, listed: bool = False) -> str:
    """Return the name of the folder that a call takes which names none."""
    with claim_folder(batch(output, named=False, listed=listed), requests or [THIS]) as (folder, _):
        assert folder.parent == output
        return folder.name


# --- a folder that the user named


def put_video_without_mp4(folder: Path) -> None:
    put_video(folder)
    (folder / VIDEO).unlink()


def put_both(folder: Path) -> None:
    put_video(folder, blocks=2)
    put_blocks(folder)


def put_video_beside_a_file(folder: Path) -> None:
    put_video(folder)
    put_file(hidden_folder(folder) / "Thumbs.db")


def put_video_beside_a_table(folder: Path) -> None:
    put_video(folder)
    put_file(folder / VIDEOS_TABLE)


def put_video_beside_other_blocks(folder: Path) -> None:
    put_video(folder)
    put_blocks(folder, OTHER)


STATES: dict[str, tuple[Callable[[Path], object], State]] = {
    "nothing": (lambda folder: None, State.NEW),
    "an empty folder": (lambda folder: folder.mkdir(), State.NEW),
    "a hidden file": (lambda folder: put_file(folder / ".DS_Store"), State.NEW),
    "a file where blocks would be": (lambda folder: put_file(hidden_folder(folder) / "Thumbs.db"), State.NEW),
    "blocks": (put_blocks, State.UNFINISHED),
    "a video of fewer blocks": (lambda folder: put_video(folder, blocks=2), State.UNFINISHED),
    "a video of fewer blocks and more blocks": (put_both, State.UNFINISHED),
    "a video whose mp4 was removed": (put_video_without_mp4, State.UNFINISHED),
    "the video": (put_video, State.FINISHED),
    "the video beside a table of somebody": (put_video_beside_a_table, State.FINISHED),
    "the video beside blocks of another": (put_video_beside_other_blocks, State.FINISHED),
    "the video beside a file where blocks would be": (put_video_beside_a_file, State.FINISHED),
}


@pytest.mark.parametrize(("put", "expected"), STATES.values(), ids=STATES)
def test_folder_is_new_unfinished_or_finished(tmp_path, put, expected):
    """Catches: a finished video that is made again, and a stopped one that begins anew."""
    put(tmp_path / "out")
    before = contents(tmp_path)
    assert state(tmp_path / "out") is expected
    assert contents(tmp_path) == before


def put_shorter_beside_other_blocks(folder: Path) -> None:
    put_video(folder, blocks=2)
    put_blocks(folder, OTHER)


TAKEN: dict[str, tuple[Callable[[Path], object], str, bool]] = {
    "another video": (lambda folder: put_video(folder, OTHER), "video.mp4 of another request", True),
    "another's blocks": (lambda folder: put_blocks(folder, OTHER), "seed (then 7, now 42)", True),
    "fewer blocks beside another's": (put_shorter_beside_other_blocks, "seed (then 7, now 42)", True),
    "a video of somebody": (lambda folder: put_file(folder / VIDEO), "not ours", False),
    "notes of somebody": (lambda folder: put_file(folder / "notes.txt"), "no empty folder", False),
    "a file": (put_file, "is a file", False),
}
"""What is put there, words of the refusal, and whether `overwrite` may replace it."""


@pytest.mark.parametrize(("put", "words", "replaceable"), TAKEN.values(), ids=TAKEN)
def test_taken_folder_is_refused_and_next_named(tmp_path, put, words, replaceable):
    """Catches: a request that goes elsewhere unasked, or in place of something that is there."""
    put(tmp_path / "out")
    put_file(tmp_path / "out-2" / "notes.txt")
    before = contents(tmp_path)
    with pytest.raises(TakenFolder) as refusal:
        state(tmp_path / "out")
    assert words in str(refusal.value)
    assert str(tmp_path / "out-3") in str(refusal.value)
    if replaceable:
        assert state(tmp_path / "out", overwrite=True) is State.NEW
    else:
        with pytest.raises(TakenFolder):
            state(tmp_path / "out", overwrite=True)
    assert contents(tmp_path) == before


def test_overwriting_goes_on_where_it_stopped(tmp_path):
    """Catches: `--overwrite` that begins anew after it was stopped."""
    put_video(tmp_path / "out", OTHER)
    put_blocks(tmp_path / "out")
    assert state(tmp_path / "out", overwrite=True) is State.UNFINISHED
    with pytest.raises(TakenFolder, match="of another request"):
        state(tmp_path / "out")


@pytest.mark.parametrize("name", ["out", ".", ".."])
def test_next_free_folder_is_next_to_it(tmp_path, monkeypatch, name):
    """Catches: `.-2`, and the name of a video that a stopped run is about to finish."""
    inside = tmp_path / "out" / "below"
    inside.mkdir(parents=True)
    monkeypatch.chdir({"out": tmp_path, ".": inside.parent, "..": inside}[name])
    put_blocks(tmp_path / "out-2")
    put_file(tmp_path / "out-3")
    assert next_free(Path(name)) == (Path("out-4") if name == "out" else tmp_path / "out-4")


def test_root_has_a_next_free_folder():
    """Catches: an error without a sentence where a path has no name."""
    assert next_free(Path("/")).parent == Path("/")


def test_each_video_of_a_list_has_its_state(tmp_path):
    put_video(tmp_path / "out" / "0001")
    put_blocks(tmp_path / "out" / "0002", OTHER)
    requests = [THIS, OTHER, {"seed": "1"}]
    with claim_folder(batch(tmp_path / "out", listed=True), requests) as (folder, states):
        assert folder == tmp_path / "out"
        assert {path.name: state for path, state in states.items()} == {
            "0001": State.FINISHED,
            "0002": State.UNFINISHED,
            "0003": State.NEW,
        }


@pytest.mark.parametrize(
    ("name", "overwrite"), [("0002", False), ("0007", False), (VIDEOS_TABLE, False), (VIDEOS_TABLE, True)]
)
def test_folder_of_another_list_is_refused(tmp_path, name, overwrite):
    """Catches: a video of a list in a gap of another one, and a table of somebody that is replaced."""
    if name == VIDEOS_TABLE:
        put_file(tmp_path / "out" / VIDEOS_TABLE)
    else:
        put_video(tmp_path / "out" / name, OTHER)
    before = contents(tmp_path)
    asked = batch(tmp_path / "out", listed=True, overwrite=overwrite)
    with pytest.raises(TakenFolder) as refusal, claim_folder(asked, [THIS, {"seed": "1"}]):
        pass
    assert str(tmp_path / "out-2") in str(refusal.value)
    assert contents(tmp_path) == before


# --- no folder is named


def test_calls_are_numbered_after_the_highest(tmp_path):
    """Catches: a number in a gap, a file of somebody that is taken for a number, and one more digit that is not."""
    out = tmp_path / "out"
    assert number(out) == "001"
    assert not out.exists(), "a number that nothing was written into is free"
    for name in ("demo/notes.txt", "7-of-9/notes.txt", "video.mp4"):
        put_file(out / name)
    assert number(out) == "001"
    put_video(out / "003", OTHER)
    assert number(out) == "004"
    put_video(out / "999", {"seed": "1"})
    assert number(out) == "1000"
    put_video(out / "1000", {"seed": "2"})
    assert number(out) == "1001"


def test_same_request_returns_to_its_newest_number(tmp_path):
    """Catches: a stopped run that is forgotten without its folder's name, or a finished one that is made twice."""
    out = tmp_path / "out"
    put_video(out / "001")
    put_video(out / "002", {"seed": "1"})
    put_blocks(out / "003", OTHER)
    assert number(out, THIS) == "001"
    assert number(out, OTHER) == "003"
    assert number(out, {"seed": "1"}) == "002"
    assert number(out, {"seed": "2"}) == "004"
    put_video(out / "004", blocks=2)
    assert number(out) == "004"
    put_blocks(out / "005")
    assert number(out) == "005"


def test_list_returns_to_its_number(tmp_path):
    out = tmp_path / "out"
    put_video(out / "001")
    put_video(out / "002" / "0001")
    assert number(out, THIS, OTHER, listed=True) == "002"
    assert number(out, OTHER, THIS, listed=True) == "003"
    assert number(out) == "001"


def test_number_that_a_kill_left_is_free(tmp_path):
    """Catches: numbers that are used up by runs which made nothing."""
    hidden = tmp_path / "out" / ".001.unfinished"
    (hidden / "video" / BLOCKS_FOLDER).mkdir(parents=True)
    (hidden / "lock").write_text("")
    put_blocks(tmp_path / "out" / "002", OTHER)
    assert number(tmp_path / "out") == "003"
    assert number(tmp_path / "out", OTHER) == "002"


def test_begun_video_of_live_run_is_skipped(tmp_path):
    """Catches: a second run of one request that is refused, or writes into the folder of the first."""
    out = tmp_path / "out"
    put_blocks(out / "001")
    with lock_folder(out / "001"):
        assert number(out) == "002"
    assert number(out) == "001"


@pytest.mark.parametrize("finished", [False, True], ids=["running", "finished"])
def test_number_taken_since_the_listing_is_passed_over(tmp_path, monkeypatch, finished):
    """Catches: two runs that see one listing, of which the later one replaces what the earlier one makes."""
    out = tmp_path / "out"
    list_names = folders.names_in
    with ExitStack() as earlier:

        def names_in(folder: Path) -> set[str]:
            names = list_names(folder)
            monkeypatch.undo()
            if finished:
                put_video(out / "001", OTHER)
            else:
                earlier.enter_context(claim_folder(batch(out, named=False), [OTHER]))
            return names

        monkeypatch.setattr(folders, "names_in", names_in)
        with claim_folder(batch(out, named=False), [THIS]) as (folder, _):
            assert folder == out / "002"
            assert (out / ".001.unfinished").exists() is not finished, "a folder that was passed over is held"


@pytest.mark.skipif(not CAN_FORK, reason="needs os.fork")
@pytest.mark.parametrize("requests", [(THIS, OTHER), (THIS, THIS)], ids=["two requests", "one request"])
def test_two_processes_at_once_take_two_numbers(tmp_path, requests):
    """Catches: a number that is looked up, and taken a moment later."""
    rounds = [tmp_path / str(number) for number in range(10)]
    together = get_context("fork").Barrier(len(requests), timeout=60)

    def program(place: int, request: Fingerprint) -> Callable[[], int]:
        def take_numbers() -> int:
            for out in rounds:
                together.wait()
                with claim_folder(batch(out, named=False), [request]) as (folder, _):
                    out.with_suffix(f".{place}").write_text(folder.name)
                    together.wait()
            return 0

        return take_numbers

    processes = [fork(program(*placed), None, None) for placed in enumerate(requests)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    for out in rounds:
        answers = [out.with_suffix(f".{place}").read_text() for place in range(len(requests))]
        assert sorted(answers) == ["001", "002"]
