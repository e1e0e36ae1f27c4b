"""What a file of weights should hold, and the sentence it is refused with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sdvg_core.checkpoints.weights import TensorInfo, WeightFile, open_weights
from sdvg_core.errors import BadInput


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(3, i + 1, generator=g) for i in range(3)}


def assert_holds(file: WeightFile, wanted: dict[str, torch.Tensor]) -> None:
    assert dict(file.info) == {n: TensorInfo(tuple(t.shape), t.dtype) for n, t in wanted.items()}
    assert sorted(file) == sorted(wanted)
    assert all(torch.equal(file[n], t) for n, t in wanted.items())


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        open_weights(path)
    message = str(caught.value)
    assert "; " in message
    assert "\n" not in message
    return message
