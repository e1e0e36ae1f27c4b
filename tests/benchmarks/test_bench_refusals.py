"""What the benchmark cannot do here, said in one sentence before anything is made."""

import pytest
import torch
from bench_parts import SHORT

from benchmarks.__main__ import main


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
