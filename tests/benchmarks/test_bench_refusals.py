"""What the benchmark cannot do here, said in one sentence before anything is made."""

import pytest
import torch
from bench_parts import SHORT

from benchmarks import bench
from benchmarks.__main__ import main
from sdvg_core.devices import execution as compiling


def test_without_cuda_the_full_scale_says_what_still_works(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--scale tiny" in line
    assert main(["--device", "cpu"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    "more, part",
    [
        (["--repeats", "0"], "--repeats is 0"),
        (["--routes", "r=5"], "more than 2 blocks"),
        (["--size", "64"], "'64' is no size"),
        (["--size", "30x32"], "use 16 or 32"),
        (["--device", "gpu"], "a device is cpu, cuda"),
        (["--executions", "as-published+planes"], "joined by +"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(capsys, more, part):
    assert main([*SHORT, *more]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert part in lines[0]


@pytest.mark.parametrize(
    "more, part",
    [(["--executions", "compiled"], "compiling failed"), (["--attention", "flash"], "use --attention auto")],
)
def test_a_fast_path_that_cannot_be_had_is_refused_before_a_model_is_made(capsys, monkeypatch, more, part):
    def failing(work):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "compiled", failing)
    monkeypatch.setattr(bench, "random_models", None)
    assert main([*SHORT, *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


def test_running_out_of_memory_on_the_way_is_a_sentence_too(capsys, monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "rounds", run_out)
    assert main(SHORT) == 2
    assert "ran out of memory" in capsys.readouterr().err.splitlines()[-1]
