"""A node's request reads downward, as a command's does."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_run import load_parts, make_job, video_of
from request_trace import trace

pytestmark = pytest.mark.comfyui


def test_a_job_reaches_the_first_denoising_pass_through_fifteen_files(tmp_path: Path) -> None:
    job = make_job(load_parts(tmp_path), script="ttrr")
    files, returns = trace(lambda: video_of(job))
    assert files[-1] == "sdvg_core/causal_wan/forward.py"
    assert len(files) <= 14, files  # and nodes/sampler.py, which makes the job
    assert not returns
