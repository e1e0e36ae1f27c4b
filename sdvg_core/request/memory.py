"""The memory that a resolved request takes, laid out before a weight is read."""

from __future__ import annotations

from dataclasses import replace

from ..devices.device import DTYPES, check_device, dtype_name
from ..devices.execution import AUTO
from ..errors import BadInput
from ..memory.choose import Plan, plan
from ..memory.request import PUBLISHED_BASE, PlanRequest
from ..memory.text import gigabytes, savings
from ..models.headers import Headers
from ..models.loading import free_vram
from ..models.options import LoadOptions
from .resolve import ResolvedRequest


def plan_memory(headers: Headers, options: LoadOptions, resolved: ResolvedRequest) -> Plan | None:
    """Return the plan of a video's memory; None if none is made. Raises `BadInput` if it does not fit."""
    device = check_device(options.device)
    vram = free_vram(device, options.vram)
    if vram is None:
        return None
    if headers.one_model:
        if options.vram != AUTO:
            raise BadInput("vram plans two models, but drafter and target are one; leave it out")
        return None
    files = {role: model.checkpoint for role, model in headers.models.items() if model.checkpoint}
    dtypes = [options.dtype or dtype_name(file.dtype) for file in files.values()]
    target = files.get("target")
    request = replace(
        memory_request(headers, resolved.width, resolved.height, resolved.request.blocks),
        needed=resolved.plan.models_needed,
        dtype=max(dtypes, key=lambda name: DTYPES[name].itemsize),
        execution=options.execution,
        side=options.side != device,
        where="on the command line",
        fp8=options.weight_dtype != "default" or bool(target and target.quantisation.label != "none"),
        vae_dtype=options.vae_dtype,
        reward_dtype=options.scorer_dtype,
    )
    layout = plan(vram, request)
    if not layout.fits:
        size = [f"--size {layout.would_fit[0]}x{layout.would_fit[1]}"] if layout.would_fit else []
        offers = [*savings(request, layout.usable), *size][:2]
        cure = " or ".join(offers or ["--vram all"])
        raise BadInput(f"{device} has {gigabytes(layout.missing)} less memory than the video needs; try {cure}")
    return layout


def memory_request(headers: Headers, width: int, height: int, blocks: int) -> PlanRequest:
    """Return the run whose memory is planned; a missing model counts as the other one."""
    return PlanRequest(
        width=width,
        height=height,
        blocks=blocks,
        drafter=headers.shape("drafter"),
        target=headers.shape("target"),
        vae=headers.vae.planned_as,
        vae_base=headers.vae.decoder_base or PUBLISHED_BASE,
    )
