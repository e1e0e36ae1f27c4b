"""What a run needs of memory, in words."""

from __future__ import annotations

import pytest
import torch
from sdvg_pack.nodes.host import memory
from sdvg_pack.nodes.host.needs import Needs
from sdvg_pack.nodes.host.residency import Room, Weights

pytestmark = pytest.mark.comfyui

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GB = 10**9
NEEDS = Needs(step="target", parts={"target keys and values": 4 * GB, "vae state": 2 * GB, "working": 4 * GB})
MODELS = [
    Weights(name="target", bytes=28 * GB, device=GPU),
    Weights(name="drafter", bytes=3 * GB, device=GPU),
    Weights(name="scorer", bytes=2 * GB, device=CPU),
]
PARTS = (
    "Peak while generating with the target: "
    "target keys and values 4.0 GB, temporary buffers 4.0 GB, VAE state 2.0 GB"
)


def plan_in(usable: int) -> list[str]:
    return memory.describe_plan(MODELS, NEEDS, Room(total=80 * GB, usable=usable * GB), GPU)


STAYS, RUNS = "cuda:0: drafter weights, 3.0 GB stay there", "cuda:0: it runs, but slower because of the copying"
PLANS = {
    41: [STAYS, "cuda:0: target weights, 28.0 GB stay there", "cuda:0: everything fits"],
    24: [STAYS, "cuda:0: target weights, 11.0 GB stay there, 17.0 GB are copied over in every pass", RUNS],
}


@pytest.mark.parametrize("usable", PLANS)
def test_a_plan_says_what_stays_and_what_is_copied_over_the_hottest_model_last(usable: int) -> None:
    assert plan_in(usable) == [f"cuda:0: 10.0 GB of {usable}.0 GB needed besides weights. {PARTS}", *PLANS[usable]]


def test_a_plan_says_that_it_does_not_fit() -> None:
    assert plan_in(8)[-1] == "cuda:0: it does not fit, 2.0 GB are missing before any weights"


def test_a_plan_for_the_cpu_says_so() -> None:
    assert memory.describe_plan(MODELS, NEEDS, Room(total=64 * GB, usable=30 * GB), CPU) == [
        "cpu: 2.0 GB of weights and 10.0 GB besides in main memory, of which 30.0 GB are free; nothing is moved. "
        f"{PARTS}"
    ]


def test_out_of_memory_names_the_numbers_of_the_plan_and_three_settings() -> None:
    message = str(memory.out_of_memory(MODELS, NEEDS, Room(total=24 * GB, usable=22 * GB), GPU))
    for part in (
        "10.0 GB",
        "31.0 GB of weights",
        "24.0 GB",
        "22.0 GB",
        PARTS,
        "width and height",
        "fp8_e4m3fn",
        "window",
    ):
        assert part in message
