"""One thread per process, and in those that tests start: the models are tiny, and processes share the cores."""

import os

import torch

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
