"""`generate --reuse`: an earlier folder on the disk, and what of it a run does not make again.

On real files of a tiny model set. What is made from an earlier folder is compared with what is made from nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_runs import names, options, report
from reuse_folders import OUTPUTS, SMALL, Made, contents, counted_passes, made, reused, same
from safetensors import safe_open

from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.checkpoints.weights import weight_digest
from sdvg_core.cli import main
from sdvg_core.files.outputs import BLOCKS


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
def test_another_target_re_uses_what_the_drafter_made(
    base: list[str], others: ModelFiles, earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    more = [*base, "--target", str(others.target), "--blocks", "2"]
    assert reused(made(tmp_path / "out", [*more, "--reuse", str(earlier[0])])) == 0
    more = [*base, "--drafter", str(others.drafter), "--blocks", "2", "--directions", "t."]
    assert reused(made(tmp_path / "out", [*more, "--reuse", str(earlier[0])])) == 1


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


@pytest.mark.heavy
def test_nothing_is_predicted_from_blocks_that_were_found(base: list[str], tmp_path: Path) -> None:
    """With another gate text block 1 is scored anew, and so counts as made; its remake is found all the same."""
    unforced = [*base, "--forced-blocks", "0", "--blocks", "2"]
    made(tmp_path / "earlier", unforced)
    again = made(tmp_path / "again", [*unforced, "--gate-prompt", "ball", "--reuse", str(tmp_path / "earlier")])
    assert [block["target"]["denoising_passes"] for block in again[2]["blocks"]] == [0, 0]
    assert again[2]["target_only_seconds"] is None


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
