"""Many videos on several workers: each bit for bit what one process makes, whatever happens to the workers."""

import csv
import errno
import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from mortal import GRAVE, open_mortal
from safetensors.torch import save

from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import VIDEOS_TABLE
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import Budget
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos import maker, many, table
from sdvg_core.videos.asked import Batch
from sdvg_core.videos.batch import plan_videos
from sdvg_core.videos.maker import VideoMaker
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import SMALL, generate, names, options, report
from tests.support.forked import TWO, fork_workers, ray_here
from tests.support.reuse_folders import ctrl_c, killed, results, stopped

PROMPTS = ["a red ball 0", "a red ball 1", "[first 2] a red ball 2"]
"""The last one's route is its own, which goes to a worker with it."""


@pytest.fixture(scope="module")
def base(files, tmp_path_factory) -> list[str]:
    prompts = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS), encoding="utf-8")
    return [*options(files), "--blocks", "3", "--tau", "-0.5", "--prompt-file", str(prompts)]


@pytest.fixture(scope="module")
def alone(base, tmp_path_factory) -> Path:
    """The videos as one process makes them."""
    folder = tmp_path_factory.mktemp("alone")
    assert generate(base, folder) == 0
    return folder


def same_files(folder: Path, other: Path, numbers: Iterable[int]) -> None:
    for number, name in product(numbers, ("latents.safetensors", "video.mp4")):
        expected = (other / f"{number:04d}" / name).read_bytes()
        assert (folder / f"{number:04d}" / name).read_bytes() == expected, (number, name)


def same_videos(folder: Path, other: Path, numbers: Iterable[int] = (1, 2, 3)) -> None:
    same_files(folder, other, numbers)
    for number in numbers:
        assert results(folder / f"{number:04d}") == results(other / f"{number:04d}")


def rows(folder: Path) -> list[dict[str, str]]:
    """The lines of the table."""
    with (folder / VIDEOS_TABLE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def lasting(line: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in line.items() if name != "seconds"}


def batch_of(files: ModelFiles, output: Path, **request: Any) -> Batch:
    models = {"drafter": ModelOptions(preset="self-forcing-1.3b"), "target": ModelOptions(preset="krea-14b")}
    load = LoadOptions(**models, schedule="1000,625", text_dtype="float32")
    small = VideoRequest(width=32, height=32, **request)
    return Batch(files=files, load=load, request=small, prompts=(), output=output)


# --- the same videos


@pytest.mark.heavy
def test_next_call_makes_what_a_worker_lost(base, alone, tmp_path, capsys, monkeypatch):
    """A worker dies after the first block of video 2.

    Catches: a video that is missing and not named; a block, or a finished video, that is made again.
    """
    monkeypatch.setattr(many, "open_worker", open_mortal)
    monkeypatch.setenv(GRAVE, str(tmp_path / "grave"))
    out = tmp_path / "out"
    assert generate(base, out, "--workers", "1") == 1
    printed = capsys.readouterr()
    assert (tmp_path / "grave").exists(), "no worker was killed"
    assert "sdvg: not made: 0002, 0003: a worker died" in printed.err
    assert "1 of 3 videos finished" in printed.out
    assert [line["state"] for line in rows(out)] == ["finished", "failed", "failed"]
    same_videos(alone, out, [1])

    before = (out / "0001" / "video.mp4").stat().st_mtime_ns
    fork_workers(monkeypatch)
    assert generate(base, out, "--workers", "1") == 0
    assert (out / "0001" / "video.mp4").stat().st_mtime_ns == before, "a finished video is left alone"
    assert "Blocks 1 to 1 of this run were made before" in report(out / "0002")["notes"][-1]
    same_files(out, alone, [2])
    same_videos(alone, out, [3])
    assert list(map(lasting, rows(out))) == list(map(lasting, rows(alone)))


def test_worker_of_a_budget_loads_one_model(files, monkeypatch):
    """A budget of 1 buys target-only, and needs the drafter's sizes all the same.

    Catches: workers that are sent only the files they will load, and then refuse the budget.
    """
    batch = batch_of(files, Path("out"), blocks=2, route=Budget(1.0))
    needed = frozenset({"target"})
    results = []
    load = maker.load_models
    monkeypatch.setattr(maker, "load_models", lambda *arguments: results.append(load(*arguments)))
    many.open_worker(batch, torch.get_num_threads(), needed, "cpu")
    (loaded,) = results
    assert (loaded.settings["drafter"], loaded.scorer) == (None, None)
    assert loaded.settings["target"] is not None


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_ray_workers_make_the_same_videos(base, alone, tmp_path, monkeypatch):
    ray_here(monkeypatch)
    assert generate(base, tmp_path / "out", "--ray", "local", *TWO) == 0
    same_videos(alone, tmp_path / "out")
    assert list(map(lasting, rows(tmp_path / "out"))) == list(map(lasting, rows(alone)))


def test_prompt_may_state_its_seed(files, tmp_path):
    """Catches: a column of seeds that no video has."""
    prompts = (replace(one_prompt("a red ball"), seed=7), one_prompt("a blue ball"))
    batch = replace(batch_of(files, tmp_path / "out", blocks=1, seed=3), prompts=prompts)
    with plan_videos(batch) as planned:
        assert [video.request.seed for video in planned.videos] == [7, 3]


def test_seeds_of_prompts_exclude_those_of_options(files, tmp_path):
    prompts = (replace(one_prompt("a red ball"), seed=7),)
    batch = replace(batch_of(files, tmp_path / "out", blocks=1), prompts=prompts)
    with pytest.raises(BadInput, match="state seeds"):
        replace(batch, seeds=(1, 2))


def test_only_numbered_videos_go_into_this_folder(files, tmp_path, monkeypatch):
    """Catches: the folder that one is in, replaced by a video; or a list of videos refused there."""
    monkeypatch.chdir(tmp_path)
    batch = replace(batch_of(files, tmp_path, blocks=1), prompts=(one_prompt("a red ball"),))
    with pytest.raises(BadInput, match="the folder you are in"), plan_videos(batch):
        pass
    with plan_videos(replace(batch, seeds=(1, 2))) as planned:
        assert [video.folder.name for video in planned.videos] == ["0001", "0002"]


def test_prompt_like_a_direction_is_noted(files, tmp_path):
    """Catches: a note that nobody gets."""
    prompts = (one_prompt("-1: a red ball"), one_prompt("a blue ball"))
    batch = replace(batch_of(files, tmp_path / "out", blocks=1), prompts=prompts)
    with plan_videos(batch) as planned:
        noted = [["taken as text" in note for note in video.notes] for video in planned.videos]
        assert [any(notes) for notes in noted] == [True, False]
        assert any("taken as text" in note for note in planned.notes)


# --- the table


@pytest.mark.parametrize("name", ["write_text", "replace"])
def test_fault_while_writing_leaves_the_table_whole(files, tmp_path, monkeypatch, name):
    """Catches: a table that is half there."""
    prompts = tuple(map(one_prompt, ("a red ball", "a blue ball", "a green ball")))
    batch = replace(batch_of(files, tmp_path / "out", blocks=1), prompts=prompts)

    def failing(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space left on device")

    with plan_videos(batch) as planned:
        small = table.VideoTable(planned)
        before = rows(planned.folder)
        with monkeypatch.context() as planted:
            planted.setattr(Path, name, failing)
            with pytest.raises(BadInput, match="is full; free"):
                small.made(1, BadInput("lost"))
        assert rows(planned.folder) == before
        assert names(planned.folder) == [VIDEOS_TABLE]
        small.made(1, BadInput('a "quoted", error'))
        assert [line["state"] for line in rows(planned.folder)] == ["failed", "waiting", "waiting"]
        assert [line["error"] for line in rows(planned.folder)] == ['a "quoted", error', "", ""]


@pytest.mark.parametrize(("how", "state"), [(ctrl_c, "stopped"), (killed, "waiting")], ids=["asked", "killed"])
def test_table_states_what_the_folders_hold(base, tmp_path, how, state):
    """A call stops after two blocks of three, and the next one is ended before it has a video.

    Catches: a video whose two blocks are there, and which waits with 0 in the table.
    """
    stopped(tmp_path, [*base, *SMALL], 2, how)
    with patch.object(maker, "plan_layout", side_effect=KeyboardInterrupt):
        assert generate(base, tmp_path) == 130
    first, second, _ = rows(tmp_path)
    assert (first["state"], first["blocks"]) == (state, "2")
    assert (second["state"], second["blocks"]) == ("waiting", "0")


LETTERS = {"forced": "F", "reached": "a", "fell_short": "r", "unjudged_draft": "d"}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_table_states_the_figures_of_reports(alone, number):
    """Catches: a share of other blocks, or the seconds of one part, in the column of all."""
    folder = f"{number:04d}"
    run = report(alone / folder)
    blocks = run["blocks"]
    totals = run["totals"]
    scores = [score for block in blocks for score in block["frame_scores"]]
    assert rows(alone)[number - 1] == {
        "number": str(number),
        "folder": folder,
        "prompt": blocks[0]["prompt"],
        "seed": "42",
        "state": "finished",
        "blocks": "3",
        "route": "".join(LETTERS[block["reason"]] for block in blocks),
        "draft_share": str(totals["draft_share"]),
        "worst_score": str(min(scores)) if scores else "",
        "seconds": str(round(totals["seconds"]["total"], 3)),
        "error": "",
    }


def test_table_of_videos_made_again_has_none(base, alone, tmp_path):
    """Catches: a stopped `--overwrite` whose old videos pass for the new ones, with exit code 0."""
    shutil.copytree(alone, tmp_path / "out")
    with patch.object(maker, "plan_layout", side_effect=KeyboardInterrupt):
        assert generate(base, tmp_path / "out", "--overwrite") == 130
    assert [row["state"] for row in rows(tmp_path / "out")] == ["waiting"] * 3


# --- refusals


@pytest.mark.parametrize(
    "more, keyword",
    [(["--workers", "0"], "--workers is 0"), (["--device", "cpu,gpu7"], "gpu7")],
)
def test_impossible_workers_are_refused(base, tmp_path, capsys, more, keyword):
    assert generate(base, tmp_path / "out", *more) == 2
    assert keyword in capsys.readouterr().err
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("tried to allocate 9 GiB"), MemoryError()], ids=repr)
def test_worker_out_of_memory_refuses_its_video_alone(files, tmp_path, monkeypatch, fault):
    """Catches: a fault that no worker's result can be, which ends the videos of all."""
    monkeypatch.setattr(VideoMaker, "make", Mock(side_effect=fault))
    batch = replace(batch_of(files, tmp_path / "out", blocks=1), prompts=(one_prompt("a red ball"),), seeds=(1, 2))
    with plan_videos(batch) as planned:
        make = many.open_worker(batch, torch.get_num_threads(), planned.needed, "cpu")
        task = many.VideoTask(planned.to_make[0], save({}))
        with pytest.raises(BadInput, match=r"^out of memory .*choose a smaller size .*Out of memory"):
            make(task, bool)


@pytest.mark.heavy
def test_broken_model_is_refused_once_for_workers(base, files, tmp_path, capsys, monkeypatch):
    fork_workers(monkeypatch)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(Path(files.target).read_bytes()[:-100])
    assert generate(base, tmp_path / "out", "--target", str(broken), "--workers", "1") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
