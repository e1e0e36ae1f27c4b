"""`generate --resume`: a run that was stopped goes on after its last block, and ends as if it had not been."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import OUTPUTS, base, decisions, made, report, stopped_after
from faulty import REQUEST, names
from PIL import Image
from random_set import write_random_set
from safetensors import safe_open
from safetensors.torch import save

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import lock_of, unfinished_in
from sdvg_core.pipeline import fingerprint, identity, videos
from sdvg_core.pipeline.identity import identify
from sdvg_core.pipeline.latents import load_latents, save_latents
from sdvg_core.pipeline.options import LoadOptions
from sdvg_core.text.prompts import one_prompt

PROMPT = ["--prompt", "a red ball"]
INCREMENTAL = ["--drafter-cache", "incremental", "--target-cache", "incremental"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("models"))


def stop(folder: Path, arguments: list[str], blocks: int) -> None:
    with stopped_after(blocks):
        assert main([*arguments, "--output", str(folder)]) == 130


def check(tmp_path: Path, arguments: list[str], cuts: tuple[int, ...]) -> None:
    whole = made(tmp_path / "whole", arguments)
    for cut in cuts:
        folder = tmp_path / f"cut{cut}"
        stop(folder, arguments, cut)
        rest = made(folder, [*arguments, "--resume"])
        assert rest[:2] == whole[:2], f"stopped after block {cut}"
        assert decisions(rest[2]) == decisions(whole[2])
        assert f"Blocks 1 to {cut} of this run were made before" in rest[2]["notes"][-1]
        assert rest[2]["settings"] == whole[2]["settings"]
        assert names(folder) == OUTPUTS


# --- it goes on


def test_a_run_that_was_stopped_goes_on_to_the_same_video(files: ModelFiles, tmp_path: Path) -> None:
    check(tmp_path, [*base(files), *PROMPT], (2,))


def test_a_run_can_be_stopped_again_and_again(files: ModelFiles, tmp_path: Path) -> None:
    arguments = [*base(files), *PROMPT, *INCREMENTAL, "--drafter-context", "own"]
    whole = made(tmp_path / "whole", arguments)
    stop(tmp_path / "cut", arguments, 1)
    for _ in range(3):
        stop(tmp_path / "cut", [*arguments, "--resume"], 1)
    assert made(tmp_path / "cut", [*arguments, "--resume"])[:2] == whole[:2]
    assert "Blocks 1 to 4 of this run" in report(tmp_path / "cut")["notes"][-1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "more",
    [
        INCREMENTAL,
        ["--drafter-context", "own"],
        ["--policy", "relative", "--tau", "-0.5"],
        ["--policy", "scripted", "--script", "raarr", "--bail-out", "1"],
        ["--policy", "random", "--rate", "0.5", "--forced-blocks", "0"],
        ["--policy", "scripted", "--script", "rarar", "--handover", "1", "--schedule", "1000,625"],
        ["--dtype", "bfloat16", "--crop", "tiles"],
        ["--gate-prompt", "ball", "--aggregation", "quantile"],
    ],
    ids=lambda more: more[0].strip("-") + "-" + more[1],
)
def test_every_option_can_be_stopped_after_any_block(files: ModelFiles, tmp_path: Path, more: list[str]) -> None:
    check(tmp_path, [*base(files), *PROMPT, *more], (1, 2, 3, 4))


@pytest.mark.heavy
def test_clips_and_pictures_to_begin_with_and_prompts_that_change_can_be_stopped(
    files: ModelFiles, tmp_path: Path
) -> None:
    made(tmp_path / "clip", [*base(files), *PROMPT, "--blocks", "2"])
    Image.new("RGB", (50, 80), (200, 30, 30)).save(tmp_path / "red.png")
    (tmp_path / "prompts.txt").write_text("1: a red ball\n4: a blue cube\n", encoding="utf-8")
    clip = ["--continue-from", str(tmp_path / "clip" / "latents.safetensors")]
    for number, (more, cut) in enumerate(
        (
            ([*PROMPT, *clip], 1),
            ([*PROMPT, *clip, "--drafter-context", "own"], 4),
            ([*PROMPT, "--start-image", str(tmp_path / "red.png")], 1),
            (["--prompt-schedule", str(tmp_path / "prompts.txt")], 4),
        )
    ):
        check(tmp_path / str(number), [*base(files), *more], (cut,))


def test_a_file_of_prompts_goes_on_in_the_video_it_was_stopped_in(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("a ball\na cube\na star\n", encoding="utf-8")
    arguments = [*base(files), "--blocks", "2", "--prompt-file", str(tmp_path / "prompts.txt")]
    assert main([*arguments, "--output", str(tmp_path / "whole")]) == 0
    stop(tmp_path / "cut", arguments, 3)
    kept = f"kept 1 of 3 videos and 1 of 2 blocks of {tmp_path / 'cut' / '0002'};"
    assert kept in capsys.readouterr().err
    first = tmp_path / "cut" / "0001" / "latents.safetensors"
    before = first.stat().st_mtime_ns
    folders = sorted(path for path in (tmp_path / "cut").iterdir() if path.is_dir())
    assert [names(folder) == OUTPUTS for folder in folders] == [True, False]
    assert main([*arguments, "--output", str(tmp_path / "cut"), "--resume"]) == 0
    assert first.stat().st_mtime_ns == before
    for number in ("0001", "0002", "0003"):
        one, other = (tmp_path / which / number for which in ("whole", "cut"))
        assert names(other) == OUTPUTS
        assert (one / "latents.safetensors").read_bytes() == (other / "latents.safetensors").read_bytes()
        assert decisions(report(one)) == decisions(report(other))
    assert [bool(report(tmp_path / "cut" / n)["notes"]) for n in ("0001", "0002", "0003")] == [False, True, False]


def test_a_video_that_is_whole_is_left_as_it_is_and_no_model_is_read(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*base(files), *PROMPT, "--blocks", "1", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--resume"]) == 0, "with nothing to go on with it begins"
    first = capsys.readouterr().out
    monkeypatch.delattr(videos, "load_models")
    assert main([*arguments, "--resume"]) == 0
    again = capsys.readouterr().out
    assert again == "".join(line for line in first.splitlines(True) if not line.startswith("loading "))


# --- what it says, and what it leaves


def test_an_interruption_says_how_to_go_on(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop(tmp_path / "out", [*base(files), *PROMPT], 2)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("block ")]
    assert lines == [
        f"sdvg: kept 2 of 5 blocks of {tmp_path / 'out'}; the same command continues from there",
        "sdvg: interrupted; no half-written file is left",
    ]
    assert len(unfinished_in(tmp_path / "out")) == 1


def test_memory_that_runs_out_is_one_sentence_and_the_blocks_are_kept(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*base(files), *PROMPT, "--blocks", "2", "--output", str(tmp_path / "out")]
    with stopped_after(1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")):
        assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "sdvg: out of memory (CUDA out of memory. Tried to allocate 1 GiB); choose a smaller size" in error
    assert "sdvg: kept 1 of 2 blocks of " in error
    assert "Traceback" not in error


def test_two_requests_stopped_in_one_folder_both_go_on(files: ModelFiles, tmp_path: Path) -> None:
    arguments = [*base(files), *PROMPT, "--blocks", "2"]
    stop(tmp_path / "out", arguments, 1)
    stop(tmp_path / "out", [*arguments, "--seed", "7", "--overwrite"], 1)
    assert len(unfinished_in(tmp_path / "out")) == 2
    assert "Blocks 1 to 1" in made(tmp_path / "out", arguments)[2]["notes"][-1]
    assert len(unfinished_in(tmp_path / "out")) == 1, "what the other seed left can still go on"
    assert "Blocks 1 to 1" in made(tmp_path / "out", [*arguments, "--seed", "7", "--overwrite"])[2]["notes"][-1]
    assert names(tmp_path / "out") == OUTPUTS


# --- what it refuses


def refused(folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main([*arguments, "--output", str(folder), "--resume"]) == 2
    return first_line(capsys)


def first_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the sentence; the command that goes on with the run there may follow it."""
    line, *more = capsys.readouterr().err.splitlines()
    assert [one.startswith("To finish that one: python -m sdvg_core generate ") for one in more] in ([], [True])
    return line


def test_another_request_is_refused_by_the_name_of_what_differs(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_random_set(tmp_path / "models", seed=1)
    arguments = [*base(files), *PROMPT]
    stop(tmp_path / "out", arguments, 1)
    monkeypatch.delattr(videos, "encode_prompts")
    for more, part in (
        (["--prompt", "a blue cube"], "prompt from block 1 (then a red ball, now a blue cube)"),
        ([*PROMPT, "--seed", "7"], "seed (then 42, now 7)"),
        ([*PROMPT, "--width", "32"], "width (then 16, now 32)"),
        ([*PROMPT, "--tau", "-1"], "router tau (then 0.1, now -1.0)"),
        ([*PROMPT, "--blocks", "6"], "blocks (then 5, now 6)"),
        ([*PROMPT, "--vae-dtype", "float16"], "vae dtype (then float32, now float16)"),
        ([*PROMPT, "--target", str(other.target)], f"target (then {files.target.name} "),
    ):
        line = refused(tmp_path / "out", [*base(files), *more], capsys)
        assert part in line
        assert line.count(" (then ") == 1, line
        assert line.endswith("; repeat its command or name another folder")


def test_the_arithmetic_of_either_device_belongs_to_the_request(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a run that is resumed with other threads for the scorer, and then misses every key of its blocks."""
    monkeypatch.setattr(identity, "arithmetic_on", lambda device: {"threads": f"of {device}"})
    one = identify(files, LoadOptions(), REQUEST, one_prompt("a red ball"))
    monkeypatch.setattr(LoadOptions, "side", torch.device("meta"))
    two = identify(files, LoadOptions(), REQUEST, one_prompt("a red ball"))
    assert (one["threads"], one.get("side threads")) == ("of cpu", None)
    assert (two["threads"], two["side threads"]) == ("of cpu", "of meta")


def test_of_several_unfinished_videos_the_newest_is_the_one_compared_with(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for age, seed in ((50, "7"), (0, "8"), (100, "9")):
        before = set(unfinished_in(tmp_path / "out")) if (tmp_path / "out").exists() else set()
        stop(tmp_path / "out", [*base(files), *PROMPT, "--seed", seed, "--overwrite"], 1)
        (work,) = set(unfinished_in(tmp_path / "out")) - before
        os.utime(work, (10**9 - age, 10**9 - age))
    line = refused(tmp_path / "out", [*base(files), *PROMPT, "--seed", "5"], capsys)
    assert "seed (then 8, now 5)" in line


def test_a_whole_video_of_another_request_is_not_replaced(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "out", [*base(files), *PROMPT, "--blocks", "1"])
    line = refused(tmp_path / "out", [*base(files), *PROMPT, "--blocks", "1", "--seed", "7"], capsys)
    assert "has a video.mp4 of another request" in line


def test_a_run_that_is_still_going_on_is_not_taken_over(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop(tmp_path / "out", [*base(files), *PROMPT], 1)
    (work,) = unfinished_in(tmp_path / "out")
    with lock_of(work / "lock"):
        assert "is still running; wait for it" in refused(tmp_path / "out", [*base(files), *PROMPT], capsys)
        assert names(work) == ["journal", "lock"]


def test_another_number_of_threads_is_refused_by_name(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes latents by some 1e-6."""
    stop(tmp_path / "out", [*base(files), *PROMPT], 1)
    now = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: now + 3)
    assert f"threads (then {now}, now {now + 3})" in refused(tmp_path / "out", [*base(files), *PROMPT], capsys)


def test_a_model_that_changed_where_no_sample_was_taken_is_refused_by_its_part(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large file, the request knows samples alone."""
    copy = replace(files, target=tmp_path / files.target.name)
    shutil.copy(files.target, copy.target)
    monkeypatch.setattr(fingerprint, "WHOLE", 1000)
    monkeypatch.setattr(fingerprint, "PIECE_BYTES", 8)
    fingerprint._of_contents.cache_clear()
    stop(tmp_path / "out", [*base(copy), *PROMPT], 2)
    one = fingerprint.fingerprint(copy.target)
    with safe_open(copy.target, "pt") as file:
        weights, notes = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    name = max(weights, key=lambda name: weights[name].numel())
    weights[name].view(-1)[1::2] *= 0.9
    data = save(weights, notes)
    whole = bytearray(copy.target.read_bytes())
    kept = {place for start in range(0, len(whole), len(whole) // 64) for place in range(start, start + 8)}
    copy.target.write_bytes(
        bytes(old if place in kept else new for place, (old, new) in enumerate(zip(whole, data, strict=True)))
    )
    assert fingerprint.fingerprint(copy.target) == one, "or the request itself would tell"
    capsys.readouterr()
    assert main([*base(copy), *PROMPT, "--output", str(tmp_path / "out"), "--resume"]) == 2
    assert "the same weights, but those of target are others by now; put" in capsys.readouterr().err


DAMAGE = {
    "latents moved by 0.01": lambda saved: (saved.latents + 0.01, saved.metadata),
    "latents of 1e30": lambda saved: (saved.latents.clone().fill_(1e30), saved.metadata),
    "latents in bfloat16": lambda saved: (saved.latents.bfloat16(), saved.metadata),
    "latents of another size": lambda saved: (saved.latents[..., :-1], saved.metadata),
    "a flipped decision": lambda saved: (saved.latents, changed(saved.metadata, "accepted", True)),
    "1e14 frames": lambda saved: (saved.latents, changed(saved.metadata, "pixel_frames", 10**14)),
    "a number for a word": lambda saved: (saved.latents, changed(saved.metadata, "prompt", 5)),
    "a request of numbers": lambda saved: (saved.latents, {**saved.metadata, "request": {"seed": 5}}),
    "no digest": lambda saved: (saved.latents, {k: v for k, v in saved.metadata.items() if k != "digest"}),
    "a number for a digest": lambda saved: (saved.latents, {**saved.metadata, "digest": 5}),
    "no metadata": lambda saved: (saved.latents, {}),
}


def changed(metadata: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    return {**metadata, "record": {**metadata["record"], name: value}}


@pytest.fixture(scope="module")
def stopped(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped after two blocks."""
    folder = tmp_path_factory.mktemp("stopped") / "out"
    stop(folder, [*base(files), *PROMPT], 2)
    return folder


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", [*DAMAGE, "cut short", "empty", "a folder", "a pipe", "a link to nowhere"])
def test_a_block_that_is_not_as_it_was_written_is_refused(
    files: ModelFiles, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, number: int
) -> None:
    shutil.copytree(stopped, tmp_path / "out")
    (work,) = unfinished_in(tmp_path / "out")
    block = work / "journal" / f"{number:06d}.safetensors"
    saved, content = load_latents(block), block.read_bytes()
    block.unlink()
    if name in DAMAGE:
        latents, metadata = DAMAGE[name](saved)
        save_latents(block, latents, metadata)
    elif name == "a folder":
        block.mkdir()
    elif name == "a pipe":
        os.mkfifo(block)
    elif name == "a link to nowhere":
        block.symlink_to(tmp_path / "nowhere")
    else:
        block.write_bytes(content[:-100] if name == "cut short" else b"")
    capsys.readouterr()
    assert main([*base(files), *PROMPT, "--output", str(tmp_path / "out"), "--resume"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "unfinished" in line
    assert "start over" in line
    assert "continues" not in line


def test_a_damaged_journal_of_another_run_is_in_nobodys_way(
    files: ModelFiles, stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "out")
    (work,) = unfinished_in(tmp_path / "out")
    shutil.copytree(work, tmp_path / "out" / ".unfinished-00000000")
    (tmp_path / "out" / ".unfinished-00000000" / "journal" / "000000.safetensors").write_bytes(b"")
    assert "Blocks 1 to 2" in made(tmp_path / "out", [*base(files), *PROMPT, "--resume"])[2]["notes"][-1]


def test_after_a_refusal_that_would_recur_no_hint_says_that_resuming_helps(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stopped_after(2, BadInput("latents must be finite, but block 3 has NaN; use another dtype")):
        assert main([*base(files), *PROMPT, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"kept 2 of 5 blocks of {tmp_path / 'out'}; the same command would stop there again" in error
    assert "continues" not in error
