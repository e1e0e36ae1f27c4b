"""The command at tiny scale: that its numbers are complete and consistent, not that they are fast."""

import contextlib
import io
import json

import pytest
from bench_parts import SHORT

from benchmarks.__main__ import main
from benchmarks.variants import default_routes

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def printed() -> dict:
    """Every usual route of a three-block clip, in two executions, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*SHORT, "--executions", "ours", "diffusers", "--json"]) == 0
    (line,) = out.getvalue().splitlines()
    return json.loads(line)


def test_the_json_line_is_complete(printed):
    names = [(entry["route"], entry["execution"]) for entry in printed["cases"]]
    usual = [route.name for route in default_routes(3)]
    assert names == [(name, execution) for execution in ("ours", "diffusers") for name in usual]
    for entry in printed["cases"]:
        assert set(entry["seconds"]) == {"video", "draft", "decode", "score", "target", "context"}
        assert entry["seconds"]["video"] > 0
        models = {f"{role}_{kind}" for role in ("drafter", "target") for kind in ("denoising", "context")}
        assert set(entry["passes"]) == {*models, "decodes", "encodes"}
        assert entry["repeats"] == len(entry["videos"]) == 1  # the warm-up is none of them
        assert entry["peak_bytes"] is None
    assert printed["memory"]["note"].startswith("peaks are measured on CUDA")
    assert set(printed["warm_up_seconds"]) == {"ours", "diffusers"}
    assert not printed["interrupted"]


def test_predicted_weights_are_those_that_lie_there(printed):
    weights = printed["memory"]["weights"]
    assert set(weights) == {"target", "drafter", "vae", "scorer"}
    assert all(found["deviation"] == 0 for found in weights.values())
    assert set(printed["memory"]["peak"]) == {"draft", "decode", "score", "target"}
