"""Carry out `demo`: a short video with the embedded models."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

from ..files.outputs import check_writable
from ..pipeline.batch import Batch
from ..pipeline.request import VideoRequest
from ..pipeline.stopping import Stopping
from ..pipeline.videos import make_videos
from ..pocket.grammar import parse
from ..pocket.trained_set import judge_file, pocket_options, trained_set
from ..pocket.world import SIZE
from ..report.summary import summarise
from ..text.prompts import one_prompt
from .generate import exit_code
from .options import (
    execution,
    router_config,
)


def run(options: argparse.Namespace) -> int:
    """Make one video with the embedded models, and list the files worth looking at."""
    scene = parse(options.prompt)
    request = VideoRequest(
        blocks=options.blocks,
        seed=options.seed,
        width=SIZE,
        height=SIZE,
        fps=options.fps,
        drafter_context=options.drafter_context,
        router=router_config(options),
        budget=options.budget,
        directions=options.directions,
        takes=options.takes,
    )
    check_writable(options.output)
    if not options.json:
        print(
            f"Two tiny models will make {request.blocks} blocks of {scene.text!r}. One drafts each block, and "
            "every frame of the draft is scored. The other, larger and slower, remakes blocks that score too low."
        )
    began, stopping = time.perf_counter(), Stopping()
    meant = pocket_options()
    batch = Batch(
        files=replace(trained_set(), judge_vae=judge_file(options.judge_vae)),
        load=replace(meant, execution=execution(options)),
        request=request,
        gate_prompt=options.gate_prompt,
        reuse=options.reuse,
        prompt_in_report=options.prompt_in_report,
    )
    prompts = (one_prompt(scene.text),)
    ((folder, report),) = make_videos(batch, prompts, options.output, resume=options.resume, stopping=stopping)
    if options.json:
        print(json.dumps(report.as_dict()))
        return exit_code(stopping, folder, whole=len(report.blocks) == request.blocks)
    print(summarise(report))
    print(f"Done in {time.perf_counter() - began:.0f} s. Worth looking at:")
    print(f"  {folder / 'video.mp4'}")
    print(f"  {folder / 'route.png'}: which blocks were kept, and why")
    print(f"  {folder / 'report.json'}: every score and second")
    return exit_code(stopping, folder, whole=len(report.blocks) == request.blocks)
