"""One thread per process, and in those that tests start: the models are tiny, and processes share the cores."""

import os

import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Helpers that check: a failure is to show the values there as it does in a test.
pytest.register_assert_rewrite("queue_runs", "reuse_folders")
