"""How much of a clip the models remember that they continue (`--context-blocks`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.decoders.open import load_vae
from sdvg_core.engine.inputs import KeyedNoise
from sdvg_core.engine.types import Span
from sdvg_core.files.footage import read_footage
from sdvg_core.files.video import write_mp4
from sdvg_core.settings.execution import Execution
from sdvg_core.weights.latents import save_latents
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import latents, options, override, refused
from tests.support.reuse_folders import Run, ctrl_c, made, reused, same, stopped

BASE = ["--size", "16x16", "--schedule", "1000,500", "--seed", "2", "--prompt", "a red ball", "--blocks", "2"]
GIVEN = 4
"""Blocks of the clip."""
TARGET = ("--policy", "always-target")
DRAFTER = ("--policy", "first", "--forced-blocks", "0")
ROLLING = ("preset=self-forcing-1.3b", "cache=incremental")


@pytest.fixture(scope="module")
def base(files: ModelFiles) -> list[str]:
    return [*options(files), *BASE]


@pytest.fixture(scope="module")
def clip(base: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents of four blocks under two prompts."""
    folder = tmp_path_factory.mktemp("clip") / "clip"
    prompt = "1: a red ball\n4: a storm"
    made(folder, override([*base, *TARGET], "--blocks", str(GIVEN), "--prompt", prompt))
    return folder / "latents.safetensors"


@pytest.fixture
def continued(base: list[str], tmp_path: Path) -> Callable[..., tuple[Run, Path]]:
    """Makes two more blocks; returns what its run left, and its folder."""

    def make(name: str, clip: Path, *words: str) -> tuple[Run, Path]:
        return made(tmp_path / name, override([*base, "--continue-from", str(clip)], *words)), tmp_path / name

    return make


STREAMING = (*TARGET, "--target-settings", *ROLLING)


@pytest.fixture(scope="module")
def plain(base: list[str], clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two more blocks of a rolling target that remembers the whole clip."""
    folder = tmp_path_factory.mktemp("plain") / "plain"
    made(folder, override([*base, "--continue-from", str(clip)], *STREAMING))
    return folder


@pytest.fixture(scope="module")
def short(base: list[str], clip: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """The same of one that remembers the last block: what the run left, and its folder."""
    folder = tmp_path_factory.mktemp("short") / "short"
    words = (*STREAMING, "--context-blocks", "1")
    return made(folder, override([*base, "--continue-from", str(clip)], *words)), folder


def decoded_frame(vae: Any, given: Tensor, latent_frame: int) -> Tensor:
    """Return the last pixel frame of a latent frame, encoded as an image."""
    frames, _ = vae.decode(given)
    return vae.encode(frames[:, 4 * latent_frame : 4 * latent_frame + 1])


VARIANTS: dict[str, tuple[str, ...]] = {
    "recompute": (*TARGET, "--target-settings", "preset=krea-14b", "context-frames=9"),
    "first frame": (*TARGET, "--target-settings", "preset=krea-14b", "context-frames=6", "keep-first-frame=yes"),
    "sink": (*TARGET, "--target-settings", *ROLLING, "window=9", "sink=3"),
    "relative": (*TARGET, "--target-settings", *ROLLING, "window=9", "relative=yes"),
    "recache": (*TARGET, "--target-settings", *ROLLING, "window=9", "sink=3", "recache=yes"),
    "memrope": (*DRAFTER, "--drafter-settings", *ROLLING, "window=6", "context-memory=memrope"),
    "single frames": (
        *(*TARGET, "--handover", "1", "--target-settings", *ROLLING),
        *("--drafter-settings", *ROLLING, "block-frames=1"),
    ),
    "own drafts": (*DRAFTER, "--drafter-context", "own", "--drafter-settings", *ROLLING, "window=9"),
}


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS.keys())
def test_models_remember_the_last_blocks_alone(
    words: tuple[str, ...],
    files: ModelFiles,
    clip: Path,
    continued: Callable[..., tuple[Run, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a clip that begins there, whose first frame is an image, but with the noise of later blocks.

    Catches: keys and values of forgotten blocks, positions that count them, a sink that nobody wrote, other noise.
    """
    _, folder = continued("whole", clip, *words, "--context-blocks", "2", "--prompt", "1: a red ball\n4: a storm")
    given = latents(clip.parent)
    vae = load_vae(files.vae, layers=Execution().vae_layers)
    cut = torch.cat((decoded_frame(vae, given, 6), given[:, :, 7:]), dim=2)
    save_latents(tmp_path / "cut.safetensors", cut, {})
    draw = KeyedNoise.draw

    def later(noise: KeyedNoise, span: Span, slot: int) -> Tensor:
        return draw(noise, replace(span, index=span.index + 2), slot)

    with monkeypatch.context() as patch:
        patch.setattr(KeyedNoise, "draw", later)
        _, alone = continued("cut", tmp_path / "cut.safetensors", *words, "--prompt", "1: a red ball\n2: a storm")
    assert torch.equal(latents(folder)[:, :, :12], given)
    # The second block of a recomputed context needs pixels, which the decoder makes of the whole clip.
    new = 3 if "preset=krea-14b" in words else 6
    assert torch.equal(latents(folder)[:, :, 12 : 12 + new], latents(alone)[:, :, 6 : 6 + new])
    _, plain = continued("plain", clip, *words, "--prompt", "1: a red ball\n4: a storm")
    assert not torch.equal(latents(folder), latents(plain))


def test_clip_of_pixels_is_shown_whole(base: list[str], continued: Callable[..., Any], tmp_path: Path) -> None:
    """Catches: frames that are forgotten and so not shown, and a clip of pixels that is remembered whole."""
    path = tmp_path / "clip.mp4"
    write_mp4(path, torch.rand(45, 3, 16, 16, generator=torch.Generator().manual_seed(3)), fps=16)
    run, folder = continued("short", path, *STREAMING, "--context-blocks", "1")
    _, plain = continued("plain", path, *STREAMING)
    assert any("Of the clip's 4 blocks the models remember the last 1." in note for note in run.report["notes"])
    assert torch.equal(latents(folder)[:, :, :12], latents(plain)[:, :, :12])
    assert not torch.equal(latents(folder)[:, :, 12:], latents(plain)[:, :, 12:])
    assert read_footage(folder / "video.mp4", 16, 16).frames == 45 + 24


@pytest.mark.parametrize("count", ["0", "4", "9"])
def test_all_blocks_are_remembered_as_before(
    count: str, clip: Path, plain: Path, continued: Callable[..., tuple[Run, Path]]
) -> None:
    """Bit for bit, and used again. Catches: a first frame that is encoded anew, keys of re-use that differ."""
    run, folder = continued("all", clip, *STREAMING, "--context-blocks", count, "--reuse", str(plain))
    assert torch.equal(latents(folder), latents(plain))
    assert reused(run) == 2
    assert any("remember all" in note for note in run.report["notes"]) == (count != "0")


@pytest.mark.parametrize("drafter", [(), ("block-frames=1",), ("context-memory=memrope", "window=6")])
def test_stopped_run_remembers_as_much(
    drafter: tuple[str, ...], base: list[str], clip: Path, tmp_path: Path
) -> None:
    """By models without caches. Catches: keys and values that follow from what was rejected, or forgotten."""
    settings = ("--target-settings", *ROLLING, "window=9", "--drafter-settings", *ROLLING, *drafter)
    route = ("--tau", "0.1", "--directions", "arad", "--blocks", "4")
    arguments = override([*base, *settings], *route, "--context-blocks", "2", "--continue-from", str(clip))
    whole = made(tmp_path / "whole", arguments)
    assert len({block["author"] for block in whole.report["blocks"]}) == 2
    stopped(tmp_path / "cut", arguments, 2, ctrl_c)
    same(made(tmp_path / "cut", arguments), whole)


def test_other_memory_makes_other_blocks(
    clip: Path, short: tuple[Run, Path], continued: Callable[..., tuple[Run, Path]]
) -> None:
    """Catches: a key of re-use without the number of blocks."""
    run, _ = continued("second", clip, *STREAMING, "--context-blocks", "2", "--reuse", str(short[1]))
    assert reused(run) == 0


def test_report_remembers_as_much(base: list[str], clip: Path, short: tuple[Run, Path], tmp_path: Path) -> None:
    """Catches: `--from` that remembers the whole clip."""
    run, folder = short
    again = ["--from", str(folder / "report.json"), "--continue-from", str(clip)]
    arguments = [word for word in base if word not in ("--prompt", "a red ball")]
    assert made(tmp_path / "again", [*override(arguments, *STREAMING), *again]).latents == run.latents


def test_later_shot_remembers_nothing_anyway(clip: Path, continued: Callable[..., tuple[Run, Path]]) -> None:
    """Catches: a fresh shot taken for a clip to forget, or said to be a clip of one frame."""
    words = (*STREAMING, "--context-blocks", "1")
    lines = "1: a red ball\n6 fresh #k: a storm\n7 fresh #b from #k: a lake"
    run, folder = continued("film", clip, *words, "--blocks", "3", "--prompt", lines)
    _, alone = continued("alone", clip, *words, "--blocks", "1")
    assert torch.equal(latents(folder)[:, :, :15], latents(alone))
    notes = [note for note in run.report["notes"] if "remember" in note]
    assert notes == ["Shot #0: Of the clip's 4 blocks the models remember the last 1."]


def test_no_more_than_the_window_is_noted(clip: Path, continued: Callable[..., tuple[Run, Path]]) -> None:
    """Catches: an option without effect, unsaid."""
    words = (*TARGET, "--target-settings", "preset=krea-14b")
    run, folder = continued("short", clip, *words, "--context-blocks", "1")
    _, plain = continued("plain", clip, *words)
    assert torch.equal(latents(folder), latents(plain))
    assert any("changes nothing" in note for note in run.report["notes"])


@pytest.mark.parametrize("words", [(), ("--start-image", "picture.png")])
def test_memory_without_a_clip_is_refused(
    words: tuple[str, ...], base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = refused(capsys, [*base, *words, "--context-blocks", "2", "--output", str(tmp_path / "out")])
    assert "add --continue-from" in sentence
