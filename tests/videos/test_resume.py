"""Runs of `generate` that are stopped, by Ctrl-C or worse, gone on with, or re-used: the same video, bit for bit.

On real files of a tiny model set. What is made from earlier blocks is compared with what is made from nothing.
"""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from PIL import Image
from torch import nn

from sdvg_core.__main__ import run
from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import BLOCKS_FOLDER, hidden_folder, unfinished_blocks
from sdvg_core.loading import headers
from sdvg_core.loading import load as loading
from sdvg_core.settings.load import LoadOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos import batch, fingerprint, maker
from sdvg_core.videos.blocks import read_block
from sdvg_core.videos.fingerprint import request_fingerprint
from sdvg_core.weights.weight_file import weight_digest
from tests.support.cli_runs import OUTPUTS, names, override, refused, report
from tests.support.forked import signalled
from tests.support.reuse_folders import (
    PROMPT,
    ROUTE,
    Run,
    contents,
    counted_passes,
    ctrl_c,
    decisions,
    five,
    made,
    results,
    reused,
    same,
    stopped,
    stopped_after,
    twice,
)


def check(tmp_path: Path, arguments: list[str], cut: int) -> None:
    """Stop a run after `cut` blocks, go on, and compare the video with that of a run which was not stopped."""
    whole = made(tmp_path / "whole", arguments)
    folder = tmp_path / "cut"
    stopped(folder, arguments, cut)
    rest = made(folder, arguments)
    same(rest, whole)
    assert f"Blocks 1 to {cut} of this run were made before" in rest.report["notes"][-1]
    assert rest.report["settings"] == whole.report["settings"]
    assert names(folder) == OUTPUTS


# --- it goes on


def test_stopped_run_ends_in_the_same_video(files, tmp_path):
    check(tmp_path, [*five(files), *PROMPT], 2)


@pytest.mark.heavy
def test_stopped_run_keeps_its_start_and_prompts(files, tmp_path):
    made(tmp_path / "clip", [*five(files), *PROMPT, "--blocks", "2"])
    Image.new("RGB", (50, 80), (200, 30, 30)).save(tmp_path / "red.png")
    (tmp_path / "prompts.txt").write_text("1: a red ball\n4: a blue cube\n", encoding="utf-8")
    clip = ["--continue-from", str(tmp_path / "clip" / "latents.safetensors")]
    picture = ["--start-image", str(tmp_path / "red.png")]
    prompts = ["--prompt-file", str(tmp_path / "prompts.txt")]
    check(tmp_path / "clip's", [*five(files), *PROMPT, *clip, "--drafter-context", "own"], 1)
    check(tmp_path / "picture's", [*five(files), *PROMPT, *picture], 1)
    check(tmp_path / "prompts'", [*five(files), *prompts], 4)


@pytest.mark.heavy
def test_stopped_list_goes_on_in_its_video(files, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("a ball\na cube\na star\n", encoding="utf-8")
    arguments = [*override(five(files), "--blocks", "2"), "--prompt-file", str(tmp_path / "prompts.txt")]
    assert main([*arguments, "--output", str(tmp_path / "whole")]) == 0
    stopped(tmp_path / "cut", arguments, 3)
    kept = f"kept 1 of 3 videos and 1 of 2 blocks of {tmp_path / 'cut' / '0002'}"
    assert kept in capsys.readouterr().err
    first = tmp_path / "cut" / "0001" / "latents.safetensors"
    before = first.stat().st_mtime_ns
    folders = sorted(path.name for path in (tmp_path / "cut").iterdir() if path.is_dir())
    assert folders == [".0002.unfinished", "0001"]
    assert main([*arguments, "--output", str(tmp_path / "cut")]) == 0
    assert first.stat().st_mtime_ns == before
    for number in ("0001", "0002", "0003"):
        whole = tmp_path / "whole" / number
        resumed = tmp_path / "cut" / number
        assert names(resumed) == OUTPUTS
        assert (resumed / "latents.safetensors").read_bytes() == (whole / "latents.safetensors").read_bytes()
        assert decisions(report(resumed)) == decisions(report(whole))
    assert [bool(report(tmp_path / "cut" / n)["notes"]) for n in ("0001", "0002", "0003")] == [False, True, False]


def test_resuming_a_whole_video_reads_no_model(files, tmp_path, monkeypatch, capsys):
    arguments = override(five(files), *PROMPT, "--blocks", "2", "--output", str(tmp_path / "out"))
    assert main(arguments) == 0, "with nothing to go on with it begins"
    first = capsys.readouterr().out
    monkeypatch.delattr(maker, "load_models")
    assert main(arguments) == 0
    again = capsys.readouterr().out
    assert again == "".join(line for line in first.splitlines(True) if not line.startswith("loading "))


# --- what it refuses


def test_resuming_another_request_names_the_difference(files, others, tmp_path, capsys, monkeypatch):
    arguments = [*five(files), *PROMPT]
    stopped(tmp_path / "out", arguments, 1)
    monkeypatch.delattr(batch, "encode_prompts")
    capsys.readouterr()
    for more, difference in (
        (["--prompt", "a blue cube"], "prompt from block 1 (then a red ball, now a blue cube)"),
        ([*PROMPT, "--seed", "7"], "seed (then 2, now 7)"),
        ([*PROMPT, "--size", "32x16"], "width (then 16, now 32)"),
        ([*PROMPT, "--tau", "-1"], "route policy tau (then 0.1, now -1.0)"),
        ([*PROMPT, "--blocks", "6"], "blocks (then 5, now 6)"),
        ([*PROMPT, "--vae-dtype", "float16"], "vae dtype (then float32, now float16)"),
        ([*PROMPT, "--target", str(others.target)], f"target (then {files.target.name} "),
    ):
        line = refused(capsys, override(five(files), *more, "--output", str(tmp_path / "out")))
        assert difference in line
        assert line.count(" (then ") == 1, line
        assert line.endswith(str(tmp_path / "out-2"))


def test_threads_of_each_device_identify_the_request(files, monkeypatch):
    """Catches a run that is resumed with other threads for the scorer, and then misses every key of its blocks."""
    for module in (fingerprint, headers):
        monkeypatch.setattr(module, "arithmetic_on", lambda device: {"threads": f"of {device}"})
    request = request_fingerprint(files, LoadOptions(), VideoRequest(), one_prompt("a red ball"))
    assert (request["threads"], request.get("side threads")) == ("of cpu", None)
    monkeypatch.setattr(fingerprint, "side_device", lambda options: torch.device("meta"))
    request = request_fingerprint(files, LoadOptions(), VideoRequest(), one_prompt("a red ball"))
    assert (request["threads"], request["side threads"]) == ("of cpu", "of meta")


@pytest.mark.heavy
def test_changed_model_reuses_no_block(files, others, tmp_path, monkeypatch):
    """Of a large file, the request knows samples alone; the keys of blocks know every weight.

    Catches: blocks of the old model used again, as the change is where no sample was taken.
    """
    copy = replace(files, target=tmp_path / "target.safetensors")
    monkeypatch.setattr(headers, "_of_contents", lambda path, *written: f"samples of {path.name}")
    shutil.copy(files.target, copy.target)
    stopped(tmp_path / "out", [*five(copy), *PROMPT], 2)
    shutil.copy(others.target, copy.target)
    rest = made(tmp_path / "out", [*five(copy), *PROMPT])
    same(rest, made(tmp_path / "nothing", [*five(copy), *PROMPT]))
    assert not rest.report["notes"]


@pytest.fixture(scope="module")
def stopped_run(files, tmp_path_factory) -> tuple[Path, tuple[Run, int]]:
    """A folder with a run that was stopped after two blocks; what it makes if not stopped, in how many passes."""
    folder = tmp_path_factory.mktemp("stopped")
    stopped(folder / "out", [*five(files), *PROMPT], 2)
    with counted_passes() as passes:
        whole = made(folder / "whole", [*five(files), *PROMPT])
    return folder / "out", (whole, len(passes))


DAMAGE = {
    "a bit of the latents": lambda content: content[:-4] + bytes([content[-4] ^ 1]) + content[-3:],
    "a flipped decision": lambda content: content.replace(b'accepted\\": false', b'accepted\\": true '),
    "no digest": lambda content: content.replace(b"digest", b"digits"),
    "cut short": lambda content: content[:-100],
    "empty": lambda content: b"",
    "a pipe": None,
}


def damage(path: Path, name: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if DAMAGE[name]:
        path.write_bytes(DAMAGE[name](content))
        assert path.read_bytes() != content
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_block_is_not_read(stopped_run, tmp_path, name):
    shutil.copytree(hidden_folder(stopped_run[0]), hidden_folder(tmp_path / "out"))
    for path in unfinished_blocks(tmp_path / "out"):
        damage(path, name)
        with pytest.raises(BadInput):
            read_block(path)


def test_damaged_block_is_made_again_and_noted(files, stopped_run, tmp_path):
    folder, (whole, most_passes) = stopped_run
    shutil.copytree(hidden_folder(folder), hidden_folder(tmp_path / "out"))
    path = unfinished_blocks(tmp_path / "out")[0]
    damage(path, "a flipped decision")
    with counted_passes() as passes:
        rest = made(tmp_path / "out", [*five(files), *PROMPT])
    same(rest, whole)
    assert f"Not as they were written, and so not used again: {path.name}." in rest.report["notes"]
    assert len(passes) < most_passes, "the other block was taken"


def test_lasting_refusal_advises_no_resuming(files, tmp_path, capsys):
    with stopped_after(2, BadInput("latents must be finite, but block 3 has NaN; use another dtype")):
        assert main([*five(files), *PROMPT, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"kept 2 of 5 blocks of {tmp_path / 'out'}" in error
    assert "stop there again" in error
    assert "continues" not in error


# --- stopped


def test_ctrl_c_finishes_block_and_video(base, earlier, tmp_path, capsys):
    usual = signal.getsignal(signal.SIGINT)
    folder = tmp_path / "out"
    stopped(folder, base, 2, ctrl_c)
    assert signal.getsignal(signal.SIGINT) is usual
    lines = [line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("block ")]
    assert len(lines) == 2
    assert lines[0].startswith("sdvg: stops after this block")
    assert lines[1].startswith("sdvg: stopped as asked")
    short = report(folder)
    assert short["notes"][0] == "Stopped after block 2 of 3, as asked."
    assert [block["author"] for block in short["blocks"]] == ROUTE[:2]
    assert names(folder) == OUTPUTS
    with counted_passes() as passes:
        rest = made(folder, base)
    assert "goes on with what an earlier call left" in capsys.readouterr().err
    same(rest, earlier[1])
    assert reused(rest) == 2
    assert passes
    assert not any("Stopped" in note for note in rest.report["notes"])
    assert names(folder) == OUTPUTS


def test_second_ctrl_c_stops_at_once(base, earlier, tmp_path, capsys):
    folder = tmp_path / "out"
    stopped(folder, base, 2, twice)
    error = capsys.readouterr().err
    assert f"kept 2 of 3 blocks of {folder}; the same command continues" in error
    assert "sdvg: interrupted" in error
    assert len(unfinished_blocks(folder)) == 2
    assert not (folder / "video.mp4").exists()
    rest = made(folder, base)
    same(rest, earlier[1])
    assert (names(folder), reused(rest)) == (OUTPUTS, 0)


@pytest.mark.heavy
def test_ctrl_c_reaches_a_whole_process(base, earlier, tmp_path):
    words = override(base, "--blocks", "400", "--output", str(tmp_path / "out"))
    code, lines = signalled(lambda: run(words), signal.SIGINT)
    assert code == 130, lines
    assert 2 <= len(report(tmp_path / "out")["blocks"]) < 400
    assert names(tmp_path / "out") == OUTPUTS


# --- re-used


def test_reusing_a_finished_video_needs_no_pass(base, earlier, tmp_path):
    folder, whole = earlier
    with counted_passes() as passes:
        again = made(tmp_path / "out", [*base, "--reuse", str(folder)])
    same(again, whole)
    assert (passes, reused(again)) == ([], 3)
    assert names(tmp_path / "out") == OUTPUTS
    assert again.report["notes"][0].startswith("Blocks 1 to 3 were made before and")
    assert all(set(block["seconds"].values()) == {0.0} for block in again.report["blocks"])
    # What was re-used can be re-used again.
    assert results(tmp_path / "out") == results(folder)


# --- what cannot be re-used


@pytest.mark.parametrize("empty", ["nowhere", "empty", "file"])
def test_reusing_a_folder_without_video_is_refused(base, tmp_path, capsys, empty):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("{}")
    with patch.object(loading, "load_wan", None):
        line = refused(capsys, [*base, "--output", str(tmp_path / "out"), "--reuse", str(tmp_path / empty)])
    assert f"{tmp_path / empty} has no {BLOCKS_FOLDER} to re-use" in line
    assert not (tmp_path / "out").exists()


def test_video_of_other_models_is_not_reused(base, others, earlier, tmp_path):
    before = contents(earlier[0])
    both = ["--drafter", str(others.drafter), "--target", str(others.target), "--reuse", str(earlier[0])]
    again = made(tmp_path / "out", override(base, *both))
    assert reused(again) == 0
    assert any("Nothing of the earlier video could be used again" in note for note in again.report["notes"])
    assert not any("embedding" in note for note in again.report["notes"])
    assert contents(earlier[0]) == before


def test_prompt_that_is_encoded_otherwise_is_named(base, others, earlier, tmp_path):
    """Catches: a video made anew without saying that its words have other numbers now."""
    encoder = ["--text-encoder", str(others.text_encoder), "--reuse", str(earlier[0])]
    again = made(tmp_path / "again", override(base, *encoder))
    assert reused(again) == 0
    fault = "The prompt from block 1 on has another embedding than in out, so block 1 and those that follow from it"
    assert [note.partition(" were made anew.")[0] for note in again.report["notes"] if "embedding" in note] == [
        fault
    ]


def test_another_prompt_is_no_other_embedding(base, earlier, tmp_path):
    again = made(tmp_path / "again", override(base, "--prompt", "a whale sings", "--reuse", str(earlier[0])))
    assert not any("embedding" in note for note in again.report["notes"])


def test_digest_changes_with_each_weight(files):
    """Catches a hash of pieces of the file, or of sums that a change elsewhere makes up for in one place only."""
    tree = load_wan(files.target).tree
    whole = weight_digest(tree)
    weights = dict(tree.named_parameters())
    with torch.no_grad():
        for name in (list(weights)[-1], max(weights, key=lambda n: weights[n].numel())):
            flat = weights[name].view(-1)
            for place in (0, len(flat) // 2, len(flat) - 1):
                before = float(flat[place])
                flat[place] = before * (1 + 2**-20) + 1e-30
                assert weight_digest(tree) != whole, (name, place)
                flat[place] = before
        assert weight_digest(tree) == whole
        flat[[0, 1]] = flat[[1, 0]].clone()
        assert weight_digest(tree) != whole, "two weights have changed places"


def test_digest_is_taken_of_two_bytes():
    """As of a score's bias in half precision. Catches: words of four bytes where there are fewer."""
    layer = nn.Linear(3, 1, dtype=torch.float16)
    before = weight_digest(layer)
    layer.bias.data += 1
    assert weight_digest(layer) != before
