"""Whether the models of a benchmark fit on their one or two devices."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from sdvg_core.devices.execution import AUTO
from sdvg_core.errors import BadInput
from sdvg_core.plan import PlanRequest, plan, plan_text
from sdvg_core.plan.setting import Setting, Sizes, most, split_parts, step_parts
from sdvg_core.plan.sizes import GB

from .variants import Variant


def room_for(request: PlanRequest, variants: Sequence[Variant], *, side: bool) -> PlanRequest:
    """Return the run that must fit: one that does everything any variant does."""
    executions = [variant.execution for variant in variants]
    most = replace(
        request.execution,
        overlap=any(execution.overlap for execution in executions),
        vae_layers="planes" if all(execution.vae_layers == "planes" for execution in executions) else AUTO,
    )
    judges = [variant.judge for variant in variants if variant.judge]
    return replace(request, side=side, execution=most, judge=judges[0] if judges else None)


def check_room(request: PlanRequest, device: torch.device, beside: torch.device, fp8: bool) -> None:
    """Refuse a run that would exceed the memory of either device; print the plan for the first one."""
    parts = step_parts(request, Sizes.of(request, fp8=fp8), Setting(fp8=fp8))
    needs = zip((device, beside), split_parts(parts, request), strict=True) if request.side else [(device, parts)]
    for where, there in needs:
        if where.type != "cuda":
            continue
        free, _ = torch.cuda.mem_get_info(where)
        if most(there) > free:
            why = f"{where} has {free / GB:.1f} GB free of the {most(there) / GB:.1f} GB it needs"
            raise no_room(request, device, why)


def no_room(request: PlanRequest, device: torch.device, why: str) -> BadInput:
    """Print the plan for the first device, and return the error that tells why the benchmark does not fit."""
    free, _ = torch.cuda.mem_get_info(device)
    sys.stderr.write(plan_text(plan(max(free / GB, 0.1), request)) + "\n")
    return BadInput(
        f"all models must fit at once, as the benchmark offloads nothing, but {why}; add --fp8, "
        "or use a smaller --size"
    )
