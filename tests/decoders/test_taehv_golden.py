"""Our TAEHV against ComfyUI's own, in the published sizes, by what was kept of its results (`tests/golden`)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import taehv_cases as cases
import torch
from tae_parts import PUBLISHED, codec_of, tae_shapes
from vae_parts import decode_pieces

GOLDEN = json.loads(Path(cases.__file__).with_name("taehv.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def codec():
    shapes = tae_shapes(**PUBLISHED)
    return codec_of({name: torch.from_numpy(cases.random_weight(name, shape)) for name, shape in shapes.items()})


def test_pixels_and_latents_equal_those_of_comfyuis_own_class(codec):
    frames, _ = decode_pieces(codec, torch.from_numpy(cases.latents()), [1, 2, 2])
    for name, made in (("decoded", frames), ("encoded", codec.encode(torch.from_numpy(cases.frames())))):
        numbers = np.array(GOLDEN[name]["numbers"])[2:]
        golden = numbers.clip(0, 1) if name == "decoded" else numbers
        assert list(made.shape) == GOLDEN[name]["shape"]
        assert np.abs(np.array(cases.kept(made.numpy()))[2:] - golden).max() < TOLERANCE


@pytest.mark.parametrize("name", ["decoded", "encoded"])
def test_the_results_vary_far_more_than_the_tolerance(name):
    _, spread, *numbers = GOLDEN[name]["numbers"]
    assert spread > 5000 * TOLERANCE
    assert len(numbers) == cases.KEPT
    assert sum(0 < x < 1 for x in numbers) > 0.5 * len(numbers) or name == "encoded"
