"""`generate` and `demo` replace no finished video and nobody's file, unless `--overwrite` says so."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from cli_runs import OUTPUTS, SMALL, generate, names, options, report
from read_only import make_read_only
from reuse_folders import contents, stopped

from sdvg_core.cli import main, making
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import lock_folder
from sdvg_core.videos import batch, maker

BALL = ("--prompt", "a red ball", "--blocks", "2")


@pytest.fixture(scope="module")
def base(files) -> list[str]:
    return [*options(files), "--policy", "first"]


def seeds(folder: Path) -> dict[str, int]:
    return {path.parent.name: report(path.parent)["settings"]["seed"] for path in folder.glob("*/report.json")}


# --- finished videos and foreign files


def test_a_finished_video_stays_and_the_next_free_name_is_said(base, tmp_path, monkeypatch, capsys):
    """The kind: work that is done again unasked. The same request again makes nothing, and says how it would."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    before = contents(out)
    capsys.readouterr()
    assert generate(base, out, *BALL, "--seed", "7") == 0
    assert f"sdvg: {out} has a video.mp4 of another request, so this goes into {out}-2\n" in capsys.readouterr().err
    with monkeypatch.context() as planted:
        planted.delattr(maker, "load_models")
        planted.delattr(batch, "encode_prompts")
        for seed, folder in (("42", out), ("7", tmp_path / "out-2")):
            assert generate(base, out, *BALL, "--seed", seed) == 0
            said = capsys.readouterr()
            again = "add --overwrite or name another --output to make it again"
            assert f"sdvg: {folder} has this very video; {again}\n" in said.err
            assert f"The video is in {folder}\n" in said.out
    assert contents(out) == before
    assert generate(base, tmp_path / "other", *BALL) == 0
    assert seeds(tmp_path) == {"out": 42, "out-2": 7, "other": 42}
    assert contents(tmp_path / "other")["latents.safetensors"] == before["latents.safetensors"]


@pytest.mark.parametrize("more", [[], ["--seeds", "1", "2"]], ids=["one", "numbered"])
def test_a_finished_command_says_so_in_a_folder_that_is_read_only(base, tmp_path, monkeypatch, capsys, more):
    """The kind: a refusal for want of what is not needed. Another seed is refused: it has to write."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL, *more) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    make_read_only(tmp_path, monkeypatch)
    for flags in ([], ["--resume"]):
        assert generate(base, out, *BALL, *more, *flags) == 0
        said = capsys.readouterr()
        these = "these very videos" if more else "this very video"
        assert f"sdvg: {out} has {these}; add --overwrite" in said.err
        assert str(out) in said.out
    for flags in (["--overwrite"], ["--size", "16x16"]):
        assert generate(base, out, *BALL, *more, *flags) == 2
        fault = f"sdvg: cannot write into the folder {out} (Read-only file system); name another folder\n"
        assert capsys.readouterr().err == fault
    assert contents(tmp_path) == before


def test_a_finished_video_without_its_mp4_is_not_said_to_be_there(base, tmp_path, capsys):
    """The kind: a thing that is said to be there and is not. Its blocks are, so that nothing is drafted again."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    before = contents(out)
    (out / "video.mp4").unlink()
    capsys.readouterr()
    assert generate(base, out, *BALL) == 0
    assert "has this very video" not in capsys.readouterr().err
    assert contents(out)["video.mp4"] == before["video.mp4"]
    assert all(block["reused"] for block in report(out)["blocks"])


def test_overwrite_replaces_the_video_and_nothing_next_to_it(base, tmp_path):
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    (out / "mine.txt").write_text("mine")
    assert generate(base, out, *BALL, "--seed", "7", "--overwrite") == 0
    assert seeds(tmp_path) == {"out": 7}
    assert names(out) == sorted([*OUTPUTS, "mine.txt"])
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("word", ["--resume", "--overwrite", ""])
@pytest.mark.parametrize("name", ["video.mp4", "notes.txt"])
def test_what_is_no_video_of_ours_is_not_overwritten(base, tmp_path, capsys, name, word):
    """Catches `--overwrite` taken for the leave to replace anything."""
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    assert generate(base, out, *BALL, *filter(None, [word])) == (2 if word else 0)
    fault = "has a video.mp4 that is not ours" if name == "video.mp4" else "is no empty folder and has no video"
    rest = "; name another folder" if word else ", so this goes into"
    assert f"sdvg: {out} {fault}{rest}" in capsys.readouterr().err
    assert contents(out) == {name: b"mine"}
    assert names(tmp_path) == (["out"] if word else ["out", "out-2"])


@pytest.mark.parametrize("output", [".", ".."])
def test_a_folder_that_has_no_name_is_refused_rather_than_its_neighbour_taken(
    base, tmp_path, monkeypatch, capsys, output
):
    (tmp_path / "here" / "below").mkdir(parents=True)
    (tmp_path / "here" / "video.mp4").write_text("mine")
    monkeypatch.chdir(tmp_path / "here" / ("below" if output == ".." else ""))
    assert main([*base, *SMALL, *BALL, "--output", output]) == 2
    faults = {
        ".": ". is the folder you are in",
        "..": "you are inside .., which a new video replaces; go out of it",
    }
    assert faults[output] in capsys.readouterr().err
    assert names(tmp_path) == ["here"]


# --- unfinished runs


def test_the_same_command_goes_on_and_another_leaves_it_alone(base, tmp_path, capsys):
    out, asked = tmp_path / "out", [*base, *SMALL, *BALL]
    stopped(out, asked, 1)
    before = contents(out)
    capsys.readouterr()
    stopped(out, [*asked, "--seed", "7"], 1)
    fault, *_ = capsys.readouterr().err.splitlines()
    assert fault == (
        f"sdvg: {out} has an unfinished video that differs in seed (then 42, now 7), so this goes into {out}-2"
    )
    assert contents(out) == before

    assert generate(base, out, *BALL, "--seed", "7") == 0
    assert f"sdvg: this goes on with what an earlier call left in {out}-2\n" in capsys.readouterr().err
    assert "Blocks 1 to 1 of this run were made before" in report(tmp_path / "out-2")["notes"][-1]

    assert generate(base, out, *BALL) == 0
    assert "Blocks 1 to 1 of this run were made before" in report(out)["notes"][-1]
    assert names(tmp_path) == ["out", "out-2"]
    assert names(out) == names(tmp_path / "out-2") == OUTPUTS


@pytest.mark.heavy
def test_a_finished_video_beside_an_unfinished_run_of_the_same_folder_stays(base, tmp_path):
    """Such a run is left by a stopped `--overwrite`."""
    out = tmp_path / "out"
    assert generate(base, out, *BALL) == 0
    stopped(out, [*base, *SMALL, *BALL, "--seed", "7", "--overwrite"], 1)
    assert generate(base, out, *BALL, "--seed", "7") == 0
    assert seeds(tmp_path) == {"out": 42, "out-2": 7}
    assert generate(base, out, *BALL, "--seed", "7", "--overwrite") == 0
    assert "Blocks 1 to 1 of this run were made before" in report(out)["notes"][-1]


def test_somebodys_file_where_a_run_was_stopped_sends_no_later_run_elsewhere(base, tmp_path, capsys):
    """Catches a finished video that is made again into `out-2`."""
    out = tmp_path / "out"
    hidden = tmp_path / ".out.unfinished"
    hidden.mkdir()
    (hidden / "Thumbs.db").write_text("mine")
    for seed, words in (("42", ()), ("42", ()), ("7", ("--overwrite",))):
        assert generate(base, out, *BALL, "--seed", seed, *words) == 0
    assert seeds(tmp_path) == {"out": 7}
    assert contents(hidden) == {"Thumbs.db": b"mine"}


@pytest.mark.parametrize("inside", ["", "0001"], ids=["one video", "of a list"])
def test_a_hidden_folder_that_is_not_ours_stays_and_no_weight_is_read_for_it(
    base, tmp_path, monkeypatch, capsys, inside
):
    """Catches the refusal that comes only when all models are loaded."""
    out, what = tmp_path / "out", listed(tmp_path, "a red ball") if inside else BALL
    hidden = out / f".{inside}.unfinished" if inside else tmp_path / ".out.unfinished"
    hidden.mkdir(parents=True)
    for name in ("mine.txt", "lock"):
        (hidden / name).write_text("mine")
    with monkeypatch.context() as planted:
        planted.setattr(maker, "load_models", load := Mock())
        planted.setattr(batch, "encode_prompts", read := Mock())
        for word in ("--resume", "--overwrite"):
            assert generate(base, out, *what, word) == 2
            assert capsys.readouterr().err == f"sdvg: {hidden} is not ours; move it away\n"
        assert not load.called
        assert not read.called
    assert generate(base, out, *what) == 0
    assert f"sdvg: {hidden} is not ours, so this goes into {out}-2\n" in capsys.readouterr().err
    assert contents(hidden) == {"mine.txt": b"mine", "lock": b"mine"}
    assert names(out) == ([hidden.name] if inside else [])


# --- two at a time


def test_a_folder_that_another_run_holds_is_not_taken(base, tmp_path, capsys):
    out = tmp_path / "out"
    with lock_folder(out):
        assert generate(base, out, *BALL) == 0
        assert f"another run is writing into {out}, so this goes into {out}-2" in capsys.readouterr().err
        for word in ("--resume", "--overwrite"):
            assert generate(base, out, *BALL, word) == 2
            assert f"another run is writing into {out}; wait for it" in capsys.readouterr().err
    assert names(tmp_path) == ["out-2"]


def test_a_run_holds_its_folder_from_before_the_models_are_loaded(base, tmp_path, monkeypatch):
    honest, seen = maker.load_models, []

    def load(*arguments: object) -> object:
        with pytest.raises(BadInput, match="another run is writing"), lock_folder(tmp_path / "out"):
            pass
        seen.append("held")
        return honest(*arguments)

    monkeypatch.setattr(maker, "load_models", load)
    assert generate(base, tmp_path / "out", *BALL) == 0
    assert seen == ["held"]
    assert names(tmp_path / "out") == OUTPUTS


# --- lists of prompts


def listed(tmp_path: Path, *prompts: str) -> tuple[str, ...]:
    (tmp_path / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
    return ("--prompt-file", str(tmp_path / "prompts.txt"), "--blocks", "1")


def test_a_file_of_one_prompt_behaves_like_one_of_many(base, tmp_path):
    assert generate(base, tmp_path / "out", *listed(tmp_path, "a red ball")) == 0
    assert names(tmp_path / "out") == ["0001", "videos.csv"]
    before = contents(tmp_path / "out")
    again = ("--reuse", str(tmp_path / "out"))
    assert generate(base, tmp_path / "out", *listed(tmp_path, "a red ball"), *again) == 0
    assert contents(tmp_path / "out") == before
    assert generate(base, tmp_path / "new", *listed(tmp_path, "a red ball"), *again) == 0
    assert [block["reused"] for block in report(tmp_path / "new" / "0001")["blocks"]] == [True]


@pytest.mark.heavy
def test_a_list_goes_on_where_lines_were_added_and_another_list_gets_another_folder(base, tmp_path):
    out = tmp_path / "out"
    assert generate(base, out, *listed(tmp_path, "a ball", "a cube")) == 0
    first = contents(out / "0001")
    assert generate(base, out, *listed(tmp_path, "a ball", "a cube", "a star")) == 0
    assert names(out) == ["0001", "0002", "0003", "videos.csv"]
    before = contents(out)
    assert contents(out / "0001") == first
    for prompts in (("a cone", "a cube", "a star"), ("a ball", "a cube", "a star"), ("a ball", "a cube")):
        assert generate(base, out, *listed(tmp_path, *prompts)) == 0
    assert contents(out) == before
    assert names(tmp_path / "out-2")[:-1] == ["0001", "0002", "0003"]
    assert not (tmp_path / "out-3").exists(), "the same list and a shorter one are there already"


def test_a_short_list_does_not_take_the_place_of_a_long_one_whose_first_video_is_missing(base, tmp_path):
    out = tmp_path / "out"
    assert generate(base, out, *listed(tmp_path, "a ball", "a cube")) == 0
    shutil.rmtree(out / "0001")
    before = contents(out)
    assert generate(base, out, *listed(tmp_path, "a cone")) == 0
    assert contents(out) == before


def test_a_foreign_table_stays(base, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "videos.csv").write_text("mine")
    for words, code in (((), 0), (("--overwrite",), 2), (("--resume",), 2)):
        assert generate(base, out, *listed(tmp_path, "a ball"), *words) == code
    assert contents(out) == {"videos.csv": b"mine"}


def test_a_list_goes_on_without_the_table_that_a_kill_kept_from_being_written(base, tmp_path):
    out, listing = tmp_path / "out", listed(tmp_path, "a ball")
    assert generate(base, out, *listing) == 0
    shutil.rmtree(out / "0001")
    (out / "videos.csv").unlink()
    assert generate(base, out, *listing) == 0
    assert names(out) == ["0001", "videos.csv"]
    assert names(tmp_path) == ["out", "prompts.txt"]


# --- the demo


DEMO = ("demo", "--blocks", "1", "--directions", "d")


def test_a_demo_without_a_draft_says_why_it_compares_nothing_and_keeps_no_earlier_comparison(tmp_path, capsys):
    """Catches an old comparison next to a new video; what somebody put into the other video's folder stays."""
    out = tmp_path / "out"
    assert main([*DEMO, "--output", str(out)]) == 0
    assert names(out) == sorted([*OUTPUTS, "comparison.mp4", "target-only"])
    (out / "target-only" / "blocks" / "mine.txt").write_text("mine")
    capsys.readouterr()
    more = ["--gate", "9", "--preset", "hybrid", "--blocks", "2", "--overwrite", "--prompt", " 3 "]
    assert main(["demo", *more, "--output", str(out)]) == 0
    assert "so there is nothing to compare; lower --gate." in capsys.readouterr().out
    assert names(out) == sorted([*OUTPUTS, "target-only"])
    assert contents(out / "target-only")["blocks/mine.txt"] == b"mine"


@pytest.mark.heavy
def test_the_demo_replaces_neither_its_own_nor_a_foreign_comparison_and_goes_on_to_the_one_it_owes(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"

    with monkeypatch.context() as planted:
        planted.setattr(making, "side_by_side", Mock(side_effect=KeyboardInterrupt))
        assert main([*DEMO, "--output", str(out)]) == 130
    made = {path: path.stat().st_mtime_ns for path in out.rglob("video.mp4")}
    assert main([*DEMO, "--output", str(out)]) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("video.mp4")} == made
    assert names(out) == sorted([*OUTPUTS, "comparison.mp4", "target-only"])
    before = contents(out)
    capsys.readouterr()
    assert main([*DEMO, "--output", str(out)]) == 0
    said = capsys.readouterr()
    assert f"sdvg: {out} has this very video; add --overwrite" in said.err
    assert "comparison.mp4 shows it next to the large model's" in said.out
    assert contents(out) == before
    assert names(tmp_path) == ["out"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "comparison.mp4").write_text("mine")
    assert main([*DEMO, "--output", str(foreign)]) == 0
    assert contents(foreign) == {"comparison.mp4": b"mine"}
