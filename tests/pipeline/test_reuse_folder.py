"""`generate --reuse`: an earlier folder on the disk, finished or not, and runs that need not every model.

On real files of a tiny model set. What is made from an earlier folder is compared with what is made from nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cli_runs import names, options, refused, report
from random_set import write_random_set
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.checkpoints.weights import weight_digest
from sdvg_core.cli import main
from sdvg_core.files.outputs import BLOCKS, unfinished_in
from sdvg_core.files.video import Mp4Writer
from sdvg_core.pipeline import loading, rendering
from sdvg_core.pipeline.seal import DIGEST, UNSEALED, seal
from sdvg_core.report.progress import RouteBar
from sdvg_core.scorers.image_reward import ImageRewardScorer

OUTPUTS = ["blocks.safetensors", "latents.safetensors", "report.json", "route.png", "video.mp4"]
SMALL = ["--width", "16", "--height", "16", "--schedule", "1000", "--blocks", "3", "--tau", "0.1"]
PROMPT = ["--prompt", "a red ball"]
ROUTE = ["target", "target", "drafter"]
Made = tuple[bytes, str, dict[str, Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("others"), seed=1)


@pytest.fixture(scope="module")
def base(files: ModelFiles) -> list[str]:
    return [*options(files), *SMALL, *PROMPT]


@pytest.fixture(scope="module")
def earlier(base: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """A finished video, and what was made there."""
    folder = tmp_path_factory.mktemp("earlier") / "out"
    whole = made(folder, base)
    assert [block["author"] for block in whole[2]["blocks"]] == ROUTE
    return folder, whole


class FrameLog(Mp4Writer):
    """Writes the video, and takes a digest of its frames, however they are cut into calls."""

    newest = ""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._digest = hashlib.sha256()

    def add(self, frames: Tensor) -> None:
        super().add(frames)
        self._digest.update(frames.contiguous().numpy().tobytes())
        FrameLog.newest = self._digest.hexdigest()


def made(folder: Path, arguments: list[str], code: int = 0) -> Made:
    """Run; return the bytes of the latents' file, a digest of all frames, and the report."""
    with patch.object(rendering, "Mp4Writer", FrameLog):
        assert main([*arguments, "--output", str(folder)]) == code
    return (folder / "latents.safetensors").read_bytes(), FrameLog.newest, report(folder)


def decisions(one: Made) -> list[tuple[Any, ...]]:
    keys = ("index", "author", "reason", "score", "threshold", "frame_scores", "pixel_frames", "prompt")
    return [tuple(str(block[key]) for key in keys) for block in one[2]["blocks"]]


def same(one: Made, other: Made) -> None:
    assert one[0] == other[0], "the latents, with their metadata"
    assert one[1] == other[1], "the frames"
    assert decisions(one) == decisions(other)


def reused(one: Made) -> int:
    return sum(block["reused"] for block in one[2]["blocks"])


@contextlib.contextmanager
def counted_passes() -> Iterator[list[str]]:
    """Hear of every forward pass."""
    passes: list[str] = []
    honest = RouteBar.step

    def step(self: RouteBar, kind: str) -> None:
        passes.append(kind)
        honest(self, kind)

    with patch.object(RouteBar, "step", step):
        yield passes


@contextlib.contextmanager
def after_block(number: int, do: Callable[[], None]) -> Iterator[None]:
    """Do something when so many blocks have been shown."""
    honest, shown = RouteBar.block, 0

    def block(self: RouteBar, record: Any) -> None:
        nonlocal shown
        honest(self, record)
        shown += 1
        if shown == number:
            do()

    with patch.object(RouteBar, "block", block):
        yield


def killed() -> None:
    raise KeyboardInterrupt


def ctrl_c() -> None:
    assert threading.current_thread() is threading.main_thread()
    signal.raise_signal(signal.SIGINT)


def twice() -> None:
    ctrl_c()
    ctrl_c()


def stopped(folder: Path, arguments: list[str], number: int, how: Callable[[], None] = killed) -> None:
    with after_block(number, how):
        assert main([*arguments, "--output", str(folder)]) == 130


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tampered(source: Path, folder: Path, change: Callable[[Tensor], Tensor]) -> Path:
    """Write the results of `source` into a new folder, each changed, under the keys they had, and sealed anew."""
    with safe_open(source / BLOCKS, "pt") as file:
        results = {key: change(file.get_tensor(key)).contiguous() for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    folder.mkdir()
    about = {name: json.dumps({**json.loads(text), DIGEST: UNSEALED}) for name, text in metadata.items()}
    save_file(results, folder / BLOCKS, about)
    seal(folder / BLOCKS)
    return folder


# --- finished folders


def test_a_finished_video_is_made_again_without_a_single_pass(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    folder, whole = earlier
    with counted_passes() as passes:
        again = made(tmp_path / "out", [*base, "--reuse", str(folder)])
    same(again, whole)
    assert (passes, reused(again)) == ([], 3)
    assert names(tmp_path / "out") == OUTPUTS
    assert again[2]["notes"][0].startswith("Blocks 1 to 3 were made by an earlier run and")
    assert all(set(block["seconds"].values()) == {0.0} for block in again[2]["blocks"])
    # What was re-used can be re-used again.
    assert (tmp_path / "out" / BLOCKS).read_bytes() == (folder / BLOCKS).read_bytes()


@pytest.mark.parametrize(
    ("more", "count"),
    [
        (["--tau", "9"], 2),
        pytest.param(["--directions", "..t"], 2, marks=pytest.mark.exhaustive),
        pytest.param(["--directions", ".d."], 2, marks=pytest.mark.exhaustive),
        pytest.param(["--takes", "3:2"], 2, marks=pytest.mark.heavy),
        pytest.param(["--blocks", "5"], 3, marks=pytest.mark.heavy),
        pytest.param(["--blocks", "2"], 2, marks=pytest.mark.exhaustive),
        pytest.param(["--overlap", "--tau", "9"], 2, marks=pytest.mark.heavy),
        pytest.param(["--gate-prompt", "ball", "--tau", "9"], 1, marks=pytest.mark.heavy),
        pytest.param(["--seed", "7"], 0, marks=pytest.mark.exhaustive),
        pytest.param(["--drafter-context", "own"], 1, marks=pytest.mark.exhaustive),
        pytest.param(["--crop", "tiles", "--tau", "9"], 1, marks=pytest.mark.exhaustive),
        pytest.param(["--reward-dtype", "float16"], 1, marks=pytest.mark.exhaustive),
        pytest.param(["--vae-dtype", "bfloat16"], 0, marks=pytest.mark.heavy),
        pytest.param(["--text-dtype", "bfloat16"], 0, marks=pytest.mark.exhaustive),
        pytest.param(["--fps", "8"], 3, marks=pytest.mark.exhaustive),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_changed_request_re_uses_the_beginning_and_makes_the_same_video(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path, more: list[str], count: int
) -> None:
    nothing = made(tmp_path / "nothing", [*base, *more])
    again = made(tmp_path / "again", [*base, *more, "--reuse", str(earlier[0])])
    same(again, nothing)
    assert reused(again) == count


def test_a_video_may_be_made_anew_in_the_folder_it_re_uses(base: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    short = made(folder, [*base, "--blocks", "1"])
    longer = made(folder, [*base, "--blocks", "2", "--reuse", str(folder)])
    assert (len(short[2]["blocks"]), len(longer[2]["blocks"]), reused(longer)) == (1, 2, 1)
    assert names(folder) == OUTPUTS


@pytest.mark.heavy
def test_a_clip_to_continue_is_told_by_its_latents(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    clip = [*base, "--blocks", "2", "--continue-from", str(earlier[0] / "latents.safetensors")]
    first = made(tmp_path / "first", clip)
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes((earlier[0] / "latents.safetensors").read_bytes())
    again = made(tmp_path / "again", [*clip[:-1], str(moved), "--reuse", str(tmp_path / "first")])
    assert (reused(again), again[1]) == (2, first[1])


@pytest.mark.heavy
def test_prompts_are_re_used_video_by_video(base: list[str], files: ModelFiles, tmp_path: Path) -> None:
    arguments = [*options(files), *SMALL, "--blocks", "2"]
    for name, text in (
        ("then", "a ball\na cube\n"),
        ("now", "a ball\na star\n"),
        ("more", "a ball\na cube\na star\n"),
    ):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    first = [*arguments, "--prompt-file", str(tmp_path / "then.txt"), "--output", str(tmp_path / "a")]
    assert main(first) == 0
    reuse = ["--reuse", str(tmp_path / "a")]
    now = [*arguments, "--prompt-file", str(tmp_path / "now.txt")]
    assert main([*now, *reuse, "--output", str(tmp_path / "b")]) == 0
    counts = [[block["reused"] for block in report(tmp_path / "b" / n)["blocks"]] for n in ("0001", "0002")]
    assert counts == [[True, True], [False, False]]
    latents = [(tmp_path / where / "0001" / "latents.safetensors").read_bytes() for where in "ab"]
    assert latents[0] == latents[1]
    more = [*arguments, "--prompt-file", str(tmp_path / "more.txt"), "--output", str(tmp_path / "c")]
    assert main([*more, *reuse]) == 0
    assert [report(tmp_path / "c" / n)["blocks"][0]["reused"] for n in ("0001", "0002", "0003")] == [
        True,
        True,
        False,
    ]


# --- folders that do not serve


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


@pytest.mark.heavy
def test_another_target_re_uses_what_the_drafter_made(
    base: list[str], others: ModelFiles, earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    more = [*base, "--target", str(others.target), "--blocks", "2"]
    assert reused(made(tmp_path / "out", [*more, "--reuse", str(earlier[0])])) == 0
    more = [*base, "--drafter", str(others.drafter), "--blocks", "2", "--directions", "t."]
    assert reused(made(tmp_path / "out", [*more, "--reuse", str(earlier[0])])) == 1


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


def test_no_prompt_no_name_and_no_path_is_in_the_file_of_blocks(files: ModelFiles, tmp_path: Path) -> None:
    """Its bytes are searched, and its keys and metadata are hashes."""
    secret = ["--prompt", "a zebra with a secret", "--gate-prompt", "quagga mystery", "--prompt-in-report"]
    made(tmp_path / "folder of mine", [*options(files), *SMALL, *secret, "--blocks", "2"])
    written = (tmp_path / "folder of mine" / BLOCKS).read_bytes()
    names_of_files = [path.name for path in (files.drafter, files.target, files.vae, files.reward) if path]
    words = ["zebra", "secret", "quagga", "mystery", "folder of mine", str(tmp_path), *names_of_files]
    assert b"zebra" in (tmp_path / "folder of mine" / "report.json").read_bytes(), "the search would find it"
    for word in words:
        assert word.encode() not in written
    with safe_open(tmp_path / "folder of mine" / BLOCKS, "pt") as file:
        keys, metadata = list(file.keys()), file.metadata()
    made_by = json.loads(metadata.pop("sdvg"))
    assert (metadata, set(made_by)) == ({}, {"digest", "drafter", "target"})
    for text in (*keys, *made_by.values()):
        assert len(text) == 64
        assert set(text) <= set("0123456789abcdef")


@pytest.mark.exhaustive
def test_the_same_run_writes_the_same_file_of_blocks(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    made(tmp_path / "out", base)
    assert contents(tmp_path / "out")[BLOCKS] == contents(earlier[0])[BLOCKS]


# --- runs that were stopped


@pytest.mark.parametrize(
    "more",
    [pytest.param([], marks=pytest.mark.heavy), ["--tau", "9"]],
    ids=["the same request", "another tau"],
)
def test_a_run_that_was_killed_can_be_re_used(base: list[str], tmp_path: Path, more: list[str]) -> None:
    stopped(tmp_path / "killed", base, 3)
    again = made(tmp_path / "again", [*base, *more, "--reuse", str(tmp_path / "killed")])
    same(again, made(tmp_path / "nothing", [*base, *more]))
    assert reused(again) == (2 if more else 3)
    assert len(unfinished_in(tmp_path / "killed")) == 1, "it can still be resumed"


@pytest.mark.parametrize("more", [[], pytest.param(["--overlap"], marks=pytest.mark.heavy)], ids=["", "overlap"])
def test_ctrl_c_once_finishes_the_block_and_the_video_up_to_there(
    base: list[str],
    earlier: tuple[Path, Made],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    base = [*base, *more]
    usual = signal.getsignal(signal.SIGINT)
    folder = tmp_path / "out"
    stopped(folder, base, 2, ctrl_c)
    assert signal.getsignal(signal.SIGINT) is usual
    lines = [line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("block ")]
    assert lines == [
        "sdvg: stops after this block and keeps the video; Ctrl-C again stops at once",
        f"sdvg: stopped as asked; the same command with --reuse {folder} makes the rest",
    ]
    short = report(folder)
    assert short["notes"][0] == "Stopped after block 2 of 3, as asked."
    assert [block["author"] for block in short["blocks"]] == ROUTE[:2]
    assert (names(folder), unfinished_in(folder)) == (OUTPUTS, ())
    with counted_passes() as passes:
        rest = made(folder, [*base, "--reuse", str(folder)])
    same(rest, earlier[1])
    assert reused(rest) == 2
    assert passes or more, "with overlap, block 3 had been begun ahead"
    assert not any("Stopped" in note for note in rest[2]["notes"])
    assert names(folder) == OUTPUTS


def test_ctrl_c_twice_stops_at_once_and_the_run_can_be_resumed(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    stopped(folder, base, 2, twice)
    error = capsys.readouterr().err
    assert f"kept 2 of 3 blocks of {folder}; the same command with --resume continues from there" in error
    assert "sdvg: interrupted; no half-written file is left" in error
    assert len(unfinished_in(folder)) == 1
    assert not (folder / "video.mp4").exists()
    rest = made(folder, [*base, "--resume"])
    same(rest, earlier[1])
    assert (names(folder), reused(rest)) == (OUTPUTS, 0)


@pytest.mark.heavy
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_ctrl_c_in_a_terminal_is_heard_by_a_whole_process(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path, times: int
) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "sdvg_core", *base, "--blocks", "400", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("block 2/"):
                process.send_signal(signal.SIGINT)
            if "stops after this block" in line and times == 2:
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    made_blocks = len(report(tmp_path / "out")["blocks"]) if times == 1 else 0
    assert ((tmp_path / "out" / "video.mp4").exists(), 2 <= made_blocks < 400) == (times == 1, times == 1)
    assert len(unfinished_in(tmp_path / "out")) == times - 1


def test_a_video_that_was_stopped_is_not_taken_for_the_whole_one(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    stopped(tmp_path / "out", base, 2, ctrl_c)
    rest = made(tmp_path / "out", [*base, "--resume"])
    same(rest, earlier[1])
    assert reused(rest) == 2


def test_ctrl_c_during_the_last_block_leaves_nothing_to_make(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with after_block(2, ctrl_c):
        code = main([*base, "--blocks", "2", "--output", str(tmp_path / "out")])
    assert (code, "makes the rest" in capsys.readouterr().err) == (0, False)


@pytest.mark.heavy
def test_a_list_of_prompts_that_was_stopped_goes_on_as_it_was_told(files: ModelFiles, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a ball\na cube\na star\n", encoding="utf-8")
    folder = tmp_path / "out"
    prompts = ["--prompt-file", str(tmp_path / "prompts.txt"), "--output", str(folder)]
    arguments = [*options(files), *SMALL, "--blocks", "2", *prompts]
    with after_block(3, ctrl_c):
        assert main(arguments) == 130
    assert names(folder) == ["0001", "0002", "videos.csv", "videos.jsonl"]
    assert main([*arguments, "--reuse", str(folder)]) == 0
    assert [len(report(folder / number)["blocks"]) for number in ("0001", "0002", "0003")] == [2, 2, 2]


@pytest.mark.heavy
def test_a_repaired_run_on_an_earlier_one_without_repair_can_be_resumed(base: list[str], tmp_path: Path) -> None:
    two = [*base, "--schedule", "1000,625"]
    repaired = [*two, "--handover", "1"]
    made(tmp_path / "plain", two)
    stopped(tmp_path / "out", [*repaired, "--reuse", str(tmp_path / "plain")], 3)
    assert main([*repaired, "--output", str(tmp_path / "out"), "--resume"]) == 0


@pytest.mark.heavy
def test_a_run_with_a_score_that_is_no_number_can_be_resumed(base: list[str], tmp_path: Path) -> None:
    honest, calls = ImageRewardScorer.score, 0

    def score(self: ImageRewardScorer, frames: Tensor, prompt: str) -> Tensor:
        nonlocal calls
        calls += 1
        return honest(self, frames, prompt) * (float("nan") if calls == 1 else 1.0)

    with patch.object(ImageRewardScorer, "score", score):
        stopped(tmp_path / "out", base, 3)
        assert report_of_block(tmp_path / "out", 1)["reason"] == "not_finite"
        calls = 0
        assert main([*base, "--output", str(tmp_path / "out"), "--resume"]) == 0


def report_of_block(folder: Path, number: int) -> dict[str, Any]:
    (work,) = unfinished_in(folder)
    with safe_open(work / "journal" / f"{number:06d}.safetensors", "pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["sdvg"])["record"]
    return found


@pytest.mark.heavy
def test_the_note_on_re_used_blocks_names_those_that_were(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    stopped(tmp_path / "out", base, 1)
    rest = made(tmp_path / "out", [*base, "--resume", "--reuse", str(earlier[0])])
    same(rest, earlier[1])
    assert [block["reused"] for block in rest[2]["blocks"]] == [False, True, True]
    assert "Blocks 2 to 3 were made by an earlier run" in rest[2]["notes"][0]


@pytest.mark.heavy
def test_nothing_is_predicted_from_blocks_that_were_found(base: list[str], tmp_path: Path) -> None:
    """With another gate text block 1 is scored anew, and so counts as made; its remake is found all the same."""
    unforced = [*base, "--forced-blocks", "0", "--blocks", "2"]
    made(tmp_path / "earlier", unforced)
    again = made(tmp_path / "again", [*unforced, "--gate-prompt", "ball", "--reuse", str(tmp_path / "earlier")])
    assert [block["target"]["denoising_passes"] for block in again[2]["blocks"]] == [0, 0]
    assert again[2]["target_only_seconds"] is None


# --- runs that need not every model


def without(base: list[str], *roles: str) -> list[str]:
    kept = list(base)
    for role in roles:
        at = kept.index(f"--{role}")
        del kept[at : at + 2]
    return kept


def test_always_draft_needs_no_target_and_no_reward_model(base: list[str], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    arguments = [*without(base, "target", "reward"), "--models", str(tmp_path / "models"), "--blocks", "2"]
    alone = made(tmp_path / "alone", [*arguments, "--policy", "always-draft"])
    assert [block["author"] for block in alone[2]["blocks"]] == ["drafter"] * 2
    assert alone[2]["notes"][0] == "There is no target, so the first block was not forced."
    assert alone[2]["settings"]["target"] is None
    beside = made(tmp_path / "beside", [*base, "--blocks", "2", "--policy", "always-draft", "--forced-blocks", "0"])
    assert alone[1] == beside[1]


def test_always_target_needs_no_drafter_and_no_reward_model(base: list[str], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    arguments = [*without(base, "drafter", "reward"), "--models", str(tmp_path / "models"), "--blocks", "2"]
    alone = made(tmp_path / "alone", [*arguments, "--policy", "always-target"])
    beside = made(tmp_path / "beside", [*base, "--blocks", "2", "--policy", "always-target"])
    same(alone, beside)
    assert (alone[2]["settings"]["drafter"], alone[2]["settings"]["scorer"]) == (None, {"name": "none"})
    again = made(tmp_path / "again", [*arguments, "--directions", "tt", "--reuse", str(tmp_path / "beside")])
    assert (again[1], reused(again)) == (alone[1], 2)


@pytest.mark.parametrize(
    ("roles", "more", "says"),
    [
        (("drafter",), [], "the policy reward needs drafter, but none was given or found in"),
        (("target",), [], "the policy reward needs target, but none"),
        (("reward",), [], "the policy reward needs reward, but none"),
        (("drafter", "target"), [], "needs drafter and target, but none"),
        (("vae",), ["--policy", "always-draft"], "needs vae, but none"),
        (("drafter",), ["--policy", "always-target", "--directions", "..d"], "needs drafter, but none"),
        (("target",), ["--policy", "always-draft", "--directions", "..t"], "needs target, but none"),
        (("reward",), ["--policy", "always-draft", "--directions", "..a"], "needs reward, but none"),
    ],
    ids=str,
)
def test_a_missing_model_is_one_sentence_with_where_to_get_it(
    base: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    roles: tuple[str, ...],
    more: list[str],
    says: str,
) -> None:
    arguments = [*without(base, *roles), *more, "--models", str(tmp_path), "--output", str(tmp_path / "out")]
    line = refused(capsys, arguments)
    assert says in line
    assert "; get " in line
    assert ("the policy always-target needs no drafter" in line) is ("drafter" in roles)
    assert ("always-draft needs no target" in line) is ("target" in roles)
    assert not (tmp_path / "out").exists()


def test_one_file_in_both_roles_with_two_schedules_is_loaded_once(
    base: list[str], files: ModelFiles, tmp_path: Path
) -> None:
    one = ["--target", str(files.drafter), "--target-preset", "self-forcing-1.3b", "--blocks", "3"]
    schedules = ["--drafter-schedule", "1000,625", "--target-schedule", "four-step"]
    with patch.object(loading, "load_wan", wraps=loading.load_wan) as load:
        both = made(tmp_path / "out", [*base, *one, *schedules])
    assert load.call_count == 1
    settings = both[2]["settings"]
    assert (len(settings["drafter"]["schedule"]), len(settings["target"]["schedule"])) == (2, 4)
    assert settings["drafter"]["file"] == settings["target"]["file"]
    authors = {block["author"]: block for block in both[2]["blocks"] if block["reason"] != "forced"}
    for role, work, passes in (("drafter", "draft", 2), ("target", "target", 4)):
        if role in authors:
            assert authors[role][work]["denoising_passes"] == passes
    with patch.object(loading, "load_wan", wraps=loading.load_wan) as load:
        made(tmp_path / "two", [*base, "--blocks", "1", "--directions", "d", "--policy", "always-draft"])
    assert load.call_count == 1, "a role that no block asks for is not loaded"


def test_one_file_in_both_roles_with_one_schedule_is_refused(
    base: list[str], files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A remade block would be the draft again, and would be found in the store at no cost."""
    one = [
        "--target",
        str(files.drafter),
        "--target-preset",
        "self-forcing-1.3b",
        "--output",
        str(tmp_path / "out"),
    ]
    assert "drafter and target are one file with one schedule" in refused(capsys, [*base, *one])
    assert not (tmp_path / "out").exists()


def test_a_drafter_larger_than_its_target_is_told_of(base: list[str], files: ModelFiles, tmp_path: Path) -> None:
    swapped = ["--drafter", str(files.target), "--target", str(files.drafter), "--blocks", "1"]
    presets = ["--drafter-preset", "krea-14b", "--target-preset", "self-forcing-1.3b"]
    found = made(tmp_path / "swapped", [*base, *swapped, *presets, "--directions", "r"])
    assert any("has more weights than the target" in note for note in found[2]["notes"])
    usual = made(tmp_path / "usual", [*base, "--blocks", "1", "--directions", "r"])
    assert not any("more weights" in note for note in usual[2]["notes"])


def test_a_change_of_any_weight_is_another_model(files: ModelFiles) -> None:
    """Catches a hash of pieces of the file, or of sums that a change elsewhere makes up for in one place only."""
    tree = load_wan(files.target).tree
    whole = weight_digest(tree)
    assert weight_digest(load_wan(files.target).tree) == whole
    weights = dict(tree.named_parameters())
    with torch.no_grad():
        for name in (next(iter(weights)), list(weights)[-1], max(weights, key=lambda n: weights[n].numel())):
            for place in (0, weights[name].numel() // 2, weights[name].numel() - 1):
                flat = weights[name].view(-1)
                before = float(flat[place])
                flat[place] = before * (1 + 2**-20) + 1e-30
                assert weight_digest(tree) != whole, (name, place)
                flat[place] = before
        assert weight_digest(tree) == whole
        largest = weights[max(weights, key=lambda n: weights[n].numel())].view(-1)
        largest[[0, 1]] = largest[[1, 0]].clone()
        assert weight_digest(tree) != whole, "two weights have changed places"
