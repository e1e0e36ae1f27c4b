"""One thread per process, and in those that tests start: the models are tiny, and processes share the cores."""

import gc
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.dont_write_bytecode:  # as in some containers, where each process would compile torch and all tests anew
    del os.environ["PYTHONDONTWRITEBYTECODE"]
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix, "bytecode")))

import pytest
import torch

gc.disable()  # while a million objects are made that stay
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests send it, and a shell has what it starts in the background ignore it, with all that is started there.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Helpers that check: a failure is to show the values there as it does in a test.
pytest.register_assert_rewrite("tests.support.reuse_folders", "replayed", "small_runs")


def pytest_collection_finish() -> None:
    """Collect garbage from here on, and never look at what was imported: that took a third of the start."""
    gc.freeze()
    gc.enable()


COUNTING = ("test_every_step", "test_real_vae_peaks_as_planned")
"""Tests of live bytes. Once torch's compiler has run in a process, some tensors live longer there."""
compiled: list[bool] = []


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Count bytes in a new process if anything was compiled in this one."""
    if not pyfuncitem.name.startswith(COUNTING) or not (compiled or "torch._inductor.compile_fx" in sys.modules):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", ""]
    root = pyfuncitem.config.rootpath
    done = subprocess.run([*command, pyfuncitem.nodeid], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stdout
    return True


@pytest.fixture(autouse=True)
def same_numbers_in_any_order() -> None:
    """What a test draws on the CPU without a seed does not depend on the tests that ran before it."""
    torch.default_generator.manual_seed(int(os.environ.get("SDVG_TEST_SEED", "0")))


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What is logged, warnings and worse. pytest's `caplog` is off: it visits every logger, in each test thrice."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    yield text
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Any:
    """A tiny set of models on the disk, for tests that leave it as it is."""
    from tests.support.random_set import write_random_set

    return write_random_set(tmp_path_factory.mktemp("models"), vae_blocks=1)


@pytest.fixture
def fresh_compiler():
    compiled.append(True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
