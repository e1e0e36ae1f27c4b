"""Draw what the pocket set can do: the world itself, target-only, draft-only and routed, prompt by prompt.

    python -m lab.training.contact_sheet [--prompts 5] [--output docs/images/pocket_set.png]

Every row is one held-out prompt's video by one way of making it, a frame per block, in the routed row each in the
colour of who made it, with the oracle's mean quality at the end.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from lab.research.protocol import Configuration
from lab.research.videos import StudyOptions, configured, load_study_models
from lab.research.world import held_out_prompts
from sdvg_core.engine.types import Condition
from sdvg_core.loading.load import encode_prompts
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import judge
from sdvg_core.pocket.renderer import render_scene
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.pocket.world import SIZE
from sdvg_core.report.picture import LIGHT, fitted, write
from sdvg_core.report.summary import OUTCOME_COLOURS, outcome_of
from sdvg_core.settings.route import First, Gate, Route, TargetOnly

WAYS = (
    Configuration("target-only", "", Route(TargetOnly())),
    Configuration("routed, tau -0.7", "", Route(Gate(-0.7))),
    Configuration("draft-only", "", Route(First(0))),
)
LEFT = 112
RIGHT = 56
ROW = 70
TITLE = 26
GAP = 5


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """One row: its name, a frame `c h w` for every block, the colour around each, and the quality in dB."""

    name: str
    frames: list[Tensor]
    edges: list[str]
    quality: float | None


def strips(prompts: tuple[str, ...]) -> list[tuple[str, list[Strip]]]:
    """Make every video and return its rows by prompt."""
    files = trained_set()
    load = pocket_options()
    models = load_study_models(StudyOptions(files=files, load=load))
    embeddings = encode_prompts(files, prompts, load)
    found = []
    for prompt in prompts:
        scene = parse(prompt)
        run = models.run(Condition(embeddings[prompt], prompt), 0)
        rows = []
        for way in WAYS:
            emitted = list(configured(run, way, models.engine).blocks())
            lengths = [one.frames.shape[1] for one in emitted]
            shown = [length // 2 + start for start, length in zip(accumulate([0, *lengths]), lengths, strict=False)]
            clip = torch.cat([one.frames for one in emitted], dim=1)[0]
            edges = [
                OUTCOME_COLOURS[outcome_of(one.record)] if "routed" in way.name else "#FFFFFF" for one in emitted
            ]
            quality = judge(clip, scene).quality.mean().item()
            rows.append(Strip(way.name, [clip[i] for i in shown], edges, quality))
        truth = render_scene(scene, torch.tensor(shown))
        found.append((prompt, [Strip("the world", list(truth), ["#FFFFFF"] * len(shown), None), *rows]))
    return found


def draw(found: list[tuple[str, list[Strip]]]) -> Image.Image:
    """Return the sheet."""
    columns = len(found[0][1][0].frames)
    height = sum(TITLE + ROW * len(rows) for _, rows in found)
    width = LEFT + columns * (SIZE + GAP) + RIGHT
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    y = 0
    for prompt, rows in found:
        write(pen, 8, y + TITLE / 2, fitted(prompt, 12, width - 16), 12, anchor="lm")
        y += TITLE
        for strip in rows:
            write(pen, 8, y + SIZE / 2, strip.name, 12, anchor="lm")
            for i, (frame, edge) in enumerate(zip(strip.frames, strip.edges, strict=True)):
                x = LEFT + i * (SIZE + GAP)
                pen.rectangle([x - 2, y - 2, x + SIZE + 1, y + SIZE + 1], edge)
                pixels = (frame.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
                sheet.paste(Image.fromarray(pixels), (x, y))
            if strip.quality is not None:
                end = LEFT + columns * (SIZE + GAP) + 4
                write(pen, end, y + SIZE / 2, f"{strip.quality:.1f} dB", 12, LIGHT.faint, "lm")
            y += ROW
    return sheet


def main() -> None:
    """Write the sheet."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--prompts", type=int, default=5)
    options.add_argument("--seed", type=int, default=11, help="which held-out prompts")
    options.add_argument("--output", type=Path, default=Path("docs/images/pocket_set.png"))
    args = options.parse_args()
    draw(strips(held_out_prompts(args.prompts, args.seed))).save(args.output)


if __name__ == "__main__":
    main()
