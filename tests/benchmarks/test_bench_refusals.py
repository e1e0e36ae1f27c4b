"""What the benchmark cannot do here, said in one sentence before anything is made."""

from __future__ import annotations

import pytest
import torch
from bench_parts import SHORT

from benchmarks import command as bench
from benchmarks.__main__ import main
from benchmarks.room import check_room, room_for
from benchmarks.variants import parse_variant
from sdvg_core.causal_wan import backends
from sdvg_core.devices import compiling
from sdvg_core.errors import BadInput
from sdvg_core.plan import PlanRequest


def test_without_cuda_the_full_scale_says_what_still_works(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bench --scale tiny" in line
    assert main(["--device", "cpu"]) == 2
    capsys.readouterr()


def test_too_little_memory_prints_the_plan_instead(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 * 10**9, 25 * 10**9))
    cuda = torch.device("cuda")
    with pytest.raises(BadInput, match=r"cuda has 24\.0 GB free of the 44"):
        check_room(PlanRequest(), cuda, cuda, False)
    shown = capsys.readouterr().err
    assert "Fits: target in fp8" in shown
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * 10**9, 80 * 10**9))
    check_room(PlanRequest(), cuda, cuda, False)


def test_two_devices_are_each_asked_for_their_own_part(capsys, monkeypatch):
    """Catches VAE and scorer looked for room for on the first device, or not at all."""
    free = {"cuda:0": 42, "cuda:1": 9}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[str(device)] * 10**9, 0))
    first, second, request = torch.device("cuda:0"), torch.device("cuda:1"), PlanRequest(side=True)
    check_room(request, first, second, False)
    free["cuda:1"] = 7
    with pytest.raises(BadInput, match=r"cuda:1 has 7\.0 GB free of the 8\.0"):
        check_room(request, first, second, False)
    free |= {"cuda:0": 39, "cuda:1": 90}
    with pytest.raises(BadInput, match=r"cuda:0 has 39\.0 GB free of the 40"):
        check_room(request, first, second, False)
    assert "second device holds" in capsys.readouterr().err


def test_room_is_looked_for_for_all_that_any_execution_does():
    """Catches what working ahead and the widest of the VAE's layers need, left out."""
    executions = [parse_variant(name) for name in ("ours", "compiled", "planes+overlap")]
    found = room_for(PlanRequest(), executions, side=True)
    assert (found.vae_layers, found.execution.overlap, found.side) == ("diffusers", True, True)
    assert room_for(PlanRequest(), executions[:1], side=False) == PlanRequest()
    assert room_for(PlanRequest(), executions[2:], side=False).vae_layers == "planes"


@pytest.mark.parametrize(
    "more, part",
    [
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--blocks", "0"], "blocks must be at least 1"),
        (["--routes", "r=5"], "at most 2"),
        (["--size", "64"], "such as 832x480"),
        (["--size", "30x32"], "use 16 or 32"),
        (["--device", "gpu"], "a device is cpu, cuda"),
        (["--side-device", "gpu"], "a device is cpu, cuda"),
        (["--executions", "faster"], "as-published, or one or more of"),
        (["--executions", "as-published+planes"], "joined by +"),
        (["--reward-dtype", "bfloat16"], "float16"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(capsys, more, part):
    assert main([*SHORT, *more]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert part in lines[0]


@pytest.mark.parametrize(
    "more, part",
    [
        (["--executions", "compiled"], "compiling failed"),
        (["--attention", "flash"], "use --attention auto"),
        (["--attention", "sage"], "use --attention auto"),
    ],
)
def test_a_fast_path_that_cannot_be_had_is_refused_before_a_model_is_made(capsys, monkeypatch, more, part):
    def failing(work):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "compiled", failing)
    monkeypatch.setattr(bench, "random_models", None)
    assert main([*SHORT, *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


def test_an_attention_that_is_not_installed_is_named_with_its_package(capsys, monkeypatch):
    monkeypatch.setattr(backends, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    assert main([*SHORT, "--dtype", "bfloat16", "--attention", "flash"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install flash-attn" in line


def test_running_out_of_memory_on_the_way_prints_the_plan_too(capsys, monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "_bench", run_out)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 * 10**9, 25 * 10**9))
    assert main(SHORT) == 2
    said = capsys.readouterr().err
    assert "in 24 GB" in said
    assert "Traceback" not in said
    assert "ran out during the run" in said.splitlines()[-1]
