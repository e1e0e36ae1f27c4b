"""Write docs/models.md: the models that the code knows, and how it runs each.

`python tools/list_models.py`. A test compares the page with what this would write.
"""

from __future__ import annotations

from itertools import starmap
from pathlib import Path

from sdvg_core.settings.context import Preset, Recompute, get_preset
from sdvg_core.settings.schedules import SHIFT, Schedule, get_schedule
from sdvg_core.weights.model_files import KNOWN_MODELS, LICENCES_READ, KnownModel
from sdvg_core.weights.pickles import STATE_DICTS

OTHERS = {
    "Causal-Forcing, long video (chunkwise/longvideo.pt)": "made for Rolling Forcing's sampler",
    "Rolling-Forcing 1.3B": "denoises several blocks at once",
    "Reward-Forcing 1.3B": "its sink is a mean of the frames that left the window",
    "MemFlow 1.3B": "needs a memory bank",
    "StreamDiffusionV2 1.3B, 14B": "changes a given video",
    "[Self Gradient Forcing Plus](https://huggingface.co/ZihanSu/Self_Gradient_Forcing_Plus) 1.3B, Apache-2.0": (
        "has second weights (`memory_...`) for context passes; refused"
    ),
    "[AAD-1](https://huggingface.co/Watay/AAD-1) 1.3B, one step": "image-to-video, by its paper",
    "[History-Forcing](https://huggingface.co/xzxxntxdy/History-Forcing) 1.3B, `dmd/model.pt`": (
        "window and sink unknown; the preset custom may run it"
    ),
    "[AnyFlow-FAR](https://huggingface.co/nvidia/AnyFlow-FAR-Wan2.1-1.3B-Diffusers) 1.3B, 14B": (
        "another model, with other layers for older frames; the card says *other* (NSCLv1, non-commercial, by a "
        "secondary source), its code Apache-2.0"
    ),
    "Krea Realtime in 4 bits (w4a4, 7.8 GB)": "for nunchaku's kernels",
    "SFWan2.2-T2V-A14B, CausalWan2.2-I2V-A14B": "two 14B experts take turns by noise level",
    "Self-Forcing-Plus 14B, lightx2v StepDistill 14B": "bidirectional: they make a clip in one go",
    "lightx2v Self-Forcing NVFP4": "NVFP4 is not read; its FP8 file may load",
    "lightx2v Wan2.1-T2V-14B-CausVid, Clean Forcing 1.3B": "steps unknown; the preset custom may run them",
}
"""Models that we know of and have no row for, each with the reason."""

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
TOP = """# Models

Which checkpoints SDVG knows, how it runs each, where they are and under which licence. A file named as below
(with its folder, if two share a name) gets its preset by itself; `preset` overrides it. Any other 1.3B file
runs like Self-Forcing, any other 14B one like Krea Realtime. `tools/list_models.py` writes this.

## How they are run

Krea Realtime is the target, 14B; all others are drafters, 1.3B. None was tried with its published weights: all ran
from files of their layout with random numbers, and some were compared with [their code](parity.md).
"""
COLUMNS = (
    f"Weights: {' or '.join(f'{name} (`{key}`)' for name, key in STATE_DICTS.items())} of a training checkpoint.\n"
    "Block and context: in latent frames."
)
WHERE = f"""
## Where they are, and under which licence

Licences are what the card or a file said on {LICENCES_READ}, not advice. Two sizes: unseen, in 16 or 32 bits.
"""
OTHER = """
## Known, and not in the table
"""


def page() -> str:
    """Return the whole page."""
    runs = [
        "| model | preset | block | steps | context | weights |",
        "|---|---|---|---|---|---|",
        *map(_run, KNOWN_MODELS),
    ]
    used = dict.fromkeys(name for m in KNOWN_MODELS for name in _schedules(get_preset(m.preset)))
    steps = ", ".join(f"{name} is {_steps(get_schedule(name))}" for name in used)
    by_card: dict[tuple[str, str], list[KnownModel]] = {}
    for model in KNOWN_MODELS:
        by_card.setdefault((model.repository, model.licence), []).append(model)
    places = ["| from | files | licence |", "|---|---|---|", *starmap(_place, by_card.items())]
    notes = [f"- {m.name}: {text}." for m in KNOWN_MODELS for text in [m.warning] if text]
    others = [f"- {name}: {why}." for name, why in OTHERS.items()]
    told = ["", f"Steps: {steps}; shift {SHIFT:g}.", COLUMNS]
    parts = [TOP, *runs, *told, WHERE, *places, "", *notes, OTHER, *others]
    return "\n".join(parts) + "\n"


def _run(model: KnownModel) -> str:
    preset = get_preset(model.preset)
    cells = [
        f"[{model.name}]({_address(model.repository)})",
        f"`{preset.name}`",
        str(preset.block_frames),
        "; first block ".join(_schedules(preset)),
        _context(preset),
        _weights(model, preset),
    ]
    return _row(cells)


def _address(repository: str) -> str:
    return f"https://huggingface.co/{repository}"


def _schedules(preset: Preset) -> tuple[str, ...]:
    return (preset.schedule, *filter(None, [preset.first_schedule]))


def _weights(model: KnownModel, preset: Preset) -> str:
    return preset.weights if model.files[0].endswith(".pt") and preset.weights in STATE_DICTS else "-"


def _place(card: tuple[str, str], models: list[KnownModel]) -> str:
    repository, licence = card
    sizes = {
        model.path: f" ({model.gigabytes:g} GB)" if model.gigabytes else " (2.8 or 5.7 GB)" for model in models
    }
    files = ", ".join(f"`{path}`{size}" for path, size in sizes.items())
    return _row([f"[{repository}]({_address(repository)})", files, licence])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _steps(schedule: Schedule) -> str:
    return ", ".join(f"{step.timestep:.2f}".rstrip("0").rstrip(".") for step in schedule)


def _context(preset: Preset) -> str:
    context = preset.context
    if isinstance(context, Recompute):
        return f"recompute {context.context_frames}"
    sink = f", sink {context.sink}" if context.sink else ""
    trained = f", positions to {context.trained}" if context.trained else ""
    return f"incremental, window {context.window}{sink}{trained}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
