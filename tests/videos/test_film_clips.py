"""Clips that a film shows as they are between its shots: their frames, their sound, and what begins from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sdvg_core.cli import main
from sdvg_core.files.footage import read_footage
from sdvg_core.files.video import Mp4Writer, write_mp4
from sdvg_core.pocket.trained_set import pocket_options
from sdvg_core.settings.request import ClipFile, VideoRequest
from sdvg_core.settings.route import Gate, Route
from sdvg_core.text.prompts import read_prompt
from sdvg_core.videos.stream import StreamBlock, StreamClip, Streamer
from sdvg_core.weights.latents import load_latents, shots_in
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import latents, options, override, refused, report
from tests.support.reuse_folders import after_block, counted_passes, ctrl_c, made, reused, same, stopped
from tests.support.sounds import channels, tone

BASE = ["--size", "16x16", "--schedule", "1000,500", "--seed", "2", "--tau", "0.1"]
RED = "1: a red ball"
BLUE = "3 fresh #k3f: a blue cube"


@pytest.fixture(scope="module")
def base(files: ModelFiles) -> list[str]:
    return [*options(files), *BASE]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of 40 frames, 24 x 20 pixels, 16 a second, without sound."""
    path = tmp_path_factory.mktemp("clip") / "footage.mp4"
    write_mp4(path, torch.rand(40, 3, 20, 24, generator=torch.Generator().manual_seed(3)), fps=16)
    return path


@contextmanager
def filmed() -> Iterator[list[Tensor]]:
    """Keep the frames that are written, `1 f c h w`."""
    frames: list[Tensor] = []
    add = Mp4Writer.add
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mp4Writer, "add", lambda self, part: (frames.append(part.clone()), add(self, part)))
        yield frames


Film = tuple[Any, Path, Tensor]
"""What a run left, its folder, and its frames `f c h w`."""


@pytest.fixture
def written(base: list[str], tmp_path: Path) -> Callable[..., Film]:
    """Makes a video of these lines; returns what its run left, its folder, and its frames."""

    def write(name: str, lines: tuple[str, ...], blocks: int, *words: str) -> Film:
        arguments = override([*base, "--prompt", "\n".join(lines), "--blocks", str(blocks)], *words)
        with filmed() as frames:
            run = made(tmp_path / name, arguments)
        return run, tmp_path / name, torch.cat(frames, dim=1)[0]

    return write


def shown(path: Path, first: int = 0, stop: int | None = None) -> Tensor:
    """Return the frames of a clip as a video of 16 x 16 pixels shows them."""
    return read_footage(path, 16, 16).pixels[first:stop].float() / 255


def test_clip_is_shown_between_shots(written: Callable[..., Film], clip: Path) -> None:
    """Frame for frame as a start clip is read, in the order of the lines; the shots keep their bits.

    Catches: a clip that is encoded, a frame lost or shown twice, a clip beside its place, a part beside its ends.
    """
    _, plain_folder, plain = written("plain", (RED, BLUE), 4)
    lines = (
        *("1 clip #first 0-0.5:", RED, "3 clip #b 1.5-2.25:"),
        *("3 clip #a:", BLUE, "5 clip #end 2.0-2.5:"),
    )
    clips = ("--clip", *(f"{name}={clip}" for name in ("a", "first", "b", "end")))
    film, folder, frames = written("film", lines, 4, *clips)
    first, second = plain[:21], plain[21:]
    parts = (shown(clip, 0, 8), first, shown(clip, 24, 36), shown(clip), second, shown(clip, 32, 40))
    assert torch.equal(frames, torch.cat(parts))
    assert torch.equal(latents(folder), latents(plain_folder))
    kept = load_latents(folder / "latents.safetensors")
    assert [saved.first for saved in shots_in(kept.metadata, kept.latents)] == [0, 6]
    assert film.report["totals"]["pixel_frames"] == len(frames)


def test_shot_begins_with_the_out_frame_of_a_clip(written: Callable[..., Film], clip: Path, tmp_path: Path) -> None:
    """As with that picture as its start image, which is not shown twice; also the film's first shot.

    Catches: the clip's last frame in place of the out frame, the shot before's, the frame shown again.
    """
    Image.fromarray(read_footage(clip, 16, 16).pixels[27].permute(1, 2, 0).numpy()).save(tmp_path / "out.png")
    picture = ("--start-image", str(tmp_path / "out.png"))
    _, alone, alone_frames = written("alone", ("1 fresh #k: a storm",), 2, *picture)
    clips = ("--clip", f"a={clip}")
    lines = (RED, "3 clip #a 0.5-1.75:", "3 fresh #k from #a: a storm")
    film, folder, frames = written("film", lines, 4, *clips)
    assert torch.equal(latents(folder)[:, :, 6:], latents(alone))
    assert torch.equal(frames, torch.cat((frames[:21], shown(clip, 8, 28), alone_frames[1:])))
    assert [block["pixel_frames"] for block in film.report["blocks"]] == [9, 12, 12, 12]
    lines = ("1 clip #a 0.5-1.75:", "1 fresh #k from #a: a storm", "3 fresh #b: a lake")
    _, folder, frames = written("first", lines, 3, *clips)
    assert torch.equal(latents(folder)[:, :, :9], latents(alone))
    assert torch.equal(frames[: 20 + 24], torch.cat((shown(clip, 8, 28), alone_frames[1:])))


def test_shown_clip_makes_no_block_again(written: Callable[..., Film], clip: Path) -> None:
    """Catches: a clip in a key of re-use, so that one more clip makes a film anew."""
    _, before, _ = written("before", (RED, BLUE), 4)
    clips = ("--clip", f"a={clip}", "--reuse", str(before))
    with counted_passes() as passes:
        film, _, _ = written("film", (RED, "3 clip #a:", BLUE), 4, *clips)
    assert passes == []
    assert reused(film) == 4


def test_report_says_which_clips_are_shown(written: Callable[..., Film], clip: Path) -> None:
    """Catches: frames for seconds, a join beside its place, a folder's name in a report."""
    lines = (RED, "3 clip #a 1.5-2.25:", BLUE, "5 clip #b:")
    film, folder, frames = written("film", lines, 4, "--clip", f"a={clip}", f"b={clip}")
    shots = film.report["settings"]["shots"]
    clips = film.report["settings"]["clips"]
    facts = [{name: of[name] for name in ("name", "file", "in", "out", "frames", "before_block")} for of in clips]
    file = "footage.mp4"
    assert [(shot["first_frame"], shot["frames"]) for shot in shots] == [(0, 21), (33, 21)]
    assert [of["first_frame"] for of in clips] == [21, 54]
    assert facts == [
        {"name": "#a", "file": file, "in": 1.5, "out": 2.25, "frames": 12, "before_block": 3},
        {"name": "#b", "file": file, "in": 0, "out": 2.5, "frames": 40, "before_block": 5},
    ]
    brightness = frames.mean(dim=(1, 2, 3)) * 255
    ends = {"#a": 21, "#k3f": 33, "#b": 54}
    joins = {of.get("key") or of["name"]: of["join"]["brightness"] for of in (*shots[1:], *clips)}
    steps = {name: (brightness[at] - brightness[at - 1]).abs().item() for name, at in ends.items()}
    assert joins == pytest.approx(steps, abs=0.02)
    assert "join" not in shots[0]
    assert str(clip.parent) not in (folder / "report.json").read_text(encoding="utf-8")


def test_report_makes_the_clips_again(
    written: Callable[..., Film],
    base: list[str],
    clip: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the files stated anew. Catches: lines or parts of clips lost in a report."""
    lines = (RED, "3 clip #a 1.5-2.25:", "3 fresh #k3f from #a: a blue cube", "5 clip #b:")
    clips = ("--clip", f"a={clip}", f"b={clip}")
    film, folder, _ = written("film", lines, 4, *clips)
    again = [*base, "--from", str(folder / "report.json")]
    capsys.readouterr()
    sentence = refused(capsys, [*again, "--output", str(tmp_path / "refused")])
    assert "#a (footage.mp4), #b (footage.mp4)" in sentence
    same(made(tmp_path / "again", [*again, *clips]), film)
    assert "The same video" in capsys.readouterr().out


def test_report_without_newer_settings_is_the_same_video(
    written: Callable[..., Film], base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches: a video that counts as another, as its report is from before there were clips."""
    _, folder, _ = written("film", (RED,), 1)
    file = folder / "report.json"
    older = json.loads(file.read_text(encoding="utf-8"))
    for name in ("shots", "shown_clips", "clips", "context_blocks"):
        del older["request"][name]
    file.write_text(json.dumps(older), encoding="utf-8")
    made(tmp_path / "again", [*base, "--from", str(file)])
    assert "The same video as in" in capsys.readouterr().out


def test_stopped_film_shows_no_later_clip(base: list[str], clip: Path, tmp_path: Path) -> None:
    """Catches: a clip after a shot that was not made, and one missing from a film that is whole."""
    lines = (RED, "3 clip #a:", BLUE, "5 clip #b:")
    words = ["--prompt", "\n".join(lines), "--blocks", "4", "--clip", f"a={clip}", f"b={clip}"]
    arguments = [*base, *words]
    whole = made(tmp_path / "whole", arguments)
    for cut in (2, 3):
        with filmed() as frames:
            stopped(tmp_path / f"cut {cut}", arguments, cut, ctrl_c)
        assert sum(part.shape[1] for part in frames) == {2: 21, 3: 21 + 40 + 9}[cut]
        same(made(tmp_path / f"cut {cut}", arguments), whole)


def test_film_stopped_in_its_last_block_is_whole(base: list[str], clip: Path, tmp_path: Path) -> None:
    """Catches: a video that counts as finished, without the clip at its end."""
    words = ["--prompt", f"{RED}\n3 clip #a:", "--blocks", "2", "--clip", f"a={clip}"]
    whole = made(tmp_path / "whole", [*base, *words])
    with after_block(2, ctrl_c):
        same(made(tmp_path / "stopped", [*base, *words]), whole)


def test_clips_stand_beside_a_continued_clip(written: Callable[..., Film], clip: Path) -> None:
    """Lines count its blocks. Catches: a clip within it, one before it that is lost, an end counted without it."""
    _, given, _ = written("given", (RED,), 2)
    lines = ("1 clip #a 0-0.5:", RED, "5 clip #b 1.0-1.5:")
    words = ("--continue-from", str(given / "latents.safetensors"), "--clip", f"a={clip}", f"b={clip}")
    _, plain, plain_frames = written("plain", (RED,), 2, *words[:2])
    _, folder, frames = written("film", lines, 2, *words)
    assert torch.equal(frames, torch.cat((shown(clip, 0, 8), plain_frames, shown(clip, 16, 24))))
    assert torch.equal(latents(folder), latents(plain))


WORKERS = pytest.param(("--workers", "1"), id="a worker", marks=pytest.mark.heavy)


@pytest.mark.parametrize("more", [pytest.param((), id="this process"), WORKERS])
def test_each_video_of_a_batch_shows_the_clips(
    more: tuple[str, ...], base: list[str], clip: Path, tmp_path: Path
) -> None:
    """Catches: clips that another seed, or another process, leaves out."""
    words = ["--prompt", f"{RED}\n2 clip #a:", "--blocks", "1", "--seed", "2", "3", "--clip", f"a={clip}"]
    assert main(override([*base, *words], "--output", str(tmp_path / "out"), *more)) == 0
    reports = [report(tmp_path / "out" / number) for number in ("0001", "0002")]
    assert [of["totals"]["pixel_frames"] for of in reports] == [49, 49]


def test_streamed_film_shows_its_clips(files: ModelFiles, clip: Path) -> None:
    """Catches: clips that a stream leaves out, and blocks that count them."""
    streamer = Streamer(files, replace(pocket_options(), schedule="1000,500"))
    request = VideoRequest(
        blocks=4,
        seed=2,
        width=16,
        height=16,
        route=Route(Gate(tau=0.1)),
        clips=(ClipFile("#a", clip),),
    )
    with streamer.stream(request, read_prompt(f"{RED}\n3 clip #a:\n{BLUE}")) as stream:
        parts = list(stream)
    kinds = [part.number if isinstance(part, StreamBlock) else part.name for part in parts]
    assert kinds == [1, 2, "#a", "#a", "#a", 3, 4]
    footage = torch.cat([part.frames for part in parts if isinstance(part, StreamClip)])
    assert torch.equal(footage, shown(clip).movedim(1, -1))


# --- sound


def silent(samples: np.ndarray) -> bool:
    return not np.abs(samples).any()


@pytest.fixture(scope="module")
def pcm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of 40 frames with PCM, 48,000 a second: 3,000 to a frame."""
    return tone(tmp_path_factory.mktemp("pcm") / "pcm.mov", "pcm_s16le")


def test_sound_of_a_clip_is_at_its_time(written: Callable[..., Film], pcm: Path) -> None:
    """PCM, sample for sample, of the parts that are shown. Catches: another begin, sound where the shots are."""
    lines = (RED, "3 clip #a 0.5-1.75:", BLUE, "5 clip #b:")
    _, folder, _ = written("film", lines, 4, "--clip", f"a={pcm}", f"b={pcm}")
    heard = channels(folder / "video.mp4")[0]
    original = channels(pcm)[0]
    at = 21 * 3000
    assert silent(heard[:at])
    assert np.array_equal(heard[at : at + 60_000], original[24_000:84_000])
    assert silent(heard[at + 60_000 : at + 123_000])
    assert np.array_equal(heard[at + 123_000 :], original[: 40 * 3000])


@pytest.mark.parametrize(
    ("codec", "container", "layout", "rate"),
    [("aac", "mp4", "stereo", 44100), ("libopus", "webm", "mono", 48000), ("pcm_s16le", "avi", "stereo", 22050)],
)
def test_sounds_of_several_kinds_are_one_track(
    codec: str, container: str, layout: str, rate: int, written: Callable[..., Film], pcm: Path, tmp_path: Path
) -> None:
    """Beside PCM of one channel; to a millisecond, as time stamps of WebM are.

    Catches: a rate kept, a delay by an encoder, one channel at 0.7 of its loudness, no note.
    """
    other = tone(tmp_path / f"other.{container}", codec, layout=layout, rate=rate)
    lines = (RED, "3 clip #a:", BLUE, "5 clip #b:")
    film, folder, _ = written("film", lines, 4, "--clip", f"a={other}", f"b={pcm}")
    heard = channels(folder / "video.mp4", rate=48000)
    for file, at in ((other, 21 * 3000), (pcm, 82 * 3000)):
        original = channels(file, rate=48000)[0][12_000:60_000]
        differences = {
            shift: float(np.abs(heard[0][at + 12_000 + shift : at + 60_000 + shift] - original).mean())
            for shift in range(-48, 49)
        }
        assert min(differences.values()) < 0.1 * np.abs(original).mean()
    assert np.abs(heard[:, 3000 : 20 * 3000]).max() < 1e-3
    assert any("encoded as AAC" in note for note in film.report["notes"])


def test_sound_of_a_restyled_clip_waits(written: Callable[..., Film], pcm: Path, clip: Path) -> None:
    """It is cut with its pictures. Catches: a sound that runs on under a clip, and one lost with fresh shots."""
    lines = (RED, "2 clip #a 0-0.5:", "2 fresh #k3f: a blue cube")
    words = ("--restyle", str(pcm), "--strength", "0.7")
    _, plain, _ = written("plain", (lines[0], lines[2]), 3, *words)
    original = channels(pcm)[0]
    assert np.array_equal(channels(plain / "video.mp4")[0][:80_000], original[:80_000])
    _, folder, _ = written("film", lines, 3, *words, "--clip", f"a={clip}")
    heard = channels(folder / "video.mp4")[0]
    assert np.array_equal(heard[:27_000], original[:27_000])
    assert silent(heard[27_000:51_000])
    assert np.array_equal(heard[51_000:114_000], original[27_000:90_000])


def test_sound_of_a_continued_clip_follows(written: Callable[..., Film], pcm: Path, clip: Path) -> None:
    """Catches: a sound at the film's beginning, where a clip is shown before what is continued."""
    lines = ("1 clip #a 0-0.5:", RED)
    words = ("--continue-from", str(pcm), "--clip", f"a={clip}")
    _, folder, frames = written("film", lines, 1, *words)
    heard = channels(folder / "video.mp4")[0]
    assert len(frames) == 8 + 40 + 12
    assert silent(heard[:24_000])
    assert np.array_equal(heard[24_000 : 24_000 + 120_000], channels(pcm)[0][:120_000])


def test_damaged_sound_of_a_clip_is_left_out(written: Callable[..., Film], pcm: Path, tmp_path: Path) -> None:
    """Catches: a film lost for one sound, the other sound lost too, a loss unsaid."""
    damaged = tone(tmp_path / "damaged.mkv", "flac")
    from sdvg_core.files import sound

    honest = sound._wave

    def wave(part: Any, track: Any) -> Any:
        if part.sound.path == damaged:
            raise ValueError
        return honest(part, track)

    lines = (RED, "3 clip #a:", BLUE, "5 clip #b:")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sound, "_wave", wave)
        film, folder, _ = written("film", lines, 4, "--clip", f"a={damaged}", f"b={pcm}")
    assert any("damaged.mkv is left out" in note for note in film.report["notes"])
    heard = channels(folder / "video.mp4")[0]
    assert np.abs(heard[: 82 * 3000 - 3000]).max() < 1e-3
    assert np.abs(heard[82 * 3000 :]).max() > 0.1


def test_other_pace_leaves_sound_out(written: Callable[..., Film], pcm: Path) -> None:
    """Catches: a sound that its pictures run ahead of, or one left out without a word."""
    words = ("--clip", f"a={pcm}", "--fps", "24")
    film, folder, _ = written("film", (RED, "2 clip #a:", "2 fresh #b: a lake"), 2, *words)
    assert read_footage(folder / "video.mp4", 16, 16).sound is None
    assert any("sound is left out" in note for note in film.report["notes"])


# --- what it refuses


REFUSED = {
    "no file": (("1: a ball", "3 clip #a:", "3 fresh #b: a cube"), (), "add --clip a=FILE"),
    "no line": (("1: a ball",), ("a",), "no line of the prompt shows"),
    "twice": (("1: a ball", "4 clip #a:"), ("a", "a"), "two clips have the name #a"),
    "within a shot": (("1: a ball", "2 clip #a:", "3 fresh #b: a cube"), ("a",), "begins no fresh shot"),
    "not fresh": (("1: a ball", "2 clip #a:", "2 cut: a cube"), ("a",), "begins no fresh shot"),
    "beyond its end": (("1: a ball", "4 clip #a 2-2.6:"), ("a",), "ends after 2.5 seconds"),
    "name": (("1: a ball", "4 clip #a:"), ("A",), "1 to 12 of a-z and 0-9"),
    "no path": (("1: a ball", "4 clip #a:"), ("a=",), "the path is empty"),
    "a path in the text": (("1: a ball", "4 clip /tmp/a.mp4:"), ("a",), "no line of the prompt shows"),
    "two starts": (("1 clip #a:", "1 fresh #b from #a: a ball"), ("a", "--start-image"), "leave one of them out"),
    "a missing file": (("1: a ball", "4 clip #a:"), ("a=nowhere.mp4",), "nowhere.mp4"),
}


@pytest.mark.parametrize(("lines", "words", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_impossible_clip_is_refused(
    lines: tuple[str, ...],
    words: tuple[str, ...],
    problem: str,
    base: list[str],
    clip: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = [word if "=" in word else f"{word}={clip}" for word in words if not word.startswith("--")]
    options_of_clips = [part for name in named for part in ("--clip", name)]
    starts = [part for word in words if word.startswith("--") for part in (word, str(clip))]
    asked = ["--prompt", "\n".join(lines), "--blocks", "3", "--output", str(tmp_path / "out")]
    assert problem in refused(capsys, [*base, *options_of_clips, *starts, *asked])


@pytest.mark.parametrize("line", ["5 clip #k:", "5 fresh #k: a lake"])
def test_name_of_the_continued_shot_is_taken(
    line: str,
    written: Callable[..., Film],
    base: list[str],
    clip: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches: two parts of a film under one name, whose frames, joins and noise are one's."""
    _, given, _ = written("given", ("1 fresh #k: a red ball",), 2)
    capsys.readouterr()
    words = ["--continue-from", str(given / "latents.safetensors"), "--prompt", f"{RED}\n{line}"]
    named = ["--clip", f"k={clip}"] if "clip" in line else []
    asked = [*base, *words, *named, "--blocks", "3" if "fresh" in line else "2"]
    assert "give it another name" in refused(capsys, [*asked, "--output", str(tmp_path / "out")])


def test_shot_begins_from_a_clip_that_is_not_beside_it(written: Callable[..., Film], clip: Path) -> None:
    """Catches: the frame of the shot between, and a part of a film that lacks the clip's frame."""
    lines = (RED, "2 clip #a 0-0.5:", "2 fresh #b: a lake", "3 fresh #c from #a: a storm")
    _, folder, frames = written("film", lines, 3, "--clip", f"a={clip}")
    beside = (RED, "2 clip #a 0-0.5:", "2 fresh #c from #a: a storm")
    _, alone, alone_frames = written("beside", beside, 2, "--clip", f"a={clip}")
    assert torch.equal(latents(folder)[:, :, 6:], latents(alone)[:, :, 3:])
    assert torch.equal(frames[-12:], alone_frames[-12:])


def test_clip_after_the_end_is_noted(written: Callable[..., Film], clip: Path) -> None:
    """Catches: a clip that a shorter film leaves out without a word; one that it shows, said to be left out."""
    lines = (RED, "3 clip #b 0-0.5:", "4 clip #a:", "4 fresh #c: a lake")
    film, _, frames = written("film", lines, 2, "--clip", f"a={clip}", f"b={clip}")
    assert len(frames) == 21 + 8
    assert "Not shown, as the video ends with block 2: the clip #a." in film.report["notes"]
