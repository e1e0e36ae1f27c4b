"""What the overlap takes in memory, as a plan counts it."""

import torch
from tiny import CONFIG, random_tree

from sdvg_core.causal_wan.cache import KVCache
from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.devices.execution import Execution
from sdvg_core.plan.request import PlanRequest
from sdvg_core.plan.setting import Setting, Sizes, step_parts
from sdvg_core.plan.sizes import state_bytes

OVERLAP = Execution(overlap=True)
RECOMPUTE = get_preset("self-forcing-1.3b").replace(policy="recompute", context_frames=3)
INCREMENTAL = get_preset("self-forcing-1.3b").replace(policy="incremental", window=9)


def parts(**options):
    request = PlanRequest(**options)
    return step_parts(request, Sizes.of(request, fp8=False), Setting())


def test_the_drafter_at_work_lies_beside_the_decoder_and_the_scorer():
    """Catches: its keys and values left out, or counted while nothing is drafted."""
    for preset in (RECOMPUTE, INCREMENTAL):
        serial, ahead = (parts(drafter_preset=preset), parts(drafter_preset=preset, execution=OVERLAP))
        for step in ("decode", "score"):
            more = {name: size for name, size in ahead[step].items() if size != serial[step].get(name)}
            assert more["working beside"] == serial["draft"]["working"]
            assert ahead[step]["drafter keys and values"] == ahead["draft"]["drafter keys and values"]
        assert "working beside" not in ahead["draft"] | ahead["target"]


def test_copies_of_what_a_wrong_guess_overwrites_are_counted_to_the_byte():
    request = {"drafter": CONFIG, "drafter_preset": INCREMENTAL, "dtype": "float32", "width": 64, "height": 64}
    name = "drafter keys and values"
    predicted = (
        state_bytes(PlanRequest(**request, execution=OVERLAP))[name] - state_bytes(PlanRequest(**request))[name]
    )
    cache = KVCache(random_tree(0), 9, 4 * 4, torch.float32, torch.device("cpu"))
    copied = cache.copy((0, 1, 2))
    assert predicted == sum(values.nbytes for _, _, values in copied) > 0
