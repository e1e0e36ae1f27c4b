"""Choose the demo's prompts by what both models gain over the small one alone.

    python -m lab.training.demo_prompts ROWS.jsonl [--prompts 400] [--write]

Held-out prompts that the study does not have, seed 0. By each the small model alone; where its thing is at its
place in the last block in at most a third of the frames, or in two thirds at least, both models by *balanced*, and
the large one alone. *Helps*: at most a third by the small model, at least two thirds by both and by the large one.
*Does not help*: at least two thirds by the small and by the large one, and by both at most a twelfth above the
small one. *Lost by both*: at most a third by both. The same command goes on after the last prompt; --write writes
sdvg_core/pocket/demo_prompts.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.research.world import held_out_prompts
from lab.rows import add_rows, read_rows
from sdvg_core.devices.device import resolved_threads
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.types import Condition
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import encode_prompts, load_decoder, load_models
from sdvg_core.pocket import DEMO_PROMPTS
from sdvg_core.pocket.figures import figures_of
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from sdvg_core.pocket.world import SIZE, Scene
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import ROUTE_PRESETS, First, Route, TargetOnly

SEED = VideoRequest().seed
BLOCKS = VideoRequest().blocks
LAST = 12
"""Pixel frames of the last block."""
STUDIED = 200
"""Prompts of the study, which are left out."""
FEW = 1 / 3
MOST = 2 / 3
NOTHING = 1 / 12
ROUTES = {"small": Route(First(0)), "both": ROUTE_PRESETS["balanced"], "large": Route(TargetOnly())}

Row = Mapping[str, Any]


class Measure:
    """Makes videos as the demo does, and says how good they are."""

    def __init__(self) -> None:
        files = replace(trained_set(), vae=pocket_fast_vae(), reward=None)
        options = pocket_options()
        self._engine: Engine = load_models(files, options, check_models(files, options)).build()
        self._vae = load_decoder(trained_set().vae, options)

    def __call__(self, route: Route, condition: Condition) -> dict[str, float]:
        """Make a clip, and return its figures."""
        run = plan_run(self._engine, route, lambda _: condition, blocks=BLOCKS, seed=SEED, width=SIZE, height=SIZE)
        latents = torch.cat([shown.block.latents for shown in run.blocks()], dim=2)
        return figures(self._vae.decode(latents)[0][0], parse(condition.text))


def figures(frames: Tensor, scene: Scene) -> dict[str, float]:
    """Return the oracle's decibels of a clip, and the share of its last frames with the mover at its place."""
    of_clip = figures_of(frames, scene, [len(frames) - LAST])
    return {"dB": of_clip["quality"], "at_its_place": of_clip["last_block_at_its_place"]}


def measured(measure: Callable[[Route, Condition], Mapping[str, float]], condition: Condition) -> dict[str, Any]:
    """Return the row of a prompt: of all three videos only where the small model's may matter."""
    row: dict[str, Any] = {"prompt": condition.text, "small": measure(ROUTES["small"], condition)}
    if FEW < row["small"]["at_its_place"] < MOST:
        return row
    return row | {name: measure(ROUTES[name], condition) for name in ("both", "large")}


def kind_of(row: Row) -> str:
    """Return `helps`, `does not help`, or nothing."""
    if "both" not in row:
        return ""
    small, both, large = (row[name]["at_its_place"] for name in ROUTES)
    if None in (small, both, large) or large < MOST:
        return ""
    if small <= FEW and both >= MOST:
        return "helps"
    return "does not help" if small >= MOST and both <= small + NOTHING else ""


def is_lost_by_both(row: Row) -> bool:
    """Return True if with both models the mover is at its place in at most a third of the frames."""
    placed = row["both"]["at_its_place"] if "both" in row else None
    return placed is not None and placed <= FEW


def gain(row: Row) -> float:
    """Return the decibels of both above the small one's."""
    return float(row["both"]["dB"] - row["small"]["dB"])


def is_hard(row: Row) -> bool:
    """Return True for a small mover, or two things."""
    scene = parse(row["prompt"])
    return scene.mover.size == "small" or scene.other is not None


def chosen(rows: Sequence[Row], before: Mapping[str, Sequence[Row]] | None = None) -> dict[str, Any]:
    """Return the demo's prompts: the median of all that help first, three more, and two that do not.

    Two of the four are of small things or pairs. All are quantiles by the decibels that are gained. `before`: those
    that were chosen; those that are of their kind still stay, as templates and pictures are of them.
    """
    helping = sorted((row for row in rows if kind_of(row) == "helps"), key=gain)
    idle = sorted((row for row in rows if kind_of(row) == "does not help"), key=gain)
    first = helping[len(helping) // 2]
    like_first = [row for row in helping if is_hard(row) == is_hard(first) and row is not first]
    others = [row for row in helping if is_hard(row) != is_hard(first)]
    picked = [first, quantile(like_first, 3 / 4), quantile(others, 1 / 3), quantile(others, 2 / 3)]
    unhelped = [quantile(idle, share) for share in (1 / 3, 2 / 3)]
    return {
        "counts": {
            "prompts": len(rows),
            "helps": len(helping),
            "does not help": len(idle),
            "lost by both": sum(map(is_lost_by_both, rows)),
        },
        "helps": _staying(before["helps"], helping, picked) if before else picked,
        "does not help": _staying(before["does not help"], idle, unhelped) if before else unhelped,
    }


def _staying(before: Sequence[Row], of_kind: Sequence[Row], picked: Sequence[Row]) -> list[Row]:
    """Return the new rows of the prompts that were chosen before; of one that left the kind, the picked one."""
    now = {row["prompt"]: row for row in of_kind}
    return [now.get(old["prompt"], new) for old, new in zip(before, picked, strict=True)]


def quantile(rows: Sequence[Row], share: float) -> Row:
    """Return the row at a share of a sorted list."""
    return rows[round(share * (len(rows) - 1))]


def candidates(count: int) -> list[str]:
    """Return held-out prompts that the study does not have."""
    studied = set(held_out_prompts(STUDIED))
    return [text for text in held_out_prompts(STUDIED + count) if text not in studied]


def measure_prompts(texts: Sequence[str], path: Path) -> None:
    """Add a row for each text to a file."""
    embeddings = encode_prompts(trained_set(), texts, pocket_options())
    measure = Measure()
    for text in texts:
        add_rows(path, [measured(measure, Condition(embeddings[text], text))])


def main() -> None:
    """Measure, and print or write what is chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    done = {row["prompt"] for row in read_rows(options.rows)}
    left = [text for text in candidates(options.prompts) if text not in done]
    if left:
        with resolved_threads(embedded=True):
            measure_prompts(left, options.rows)
    before = json.loads(DEMO_PROMPTS.read_text(encoding="utf-8"))
    content = json.dumps(chosen(read_rows(options.rows), before), indent=1)
    print(content)
    if options.write:
        DEMO_PROMPTS.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
