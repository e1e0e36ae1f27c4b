"""Summarise samples: medians, ratios, the limit, and memory compared with its prediction. All JSON values."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from sdvg_core.devices.environment import versions_on
from sdvg_core.plan.request import PlanRequest
from sdvg_core.plan.setting import Setting, Sizes, step_parts
from sdvg_core.report.record_json import SECONDS
from sdvg_core.report.run_report import Passes

from .measure import Sample, WarmUp
from .models import Models
from .routes import TARGET_ONLY
from .variants import OURS, Case, Setup

SCHEMA = 2
NOT_MEASURED = "peaks are measured on CUDA devices only; torch does not count a CPU's memory"
NOT_OURS = "peaks are compared with the prediction only for the execution ours, which was not run"
Samples = Mapping[Case, Sequence[Sample]]


def summarise_cases(samples: Samples) -> list[dict[str, Any]]:
    """Return one entry per case with at least one video: its times, ratios and limit."""
    videos = {case: median(sample.video for sample in made) for case, made in samples.items() if made}
    return [_summarise(case, samples[case], videos) for case in videos]


def _summarise(case: Case, made: Sequence[Sample], videos: Mapping[Case, float]) -> dict[str, Any]:
    route, video = case.route, videos[case]
    ratio = _against(case, TARGET_ONLY, case.variant.name, videos)
    published = [c for c in videos if c.variant.as_published and c.route == route and c != case]
    gaps = [gap for sample in made for gap in sample.gaps]
    peaks = [sample.peak for sample in made if sample.peak is not None]
    parts = {name: median(getattr(sample.parts, name) for sample in made) for name in SECONDS}
    return {
        "route": route.name,
        "execution": case.variant.name,
        "script": route.script,
        "rejected": route.rejected,
        "repeats": len(made),
        "seconds": {"video": video, **parts},
        "videos": [sample.video for sample in made],
        "block_seconds": [median(steps) for steps in zip(*(sample.block_seconds for sample in made), strict=True)],
        "first_frame_seconds": median(sample.arrivals[0] for sample in made),
        "gap_seconds": {"median": median(gaps), "worst": max(gaps)} if gaps else None,
        "pixel_frames": made[0].pixel_frames,
        "frames_per_second": made[0].pixel_frames / video,
        "passes": {name: getattr(made[0].passes, name) for name in Passes.__slots__},
        "peak_bytes": max(peaks) if peaks else None,
        "ratio_to_target_only": ratio,
        "limit": route.limit,
        "share_of_limit": ratio / route.limit if ratio and route.limit else None,
        "ratio_to_ours": _against(case, route.name, OURS.name, videos) if case.variant.name != OURS.name else None,
        "ratio_to_as_published": videos[published[0]] / video if published else None,
    }


def _against(case: Case, route: str, variant: str, videos: Mapping[Case, float]) -> float | None:
    """Return how many times as fast a case is as another route and execution; None if that one was not run."""
    other = [c for c in videos if c.route.name == route and c.variant.name == variant]
    return videos[other[0]] / videos[case] if other else None


def summarise_memory(
    models: Models, request: PlanRequest, warm_ups: Mapping[str, WarmUp], *, fp8: bool
) -> dict[str, Any]:
    """Return predicted and measured bytes for the weights, and for each part of our plain execution."""
    sizes = Sizes.of(request, fp8=fp8)
    steps = step_parts(request, sizes, Setting(fp8=fp8))
    measured = warm_ups[OURS.name].peaks if OURS.name in warm_ups else {}
    missing = NOT_MEASURED if OURS.name in warm_ups else NOT_OURS
    return {
        "weights": {name: _compared(models.weights[name], sizes.weights[name]) for name in sizes.weights},
        "peak": {step: _compared(measured.get(step), sum(parts.values())) for step, parts in steps.items()},
        "note": None if measured else missing,
    }


def _compared(measured: int | None, predicted: int) -> dict[str, Any]:
    deviation = None if measured is None else predicted / measured - 1
    return {"bytes": measured, "predicted_bytes": predicted, "deviation": deviation}


def conditions(request: PlanRequest, models: Models, setups: Mapping[str, Setup], *, fp8: bool) -> Any:
    """Return everything the numbers depend on."""
    device, beside = models.device, models.side_device
    return {
        "versions": versions_on(str(device)),
        "device": str(device),
        "side_device": str(beside),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": _gpu(device) if device.type == "cuda" else None,
        "side_gpu": torch.cuda.get_device_name(beside) if beside.type == "cuda" else None,
        "drafter": request.drafter.size,
        "target": request.target.size,
        "dtype": request.dtype,
        "target_weights": "float8_e4m3fn" if fp8 else request.dtype,
        "vae_dtype": request.vae_dtype,
        "reward_dtype": request.reward_dtype,
        "presets": {"drafter": request.drafter_preset.name, "target": request.target_preset.name},
        "kv_dtype": request.execution.kv_dtype,
        "executions": {name: setup.as_dict() for name, setup in setups.items()},
    }


def _gpu(device: torch.device) -> dict[str, Any]:
    cuda, found = torch.backends.cuda, torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "capability": list(torch.cuda.get_device_capability(device)),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32": {"matmul": cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
        "sdpa": {
            "flash": cuda.flash_sdp_enabled(),
            "memory_efficient": cuda.mem_efficient_sdp_enabled(),
            "math": cuda.math_sdp_enabled(),
            "cudnn": cuda.cudnn_sdp_enabled(),
        },
    }


def _driver() -> str | None:
    """Return driver version and power limit of the first GPU as nvidia-smi prints them; None without that tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return next(iter(answer.stdout.strip().splitlines()), None)
