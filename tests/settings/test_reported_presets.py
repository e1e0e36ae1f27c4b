"""What a report says of how a model ran."""

from __future__ import annotations

from sdvg_core.settings.context import Preset, Rolling, get_preset

FOUR = [1000.0, 937.5, 833.3333129882812, 625.0]


def test_preset_is_reported_with_every_value() -> None:
    """Catches: a value that is left out, or is another one's; the schedule of all blocks for the first one's."""
    own = Preset(
        name="custom",
        block_frames=1,
        schedule="1000,500",
        first_schedule="four-step",
        draft_steps=2,
        context=Rolling(window=8, sink=1, recache=True, context_memory="memrope"),
    )
    assert own.settings == {
        "preset": "custom",
        "block_frames": 1,
        "schedule": [1000.0, 500.0],
        "first_schedule": FOUR,
        "draft_steps": 2,
        "policy": "incremental",
        "window": 8,
        "sink": 1,
        "relative": False,
        "recache": True,
        "flush": False,
        "context_memory": "memrope",
    }
    assert get_preset("krea-14b").settings == {
        "preset": "krea-14b",
        "block_frames": 3,
        "schedule": FOUR,
        "first_schedule": FOUR,
        "policy": "recompute",
        "context_frames": 3,
        "keep_first_frame": False,
    }
