"""One thread per process, and in those that tests start: the models are tiny, and processes share the cores."""

import os
from typing import Any

import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Helpers that check: a failure is to show the values there as it does in a test.
pytest.register_assert_rewrite("reuse_folders")


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Any:
    """A tiny set of models on the disk, for tests that leave it as it is."""
    from random_set import write_random_set

    return write_random_set(tmp_path_factory.mktemp("models"))


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
