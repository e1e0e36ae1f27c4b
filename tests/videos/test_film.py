"""Shots that begin afresh: each has the latents, frames and decisions that it has alone, wherever it stands."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from sdvg_core.files.footage import read_footage
from sdvg_core.files.video import Mp4Writer, write_mp4
from sdvg_core.pocket.trained_set import pocket_options
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import Gate, Route
from sdvg_core.text.prompts import read_prompt, with_prompt_lines
from sdvg_core.videos.stream import StreamBlock, Streamer
from sdvg_core.weights.latents import load_latents, shots_in
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import latents, options, override, refused
from tests.support.reuse_folders import Run, counted_passes, ctrl_c, decisions, made, reused, same, stopped

BASE = ["--size", "16x16", "--schedule", "1000,500", "--seed", "2"]
GATE = ("--tau", "0.1")
FILM = ("1: a red ball", "3 fresh #k3f: a blue cube", "5: a green cube", "6 fresh #a: a storm")
"""Shots of two, three and two blocks."""
SHOTS = (
    ("1: a red ball",),
    ("1 fresh #k3f: a blue cube", "3: a green cube"),
    ("1 fresh #a: a storm",),
)
"""Each of them alone."""
BLOCKS = (2, 3, 2)


@pytest.fixture(scope="module")
def base(files: ModelFiles) -> list[str]:
    return [*options(files), *BASE]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of 75 frames of 16 x 16 pixels, as long as the film."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_mp4(path, torch.rand(75, 3, 16, 16, generator=torch.Generator().manual_seed(3)), fps=16)
    return path


@pytest.fixture
def written(base: list[str], tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """Makes a video of these lines; returns what its run left, and its folder."""

    def write(name: str, lines: tuple[str, ...], blocks: int, *words: str) -> tuple[Any, Path]:
        arguments = override([*base, "--prompt", "\n".join(lines), "--blocks", str(blocks)], *words)
        return made(tmp_path / name, arguments), tmp_path / name

    return write


@pytest.fixture(scope="module")
def film(base: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """The film by a gate: what its run left, and its folder."""
    folder = tmp_path_factory.mktemp("film") / "film"
    return made(folder, [*base, *GATE, "--prompt", "\n".join(FILM), "--blocks", str(sum(BLOCKS))]), folder


VARIANTS: dict[str, tuple[str, ...]] = {
    "gate": GATE,
    "own drafts": (*GATE, "--drafter-context", "own"),
    "first": ("--policy", "first", "--forced-blocks", "2"),
    "stride": ("--policy", "stride", "--stride", "2"),
    "cascade": (*GATE, "--cascade", "0.01"),
    "handover": (*GATE, "--handover", "1"),
    "bail-out": ("--tau", "5", "--bail-out", "1"),
    "budget": ("--budget", "0.9"),
    "colour hold": (*GATE, "--colour-hold", "0.5"),
    "rolling": (*GATE, "--target-settings", "preset=self-forcing-1.3b", "cache=incremental", "window=3"),
    "memrope": (
        *GATE,
        "--drafter-settings",
        "preset=self-forcing-1.3b",
        "cache=incremental",
        "window=6",
        "context-memory=memrope",
    ),
    "single frames": (*GATE, "--drafter-settings", "preset=self-forcing-1.3b", "block-frames=1"),
}


IN_SHORT = ("gate", "own drafts", "stride", "budget", "memrope", "single frames")
"""Those of the default tier."""
CASES = [
    pytest.param(words, id=name, marks=[] if name in IN_SHORT else pytest.mark.heavy)
    for name, words in VARIANTS.items()
]


@pytest.mark.parametrize("words", CASES)
def test_fresh_shot_equals_itself_alone(words: tuple[str, ...], written: Callable[..., Any]) -> None:
    """Catches: what a shot still knows of those before it: keys and values, decoder, route, colours, noise."""
    film, film_folder = written("film", FILM, sum(BLOCKS), *words)
    alone, alone_folder = written("alone", SHOTS[1], BLOCKS[1], *words)
    assert torch.equal(latents(film_folder)[:, :, 6:15], latents(alone_folder))
    assert decisions(film.report)[2:5] == decisions(alone.report)


def test_frames_of_shots_follow_each_other(written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a shot decoded after the one before it, a frame lost or shown twice at a join."""
    frames: list[Tensor] = []
    add = Mp4Writer.add
    monkeypatch.setattr(Mp4Writer, "add", lambda self, part: (frames.append(part.clone()), add(self, part)))
    made_film, _ = written("film", FILM, sum(BLOCKS))
    film = torch.cat(frames, dim=1)
    frames.clear()
    for number, (lines, blocks) in enumerate(zip(SHOTS, BLOCKS, strict=True)):
        written(f"shot {number}", lines, blocks)
    assert film.shape[1] == 21 + 33 + 21
    assert torch.equal(film, torch.cat(frames, dim=1))
    brightness = film[0].mean(dim=(1, 2, 3)) * 255
    step = (brightness[21] - brightness[20]).abs().item()
    shots = made_film.report["settings"]["shots"]
    assert shots[1]["join"]["brightness"] == pytest.approx(step, abs=0.02)
    assert [(shot["first_frame"], shot["frames"]) for shot in shots] == [(0, 21), (21, 33), (54, 21)]


def test_takes_and_directions_count_the_film(written: Callable[..., Any]) -> None:
    """Catches: those of a later shot counted from its own first block, or given to another shot."""
    film, film_folder = written("film", FILM, sum(BLOCKS), *GATE, "--takes", "4:2", "--directions", "...td..")
    words = (*GATE, "--takes", "2:2", "--directions", ".td")
    alone, alone_folder = written("alone", SHOTS[1], BLOCKS[1], *words)
    assert torch.equal(latents(film_folder)[:, :, 6:15], latents(alone_folder))
    assert decisions(film.report)[2:5] == decisions(alone.report)
    assert film.report["settings"]["takes"] == {"4": 2}


def test_restyled_shot_takes_its_part_of_the_clip(clip: Path, written: Callable[..., Any], tmp_path: Path) -> None:
    """The clip is cut in pixels. Catches: a shot restyled from the clip's beginning, or by another's strength."""
    lines = ("1: a red ball", "3 fresh #k3f: a blue cube", "5 strength 0.9: a green cube", "6 fresh #a: a storm")
    words = ("--restyle", str(clip), "--strength", "0.7", *GATE)
    _, film = written("film", lines, sum(BLOCKS), *words)
    folder = tmp_path / "part"
    folder.mkdir()
    for number, picture in enumerate(read_footage(clip, 16, 16).pixels[21:54]):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{number:03}.png")
    own = ("1 fresh #k3f: a blue cube", "3 strength 0.9: a green cube")
    _, alone = written("alone", own, BLOCKS[1], *override([*words], "--restyle", str(folder)))
    assert torch.equal(latents(film)[:, :, 6:15], latents(alone))


def test_clip_too_short_for_the_film_is_refused(
    base: list[str], clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the frames of all shots. Catches: a refusal that counts those of one."""
    words = (
        "--prompt",
        "\n".join(FILM),
        "--blocks",
        "9",
        "--restyle",
        str(clip),
        "--output",
        str(tmp_path / "out"),
    )
    assert "has 75 frames, and the video needs 99" in refused(capsys, [*base, *words])


def last_frame(frames: list[Tensor], of: int, path: Path) -> Path:
    """Write frame `of` of a video as a picture."""
    levels = torch.cat(frames, dim=1)[0, of].clamp(0, 1).mul(255).round().byte()
    Image.fromarray(levels.permute(1, 2, 0).numpy()).save(path)
    return path


def test_shot_begins_with_the_last_frame_of_another(
    written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with that picture as its start image, which is not shown twice. Catches: the shot before's."""
    frames: list[Tensor] = []
    add = Mp4Writer.add
    monkeypatch.setattr(Mp4Writer, "add", lambda self, part: (frames.append(part.clone()), add(self, part)))
    lines = ("1: a red ball", "3 fresh #k3f: a blue cube", "5 fresh #a from #0: a storm")
    film, film_folder = written("film", lines, 6, *GATE)
    assert [block["pixel_frames"] for block in film.report["blocks"]] == [9, 12, 9, 12, 12, 12]
    in_film = torch.cat(frames, dim=1)
    picture = last_frame(frames, 20, tmp_path / "last.png")
    frames.clear()
    alone, folder = written("alone", SHOTS[2], 2, *GATE, "--start-image", str(picture))
    assert torch.equal(latents(film_folder)[:, :, 12:], latents(folder))
    assert decisions(film.report)[4:] == decisions(alone.report)
    assert torch.equal(in_film[:, 42:], torch.cat(frames, dim=1)[:, 1:])


def test_moved_shot_is_not_made_again(film: tuple[Run, Path], written: Callable[..., Any]) -> None:
    """Its key names its noise, not its place. Catches: a place in a key of re-use, or in the noise."""
    _, first = film
    moved = ("1 fresh #k3f: a blue cube", "3: a green cube", "4 fresh #a: a storm", "6 fresh #0: a red ball")
    with counted_passes() as passes:
        run, folder = written("moved", moved, sum(BLOCKS), *GATE, "--reuse", str(first))
    assert passes == []
    assert reused(run) == sum(BLOCKS)
    before = latents(first)
    assert torch.equal(latents(folder), torch.cat((before[:, :, 6:], before[:, :, :6]), dim=2))


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_stopped_film_ends_in_the_same_film(
    cut: int, film: tuple[Run, Path], base: list[str], tmp_path: Path
) -> None:
    """Also where a shot ends. Catches: a run that begins its next shot after it was asked to stop."""
    arguments = [*base, *GATE, "--prompt", "\n".join(FILM), "--blocks", str(sum(BLOCKS))]
    whole, _ = film
    stopped(tmp_path / "cut", arguments, cut, ctrl_c)
    kept = load_latents(tmp_path / "cut" / "latents.safetensors")
    assert kept.latents.shape[2] == 3 * cut
    assert [saved.first for saved in shots_in(kept.metadata, kept.latents)] == [
        first for first in (0, 6, 15) if first < 3 * cut
    ]
    same(made(tmp_path / "cut", arguments), whole)


def test_continued_film_goes_on_with_its_last_shot(film: tuple[Run, Path], written: Callable[..., Any]) -> None:
    """With its noise. Catches: a clip of all shots taken as one run, and the last shot's key forgotten."""
    _, whole = written("whole", SHOTS[2], 4, *GATE)
    _, given = film
    clip = ("--continue-from", str(given / "latents.safetensors"))
    rest, folder = written("rest", ("1: a storm",), 2, *GATE, *clip)
    assert torch.equal(latents(folder), latents(whole))
    saved = load_latents(folder / "latents.safetensors")
    assert [shot.shot.key for shot in shots_in(saved.metadata, saved.latents)] == ["#a"]
    assert any("3 shots: the last one, #a, goes on" in note for note in rest.report["notes"])


def test_continued_shot_keeps_the_frame_that_it_began_with(written: Callable[..., Any]) -> None:
    """Catches: the held frame counted as a block, so that the next blocks have other numbers and noise."""
    lines = ("1: a red ball", "3 fresh #a from #0: a storm")
    _, longer = written("longer", lines, 5, *GATE)
    _, film = written("film", lines, 4, *GATE)
    clip = ("--continue-from", str(film / "latents.safetensors"))
    _, folder = written("rest", ("1: a storm",), 1, *GATE, *clip)
    assert torch.equal(latents(folder), latents(longer)[:, :, 6:])


def test_report_makes_the_film_again(film: tuple[Run, Path], base: list[str], tmp_path: Path) -> None:
    """Catches: shots lost in a report, and lines of a later shot counted from its own beginning."""
    run, folder = film
    again = made(tmp_path / "again", [*base, "--from", str(folder / "report.json")])
    same(again, run)
    shots = [(shot["key"], shot["first_block"]) for shot in run.report["settings"]["shots"]]
    assert shots == [("#0", 1), ("#k3f", 3), ("#a", 6)]


def test_note_on_some_shots_names_them(written: Callable[..., Any]) -> None:
    """Catches: what is true of one shot alone, said of the film."""
    film, _ = written("film", FILM, sum(BLOCKS), *GATE, "--colour-hold", "0.5")
    notes = [note for note in film.report["notes"] if "colour hold" in note]
    assert len(notes) == 1
    assert notes[0].startswith("Shot #0, #a: ")


def test_streamed_film_has_the_frames_of_its_shots(files: ModelFiles) -> None:
    """Catches: shots of a prompt that a stream ignores, and blocks that count from each shot's beginning."""
    streamer = Streamer(files, replace(pocket_options(), schedule="1000,500"))

    def blocks(lines: tuple[str, ...], count: int) -> list[StreamBlock]:
        request = VideoRequest(blocks=count, seed=2, width=16, height=16, route=Route(Gate(tau=0.1)))
        with streamer.stream(request, read_prompt("\n".join(lines))) as stream:
            return list(stream)

    film = blocks(FILM, sum(BLOCKS))
    shots = [block for lines, count in zip(SHOTS, BLOCKS, strict=True) for block in blocks(lines, count)]
    assert [block.number for block in film] == [1, 2, 3, 4, 5, 6, 7]
    assert torch.equal(torch.cat([b.frames for b in film]), torch.cat([b.frames for b in shots]))


# --- shots that are moved, changed, inserted and left out


@dataclass(frozen=True)
class Planned:
    """A shot of a film that is edited: key, prompt, number of blocks, take of its last block."""

    key: str
    prompt: str
    blocks: int
    take: int = 1


PROMPTS = ("a red ball", "a blue cube", "a storm")


def edited(film: list[Planned], draw: random.Random, number: int) -> list[Planned]:
    """Return the film after one act of an artist. `number`: of the act, for new keys."""
    place = draw.randrange(len(film))
    shot = film[place]
    rest = film[:place] + film[place + 1 :]
    match draw.choice(("move", "clone", "delete", "insert", "prompt", "take", "length")):
        case "move":
            rest.insert(draw.randrange(len(film)), shot)
            return rest
        case "clone":
            return [*film, replace(shot, key=f"#c{number}")]
        case "delete" if rest:
            return rest
        case "insert":
            return [*film[:place], Planned(f"#n{number}", draw.choice(PROMPTS), 2), *film[place:]]
        case "prompt":
            changed = replace(shot, prompt=draw.choice(PROMPTS))
        case "take":
            changed = replace(shot, take=shot.take + 1)
        case _:
            changed = replace(shot, blocks=shot.blocks % 3 + 1)
    return [*film[:place], changed, *film[place + 1 :]]


def words_of(film: list[Planned]) -> list[str]:
    """Return the options that ask for a film."""
    lines = []
    takes = []
    block = 1
    for shot in film:
        lines.append(f"{block} fresh {shot.key}: {shot.prompt}")
        block += shot.blocks
        takes += [f"{block - 1}:{shot.take}"] if shot.take > 1 else []
    return ["--prompt", "\n".join(lines), "--blocks", str(block - 1), "--takes", ",".join(takes)]


def blocks_made(film: list[Planned], before: list[Planned]) -> list[bool]:
    """Return of each block whether it is made: an earlier film has no block with the same ones before it."""

    def beginnings(shot: Planned) -> list[tuple[object, ...]]:
        takes = [1] * (shot.blocks - 1) + [shot.take]
        return [(shot.key, shot.prompt, *takes[: number + 1]) for number in range(shot.blocks)]

    known = {beginning for shot in before for beginning in beginnings(shot)}
    return [beginning not in known for shot in film for beginning in beginnings(shot)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_edits_make_only_what_they_change(seed: int, base: list[str], tmp_path: Path) -> None:
    """200 edits of films of five shots. Catches: a shot made again that stays, or used again where it changes."""
    draw = random.Random(seed)
    film = [Planned(f"#k{number}", draw.choice(PROMPTS), draw.randrange(1, 4)) for number in range(5)]
    made(tmp_path / "0", [*base, *GATE, *words_of(film)])
    for number in range(1, 6):
        before = film
        film = edited(before, draw, number)
        folder = tmp_path / str(number)
        run = made(folder, [*base, *GATE, *words_of(film), "--reuse", str(tmp_path / str(number - 1))])
        assert [not block["reused"] for block in run.report["blocks"]] == blocks_made(film, before)
    same(run, made(tmp_path / "anew", [*base, *GATE, *words_of(film)]))


def test_shots_of_a_request_need_no_prompt_lines() -> None:
    """Catches: shots that Python states in a request, dropped without a word."""
    stated = VideoRequest(shots="1:#0,4:#k3f")
    assert with_prompt_lines(stated, read_prompt("a sea")).shots == "1:#0,4:#k3f"
    assert with_prompt_lines(stated, read_prompt("a sea\n3 fresh #a: a lake")).shots == "1:#0,3:#a"


# --- what it refuses


REFUSED = {
    "twice": (("1: a ball", "3 fresh #a: a cube", "5 fresh #a: a storm"), (), "two shots have the key #a"),
    "first key": (("1: a ball", "3 fresh #0: a cube"), (), "two shots have the key #0"),
    "form": (("1: a ball", "3 fresh #K3: a cube"), (), "1 to 12 of a-z and 0-9"),
    "empty": (("1: a ball", "3 fresh #a:"), (), "says nothing"),
    "later": (("1: a ball", "3 fresh #a from #b: a cube", "5 fresh #b: a lake"), (), "no shot before it"),
    "itself": (("1: a ball", "3 fresh #a from #a: a cube"), (), "no shot before it"),
    "cut": (("1: a ball", "3 cut fresh #a: a cube"), (), "needs no cut"),
}


@pytest.mark.parametrize(("lines", "words", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_impossible_shots_are_refused(
    lines: tuple[str, ...],
    words: tuple[str, ...],
    problem: str,
    base: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--prompt", "\n".join(lines), "--blocks", "5", "--output", str(tmp_path / "out")]
    assert problem in refused(capsys, [*base, *words, *asked])


def test_restyled_shot_from_another_is_refused(
    clip: Path, base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins with its part of the clip. Catches: one of the two that has no effect, unsaid."""
    words = ["--restyle", str(clip), "--strength", "strong", "--prompt", "1: a ball\n3 fresh #a from #0: a cube"]
    sentence = refused(capsys, [*base, *words, "--blocks", "5", "--output", str(tmp_path / "out")])
    assert "leave 'from #0' out" in sentence


@pytest.mark.parametrize(
    ("prompt", "remedy"),
    [
        ("1: a ball\n3 fresh #a: a cube", "begin it at block 4"),
        ("[first 1] a ball\n5 fresh #a: a cube", "leave [first 1] out"),
    ],
)
def test_shot_that_a_clip_excludes_is_refused(
    prompt: str,
    remedy: str,
    written: Callable[..., Any],
    base: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A clip belongs to the first shot. Catches: one that cuts the clip; first blocks stated for it alone."""
    _, folder = written("clip", ("1: a red ball",), 2, *GATE)
    words = ["--continue-from", str(folder / "latents.safetensors"), "--prompt", prompt, "--blocks", "4"]
    assert remedy in refused(capsys, [*base, *words, "--output", str(tmp_path / "out")])
