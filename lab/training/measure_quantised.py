"""Measure what smaller files of the embedded pair cost its clips.

    python -m lab.training.measure_quantised FOLDER [--prompts 100]

FOLDER gets the files, as `convert` makes them, and rows.jsonl: by held-out prompt the oracle's decibels of every
block by route and format, of clips from the same noise. The same command goes on after the last prompt. Prints mean
decibels, and by how much each format is above bf16, with 95 % intervals over prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.research.protocol import FIRST_TWO
from lab.research.world import held_out_prompts
from lab.rows import add_rows, read_rows
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.types import Condition
from sdvg_core.loading.convert import Conversion, open_source
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import encode_prompts, load_models
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import judge
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.pocket.world import SIZE
from sdvg_core.settings.route import First, Route, TargetOnly
from sdvg_core.weights.kitchen import FORMATS
from sdvg_core.weights.model_files import ModelFiles

from .causal import BLOCKS
from .measure_pair import interval_of_mean

PLAIN = "bf16"
PAIRS: Mapping[str, tuple[str, str]] = {
    PLAIN: (PLAIN, PLAIN),
    "int8": ("int8", "int8"),
    "w4a8": ("w4a8", "w4a8"),
    "w4a8, drafter int8": ("w4a8", "int8"),
}
"""Formats of the target and of the drafter."""
ROUTES: Mapping[str, tuple[Route, Sequence[str]]] = {
    "target": (Route(TargetOnly()), (PLAIN, "int8", "w4a8")),
    "drafter": (Route(First(0)), (PLAIN, "int8", "w4a8")),
    "first two": (FIRST_TWO.route, tuple(PAIRS)),
}
"""A route, and the pairs that it is measured with."""


def converted(source: Path, form: str, folder: Path) -> Path:
    """Return the file of a model in a format; make it in the folder if it is not there."""
    if form == PLAIN:
        return source
    output = folder / f"{source.stem}_{form}.safetensors"
    if not output.exists():
        conversion = Conversion(source=open_source(source), form=FORMATS[form], device=torch.device("cpu"))
        conversion.write(output, lambda _: None)
    return output


def engine_of(files: ModelFiles, formats: tuple[str, str], folder: Path) -> Engine:
    """Load a pair in two formats. Products are of float32, so that bf16 is exactly what the file holds."""
    assert files.target is not None
    assert files.drafter is not None
    target = converted(files.target, formats[0], folder)
    drafter = converted(files.drafter, formats[1], folder)
    pair = replace(files, target=target, drafter=drafter, reward=None)
    load = pocket_options()
    return load_models(pair, load, check_models(pair, load)).build()


def decibels(engine: Engine, route: Route, text: str, embedding: Tensor) -> list[float]:
    """Make a clip, and return the oracle's decibels of each of its blocks."""
    condition = Condition(embedding, text)
    run = plan_run(engine, route, lambda _: condition, blocks=BLOCKS, seed=0, width=SIZE, height=SIZE)
    parts = [block.frames[0] for block in run.blocks()]
    quality = judge(torch.cat(parts), parse(text)).quality
    return [part.mean().item() for part in quality.split([len(part) for part in parts])]


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return by route and pair the decibels of whole clips, and how much they are above those of bf16."""
    figures: dict[str, Any] = {"prompts": len(rows)}
    for route, (_, pairs) in ROUTES.items():
        whole = {pair: np.array([np.mean(row["dB"][route][pair]) for row in rows]) for pair in pairs}
        figures[route] = {
            pair: {"dB": interval_of_mean(values), "above bf16": interval_of_mean(values - whole[PLAIN])}
            for pair, values in whole.items()
        }
    return figures


def main() -> None:
    """Measure what is missing, and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--prompts", type=int, default=100, help="held-out prompts")
    args = options.parse_args()
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = args.folder / "rows.jsonl"
    files = trained_set()
    texts = held_out_prompts(args.prompts)[len(read_rows(rows)) :]
    embeddings = encode_prompts(files, texts, pocket_options())
    engines = {name: engine_of(files, formats, args.folder) for name, formats in PAIRS.items()}
    for text in texts:
        dB = {
            name: {pair: decibels(engines[pair], route, text, embeddings[text]) for pair in pairs}
            for name, (route, pairs) in ROUTES.items()
        }
        add_rows(rows, [{"prompt": text, "dB": dB}])
    print(json.dumps(table(read_rows(rows)), indent=1))


if __name__ == "__main__":
    main()
