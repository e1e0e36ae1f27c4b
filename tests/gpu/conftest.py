"""Tests on a GPU: `pytest -m gpu tests/gpu`, under a minute. Without one they are skipped.

SDVG_DRY_GPU=1 runs them on the CPU, to see that they are right; what only a GPU has is then left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

DRY = bool(os.environ.get("SDVG_DRY_GPU"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here."""
    for item in items:
        if "tests/gpu" not in item.path.as_posix() or torch.cuda.is_available():
            continue
        if not DRY:
            item.add_marker(pytest.mark.skip(reason="no GPU (SDVG_DRY_GPU=1 runs it on the CPU)"))
        elif item.get_closest_marker("needs_card"):
            item.add_marker(pytest.mark.skip(reason="only a GPU has it"))


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """Without TF32, whose ten bits would hide what is wrong."""
    cudnn = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = cudnn
