"""Run a protocol of configurations over prompts and seeds, and compare them.

Writes rows.jsonl, rows.csv, summary.json, table.md and plots into the output folder. It can be
interrupted at any time: run it again with the same options and it makes only what is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sdvg_core import __version__
from sdvg_core.causal_wan.config import common_patch
from sdvg_core.cli import INTERRUPTED, Parser
from sdvg_core.cli.options import load_options, model_files
from sdvg_core.cli.shared import add_model_options, file_path
from sdvg_core.devices.device import check_device, device_line
from sdvg_core.engine.plan import check_size
from sdvg_core.errors import BadInput, count
from sdvg_core.files.outputs import whole_file
from sdvg_core.loading.headers import check_encoder, check_models, named
from sdvg_core.loading.load import encode_prompts
from sdvg_core.memory.budget import pass_weights
from sdvg_core.pocket import POCKET
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.settings.load import LoadOptions
from sdvg_core.text.prompt_files import read_prompt_list
from sdvg_core.weights.model_files import KNOWN_FILES

from .folder import Plan, claim_folder, fill, held, read_study
from .metrics import parse_external
from .plots import write_plots
from .protocol import PAPER_TAUS, POCKET_TAUS, Configuration, pick, protocol
from .quick import QUICK_PROMPTS, QUICK_SEED, quick_text
from .statistics import Record
from .summary import page_text, summarise_study, table_of_rows
from .tables import PRINTED
from .videos import StudyOptions, load_study_models
from .world import held_out_prompts

SUMMARY = "summary.json"
TABLE = "table.md"
CSV = "rows.csv"
USUAL_PROMPTS = 50
POCKET_SIZE = (64, 64)
REAL_SIZE = (832, 480)
ROWS_VERSION = 4
"""Rows of version 1 do not count passes; those of 2 count some of another decoder; those of 3 lack last blocks."""


def study(words: Sequence[str] | None) -> int:
    """Make what is missing, then summarise everything."""
    options = _options(words)
    job = _job(options)
    configurations = _configurations(options, job)
    plan = Plan(
        prompts=_prompts(options, job),
        seeds=tuple(dict.fromkeys(options.seeds)),
        configurations=configurations,
        blocks=job.blocks,
        weights=weights_of(job),
    )
    return _make(options, job, plan)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options. Raises `BadInput` for a number below 1, and for what a quick look has of its own."""
    parser = make_parser()
    options = parser.parse_args(words)
    for name in ("prompts", "blocks", "workers"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise BadInput(f"--{name} is {value}; give 1 or more")
    if not options.quick:
        options.prompts = options.prompts or USUAL_PROMPTS
        options.output = options.output or Path("out/study")
        return options
    own = {"output", "workers", "prompts", "quick"}
    given = [name for name, value in vars(options).items() if name not in own and value != parser.get_default(name)]
    if given:
        fault = f"--quick makes what docs/study.md prints, which --{given[0].replace('_', '-')} would change"
        raise BadInput(f"{fault}; leave out one of them")
    options.configurations = [*PRINTED]
    options.seeds = [QUICK_SEED]
    options.prompts = options.prompts or QUICK_PROMPTS
    options.output = options.output or Path("out/quick")
    return options


def _configurations(options: argparse.Namespace, job: StudyOptions) -> tuple[Configuration, ...]:
    taus = tuple(dict.fromkeys(options.tau or (POCKET_TAUS if job.pocket else PAPER_TAUS)))
    headers = check_models(job.files, job.load)
    drafter, target = (headers.shape(role) for role in ("drafter", "target"))
    # Of two schedules nothing can be handed over.
    steps = len(target.timesteps) if drafter.timesteps == target.timesteps else 1
    ways = protocol(job.blocks, taus, steps=steps)
    if drafter.block_frames != target.block_frames:  # see ShortDrafts
        ways = tuple(way for way in ways if way.draft_steps is None)
    return pick(ways, options.configurations)


def make_parser() -> Parser:
    """Return the parser of the study's options."""
    parser = Parser(prog="python -m lab.research", description=__doc__)
    option = parser.add_argument
    option("--output", type=file_path, help="folder to write into, or to continue in (default out/study)")
    option(
        "--quick",
        action="store_true",
        help=f"the ways that docs/study.md prints for {QUICK_PROMPTS} prompts, each beside the printed value",
    )
    option("--workers", type=int, metavar="N", help="processes (default: one per core; 1 on a GPU)")
    option = parser.add_argument_group(
        "protocol", "the embedded models and their world, unless models are given"
    ).add_argument
    option("--prompts", type=int, metavar="N", help=f"how many prompts (default {USUAL_PROMPTS})")
    option(
        "--prompt-file",
        type=file_path,
        help="prompts, one per line; the first N are used",
    )
    option("--seeds", type=int, nargs="+", default=[42], metavar="SEED", help="default 42")
    option("--configurations", nargs="+", default=[], metavar="NAME", help="only these, such as 'reward-min@*'")
    option("--tau", type=float, nargs="+", metavar="TAU", help="thresholds of the reward sweeps")
    option("--blocks", type=int, default=9, help="blocks of latent frames per video (default 9)")
    option("--width", type=int, help="pixels (default 64; 832 with given models)")
    option("--height", type=int, help="pixels (default 64; 480 with given models)")
    option(
        "--external",
        metavar="COMMAND",
        help="also measure with a program that prints a number, such as 'score.py {video} {prompt}'",
    )
    add_model_options(parser)
    return parser


def _make(options: argparse.Namespace, job: StudyOptions, plan: Plan) -> int:
    """Make what the folder lacks of the plan, show the results, and return the exit code."""
    on_cpu = check_device(job.load.device).type == "cpu"
    workers = options.workers or ((os.cpu_count() or 1) if on_cpu else 1)
    say = partial(print, flush=True)
    with held(options.output):
        claim_folder(options.output, common_settings(job), {c.name: asdict(c) for c in plan.configurations})
        say(device_line(job.load.device, job.load.dtype, threads=1))
        done = len(plan.select(read_study(options.output)))
        wanted = len(plan.pairs) * len(plan.configurations)
        say(
            f"{count(len(plan.prompts), 'prompt')}, {count(len(plan.seeds), 'seed')}, "
            f"{count(len(plan.configurations), 'configuration')}: {done} of {wanted} rows are done. There will be "
            "a line whenever a prompt is done with a seed."
        )

        def embed(texts: Iterable[str]) -> dict[str, Any]:
            return encode_prompts(job.files, texts, job.load)

        try:
            load = partial(load_study_models, job)
            rows = fill(options.output, plan, embed, load, workers, say)
            _show(options.output, plan.select(rows), plan, quick=options.quick)
        except KeyboardInterrupt:
            kept = len(plan.select(read_study(options.output)))
            sys.stderr.write(f"sdvg: interrupted; {kept} rows are in {options.output}; run it again to continue\n")
            return INTERRUPTED
    return 0


def _job(options: argparse.Namespace) -> StudyOptions:
    """Return the models and what to make with them. Raises `BadInput` if they cannot be loaded or do not fit."""
    given = options.models not in (None, POCKET) or any(getattr(options, known.role) for known in KNOWN_FILES)
    load = load_options(options, LoadOptions() if given else pocket_options(), embedded=not given)
    files = model_files(options, options.models or Path("models")) if given else trained_set()
    width, height = REAL_SIZE if given else POCKET_SIZE
    return StudyOptions(
        files=files,
        load=load,
        blocks=options.blocks,
        width=options.width or width,
        height=options.height or height,
        pocket=not given,
        external=parse_external(options.external) if options.external else None,
        scored=not options.quick,
    )


def _prompts(options: argparse.Namespace, job: StudyOptions) -> tuple[str, ...]:
    """Return the prompts, each once. Raises `BadInput` for one outside the pocket world."""
    if options.prompt_file:
        listed = read_prompt_list(options.prompt_file)
        if any(prompt.changes or prompt.first or prompt.seed is not None for prompt in listed):
            raise BadInput("the study takes prompts alone; write one per line, without block numbers or seeds")
        prompts = [schedule.texts[0] for schedule in listed]
    elif job.pocket:
        prompts = [*held_out_prompts(options.prompts)]
    else:
        raise BadInput("the given models have no prompts; add --prompt-file FILE")
    chosen = tuple(dict.fromkeys(prompts))[: options.prompts]
    for prompt in chosen if job.pocket else ():
        parse(prompt)
    return chosen


def weights_of(job: StudyOptions) -> Mapping[str, float]:
    """Return the cost of each kind of pass, in target blocks. Raises `BadInput` unless there are two models."""
    headers = check_models(job.files, job.load)
    check_encoder(headers)
    patch = common_patch(model.config for model in headers.models.values())
    check_size(job.width, job.height, headers.vae.spatial_stride * patch)
    if len(headers.models) < 2:
        raise BadInput("a study needs two models, but one is missing; give a drafter and a target")
    return pass_weights({role: model.preset for role, model in headers.models.items()})


def common_settings(job: StudyOptions) -> dict[str, Any]:
    """Return everything but prompt, seed and configuration that a row's values depend on, as JSON values."""
    roles = ("drafter", "target", "vae", "text_encoder", "reward")
    return {
        "models": {role: named(getattr(job.files, role)) for role in roles},
        "loading": asdict(job.load) | {"reward_dtype": job.load.scorer_dtype},
        "blocks": job.blocks,
        "size": [job.width, job.height],
        "oracle": job.pocket,
        "external": asdict(job.external) if job.external else None,
        **({} if job.scored else {"scored": False}),
        "versions": {"sdvg": __version__, "torch": torch.__version__, "rows": ROWS_VERSION},
    }


def _show(folder: Path, rows: Sequence[Record], plan: Plan, *, quick: bool) -> None:
    """Write summary, table and plots, and list the files; of a quick look, the table beside the page's alone."""
    if quick:
        text = quick_text(rows, plan.prompts, plan.weights)
        with whole_file(folder / TABLE) as path:
            path.write_text(text, encoding="utf-8")
        print(text)
        return
    summary = summarise_study(rows, plan)
    with whole_file(folder / SUMMARY) as path:
        path.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with whole_file(folder / TABLE) as path:
        path.write_text(page_text(summary), encoding="utf-8")
    with whole_file(folder / CSV) as path, path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(table_of_rows(rows, plan, summary["quality"]["metric"]))
    plots = write_plots(folder, summary)
    print(page_text(summary))
    print("Worth looking at:", *(f"  {folder / name}" for name in (TABLE, CSV, SUMMARY, *plots)), sep="\n")
