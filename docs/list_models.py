"""Write docs/models.md: the models that the code knows, and how it runs each.

`python docs/list_models.py`. A test compares the page with what this would write.
"""

from __future__ import annotations

from pathlib import Path

from sdvg_core.causal_wan.presets import Preset, get_preset
from sdvg_core.causal_wan.schedule import SHIFT, Schedule, get_schedule
from sdvg_core.checkpoints.dictionaries import DICTIONARIES
from sdvg_core.checkpoints.known_models import HUB, KNOWN_MODELS, OTHERS, KnownModel

PAGE = Path(__file__).resolve().parent / "models.md"
TOP = f"""# Models

Checkpoints that SDVG knows by name, and how it runs each. A file with one of these names gets its preset by itself
(`auto`); `--drafter-preset`, `--target-preset` and the loaders' `preset` go before the name. Every other file of
these sizes runs like Self-Forcing (1.3B) or Krea Realtime (14B) unless a preset is stated. Shift is {SHIFT:g}
everywhere. All counts are latent frames. `docs/list_models.py` writes this page from
`sdvg_core/checkpoints/known_models.py` and `sdvg_core/causal_wan/presets.py`.

## How they are run
"""
WHERE = """
Weights: which dictionary of a training checkpoint is meant, if it holds several (`--drafter-settings weights=raw`).

## Where they are, and under which licence

Licences are what the card or a file said on the day it was read, not advice.
"""
OTHER = """
## Known, and not in the table
"""


def page() -> str:
    """Return the whole page."""
    runs = [
        "| model | role | size | preset | block | steps | first block | context | weights | names of tensors |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(_run, KNOWN_MODELS),
    ]
    places = ["| file | from | licence | read |", "|---|---|---|---|", *map(_place, KNOWN_MODELS)]
    notes = [f"- {m.name}: {text}." for m in KNOWN_MODELS for text in (m.note, m.warning) if text]
    digests = [f"- {m.name}: SHA-256 `{m.sha256}`, by {m.digest_source}." for m in KNOWN_MODELS if m.sha256]
    others = [f"- {name}: {why}." for name, why in OTHERS.items()]
    parts = [TOP, *runs, WHERE, *places, "", *notes, *digests, OTHER, *others]
    return "\n".join(parts) + "\n"


def _run(model: KnownModel) -> str:
    preset = get_preset(model.preset)
    cells = [
        model.name,
        model.role,
        model.size,
        f"`{preset.name}`",
        str(preset.block_frames),
        _steps(get_schedule(preset.schedule)),
        _first_block(preset),
        _context(preset),
        _weights(model, preset),
        model.keys,
    ]
    return _row(cells)


def _weights(model: KnownModel, preset: Preset) -> str:
    if not model.files[0].endswith(".pt"):
        return "the one set in the file"
    return (
        f"`{DICTIONARIES[preset.weights]}` ({preset.weights})" if preset.weights in DICTIONARIES else "not stated"
    )


def _place(model: KnownModel) -> str:
    size = f", {model.gigabytes:g} GB" if model.gigabytes else ""
    where = f"[{model.repository}]({HUB}/{model.repository}), `{model.path}`"
    return _row([f"`{model.files[0]}`{size}", where, model.licence, model.read])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _steps(schedule: Schedule) -> str:
    return ", ".join(f"{step.timestep:.2f}".rstrip("0").rstrip(".") for step in schedule)


def _first_block(preset: Preset) -> str:
    return _steps(preset.first_steps) if preset.first_schedule else "as all"


def _context(preset: Preset) -> str:
    if preset.policy == "recompute":
        return f"recompute {preset.context_frames}"
    return f"incremental, window {preset.window}, sink {preset.sink}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
