"""A benchmark's result: medians, ratios and memory as JSON values, and the same as Markdown."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from lab.research.markdown import markdown, number
from sdvg_core.devices.device import versions_on
from sdvg_core.memory.plan import PHASE_NAMES, gigabytes
from sdvg_core.memory.sizes import PlanRequest, Sizes, phase_parts
from sdvg_core.report.run_report import SECONDS
from tests.support.random_models import Models, tensor_bytes

from .measure import Sample, WarmUp
from .variants import OURS, TARGET_ONLY, Case, Setup

SCHEMA = 3
Samples = Mapping[Case, Sequence[Sample]]
Result = Mapping[str, Any]


def summarise_cases(samples: Samples) -> list[dict[str, Any]]:
    """Return one entry per case with at least one video: its times and ratios."""
    videos = {case: median(sample.video for sample in made) for case, made in samples.items() if made}
    return [_summarise(case, samples[case], videos) for case in videos]


def _summarise(case: Case, made: Sequence[Sample], videos: Mapping[Case, float]) -> dict[str, Any]:
    route = case.route
    variant = case.variant
    video = videos[case]

    def against(name: str, execution: str) -> float | None:
        """Return how many times as fast it is as another route and execution; None if that one was not run."""
        other = [c for c in videos if c.route.name == name and c.variant.name == execution]
        return videos[other[0]] / video if other else None

    peaks = [sample.peak for sample in made if sample.peak is not None]
    return {
        "route": route.name,
        "execution": variant.name,
        "script": route.plan,
        "repeats": len(made),
        "seconds": {
            "video": video,
            **{name: median(getattr(sample.parts, name) for sample in made) for name in SECONDS},
        },
        "videos": [sample.video for sample in made],
        "block_seconds": [median(steps) for steps in zip(*(sample.block_seconds for sample in made), strict=True)],
        "first_frame_seconds": median(sample.arrivals[0] for sample in made),
        "pixel_frames": made[0].pixel_frames,
        "frames_per_second": made[0].pixel_frames / video,
        "passes": made[0].passes,
        "peak_bytes": max(peaks) if peaks else None,
        "ratio_to_target_only": against(TARGET_ONLY, variant.name),
        "ratio_to_ours": against(route.name, OURS.name) if variant.name != OURS.name else None,
    }


def summarise_memory(
    models: Models, request: PlanRequest, warm_ups: Mapping[str, WarmUp], *, fp8: bool
) -> dict[str, Any]:
    """Return predicted and measured bytes for the weights, and for each part of our plain execution."""
    sizes = Sizes.of(request, stored="fp8" if fp8 else "plain")
    steps = phase_parts(request, sizes)
    _, measured = warm_ups.get(OURS.name, (0.0, {}))
    missing = "peaks are measured on CUDA devices only, and compared with the prediction for the execution ours"
    return {
        "weights": {name: _compared(tensor_bytes(module), sizes.weights[name]) for name, module in models.parts},
        "peak": {step: _compared(measured.get(step), sum(parts.values())) for step, parts in steps.items()},
        "note": None if measured else missing,
    }


def _compared(measured: int | None, predicted: int) -> dict[str, Any]:
    deviation = None if measured is None else predicted / measured - 1
    return {"bytes": measured, "predicted_bytes": predicted, "deviation": deviation}


def conditions(request: PlanRequest, models: Models, setups: Mapping[str, Setup], *, fp8: bool) -> Any:
    """Return everything the numbers depend on."""
    device = models.device
    return {
        "versions": versions_on(str(device)),
        "device": str(device),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": _gpu(device) if device.type == "cuda" else None,
        "drafter": request.drafter.config.size,
        "target": request.target.config.size,
        **{name: getattr(request, name) for name in ("dtype", "vae_dtype", "reward_dtype")},
        "target_weights": "float8_e4m3fn" if fp8 else request.dtype,
        "kv_dtype": request.execution.kv_dtype,
        "executions": {name: setup.as_dict() for name, setup in setups.items()},
    }


def _gpu(device: torch.device) -> dict[str, Any]:
    cuda = torch.backends.cuda
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tf32": {"matmul": cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
    }


# --- for people

COLUMNS = (
    *("execution", "route", "blocks", "x target-only", "x ours"),
    *("s per video", "spread", *SECONDS, "s to first frame", "frames per s", "peak memory"),
)
# How far predicted peak memory may be off, as a fraction of the measured peak.
MEMORY_TOLERANCE = 0.1


def headline(result: Result) -> str:
    """Return in one line the conditions one must know to read the numbers."""
    conditions = result["conditions"]
    repeats = result.get("repeats")
    rounds = "one round" if repeats == 1 else f"median of {repeats} rounds"
    return (
        f"{result['scale']}: {conditions['drafter']} drafter, {conditions['target']} target, random weights, "
        f"{result['width']}x{result['height']}, {result['blocks']} blocks, "
        f"{conditions['versions']['device']}, torch {conditions['versions']['torch']}, {conditions['dtype']}"
        + (f", {rounds}" if repeats else "")
    )


def result_text(result: Result) -> str:
    """Return a run's table, its memory, its conditions and the notes."""
    conditions = result["conditions"]
    reasons = [f"models of {result['scale']} scale"] if result["scale"] != "full" else []
    reasons += ["no GPU"] if conditions["gpu"] is None else []
    parts = [
        *([f"**Not a measurement of speed: {' and '.join(reasons)}.**"] if reasons else []),
        f"{headline(result)}.",
        "Interrupted: cases that are missing were not finished." if result["interrupted"] else "",
        markdown(COLUMNS, [_cells(case) for case in result["cases"]], words=3),
        _memory(result["memory"]["peak"]),
        f"Conditions:\n\n```json\n{json.dumps(conditions, indent=1)}\n```",
        " ".join(result["notes"]),
    ]
    return "\n\n".join(filter(None, parts))


def _cells(case: Result) -> list[str]:
    peak = case["peak_bytes"]
    seconds = case["seconds"]
    spread = (max(case["videos"]) - min(case["videos"])) / seconds["video"] if len(case["videos"]) > 1 else None
    return [
        case["execution"],
        case["route"],
        case["script"],
        number(case["ratio_to_target_only"], 2, "x"),
        number(case["ratio_to_ours"], 2, "x"),
        number(seconds["video"], 3),
        number(spread and 100 * spread, 0, " %"),
        *(number(seconds[part], 3) for part in SECONDS),
        number(case["first_frame_seconds"], 3),
        number(case["frames_per_second"], 1),
        gigabytes(peak) if peak else "-",
    ]


def _memory(peaks: Mapping[str, Result]) -> str:
    rows = []
    for step, found in peaks.items():
        cells = ["not measured", "-"]
        if found["bytes"] is not None:
            within = "within" if abs(found["deviation"]) <= MEMORY_TOLERANCE else "not within"
            off = f"{100 * found['deviation']:+.1f} %, {within} {100 * MEMORY_TOLERANCE:.0f} %"
            cells = [gigabytes(found["bytes"]), off]
        rows.append([PHASE_NAMES[step], gigabytes(found["predicted_bytes"]), *cells])
    return markdown((f"peak memory of {OURS.name} in", "predicted", "measured", "prediction is off by"), rows)
