"""A video that is continued goes on from its own latents beside it, where they would show the same frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sdvg_core.files.video import write_mp4
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import latents, options, override, pixel_frames
from tests.support.reuse_folders import Run, decisions, made
from tests.support.sounds import tone

BASE = ["--size", "16x16", "--schedule", "1000,500", "--seed", "2", "--policy", "first", "--forced-blocks", "2"]
RED = ("--prompt", "a red ball")


@pytest.fixture(scope="module")
def base(files: ModelFiles) -> list[str]:
    return [*options(files), *BASE]


@pytest.fixture
def run(base: list[str], tmp_path: Path) -> Callable[..., tuple[Run, Path]]:
    """Makes a video; returns what its run left, and its folder."""

    def make(name: str, *words: str) -> tuple[Run, Path]:
        return made(tmp_path / name, override([*base, *RED], *words)), tmp_path / name

    return make


def notes(run: Run) -> str:
    return " ".join(run.report["notes"])


def authors(run: Run) -> list[str]:
    return [block["author"] for block in run.report["blocks"]]


def from_latents(folder: Path) -> tuple[str, ...]:
    return ("--continue-from", str(folder / "latents.safetensors"), "--blocks", "3")


def from_video(folder: Path) -> tuple[str, ...]:
    return ("--continue-from", str(folder / "video.mp4"), "--blocks", "3")


@pytest.mark.parametrize("begins", ["nothing", "picture", "own key"])
def test_video_goes_on_from_its_own_latents(begins: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """They are kept bit for bit, and the target makes the first new blocks again, as after pixels.

    Catches: latents of the encoded video, a route that goes on counting, a frame more or less.
    """
    Image.new("RGB", (16, 16), "red").save(tmp_path / "red.png")
    words = {
        "nothing": (),
        "picture": ("--start-image", str(tmp_path / "red.png")),
        "own key": ("--prompt", "1 fresh #k: a red ball"),
    }[begins]
    _, given = run("given", "--blocks", "1", *words)
    rest, folder = run("rest", *from_video(given))
    _, after_latents = run("after latents", *from_latents(given))
    assert "video.mp4 goes on from the latents.safetensors beside it" in notes(rest)
    frames = latents(given).shape[2]
    assert torch.equal(latents(folder)[:, :, :frames], latents(given))
    assert authors(rest) == ["target", "target", "drafter"]
    assert pixel_frames(folder) == pixel_frames(given) + 3 * 12
    again, _ = run("as one", *from_latents(given), "--directions", "ttd")
    assert torch.equal(latents(folder), latents(tmp_path / "as one"))
    assert authors(again) == authors(rest)
    assert latents(after_latents).shape == latents(folder).shape


def spoiled_video(folder: Path) -> None:
    write_mp4(folder / "video.mp4", torch.rand(33, 3, 16, 16, generator=torch.Generator().manual_seed(3)), fps=16)


def other_latents(folder: Path) -> None:
    other = folder / "latents.safetensors"
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)


def no_report(folder: Path) -> None:
    (folder / "report.json").write_text("{}", encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "words", "reason"),
    [
        (spoiled_video, (), "do not belong together"),
        (other_latents, (), "do not belong together"),
        (no_report, (), "schema_version"),
        (None, ("--size", "32x32"), "add --size 16x16"),
    ],
    ids=["another video", "other latents", "no report", "another size"],
)
def test_video_goes_on_from_pixels_and_says_why(
    spoil: Callable[[Path], None] | None, words: tuple[str, ...], reason: str, run: Callable[..., Any]
) -> None:
    """Catches: latents of another video, and a choice that nobody is told of."""
    _, given = run("given", "--blocks", "3")
    if spoil:
        spoil(given)
    rest, folder = run("rest", *from_video(given), *words)
    assert "video.mp4 goes on from its pixels, not from the latents.safetensors beside it" in notes(rest)
    assert reason in notes(rest)
    frames = min(latents(given).shape[2], latents(folder).shape[2])
    assert latents(folder).shape[3:] != latents(given).shape[3:] or not torch.equal(
        latents(folder)[:, :, :frames], latents(given)[:, :, :frames]
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--fps", "24"), "24 frames a second"),
        (("--prompt", "1: a red ball\n3 fresh #k: a storm"), "of a film"),
        (("--prompt", "1: a red ball\n4 clip #a:", "--clip", "a=SOUND"), "of a film"),
        (("--continue-from", "SOUND"), "it has sound"),
        (("--continue-from", "SHORT"), "they hold the first frame"),
    ],
    ids=["another rate", "shots", "a clip", "sound", "a held clip"],
)
def test_latents_that_show_otherwise_are_left(
    words: tuple[str, ...], reason: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    """Catches: frames, shots or a sound of the video that are lost with its pixels."""
    short = tmp_path / "short.mp4"
    write_mp4(short, torch.rand(5, 3, 16, 16), fps=16)
    sounding = tone(tmp_path / "sound.mp4")
    named = {"SOUND": str(sounding), "a=SOUND": f"a={sounding}", "SHORT": str(short)}
    _, given = run("given", "--blocks", "3", *(named.get(word, word) for word in words))
    rest, folder = run("rest", *from_video(given))
    assert reason in notes(rest)
    of_clip = 22 if "--fps" in words else pixel_frames(given)
    assert pixel_frames(folder) == of_clip + 36


def test_video_without_its_latents_is_another(
    base: list[str], run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches: a request whose name says nothing of the latents, so that a stopped run goes on from pixels."""
    _, given = run("given", "--blocks", "3")
    rest, folder = run("rest", *from_video(given))
    same, _ = run("rest", *from_video(given))
    assert decisions(same.report) == decisions(rest.report)
    (given / "latents.safetensors").unlink()
    made(folder, override([*base, *RED], *from_video(given)), 2)
    assert "of another request" in capsys.readouterr().err
