"""Measure what becomes of a clip that is given to the embedded models: made anew, and gone on from.

    python -m lab.training.measure_start restyle|extend OUT.jsonl [--prompts 40] [--picture FILE]

Clips are the world's own, of one thing; prompts are held out. A clip to restyle shows another thing over another
ground, once on the prompt's path and once on a path of its own. What a prompt measures goes into OUT.jsonl as it is
made, and the same command goes on after the last. `--picture`: three prompts, restyled by the target.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.research.metrics import levels
from lab.rows import add_rows, read_rows
from sdvg_core import Streamer, VideoRequest, pocket_options, trained_set
from sdvg_core.files.footage import read_footage
from sdvg_core.files.video import write_mp4
from sdvg_core.pocket.oracle import BEST, REACH, judge, weighted_error
from sdvg_core.pocket.presence import presence
from sdvg_core.pocket.renderer import centre, render_scene, render_with_mask
from sdvg_core.pocket.world import SIZE, Scene, clash
from sdvg_core.settings.route import ROUTE_PRESETS, First, Route, TargetOnly
from sdvg_core.weights.latents import save_latents

from .common import seeded
from .contact_sheet import Strip, draw
from .measure_pair import interval_of_mean, numbers_of, scenes_of

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
NOISE_ALONE = "1"
STRENGTHS = (NOISE_ALONE, "strong", "medium", "light")
LATE = 24
"""Frames by which a video that starts from a picture may be late: it first shows things that stand still."""
GIVEN = (1, 2, 3, 4, 5, 6, 7, 9)
"""Latent frames of clips to go on from."""
NEW = 3
"""Blocks that are then made."""


def decibels(frames: Tensor, scene: Scene, first: int = 0) -> Tensor:
    """Return (f,) decibels of frames due from `first` on, each against its best moment up to LATE late."""
    count = len(frames)
    lags = REACH + LATE
    times = torch.arange(first - REACH, first + count + LATE, dtype=torch.float32).clamp(min=0)
    truth, mask = render_with_mask(scene, times)
    errors = [weighted_error(frames, truth[i : i + count], mask[i : i + count]) for i in range(lags)]
    return (-10 * torch.stack(errors).amin(dim=0).clamp(min=1e-12).log10()).clamp(max=BEST)


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
            "same path": dressed(replace(other, mover=mover), scene),
            "other path": replace(other, mover=mover),
        }
        unlike = other.ground != scene.ground and other.mover.colour != scene.mover.colour
        if unlike and apart(other) > FAR and not any(map(clash, (*found.values(), dressed(scene, other)))):
            return found


def made(streamer: Streamer, scene: Scene, **asked: Any) -> Tensor:
    """Make the new frames `f c h w` of a video."""
    request = VideoRequest(width=SIZE, height=SIZE, **{"route": ROUTES["target"], **asked})
    with streamer.stream(request, scene.text) as blocks:
        return torch.cat([block.frames for block in blocks]).movedim(-1, 1)


def by_block(values: Tensor) -> list[float]:
    """Return the mean of each block."""
    return [part.mean().item() for part in values.tensor_split(SEAMS)]


def restyled(
    streamer: Streamer,
    scene: Scene,
    seed: int,
    folder: Path,
    routes: Sequence[str] = ("target",),
    strengths: Sequence[str] = STRENGTHS,
) -> dict[str, Any]:
    """Return by clip, route and strength what the oracle finds block by block."""
    times = torch.arange(FRAMES)
    found = dict[str, Any]()
    plain: dict[str, Tensor] = {}
    for name, shown in inputs_for(scene, seeded(seed, "inputs")).items():
        write_mp4(folder / "clip.mp4", render_scene(shown, times), fps=16)
        followed = dressed(scene, shown)
        scenes = {"prompt": scene, "clip": shown, **({} if followed == scene else {"followed": followed})}
        for route in routes if followed != scene else routes[:1]:
            for strength in strengths:
                asked = {"route": ROUTES[route], "blocks": BLOCKS, "seed": seed, "strength": strength}
                if strength != NOISE_ALONE or route not in plain:
                    clip = made(streamer, scene, restyle=folder / "clip.mp4", **asked)
                clip = plain.setdefault(route, clip) if strength == NOISE_ALONE else clip
                found[f"{name}, {route}, {strength}"] = {
                    "dB": {of: by_block(judge(clip, one).quality) for of, one in scenes.items()},
                    "there": by_block(presence(clip, followed, times)[:, 0]),
                }
    return found


def extended(streamer: Streamer, scene: Scene, seed: int, folder: Path) -> dict[str, Any]:
    """Return decibels of new frames by how much was given, and the change across seams and inside."""
    whole = made(streamer, scene, blocks=6, seed=seed)
    codec = streamer._loaded.build().codec
    found: dict[str, Any] = {"dB": {}, "whole dB": {}}
    for frames in GIVEN:
        shown = 1 + 4 * (frames - 1)
        given = render_scene(scene, torch.arange(shown))
        save_latents(folder / "clip.safetensors", codec.encode(given[None]), {})
        new = made(streamer, scene, continue_from=folder / "clip.safetensors", blocks=NEW, seed=seed)
        found["dB"][frames] = decibels(new, scene, shown).mean().item()
        found["whole dB"][frames] = decibels(whole[shown:][: len(new)], scene, shown).mean().item()
    write_mp4(folder / "clip.mp4", render_scene(scene, torch.arange(57)), fps=16)
    given = read_footage(folder / "clip.mp4", SIZE, SIZE).pixels / 255
    new = made(streamer, scene, continue_from=folder / "clip.mp4", blocks=NEW, seed=seed)
    change = levels(torch.cat([given, new]).diff(dim=0))
    within = torch.ones(len(new) - 1, dtype=torch.bool)
    within[11::12] = False
    after = change[len(given) :]
    found["change"] = {
        "in the clip": change[: len(given) - 1].mean().item(),
        "across the seam": change[len(given) - 1].item(),
        "across new blocks": after[~within].mean().item(),
        "inside new blocks": after[within].mean().item(),
    }
    return found


def restyle_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return by clip, route and strength the figures with their intervals."""
    table = {}
    for way in rows[0]["found"]:
        cells = [row["found"][way] for row in rows]
        dB = {of: torch.tensor([cell["dB"][of] for cell in cells]) for of in cells[0]["dB"]}
        values = {f"dB, {of}": each.mean(dim=1) for of, each in dB.items()}
        if "followed" in dB:
            values["follows the clip, %"] = 100 * (dB["followed"] > dB["prompt"]).float().mean(dim=1)
        values["there, %"] = 100 * torch.from_numpy(numbers_of([cell["there"] for cell in cells])).mean(dim=1)
        table[way] = {name: interval_of_mean(of) for name, of in values.items()}
    return table


def extend_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return by what was given the figures with their intervals."""
    table: dict[str, Any] = {}
    for frames in GIVEN:
        dB = {of: torch.tensor([row["found"][of][str(frames)] for row in rows]) for of in ("dB", "whole dB")}
        dB["less than whole"] = dB["dB"] - dB["whole dB"]
        table[f"{frames} latent frames"] = {name: interval_of_mean(of) for name, of in dB.items()}
    for name in rows[0]["found"]["change"]:
        change = torch.tensor([row["found"]["change"][name] for row in rows])
        table[name] = interval_of_mean(change)
    return table


def picture(streamer: Streamer, scenes: Sequence[Scene], seed: int, folder: Path) -> list[tuple[str, list[Strip]]]:
    """Return the rows of a sheet: every clip on its own path, and what the target makes of it."""
    at = [0, *SEAMS]
    times = torch.arange(FRAMES)
    sheet = []
    middle = [start + 6 for start in at]
    middle[0] = 4
    for number, scene in enumerate(scenes):
        shown = inputs_for(scene, seeded(seed + number, "inputs"))["other path"]
        truth = render_scene(shown, times)
        write_mp4(folder / "clip.mp4", truth, fps=16)
        rows = [("the clip", truth)]
        for strength in ("light", "medium", "strong", NOISE_ALONE):
            asked = {"blocks": BLOCKS, "seed": seed + number, "strength": strength}
            clip = made(streamer, scene, restyle=folder / "clip.mp4", **asked)
            rows.append(("no clip" if strength == NOISE_ALONE else strength, clip))
        strips = [Strip(name, [clip[i] for i in middle], ["#FFFFFF"] * BLOCKS, None) for name, clip in rows]
        sheet.append((scene.text, strips))
    return sheet


def main() -> None:
    """Measure what is missing, and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("restyle", "extend"))
    options.add_argument("out", type=Path)
    options.add_argument("--prompts", type=int, default=40)
    options.add_argument("--seed", type=int, default=33, help="of the prompts and of the noise")
    options.add_argument("--routes", nargs="+", choices=ROUTES, default=["target"], help="of restyled clips")
    options.add_argument("--strengths", nargs="+", default=STRENGTHS, help="of restyled clips, words or numbers")
    options.add_argument("--picture", type=Path)
    args = options.parse_args()
    torch.set_num_threads(1)
    scenes = scenes_of(seeded(args.seed, "given"), args.prompts, held_out=True, kind="alone")
    streamer = Streamer(trained_set(), pocket_options())
    ways: dict[str, tuple[Callable[..., dict[str, Any]], Callable[..., dict[str, Any]]]] = {
        "restyle": (partial(restyled, routes=args.routes, strengths=args.strengths), restyle_table),
        "extend": (extended, extend_table),
    }
    measure, table = ways[args.what]
    with tempfile.TemporaryDirectory() as name:
        if args.picture:
            draw(picture(streamer, scenes[:3], 1000 * args.seed, Path(name))).save(args.picture)
        for number in range(len(read_rows(args.out)), args.prompts):
            found = measure(streamer, scenes[number], 1000 * args.seed + number, Path(name))
            add_rows(args.out, [{"prompt": scenes[number].text, "found": found}])
    print(json.dumps(table(read_rows(args.out)), indent=1))


if __name__ == "__main__":
    main()
