"""A video in: extended and restyled by the command line; with the embedded models where a picture is looked at."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

from sdvg_core.cli import main
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.files.footage import read_footage
from sdvg_core.files.video import Mp4Writer, write_mp4
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.renderer import render_scene
from sdvg_core.settings.request import blocks_in
from tests.support.cli_runs import latents, pixel_frames, refused, report
from tests.support.sounds import heard, tone

pytestmark = pytest.mark.heavy

PROMPT = "a big blue ball drifts right from the left over sand"
FRAMES = render_scene(parse(PROMPT), torch.arange(33))
"""Of three blocks."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "video.mp4"
    write_mp4(path, FRAMES, fps=16)
    return path


@pytest.fixture(scope="module")
def asked(base) -> list[str]:
    return [*base, "--size", "64x64", "--policy", "always-target", "--prompt", PROMPT]


# --- pictures


@pytest.mark.parametrize(
    ("way", "name", "note"),
    [
        ("--start-image", "hole.png", ": a picture, without alpha, cropped to 64x64."),
        ("--continue-from", "moving.webp", ": 12 pictures, taken as 12 frames at 16 a second, cropped to 64x64."),
        ("--restyle", "moving.png", ": 12 pictures, taken as 12 frames at 16 a second, cropped to 64x64."),
    ],
)
def test_report_notes_what_a_picture_loses(way, name, note, asked, tmp_path):
    """By every way in. Catches: alpha, or frames, dropped without a word."""
    frames = [Image.new("RGB", (64, 64), (10 * number, 90, 90)) for number in range(12)]
    if name == "hole.png":
        frames[0].putalpha(128)
        frames = frames[:1]
    moves = {"save_all": True, "append_images": frames[1:], "duration": 62.5 if ".png" in name else (62, 63) * 6}
    frames[0].save(tmp_path / name, **(moves if len(frames) > 1 else {}))
    more = ["--blocks", "1", way, str(tmp_path / name), "--output", str(tmp_path / "out")]
    assert main([*asked, *more]) == 0
    assert any(line.startswith(name + note) for line in report(tmp_path / "out")["notes"])


# --- extend


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_extended_video_begins_with_the_given_frames(cut, tmp_path, monkeypatch):
    """Of every length. Catches: given frames decoded from latents, or lost, or shown twice."""
    given = FRAMES[cut:]
    written: list[torch.Tensor] = []
    encoded: list[torch.Tensor] = []
    add = Mp4Writer.add
    encode = WanCodec.encode
    write_mp4(tmp_path / "given.mp4", given, fps=16)
    monkeypatch.setattr(WanCodec, "encode", lambda self, frames: encoded.append(frames) or encode(self, frames))
    monkeypatch.setattr(Mp4Writer, "add", lambda self, frames: written.append(frames) or add(self, frames))
    more = ["--blocks", "1", "--continue-from", str(tmp_path / "given.mp4"), "--output", str(tmp_path / "out")]
    assert main(["generate", "--models", "pocket", "--policy", "always-target", "--prompt", PROMPT, *more]) == 0
    video = torch.cat(written, dim=1)[0]
    assert len(video) == len(given) + 12 == pixel_frames(tmp_path / "out")
    assert torch.equal(video[: len(given)], read_footage(tmp_path / "given.mp4", 64, 64).pixels / 255)
    assert torch.equal(encoded[0][0, -len(given) :], video[: len(given)]), "the models go on from the last frame"
    changes = (video[1:] - video[:-1]).abs().mean(dim=(1, 2, 3))
    assert changes[len(given) - 1] < 3 * changes.median(), "the seam"
    assert report(tmp_path / "out")["blocks"][0]["index"] == 3


@pytest.mark.parametrize("way", ["--continue-from", "--restyle"])
def test_video_keeps_the_sound_of_its_clip(way, asked, tmp_path):
    """As it is, no longer than the video. 40 frames are extended to 52, or restyled to 33. Catches: silence."""
    clip = tone(tmp_path / "clip.mp4")
    more = [way, str(clip), "--output", str(tmp_path / "out")]
    assert main([*asked, "--blocks", "1" if way == "--continue-from" else "3", *more]) == 0
    sound = heard(tmp_path / "out" / "video.mp4")
    assert np.array_equal(sound, heard(clip)[: len(sound)])
    assert len(sound) / 48000 == pytest.approx((40 if way == "--continue-from" else 33) / 16, abs=0.045)
    assert not any("sound" in note for note in report(tmp_path / "out")["notes"])


def tracks(video: Path) -> list[str]:
    with av.open(str(video)) as file:
        return [stream.codec_context.name for stream in file.streams]


def test_sound_at_another_speed_is_left_out(asked, tmp_path, capsys):
    """Catches: sound that is over before its video, or a loss that nobody says."""
    clip = tone(tmp_path / "clip.mp4")
    out = tmp_path / "out"
    more = ["--blocks", "1", "--fps", "24", "--continue-from", str(clip), "--output", str(out)]
    assert main([*asked, *more]) == 0
    note = "The sound of clip.mp4 is left out: the clip is taken as 16 frames a second, and the video has 24."
    assert note in report(out)["notes"]
    assert note in capsys.readouterr().err
    assert tracks(out / "video.mp4") == ["h264"]


def test_sound_an_mp4_lacks_is_encoded(asked, tmp_path, capsys):
    """Catches: a silent video, or a loss that nobody says."""
    clip = tone(tmp_path / "clip.mov", "pcm_mulaw")
    out = tmp_path / "out"
    assert main([*asked, "--blocks", "1", "--continue-from", str(clip), "--output", str(out)]) == 0
    note = "The sound of clip.mov is encoded as AAC: an mp4 does not hold pcm_mulaw."
    assert note in report(out)["notes"]
    assert note in capsys.readouterr().err
    assert tracks(out / "video.mp4") == ["h264", "aac"]


# --- restyle


def test_restyling_takes_fewer_passes_for_all_frames(asked, clip, tmp_path):
    more = ["--restyle", str(clip), "--strength", "light", "--output", str(tmp_path / "out")]
    assert main([*asked, *more]) == 0
    run = report(tmp_path / "out")
    assert [block["target"]["denoising_passes"] for block in run["blocks"]] == [1, 1, 1]
    assert (run["request"]["restyle"], run["request"]["strength"]) == ("video.mp4", "light")
    assert pixel_frames(tmp_path / "out") == 33


def test_prompt_line_states_strength_from_its_block(base, asked, clip, tmp_path):
    """Block 1 is as with the usual strength, block 2 takes passes of its own, and its report makes it again."""
    clip_file = ["--restyle", str(clip)]
    lines = [*asked[:-1], f"{PROMPT}\n2 strength light: a red ball over snow", *clip_file]
    assert main([*lines, "--output", str(tmp_path / "lines")]) == 0
    assert main([*asked, *clip_file, "--output", str(tmp_path / "usual")]) == 0
    restyled = latents(tmp_path / "lines")
    usual = latents(tmp_path / "usual")
    assert torch.equal(restyled[:, :, :3], usual[:, :, :3])
    assert not torch.equal(restyled[:, :, 3:6], usual[:, :, 3:6])
    run = report(tmp_path / "lines")
    assert [block["target"]["denoising_passes"] for block in run["blocks"]] == [2, 1, 1]
    assert run["request"]["strength"] == "medium,2:light"
    again = ["--from", str(tmp_path / "lines"), *clip_file, "--output", str(tmp_path / "again")]
    assert main([*base, *again]) == 0
    assert torch.equal(latents(tmp_path / "again"), restyled)


def test_strength_in_a_prompt_needs_a_clip(asked, tmp_path, capsys):
    lines = [*asked[:-1], f"{PROMPT}\n2 strength light:", "--output", str(tmp_path / "out")]
    assert "no clip" in refused(capsys, lines)


def test_clip_sets_the_nearest_number_of_blocks():
    """Catches: a block more for each frame too many, or none for a clip shorter than a block."""
    assert [blocks_in(frames) for frames in (80, 81, 82, 5, 14, 16, 28)] == [7, 7, 7, 1, 1, 2, 3]


def test_short_clip_is_restyled_with_frames_held(asked, tmp_path, capsys):
    write_mp4(tmp_path / "clip.mp4", torch.rand(1, 3, 64, 64).expand(5, -1, -1, -1), fps=16)
    assert main([*asked, "--restyle", str(tmp_path / "clip.mp4"), "--output", str(tmp_path / "out")]) == 0
    assert "Its last frame is held for 4 frames." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["--strength", "weak"], "is not a strength"),
        (["--blocks", "9"], "the video needs 105"),
        (["--schedule", "1000,625", "--strength", "light"], "give strong or a number"),
    ],
)
def test_impossible_restyling_is_refused(words, keyword, asked, clip, tmp_path, capsys):
    restyled = [*asked, "--restyle", str(clip), *words, "--output", str(tmp_path / "out")]
    assert keyword in refused(capsys, restyled)
    assert not (tmp_path / "out").exists()
