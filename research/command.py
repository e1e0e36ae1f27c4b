"""Carry out `study`: configurations over prompts and seeds, compared."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sdvg_core.checkpoints.model_files import KNOWN_FILES
from sdvg_core.cli.options import load_options, model_files
from sdvg_core.devices.device import check_device
from sdvg_core.devices.picking import device_line
from sdvg_core.engine.router import RouterConfig
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import check_writable, staged_outputs
from sdvg_core.files.video import LONGEST_SIDE
from sdvg_core.pipeline.checking import Checked, check_models
from sdvg_core.pipeline.loading import encode_prompts
from sdvg_core.plan.decoders import PUBLISHED_BASE
from sdvg_core.plan.request import PlanRequest
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import judge_file
from sdvg_core.report.summary import count
from sdvg_core.text.prompts import read_prompt_list
from sdvg_core.workers.news import News
from sdvg_core.workers.on_ray import work_on_ray
from sdvg_core.workers.processes import work_here

from .calibrate import calibrate
from .classes import read_classes
from .compare import make_table
from .costs import Weights, pass_weights
from .equipment import WorkerOptions, open_equipment
from .judging import compare_judge
from .memo import GIGABYTE
from .metrics import parse_external
from .models import POCKET_SIZE, common_settings, pocket_models
from .plots import check_plots, write_plots
from .protocol import (
    PAPER_SCORES,
    PAPER_TAUS,
    POCKET_SCORES,
    POCKET_TAUS,
    TARGET_ONLY,
    Configuration,
    every_route,
    pick,
    protocol,
)
from .run import Notebook, Plan, fill
from .store import SUMMARY, TABLE, claim_folder, held
from .summary import summarise_study
from .table import table_text
from .unit import Unit
from .worker import TRIES, StudyWorker
from .world import held_out_prompts

INTERRUPTED = 130
MOST_GIGABYTES = 100_000
CALIBRATION = (TARGET_ONLY, "reward-min@*")


def run(options: argparse.Namespace) -> int:
    """Make what is missing, then summarise everything."""
    _check(options)
    check_writable(options.output)
    job = _job(options)
    plan = _plan(options, job)
    with held(options.output):
        return _go_on(options, job, plan)


def _go_on(options: argparse.Namespace, job: WorkerOptions, plan: Plan) -> int:
    claim_folder(options.output, common_settings(job), {c.name: c.as_dict() for c in plan.configurations})
    notebook = Notebook(options.output)
    say: Callable[[str], None] = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    say(device_line(job.load.device, job.load.dtype, threads=1))
    wanted = len(plan.pairs) * len(plan.configurations)
    say(
        f"{count(len(plan.prompts), 'prompt')}, {count(len(plan.seeds), 'seed')}, "
        f"{count(len(plan.configurations), 'configuration')}: {len(notebook.rows_of(plan))} of {wanted} rows are "
        "done. There will be a line whenever a prompt is done with a seed."
    )
    try:
        fill(notebook, plan, partial(_embed, job), partial(_work, options, job), say)
        show = _show_judge if _judging(options) else _show_calibration if options.calibrate else _show
        show(options, notebook, plan)
    except KeyboardInterrupt:
        kept = len(notebook.rows_of(plan))
        print(
            f"sdvg: interrupted; {kept} rows are kept in {options.output}; run it again to continue",
            file=sys.stderr,
        )
        return INTERRUPTED
    return 0


def _check(options: argparse.Namespace) -> None:
    for name in ("prompts", "blocks"):
        if getattr(options, name) < 1:
            raise BadInput(f"--{name} must be at least 1, but is {getattr(options, name)}; ask for 1 or more")
    for name in ("width", "height"):
        size = getattr(options, name)
        if size is not None and (size % 16 or not 16 <= size <= LONGEST_SIDE):
            raise BadInput(f"--{name} must be a multiple of 16, but is {size}; choose one up to {LONGEST_SIDE}")
    if not 0 <= options.memory <= MOST_GIGABYTES:
        raise BadInput(f"--memory must be from 0 to {MOST_GIGABYTES} GB, but is {options.memory}; 1 is usual")
    if options.workers is not None and options.workers < 1:
        raise BadInput(f"--workers must be at least 1, but is {options.workers}; give 1 or more")
    if options.calibrate and options.judge_vae and (len(options.tau or [0]) > 1 or options.speed_up):
        raise BadInput(
            "a judge is calibrated at one tau of the full VAE, but there are several or a speed-up; give one --tau"
        )
    if options.calibrate and not options.judge_vae and options.draft_share is None and options.speed_up is None:
        raise BadInput("--calibrate needs a goal, but there is none; add --draft-share 0.8 or --speed-up 1.5")
    if not (options.no_plots or options.calibrate):
        check_plots()


def _job(options: argparse.Namespace) -> WorkerOptions:
    """Return the models and what to make with them. Raises `BadInput` if they cannot be loaded or do not fit."""
    given = options.models or any(getattr(options, known.role) for known in KNOWN_FILES)
    load = load_options(options, embedded=not given)
    if given:
        options.models = options.models or Path("models")
        files, width, height = model_files(options), options.width or 832, options.height or 480
    else:
        files, load = pocket_models(load)
        files = replace(files, judge_vae=judge_file(options.judge_vae))
        width, height = options.width or POCKET_SIZE, options.height or POCKET_SIZE
    external = parse_external(options.external, options.fps, options.external_timeout) if options.external else None
    return WorkerOptions(
        files=files,
        load=load,
        blocks=options.blocks,
        width=width,
        height=height,
        pocket=not given,
        external=external,
        memo_bytes=int(options.memory * GIGABYTE),
    )


def _plan(options: argparse.Namespace, job: WorkerOptions) -> Plan:
    """Return what the study covers. Raises `BadInput` for prompts outside the pocket world."""
    if options.prompt_file:
        classes = read_classes(schedule.texts[0] for schedule in read_prompt_list(options.prompt_file))
    elif job.pocket:
        classes = {prompt: parse(prompt).relation or "alone" for prompt in held_out_prompts(options.prompts)}
    else:
        raise BadInput("the given models need prompts, but there are none; add --prompt-file FILE")
    prompts = tuple(classes)[: options.prompts]
    if job.pocket:
        for prompt in prompts:
            parse(prompt)
    return Plan(
        prompts=prompts,
        seeds=tuple(dict.fromkeys(options.seeds)),
        configurations=() if _judging(options) else _configurations(options, job),
        blocks=job.blocks,
        gains=not (options.no_gains or options.calibrate or options.every_route),
        judged=_judging(options),
        weights=_weights(job),
        classes={prompt: of for prompt, of in classes.items() if of},
    )


def _judging(options: argparse.Namespace) -> bool:
    """Whether a judge is compared with the full VAE, instead of a study."""
    return bool(options.calibrate and options.judge_vae)


def _configurations(options: argparse.Namespace, job: WorkerOptions) -> tuple[Configuration, ...]:
    taus = tuple(dict.fromkeys(options.tau or (POCKET_TAUS if job.pocket else PAPER_TAUS)))
    checked = check_models(job.files, job.load)
    scores = POCKET_SCORES if job.pocket else PAPER_SCORES
    if options.every_route:
        return every_route(job.blocks)
    everything = protocol(job.blocks, taus, timesteps=_timesteps(checked), scores=scores)
    return pick(everything, CALIBRATION if options.calibrate else options.configurations)


def _timesteps(checked: Checked) -> tuple[float, ...]:
    """Return the schedule that both models share; of two, a single step, as nothing can be handed over."""
    drafter, target = (shape.timesteps for shape in checked.shapes)
    return target if drafter == target else min(drafter, target, key=len)[:1]


def _weights(job: WorkerOptions) -> Weights:
    """Return the cost of each pass: of the given models, or of the published pair for the embedded ones."""
    checked = check_models(job.files, job.load)
    judge = checked.judge.planned_as if checked.judge else None
    if job.pocket:
        return pass_weights(PlanRequest(judge=judge))
    if not (checked.drafter and checked.target):
        raise BadInput("a study compares two models, but one is missing; give a drafter and a target")
    return pass_weights(
        PlanRequest(
            width=job.width,
            height=job.height,
            blocks=job.blocks,
            drafter=checked.drafter.found.config,
            target=checked.target.found.config,
            drafter_preset=checked.drafter.preset,
            target_preset=checked.target.preset,
            vae=checked.vae.planned_as,
            judge=judge,
            vae_base=checked.vae.decoder_base or PUBLISHED_BASE,
        )
    )


def _embed(job: WorkerOptions, texts: Iterable[str]) -> dict[str, Any]:
    return encode_prompts(job.files, texts, job.load)


def _work(options: argparse.Namespace, job: WorkerOptions, units: Sequence[Unit]) -> Iterable[News[Unit]]:
    opener = partial(StudyWorker, partial(open_equipment, job))
    on_cpu = check_device(job.load.device).type == "cpu"
    if options.ray:
        gpus = 0 if on_cpu else 1
        return work_on_ray(units, opener, address=options.ray, gpus=gpus, most=options.workers, tries=TRIES)
    count = options.workers or ((os.cpu_count() or 1) if on_cpu else 1)
    return work_here(units, [opener] * count, tries=TRIES)


def _show(options: argparse.Namespace, notebook: Notebook, plan: Plan) -> None:
    """Write summary, table and plots, and list the files."""
    summary = summarise_study(notebook, plan)
    text = table_text(summary)
    with staged_outputs(options.output) as staging:
        staging.path(SUMMARY).write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        staging.path(TABLE).write_text(text, encoding="utf-8")
        plots = () if options.no_plots else write_plots(staging, summary, notebook.gains_of(plan))
    if options.json:
        print(json.dumps(summary, allow_nan=False))
        return
    print(text)
    print("Worth looking at:", *(f"  {options.output / name}" for name in (TABLE, SUMMARY, *plots)), sep="\n")


def _show_judge(options: argparse.Namespace, notebook: Notebook, plan: Plan) -> None:
    tau = options.tau[0] if options.tau else RouterConfig().tau
    found = compare_judge(notebook.judged_of(plan), plan.prompts, tau)
    print(json.dumps(found.as_dict()) if options.json else found)


def _show_calibration(options: argparse.Namespace, notebook: Notebook, plan: Plan) -> None:
    table = make_table(notebook.rows_of(plan), plan.prompts, plan.seeds)
    by_share = options.draft_share is not None
    found = calibrate(
        table,
        plan.configurations,
        "draft share" if by_share else "speed-up",
        options.draft_share if by_share else options.speed_up,
    )
    print(json.dumps(found.as_dict()) if options.json else found)
