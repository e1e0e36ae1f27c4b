"""Which devices are waited for before seconds are booked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from host_run import load_parts, make_job
from sdvg_pack.nodes.host import run
from sdvg_pack.nodes.host.memory import memory_of
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.sdvg_core.causal_wan import build
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset

pytestmark = pytest.mark.comfyui

CPU, GPU, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
ROLES = ("scorer", "vae", "target", "drafter")


def test_a_runs_seconds_wait_for_every_device_and_a_models_for_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a VAE or a drafter on a device of its own whose work is booked to whoever waits for it next."""
    asked: dict[str, list[Any]] = {"run": [], "build": []}
    for module in (run, build):
        name = module.__name__.rpartition(".")[2]

        def clock(*devices: torch.device, to: list[Any] = asked[name]) -> Callable[[], float]:
            to.append(devices)
            return time.perf_counter

        monkeypatch.setattr(module, "device_clock", clock)
    parts = load_parts(tmp_path)
    run_job(make_job(parts))
    assert asked == {"run": [(CPU,) * len(ROLES)], "build": [(CPU,), (CPU,)]}
    parts.drafter.load_device, parts.vae.patcher.load_device = SECOND, GPU
    presets = {"drafter": get_preset("self-forcing-1.3b"), "target": get_preset("krea-14b")}
    devices = memory_of(make_job(parts), presets).devices
    assert devices == tuple({"drafter": SECOND, "vae": GPU}.get(role, CPU) for role in ROLES)
