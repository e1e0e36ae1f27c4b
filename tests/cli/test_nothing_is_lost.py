"""`generate` and `demo` replace no finished video and nobody's file, unless `--overwrite` says so."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from sdvg_core.cli import main, racing
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import lock_folder
from sdvg_core.pocket import EXAMPLE_PROMPTS
from sdvg_core.videos import batch, maker
from sdvg_core.videos.maker import VideoMaker
from tests.support.cli_runs import OUTPUTS, SMALL, generate, names, options, override, report
from tests.support.forked import fork
from tests.support.read_only import make_read_only
from tests.support.reuse_folders import after_block, contents, ctrl_c, stopped

BALL = ("--prompt", "a red ball", "--blocks", "2")


@pytest.fixture(scope="module")
def base(files) -> list[str]:
    return [*options(files), "--policy", "first"]


def seeds(folder: Path) -> dict[str, int]:
    return {path.parent.name: report(path.parent)["settings"]["seed"] for path in folder.glob("*/report.json")}


# --- finished videos and foreign files


def test_finished_video_is_kept_and_not_repeated(base, tmp_path, monkeypatch, capsys):
    """Catches: work that is done again unasked, and a model that is read before what is there is refused."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    before = contents(out)
    capsys.readouterr()
    with monkeypatch.context() as planted:
        planted.delattr(maker, "load_models")
        planted.delattr(batch, "encode_prompts")
        assert generate(base, out, *BALL, "--seed", "7") == 2
        refusal = capsys.readouterr().err
        assert "of another request" in refusal
        assert f"{out}-2" in refusal
        assert generate(base, out, *BALL) == 0
        printed = capsys.readouterr()
        assert f"sdvg: {out} has this very video" in printed.err
        assert f"The video is in {out}\n" in printed.out
    assert contents(out) == before
    assert names(tmp_path) == ["out"]
    assert generate(base, tmp_path / "other", *BALL) == 0
    assert contents(tmp_path / "other")["latents.safetensors"] == before["latents.safetensors"]


@pytest.mark.parametrize("more", [[], ["--seeds", "1", "2"]], ids=["one video", "numbered"])
def test_finished_video_is_named_in_readonly_folder(base, tmp_path, monkeypatch, capsys, more):
    """Catches: a refusal for want of a folder that nothing is written to. What has to be written is refused."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL, *more) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    make_read_only(tmp_path, monkeypatch)
    for _ in range(2):
        assert generate(base, out, *BALL, *more) == 0
        printed = capsys.readouterr()
        these = "these very videos" if more else "this very video"
        assert f"sdvg: {out} has {these}" in printed.err
        assert str(out) in printed.out
    for flags in (["--overwrite"], ["--size", "16x16"]):
        assert generate(base, out, *BALL, *more, *flags) == 2
        assert f"sdvg: cannot write into the folder {out} (Read-only" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_missing_mp4_is_made_from_finished_blocks(base, tmp_path, capsys):
    """Catches: a video said to be there that is not; blocks made again though they are there."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    before = contents(out)
    (out / "video.mp4").unlink()
    capsys.readouterr()
    assert generate(base, out, *BALL) == 0
    assert "has this very video" not in capsys.readouterr().err
    assert contents(out)["video.mp4"] == before["video.mp4"]
    assert all(block["reused"] for block in report(out)["blocks"])


def test_overwrite_replaces_only_the_video(base, tmp_path):
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    (out / "notes.txt").write_text("of the user")
    assert generate(base, out, *BALL, "--seed", "7", "--overwrite") == 0
    assert seeds(tmp_path) == {"out": 7}
    assert names(out) == sorted([*OUTPUTS, "notes.txt"])
    assert names(tmp_path) == ["out"]


# --- unfinished runs


@pytest.mark.heavy
def test_finished_video_stays_until_overwriting_is_whole(base, tmp_path):
    """Such a run is left by a stopped `--overwrite`. Catches: the finished one deleted, or made again beside it."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    before = contents(out)
    stopped(out, [*base, *SMALL, *BALL, "--seed", "7", "--overwrite"], 1)
    assert generate(base, out, *BALL, "--seed", "7") == 2
    assert generate(base, out, *BALL) == 0
    assert contents(out) == before
    assert generate(base, out, *BALL, "--seed", "7", "--overwrite") == 0
    assert "Blocks 1 to 1 of this run were made before" in report(out)["notes"][-1]
    assert seeds(tmp_path) == {"out": 7}
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("inside", ["", "0001"], ids=["one video", "of a list"])
def test_foreign_hidden_folder_is_refused_before_loading(base, tmp_path, monkeypatch, capsys, inside):
    """Catches the refusal that comes only when all models are loaded."""
    out = tmp_path / "out"
    what = listed(tmp_path, "a red ball") if inside else BALL
    hidden = out / f".{inside}.unfinished" if inside else tmp_path / ".out.unfinished"
    hidden.mkdir(parents=True)
    for name in ("notes.txt", "lock"):
        (hidden / name).write_text("foreign")
    monkeypatch.delattr(maker, "load_models")
    monkeypatch.delattr(batch, "encode_prompts")
    for words in (["--overwrite"], []):
        assert generate(base, out, *what, *words) == 2
        assert f"sdvg: {hidden} is not ours" in capsys.readouterr().err
    assert contents(hidden) == {"notes.txt": b"foreign", "lock": b"foreign"}
    assert names(out) == ([hidden.name] if inside else [])


# --- no folder is named


def in_next(base: list[str], *more: str) -> int:
    """Run without `--output`, in the current folder."""
    return main(override([*base, *SMALL], *BALL, *more))


def test_videos_without_a_folder_are_numbered(base, tmp_path, monkeypatch, capsys):
    """Catches: a number for a video that is there, and one that a stopped run began."""
    monkeypatch.chdir(tmp_path)
    assert in_next(base) == 0
    assert "The video is in out/001\n" in capsys.readouterr().out
    before = contents(tmp_path / "out" / "001")
    with after_block(1, ctrl_c):
        assert in_next(base, "--seed", "7") == 130
    assert in_next(base, "--seeds", "1", "2", "--blocks", "1") == 0
    assert in_next(base, "--seed", "7") == 0
    assert in_next(base) == 0
    assert "out/001 has this very video" in capsys.readouterr().err
    assert names(tmp_path / "out") == ["001", "002", "003"]
    assert names(tmp_path / "out" / "003") == ["0001", "0002", "videos.csv"]
    assert seeds(tmp_path / "out") == {"001": 42, "002": 7}
    assert contents(tmp_path / "out" / "001") == before


def test_overwriting_without_a_folder_replaces_nothing_else(base, tmp_path, monkeypatch):
    """Catches: `--overwrite` that takes the newest video for the one that is meant."""
    monkeypatch.chdir(tmp_path)
    for seed, words in (("42", []), ("7", []), ("42", ["--overwrite"]), ("1", ["--overwrite"])):
        assert in_next(base, "--seed", seed, *words) == 0
    assert seeds(tmp_path / "out") == {"001": 42, "002": 7, "003": 1}


@pytest.mark.heavy
def test_two_runs_at_once_take_two_numbers(base, tmp_path, monkeypatch):
    """What holds them apart, also for one request, is in `tests/videos/test_folders.py`."""
    monkeypatch.chdir(tmp_path)
    assert generate(base, tmp_path / "alone", *BALL) == 0
    programs = [partial(in_next, base, "--seed", seed) for seed in ("42", "7")]
    processes = [fork(program, os.devnull, os.devnull) for program in programs]
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [0, 0]
    numbers = {seed: folder for folder, seed in seeds(tmp_path / "out").items()}
    assert sorted(numbers.values()) == ["001", "002"]
    latents = contents(tmp_path / "out" / numbers[42])["latents.safetensors"]
    assert latents == contents(tmp_path / "alone")["latents.safetensors"]


# --- two at a time


def test_run_locks_its_folder_before_loading(base, tmp_path, monkeypatch):
    load_models = maker.load_models
    refusals: list[str] = []

    def load(*arguments: object) -> object:
        with pytest.raises(BadInput) as refusal, lock_folder(tmp_path / "out"):
            pass
        refusals.append(str(refusal.value))
        return load_models(*arguments)

    monkeypatch.setattr(maker, "load_models", load)
    assert generate(base, tmp_path / "out", *BALL) == 0
    assert ["another run is writing" in refusal for refusal in refusals] == [True]
    assert names(tmp_path / "out") == OUTPUTS


# --- lists of prompts


def listed(tmp_path: Path, *prompts: str) -> tuple[str, ...]:
    (tmp_path / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
    return ("--prompt-file", str(tmp_path / "prompts.txt"), "--blocks", "1")


def test_file_with_one_prompt_is_a_list(base, tmp_path):
    assert generate(base, tmp_path / "out", *listed(tmp_path, "a red ball")) == 0
    assert names(tmp_path / "out") == ["0001", "videos.csv"]
    before = contents(tmp_path / "out")
    again = ("--reuse", str(tmp_path / "out"))
    assert generate(base, tmp_path / "out", *listed(tmp_path, "a red ball"), *again) == 0
    assert contents(tmp_path / "out") == before
    assert generate(base, tmp_path / "new", *listed(tmp_path, "a red ball"), *again) == 0
    assert [block["reused"] for block in report(tmp_path / "new" / "0001")["blocks"]] == [True]


@pytest.mark.heavy
def test_list_goes_on_and_another_list_is_refused(base, tmp_path):
    """Where lines were added at the end it goes on; the same list and a shorter one are there already."""
    out = tmp_path / "out"
    assert generate(base, out, *listed(tmp_path, "a ball", "a cube")) == 0
    first = contents(out / "0001")
    assert generate(base, out, *listed(tmp_path, "a ball", "a cube", "a star")) == 0
    assert names(out) == ["0001", "0002", "0003", "videos.csv"]
    before = contents(out)
    assert contents(out / "0001") == first
    for prompts, code in (
        (("a cone", "a cube", "a star"), 2),
        (("a ball", "a cube", "a star"), 0),
        (("a ball", "a cube"), 0),
    ):
        assert generate(base, out, *listed(tmp_path, *prompts)) == code
    assert contents(out) == before
    assert names(tmp_path) == ["out", "prompts.txt"]


def test_list_goes_on_without_its_table(base, tmp_path):
    """As a kill between the last video and its table leaves it."""
    out = tmp_path / "out"
    listing = listed(tmp_path, "a ball")
    assert generate(base, out, *listing) == 0
    shutil.rmtree(out / "0001")
    (out / "videos.csv").unlink()
    assert generate(base, out, *listing) == 0
    assert names(out) == ["0001", "videos.csv"]
    assert names(tmp_path) == ["out", "prompts.txt"]


# --- the demo


DEMO = ("demo", "--blocks", "2", "--preset", "fast")


@pytest.mark.usefixtures("short_race")
def test_demos_are_numbered_beside_generated_videos(tmp_path, monkeypatch, capsys):
    """Catches: a demo of another prompt that is refused, and a video that its folder is in the way of."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 3, 1):
        assert main(["demo", "--blocks", "1", "--prompt", str(number)]) == 0
        assert repr(EXAMPLE_PROMPTS[number - 1]) in capsys.readouterr().out
    assert main(["generate", "--models", "pocket", "--blocks", "1", "--prompt", "a red ball"]) == 0
    assert names(tmp_path / "out") == ["001", "demo"]
    assert names(tmp_path / "out" / "demo") == ["001", "002"]


@pytest.mark.usefixtures("short_race")
def test_finished_demo_keeps_its_race(tmp_path, capsys):
    """Catches: a finished demo made again, or its race lost; what somebody put beside it stays."""
    one_block = ("demo", "--blocks", "1")
    out = tmp_path / "out"
    assert main([*one_block, "--output", str(out)]) == 0
    (out / "notes.txt").write_text("of the user")
    before = contents(out)
    capsys.readouterr()
    assert main([*one_block, "--output", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"sdvg: {out} has this very video" in printed.err
    assert "comparison.mp4 shows the race" in printed.out
    assert contents(out) == before
    assert main([*one_block, "--output", str(out), "--overwrite", "--prompt", " 3 "]) == 0
    assert names(out) == sorted([*OUTPUTS, "comparison.mp4", "notes.txt"])
    assert contents(out)["comparison.mp4"] != before["comparison.mp4"]


def test_stopped_demo_is_not_said_to_be_older(tmp_path, monkeypatch, capsys):
    """Catches: *this video was begun before* of one that was stopped just now."""
    requests = []
    make_blocks = VideoMaker.make_blocks

    class Watched(maker.StopRequest):
        def __init__(self):
            super().__init__()
            requests.append(self)

    def asked(*options):
        requests[0].asked = True
        return (yield from make_blocks(*options))

    monkeypatch.setattr(racing, "StopRequest", Watched)
    monkeypatch.setattr(VideoMaker, "make_blocks", asked)
    assert main([*DEMO, "--output", str(tmp_path / "out")]) == 130
    printed = capsys.readouterr()
    assert "There is no race" not in printed.out
    assert "the same command makes the rest" in printed.err
    assert len(report(tmp_path / "out")["blocks"]) == 1


def test_resumed_demo_has_no_race(tmp_path, monkeypatch, capsys):
    """And says so, as its seconds would be of another hour. Catches: blocks made again for the sake of a race."""
    out = tmp_path / "out"
    make_blocks = VideoMaker.make_blocks

    def stopped(*options):
        yield next(make_blocks(*options))
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr(VideoMaker, "make_blocks", stopped)
        assert main([*DEMO, "--output", str(out)]) == 130
    assert main([*DEMO, "--output", str(out)]) == 0
    assert "There is no race" in capsys.readouterr().out
    assert names(out) == OUTPUTS
    assert names(tmp_path) == ["out"]
    assert [block["reused"] for block in report(out)["blocks"]] == [False, False]
    assert "Blocks 1 to 1 of this run were made before" in report(out)["notes"][-1]


def test_demo_keeps_a_foreign_comparison(tmp_path):
    (tmp_path / "comparison.mp4").write_text("of the user")
    assert main([*DEMO, "--output", str(tmp_path)]) == 2
    assert contents(tmp_path) == {"comparison.mp4": b"of the user"}
