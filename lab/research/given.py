"""Measure what becomes of a clip that is given to the embedded models, into docs/rows: made anew, and gone on from.

    python -m lab.research.given restyle
    python -m lab.research.given extend
    python -m lab.research.given picture --output docs/images/restyle.png

Clips are the world's own, of one thing; prompts are held out. A clip to restyle shows another thing over another
ground, once on the prompt's path and once on a path of its own. Rows are added one by one, and the same command
goes on after the last. The picture: three prompts, restyled by the target.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from lab.training.common import seeded
from lab.training.contact_sheet import Strip, draw
from lab.training.measure_pair import scenes_of
from sdvg_core import Streamer, VideoRequest, pocket_options, trained_set
from sdvg_core.cli import guarded
from sdvg_core.engine.protocols import VideoCodec
from sdvg_core.files.footage import read_footage
from sdvg_core.files.video import write_mp4
from sdvg_core.pocket.figures import figures_of
from sdvg_core.pocket.oracle import BEST, REACH, judge, weighted_error
from sdvg_core.pocket.renderer import centre, render_scene, render_with_mask
from sdvg_core.pocket.world import SIZE, Scene, clash
from sdvg_core.settings.route import ROUTE_PRESETS, First, Route, TargetOnly
from sdvg_core.weights.latents import save_latents

from .looks import FIGURES, ROWS, add_row, rows_in
from .metrics import levels

PROMPTS = 40
SEED = 33
"""Of the prompts and, with their numbers, of their noise."""
BLOCKS = 4
FRAMES = 45
SEAMS = tuple(range(9, FRAMES, 12))
FAR = 16.0
"""Pixels between two paths, on average over the clip, that make them different ones."""
ROUTES = {
    "target": Route(TargetOnly()),
    "fast": ROUTE_PRESETS["fast"],
    "draft": Route(First(0)),
}
NO_CLIP = "1"
"""The strength that replaces every step."""
STRENGTHS = (NO_CLIP, "strong", "medium", "light", "0.3", "0.2")
ON_ITS_PATH, ELSEWHERE = "same-path", "other-path"
RESTYLED = (
    *((path, "target", strength) for path in (ON_ITS_PATH, ELSEWHERE) for strength in STRENGTHS),
    *((ELSEWHERE, route, strength) for route in ("fast", "draft") for strength in ("medium", "light")),
)
"""Each clip that is made of a prompt: what is given, by whom, how strongly."""
LATE = 24
"""Frames by which a video that starts from a picture may be late: it first shows things that stand still."""
GIVEN = (1, 2, 3, 5, 7, 9)
"""Latent frames of clips to go on from."""
NEW = 3
"""Blocks that are then made, of 12 frames."""
GIVEN_MP4 = 57
"""Frames."""
PARTS = ("in-the-clip", "at-the-seam", "between-blocks")
"""Of an mp4 and the blocks that go on from it."""


# --- made anew


def dressed(scene: Scene, other: Scene) -> Scene:
    """Return another scene in the colour, shape, size and ground of a scene, on its own path."""
    path = {name: getattr(other.mover, name) for name in ("place", "pace", "direction")}
    return replace(scene, mover=replace(scene.mover, **path))


def inputs_for(scene: Scene, generator: random.Random) -> dict[str, Scene]:
    """Draw what is shown by the clips to restyle: another look on the scene's path, and on another path."""
    times = torch.arange(FRAMES, dtype=torch.float32)

    def apart(one: Scene) -> float:
        where = [torch.stack(centre(of.mover, times)) for of in (one, scene)]
        return float((where[0] - where[1]).norm(dim=0).mean())

    while True:
        [other] = scenes_of(generator, 1, kind="alone")
        mover = replace(other.mover, size=scene.mover.size)
        found = {
            ON_ITS_PATH: dressed(replace(other, mover=mover), scene),
            ELSEWHERE: replace(other, mover=mover),
        }
        unlike = other.ground != scene.ground and other.mover.colour != scene.mover.colour
        if unlike and apart(other) > FAR and not any(map(clash, (*found.values(), dressed(scene, other)))):
            return found


def made(streamer: Streamer, scene: Scene, **asked: Any) -> Tensor:
    """Make the new frames `f c h w` of a video."""
    request = VideoRequest(width=SIZE, height=SIZE, **{"route": ROUTES["target"], **asked})
    with streamer.stream(request, scene.text) as blocks:
        return torch.cat([block.frames for block in blocks]).movedim(-1, 1)


def restyled(streamer: Streamer, scene: Scene, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each of RESTYLED.

    `nearer_to_the_clip`: the share of blocks that are nearer to the prompt's thing on the clip's path than to that
    on its own; None where these are one.
    """
    inputs = inputs_for(scene, seeded(seed, "inputs"))
    for name, shown in inputs.items():
        write_mp4(folder / f"{name}.mp4", render_scene(shown, torch.arange(FRAMES)), fps=16)
    for path, route, strength in RESTYLED:
        asked = {"route": ROUTES[route], "blocks": BLOCKS, "seed": seed, "strength": strength}
        clip = made(streamer, scene, restyle=folder / f"{path}.mp4", **asked)
        followed = dressed(scene, inputs[path])
        nearer = None if followed == scene else share_of_blocks(clip, followed, scene)
        yield {"way": f"{route}/{path}/{strength}", **figures(clip, scene, SEAMS), "nearer_to_the_clip": nearer}


def share_of_blocks(frames: Tensor, scene: Scene, other: Scene) -> float:
    """Return the share of a clip's blocks that are nearer to a scene than to another."""
    one, two = ([part.mean() for part in judge(frames, of).quality.tensor_split(SEAMS)] for of in (scene, other))
    return fmean(float(this > that) for this, that in zip(one, two, strict=True))


def figures(frames: Tensor, scene: Scene, seams: Sequence[int]) -> dict[str, float]:
    """Return the figures that every row has."""
    found = figures_of(frames, scene, seams)
    return {name: found[name] for name in FIGURES}


# --- gone on from


def extended(
    streamer: Streamer, codec: VideoCodec, scene: Scene, seed: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield rows of new frames by how much was given, and of the same frames of a video that was made whole.

    `quality` allows for a video that is late; the figures of the last block do not.
    """
    whole = made(streamer, scene, blocks=6, seed=seed)
    for latents in GIVEN:
        shown = 1 + 4 * (latents - 1)
        given = render_scene(scene, torch.arange(shown))
        save_latents(folder / "clip.safetensors", codec.encode(given[None]), {})
        new = made(streamer, scene, continue_from=folder / "clip.safetensors", blocks=NEW, seed=seed)
        of_whole = whole[: shown + len(new)]
        for way, frames in (("given", torch.cat([given, new])), ("whole", of_whole)):
            of_all = figures(frames, scene, [len(frames) - len(new) // NEW])
            of_all.pop("at_its_place")  # it counts what was given
            quality = decibels(frames[shown:], scene, shown).mean().item()
            yield {"way": f"{way}-{latents}", **of_all, "quality": quality}


def decibels(frames: Tensor, scene: Scene, first: int) -> Tensor:
    """Return (f,) decibels of frames due from `first` on, each at its best moment: LATE late to REACH early."""
    count = len(frames)
    times = torch.arange(first - LATE, first + count + REACH, dtype=torch.float32).clamp(min=0)
    truth, mask = render_with_mask(scene, times)
    lags = range(LATE + REACH + 1)
    errors = [weighted_error(frames, truth[i : i + count], mask[i : i + count]) for i in lags]
    return (-10 * torch.stack(errors).amin(dim=0).clamp(min=1e-12).log10()).clamp(max=BEST)


def changes(streamer: Streamer, scene: Scene, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield by how many levels pixels change from frame to frame, for each of PARTS."""
    write_mp4(folder / "clip.mp4", render_scene(scene, torch.arange(GIVEN_MP4)), fps=16)
    given = read_footage(folder / "clip.mp4", SIZE, SIZE).pixels / 255
    new = made(streamer, scene, continue_from=folder / "clip.mp4", blocks=NEW, seed=seed)
    change = levels(torch.cat([given, new]).diff(dim=0))
    seam = len(given) - 1
    of_each = len(new) // NEW
    parts = (change[:seam], change[seam : seam + 1], change[seam + of_each :: of_each])
    for way, part in zip(PARTS, parts, strict=True):
        yield {"way": way, "change": part.mean().item()}


# --- a picture


def picture(streamer: Streamer, scenes: Sequence[Scene], folder: Path) -> list[tuple[str, list[Strip]]]:
    """Return the rows of a sheet: every clip on its own path, and what the target makes of it."""
    times = torch.arange(FRAMES)
    sheet = []
    middle = [4, *(start + 6 for start in SEAMS)]
    for number, scene in enumerate(scenes):
        shown = inputs_for(scene, seeded(seed_of(number), "inputs"))[ELSEWHERE]
        truth = render_scene(shown, times)
        write_mp4(folder / "clip.mp4", truth, fps=16)
        rows = [("the clip", truth)]
        for strength in ("light", "medium", "strong", NO_CLIP):
            asked = {"blocks": BLOCKS, "seed": seed_of(number), "strength": strength}
            clip = made(streamer, scene, restyle=folder / "clip.mp4", **asked)
            rows.append(("no clip" if strength == NO_CLIP else strength, clip))
        strips = [Strip(name, [clip[i] for i in middle], ["#FFFFFF"] * BLOCKS, None) for name, clip in rows]
        sheet.append((scene.text, strips))
    return sheet


# --- measuring


def seed_of(number: int) -> int:
    """Return the seed of a prompt's noise."""
    return 1000 * SEED + number


def main(words: Sequence[str] | None = None) -> int:
    """Make the rows that are missing, or the picture, and return the exit code."""
    parser = argparse.ArgumentParser("python -m lab.research.given", description=__doc__)
    parser.add_argument("what", choices=("restyle", "extend", "picture"))
    parser.add_argument("--prompts", type=int, default=PROMPTS, metavar="N", help=f"only the first N of {PROMPTS}")
    parser.add_argument("--folder", type=Path, default=ROWS)
    parser.add_argument("--output", type=Path, default=Path("out/restyle.png"), help="of the picture")
    options = parser.parse_args(words)
    return guarded(lambda: _work(options), extra="research", instead="study")


def _work(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    scenes = scenes_of(seeded(SEED, "given"), PROMPTS, held_out=True, kind="alone")[: options.prompts]
    streamer = Streamer(trained_set(), pocket_options())
    if options.what == "picture":
        with tempfile.TemporaryDirectory() as name:
            draw(picture(streamer, scenes[:3], Path(name))).save(options.output)
    elif options.what == "restyle":
        _measure(options.folder / "restyled.csv", scenes, len(RESTYLED), partial(restyled, streamer))
    else:
        codec = streamer._loaded.build().codec
        measure = partial(extended, streamer, codec=codec)
        _measure(options.folder / "extended.csv", scenes, 2 * len(GIVEN), measure)
        _measure(options.folder / "seams.csv", scenes, len(PARTS), partial(changes, streamer))
    return 0


def _measure(
    file: Path, scenes: Sequence[Scene], rows_each: int, measure: Callable[..., Iterator[dict[str, Any]]]
) -> None:
    """Add the rows that a file lacks; `rows_each`: of a prompt that is finished."""
    for number, scene in enumerate(scenes):
        there = {row["way"] for row in rows_in(file) if row["prompt"] == str(number)}
        if len(there) == rows_each:
            continue
        began = time.process_time()
        with tempfile.TemporaryDirectory() as name:
            for row in measure(scene=scene, seed=seed_of(number), folder=Path(name)):
                if row["way"] not in there:
                    add_row(file, _line(row, number))
        print(f"{file.stem}, prompt {number}: {time.process_time() - began:.1f} s", flush=True)


def _line(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a row of a file by its columns."""
    numbers = {name: value for name, value in row.items() if name != "way"}
    return {
        **{"way": row["way"], "prompt": number, "seed": SEED},
        **{name: "" if value is None or value != value else f"{value:.4f}" for name, value in numbers.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
