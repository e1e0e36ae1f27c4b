"""What fits where, and which layout is chosen."""

from dataclasses import replace

import pytest
import torch
from cli_runs import override

from sdvg_core.cli import main, make_parser
from sdvg_core.cli.plan import plans_for
from sdvg_core.engine.plan import plan_blocks
from sdvg_core.engine.router import ROUTER_PRESETS, RouterConfig
from sdvg_core.memory.plan import plan, plan_text
from sdvg_core.memory.sizes import LAYERS_IN_FLIGHT, PlanRequest, most

GB = 10**9
FULL = PlanRequest()


# --- the choice


@pytest.mark.parametrize("vram", [14.2, 15, 16, 20, 23.9, 24, 30, 31, 44, 48, 139])
def test_no_plan_uses_more_than_there_is(vram):
    found = plan(vram, FULL)
    assert found.fits
    assert found.peak <= vram * GB
    target = found.parts["target"]
    assert target["target keys and values"] == 7_667_712_000
    assert target["target"] <= found.sizes.weights["target"]


def test_more_memory_never_copies_more():
    """Catches: a choice by layout instead of by bytes, and a streamed target that does not use the room it has."""
    cards = (14.2, 14.5, 15, 16, 18, 21, 22.5, 24, 26, 28, 30, 33, 40, 45, 90)
    plans = [plan(vram, FULL) for vram in cards]
    copied = [sum(one.copied.values()) for one in plans]
    assert copied == sorted(copied, reverse=True)
    assert copied[0] > 14e9
    assert [one.fp8 for one in plans] == [True] * 13 + [False] * 2, "rounded only to copy less"


@pytest.mark.parametrize("vram, streamed", [(24, ("target",)), (15, ("target", "drafter"))])
def test_as_few_layers_are_streamed_as_there_is_no_room_for(vram, streamed):
    """Catches layers in flight that are not counted, and a model's other weights counted as copied."""
    found = plan(vram, FULL)
    assert (found.fp8, tuple(found.streamed)) == (True, streamed)
    for role, count in found.streamed.items():
        layer = found.sizes.layers[role]
        assert 2 * layer * found.request.models[role].config.num_layers > 0.9 * found.sizes.weights[role]
        there = found.sizes.weights[role] - (count - LAYERS_IN_FLIGHT) * layer
        assert {step[role] for step in found.parts.values()} == {there}
        assert found.copied[role] == count * layer
    last = streamed[-1]
    assert found.peak + found.sizes.layers[last] > vram * GB >= found.peak
    assert all(found.streamed[role] == found.request.models[role].config.num_layers for role in streamed[:-1])


@pytest.mark.parametrize(
    "router, roles",
    [
        (RouterConfig(), {"target", "drafter", "scorer", "vae"}),
        (ROUTER_PRESETS["balanced"], {"target", "drafter", "vae"}),
        (RouterConfig(policy="always-target"), {"target", "vae"}),
        (RouterConfig(policy="first", forced_blocks=0), {"drafter", "vae"}),
    ],
    ids=["gate", "balanced", "target", "draft"],
)
def test_only_models_that_the_route_may_load_are_counted(router, roles):
    """Catches the scorer of the gate in the plan of a preset."""
    route = plan_blocks(router, blocks=9, block_frames={"drafter": 3, "target": 3})
    found = plan(80, replace(FULL, needed=route.models_needed))
    assert set(found.sizes.weights) == roles
    for step in found.parts.values():
        named = {part.split()[0] for part in step} - {"working"}
        assert named == roles
    assert ("draft" in found.parts, "target" in found.parts) == ("drafter" in roles, "target" in roles)


def test_the_command_line_has_layers_and_a_precision_of_its_own_for_the_vae(capsys):
    plans = []
    for more in ([], ["--command-line"]):
        plans += plans_for(make_parser().parse_args(["plan", "--vram", "80", *more]))
    assert [plan.request.where for plan in plans] == ["in ComfyUI", "on the command line"]
    assert [plan.request.execution.vae_layers for plan in plans] == ["diffusers", "planes"]
    assert [plan.parts["decode"]["vae state"] for plan in plans] == pytest.approx([3.78e9, 7.57e9], rel=0.01)
    assert main(["plan", "--vram", "80", "--command-line"]) == 0
    assert capsys.readouterr().out.startswith("On the command line: 1.3B drafter, 14B target, 832x480")


def test_what_does_not_fit_says_what_is_missing_and_what_would_fit():
    found = plan(8, FULL)
    assert not found.fits
    assert found.missing == found.peak - 8 * GB > 0
    assert found.would_fit is not None
    width, height = found.would_fit
    assert plan(8, replace(FULL, width=width, height=height)).fits
    text = plan_text(found)
    assert "Does not fit" in text
    assert f"It would fit at {width}x{height}" in text
    assert "No size of that shape would fit" in plan_text(plan(1, FULL))
    assert "IMAGE of 105 frames takes 0.5 GB of the computer's memory" in text
    assert "IMAGE" not in plan_text(plan(24, replace(FULL, where="on the command line")))


# --- the command


def test_a_machines_gpu_is_planned_for_if_nothing_else_is_asked(capsys, monkeypatch):
    class Properties:
        total_memory = 24 * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    assert main(["plan"]) == 0
    said = capsys.readouterr().out
    assert "in 24 GB" in said
    assert "target in fp8" in said


def test_a_plan_says_what_is_copied(capsys):
    assert main(["plan", "--vram", "24"]) == 0
    said = capsys.readouterr().out
    assert "in fp8, 37 % of the target's weights (5.3 GB) are copied over in every pass." in said
    assert "second" not in said


@pytest.mark.parametrize(
    "more, part",
    [
        (["--vram", "0"], "the device's memory is "),
        (["--vram", "nan"], "the device's memory is "),
        (["--size", "830x480"], "use 816 or 832"),
        (["--size", "832x-16"], "height"),
        (["--blocks", "0"], "a video cannot have 0 blocks"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(capsys, more, part):
    assert main(override(["plan", "--vram", "24"], *more)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert part in line


# --- two devices


def test_a_plan_for_two_devices_fits_the_first_and_tells_what_the_second_holds():
    one, two = plan(48, FULL), plan(48, replace(FULL, side=True))
    assert two.peak < one.peak
    assert "vae" not in two.parts["decode"]
    assert two.side_parts["decode"]["vae state"] == one.parts["decode"]["vae state"]
    assert most(one.side_parts) == 0
    assert "second device holds VAE and scorer, with a peak while decoding, 7.1 GB" in plan_text(two)
    assert "second device" not in plan_text(one)
