"""Servers that keep less: the same video, whatever ComfyUI forgets between two prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from running_server import Server, running_server
from server_prompts import pocket

pytestmark = [pytest.mark.comfyui, pytest.mark.exhaustive]

OPTIONS = [
    ("--cache-none",),
    ("--cache-lru", "2"),
    ("--reserve-vram", "1"),
    ("--cache-none", "--reserve-vram", "1"),
]


def latents(server: Server, **changes: object) -> tuple[torch.Tensor, list[bool]]:
    """Return the latents of a run, and which blocks were taken from an earlier one."""
    done = server.make(pocket(**changes))
    return server.latents(done), [bool(block["reused"]) for block in done.record()["blocks"]]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_a_server_that_keeps_less_makes_the_same_video(
    options: tuple[str, ...], server: Server, tmp_path: Path
) -> None:
    """And one block more is made after those there are: our store is not ComfyUI's cache."""
    usual = [latents(server, blocks=blocks, sampler__seed=77)[0] for blocks in (3, 4)]
    with running_server(tmp_path, options=options) as other:
        one = latents(other, blocks=3, sampler__seed=77)
        two = latents(other, blocks=4, sampler__seed=77)
    assert torch.equal(one[0], usual[0])
    assert torch.equal(two[0], usual[1])
    assert two[1] == [True, True, True, False]
