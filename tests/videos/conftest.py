"""A tiny model set on the disk, and a finished video of it; files that need others have fixtures of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import options
from tests.support.loaded_once import load_once
from tests.support.random_set import write_random_set
from tests.support.reuse_folders import PROMPT, ROUTE, SMALL, Run, made


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Iterator[None]:
    """Load each file once. What loading promises is proved in `tests/causal_wan`, `decoders` and `scorers`."""
    with pytest.MonkeyPatch.context() as patched:
        load_once(patched)
        yield


@pytest.fixture(scope="session")
def others(tmp_path_factory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("others"), seed=1, vae_blocks=1)


@pytest.fixture(scope="session")
def base(files) -> list[str]:
    return [*options(files), *SMALL, *PROMPT]


@pytest.fixture(scope="session")
def earlier(base, tmp_path_factory) -> tuple[Path, Run]:
    """The folder of a finished video, and what its run left."""
    folder = tmp_path_factory.mktemp("earlier") / "out"
    whole = made(folder, base)
    assert [block["author"] for block in whole.report["blocks"]] == ROUTE
    return folder, whole
