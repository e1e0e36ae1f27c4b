"""Picture every template for ComfyUI's list of them: six frames, who made the blocks, and by which models.

    python3 -m tools.release.covers FOLDER [NAME ...]

The embedded miniature makes what it can, with a fixed seed: what a template with its models asks for, else one of
the demo's prompts. It has no control model and no upscaler, so the pictures of those templates are drawn from its
world, and say so. ComfyUI prints a template's name below its picture, and a badge over the upper left corner: no
words stand there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sdvg_core import Streamer, VideoRequest, pocket_options, trained_set
from sdvg_core.files.video import write_mp4
from sdvg_core.pocket import EXAMPLE_PROMPTS
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.renderer import render_scene, render_with_mask
from sdvg_core.pocket.world import SIZE
from sdvg_core.report.summary import INKS, OUTCOME_COLOURS, Outcome, outcome_of
from sdvg_core.settings.request import ClipFile
from sdvg_core.settings.route import ROUTE_PRESETS, Route
from sdvg_core.text.prompts import read_prompt
from sdvg_core.videos.stream import StreamBlock

SIDE = 640
TEMPLATES = Path(__file__).resolve().parents[2] / "workflows"
MARGIN = 24
GAP = 6
QUALITY = 80
GROUND = "#16181d"
FAINT = "#b8bec8"
COLUMNS = 3
ROWS = 2
CELL = SIDE // COLUMNS
BLOCKS = 9
FRAMES = 105
SEED = 42
MINIATURE = "by the embedded miniature"
DRAWN = "drawn: goes in, comes out"
HOST = "by ComfyUI's own nodes"
SHOWN = {
    Outcome.FORCED: "large model",
    Outcome.REMADE: "remade",
    Outcome.KEPT: "small, checked",
    Outcome.DRAFTED_UNSEEN: "small model",
}
"""Who made a block, short enough to be read at a third of the size."""

Frames = Sequence[Tensor]
Cover = tuple[Frames, Sequence[Outcome], str]
"""Six frames `c h w`, the outcome of every block, and who made the frames."""


def evenly(clip: Tensor, count: int = COLUMNS * ROWS) -> list[Tensor]:
    """Return frames of a clip `f c h w` from its whole length, not the very first."""
    return [clip[i] for i in torch.linspace(len(clip) / (2 * count), len(clip) - 1, count).int()]


def made(streamer: Streamer, text: str, route: Route, **settings: Any) -> tuple[Tensor, list[Outcome]]:
    """Make a clip of a prompt, and return its frames `f c h w` with the outcome of each block."""
    settings = {"blocks": BLOCKS, "seed": SEED, "width": SIZE, "height": SIZE, **settings}
    request = VideoRequest(route=route, **settings)
    with streamer.stream(request, read_prompt(text)) as stream:
        parts = [*stream]
    outcomes = [outcome_of(part.record) for part in parts if isinstance(part, StreamBlock)]
    return torch.cat([part.frames for part in parts]).movedim(-1, 1), outcomes


def asked_in(name: str) -> list[str]:
    """Return the prompts of a template with the embedded models, in the order of its nodes."""
    graph = json.loads((TEMPLATES / f"sdvg_{name}.json").read_text(encoding="utf-8"))
    nodes = sorted(graph["nodes"], key=lambda node: int(node["id"]))
    return [str(node["widgets_values"][0]) for node in nodes if node["type"] == "SDVGPocketModels"]


def plain(streamer: Streamer, prompt: str, preset: str, **settings: Any) -> Cover:
    """A clip from a prompt alone."""
    frames, outcomes = made(streamer, prompt, ROUTE_PRESETS[preset], **settings)
    return evenly(frames), outcomes, MINIATURE


def from_picture(streamer: Streamer, prompt: str, preset: str) -> Cover:
    """A clip from a given picture, which is the first cell."""
    scene = parse(prompt)
    picture = render_scene(scene, torch.zeros(1))[0]
    with tempfile.TemporaryDirectory() as folder:
        Image.fromarray(_pixels(picture)).save(Path(folder) / "start.png")
        start = Path(folder) / "start.png"
        frames, outcomes = made(streamer, prompt, ROUTE_PRESETS[preset], start_image=start)
    return [picture, *evenly(frames, 5)], outcomes, MINIATURE


def from_clip(streamer: Streamer, prompt: str, preset: str, shown: str, way: str, **settings: Any) -> Cover:
    """A clip of the world that is extended or restyled."""
    given = render_scene(parse(shown), torch.arange(45 if way == "continue_from" else FRAMES))
    return made_of(streamer, given, prompt, preset, way, **settings)


def from_made_clip(streamer: Streamer, name: str, preset: str, blocks: int, way: str, **settings: Any) -> Cover:
    """A clip that the miniature makes, and extends or restyles: the two prompts of a template."""
    first, second = asked_in(name)
    given, _ = made(streamer, first, ROUTE_PRESETS[preset], blocks=blocks)
    return made_of(streamer, given, second, preset, way, **settings)


def made_of(streamer: Streamer, given: Tensor, text: str, preset: str, way: str, **settings: Any) -> Cover:
    """A clip and what is made of it: given frames `f c h w` in the upper row, the others in the lower."""
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.mp4"
        write_mp4(clip, given, fps=16)
        frames, outcomes = made(streamer, text, ROUTE_PRESETS[preset], **{way: clip}, **settings)
    return [*evenly(given, 3), *evenly(frames, 3)], outcomes, MINIATURE


def storyboard(streamer: Streamer) -> Cover:
    """Three shots, and a clip between them that the miniature makes too."""
    story, words = asked_in("17_storyboard")
    given, _ = made(streamer, words, ROUTE_PRESETS["paper"], blocks=3)
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.mp4"
        write_mp4(clip, given, fps=16)
        shown = (ClipFile("#clip1", clip),)
        frames, outcomes = made(streamer, story, ROUTE_PRESETS["paper"], clips=shown)
    parts = frames.tensor_split([33, 66, 90])
    cells = [frame for part, count in zip(parts, (2, 1, 1, 2), strict=True) for frame in evenly(part, count)]
    return cells, outcomes, MINIATURE


def controlled(control: Callable[[Tensor, Tensor], Tensor], prompt: str) -> Cover:
    """What goes in (upper row) and what is to come out, as the world draws them."""
    frames, mask = render_with_mask(parse(prompt), torch.arange(FRAMES))
    given = control(frames, mask.expand_as(frames))
    outcomes = [Outcome.FORCED] * 2 + [Outcome.DRAFTED_UNSEEN] * (BLOCKS - 2)
    return [*evenly(given, 3), *evenly(frames, 3)], outcomes, DRAWN


def finished(prompt: str) -> Cover:
    """A clip as it is, and enlarged."""
    clip = render_scene(parse(prompt), torch.arange(FRAMES))
    small = torch.nn.functional.interpolate(clip, scale_factor=0.25, mode="area")
    return [*evenly(small, 3), *evenly(clip, 3)], (), HOST


def ends(frames: Tensor, _: Tensor) -> Tensor:
    """Keep the first and the last of the frames that are shown, and leave grey between."""
    grey = torch.full_like(frames, 0.5)
    third = len(frames) // 3
    return torch.cat([frames[:1].expand(third, -1, -1, -1), grey[: len(frames) - 2 * third], frames[-third:]])


RING, DIAMOND, BALL, PAIR, _, BOX = EXAMPLE_PROMPTS
"""The demo's prompts; the small model alone does the last two well."""
SMALL_RING = "a small red ring crawls left from the right over night"
BLUE = "a big blue ball crawls up from the middle over grass"
YELLOW = "a big yellow ball runs right and down from the middle over night"
PURPLE = "a big purple ball drifts down from the right over snow"
STEERED = (
    "a big yellow diamond drifts left from the bottom right over dusk\n"
    "5: a big yellow diamond drifts up from the middle over sea"
)

COVERS: dict[str, Callable[[Streamer], Cover]] = {
    "01_pocket_demo": partial(plain, prompt=asked_in("01_pocket_demo")[0], preset="paper"),
    "02_pocket_app": partial(plain, prompt=asked_in("02_pocket_app")[0], preset="balanced"),
    "03_text_to_video": partial(plain, prompt=BLUE, preset="balanced"),
    "04_app": partial(plain, prompt=PAIR, preset="balanced"),
    "05_quick_preview": partial(plain, prompt=BOX, preset="fast"),
    "06_paper_gate": partial(plain, prompt=SMALL_RING, preset="paper"),
    "07_continue_and_image": partial(from_picture, prompt=BOX, preset="fast"),
    "08_framewise_drafter": partial(plain, prompt=DIAMOND, preset="fast", seed=SEED + 1),
    "09_two_gpus": partial(plain, prompt=BALL, preset="balanced", seed=SEED + 1),
    "10_extend_video": partial(from_clip, prompt=BLUE, preset="fast", shown=BLUE, way="continue_from"),
    "11_restyle_video": partial(
        from_clip, prompt=PURPLE, preset="balanced", shown=YELLOW, way="restyle", strength="medium"
    ),
    "12_depth_to_video": lambda _: controlled(lambda frames, mask: 0.15 + 0.8 * mask, BOX),
    "13_inpaint": lambda _: controlled(lambda frames, mask: torch.where(mask > 0, 0.5, frames), DIAMOND),
    "14_first_and_last_frame": lambda _: controlled(ends, RING),
    "15_long_video": partial(plain, prompt=BOX, preset="fast", blocks=18),
    "16_finish_a_clip": lambda _: finished(PAIR),
    "17_storyboard": storyboard,
    "18_pocket_extend_video": partial(
        from_made_clip, name="18_pocket_extend_video", preset="careful", blocks=4, way="continue_from"
    ),
    "19_pocket_restyle_video": partial(
        from_made_clip,
        name="19_pocket_restyle_video",
        preset="balanced",
        blocks=BLOCKS,
        way="restyle",
        strength="light",
    ),
    "20_pocket_live": partial(plain, prompt=STEERED, preset="paper", drafter_context="own"),
}


def _pixels(frame: Tensor) -> Any:
    """Return a frame `c h w` in [0, 1] as 8-bit `h w c`."""
    return (frame.clamp(0, 1) * 255).round().byte().movedim(0, -1).numpy()


def draw(frames: Frames, outcomes: Sequence[Outcome], source: str) -> Image.Image:
    """Return the square: the frames row by row, a small square for each block, what the colours are, the source."""
    cover = Image.new("RGB", (SIDE, SIDE), GROUND)
    for place, frame in enumerate(frames):
        row, column = divmod(place, COLUMNS)
        cell = Image.fromarray(_pixels(frame)).resize((CELL, CELL), Image.Resampling.BICUBIC)
        cover.paste(cell, (column * (CELL + 1), row * (CELL + 1)))
    brush = ImageDraw.Draw(cover)
    small = ImageFont.load_default(28)
    top = ROWS * (CELL + 1) + MARGIN
    width = (SIDE - 2 * MARGIN + GAP) / max(len(outcomes), 1)
    for place, outcome in enumerate(outcomes):
        left = MARGIN + place * width
        brush.rounded_rectangle((left, top, left + width - GAP, top + 52), 8, fill=OUTCOME_COLOURS[outcome])
        if width > 40:
            middle = (left + (width - GAP) / 2, top + 26)
            brush.text(middle, str(place + 1), fill=INKS[outcome], font=ImageFont.load_default(30), anchor="mm")
    left = MARGIN
    for outcome in dict.fromkeys(outcomes):
        brush.rounded_rectangle((left, top + 78, left + 24, top + 102), 6, fill=OUTCOME_COLOURS[outcome])
        brush.text((left + 34, top + 90), SHOWN[outcome], fill="white", font=small, anchor="lm")
        left += 34 + brush.textlength(SHOWN[outcome], small) + 24
    brush.text((MARGIN, SIDE - 34), source, fill=FAINT, font=small, anchor="lm")
    return cover


def main() -> None:
    """Draw all of them, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*COVERS], help="such as 03_text_to_video")
    options = parser.parse_args()
    torch.set_num_threads(1)
    streamer = Streamer(trained_set(), pocket_options())
    for name in options.names:
        path = options.folder / f"sdvg_{name}.jpg"
        draw(*COVERS[name](streamer)).save(path, quality=QUALITY, optimize=True)
        print(path)


if __name__ == "__main__":
    main()
