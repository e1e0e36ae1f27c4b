"""Kept blocks, and runs that end before their last block: bit for bit what a run from nothing makes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import folder_paths
import pytest
import torch
from host_run import Parts, make_job, video_of, with_inputs
from sdvg_pack.nodes.host import kept as store
from sdvg_pack.nodes.host import reuse
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.sampler import SpeculativeSampler
from sdvg_pack.sdvg_core.engine.store import Store
from sdvg_pack.sdvg_core.engine.types import Span
from sdvg_pack.sdvg_core.errors import BadInput
from torch import Tensor

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]
KEEP = 4
Kept = tuple[str, Tensor, Tensor]


@pytest.fixture(scope="module", autouse=True)
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for what is written, and no blocks kept from other tests."""
    folder = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folder_paths, "get_output_directory", lambda: str(folder))
        patched.setattr(store, "_clips", OrderedDict())
        yield


@pytest.fixture(scope="module")
def kept(parts: Parts) -> Kept:
    """What names the first blocks of a video, its frames and its latents."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reuse, "_STORE", Store(0))
        frames, latent, _, live = run_job(make_job(parts))
    assert live.done
    return f"{KEEP}:{live.done['digests'][KEEP - 1]}", frames, latent["samples"]


def test_with_kept_blocks_the_rest_is_what_a_run_from_nothing_makes(parts: Parts, kept: Kept) -> None:
    text, frames, latents = kept
    again = run_job(make_job(parts), text)
    assert torch.equal(again[0], frames)
    assert torch.equal(again[1]["samples"], latents)
    assert [record.span.index for record in again[2].blocks] == list(range(KEEP, 9))
    assert not any(record.reused for record in again[2].blocks)
    digest, done = text.split(":")[1], again[3].done
    assert again[2].settings["kept"] == {"blocks": KEEP, "digest": digest}
    assert again[2].notes[0] == f"Blocks 1 to {KEEP} were given: kept from an earlier run, latents {digest}."
    assert done
    assert (done["blocks"], done["of"], done["stopped"]) == (5, 5, False)


def test_kept_blocks_stay_whatever_else_changes(parts: Parts, kept: Kept) -> None:
    """And the directions and takes of the others are theirs: block 6 has its own second take."""
    text, _, latents = kept
    changed = with_inputs(make_job(parts, prompt=3), seed=77, takes="2:3, 6:2", directions="dddd.t...")
    made = run_job(changed, text)
    frames = 3 * KEEP
    assert torch.equal(made[1]["samples"][:, :, :frames], latents[:, :, :frames])
    assert not torch.equal(made[1]["samples"][:, :, frames:], latents[:, :, frames:])
    assert [record.span.take for record in made[2].blocks] == [1, 2, 1, 1, 1]
    assert made[2].blocks[1].decision.reason.name == "DIRECTED_TARGET"


def test_they_are_there_after_the_server_was_started_again(
    parts: Parts, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, frames, _ = kept
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    run_job(make_job(parts), text)
    assert [path.stem for path in tmp_path.rglob("*.safetensors")] == [text.split(":")[1]]
    monkeypatch.setattr(store, "_clips", OrderedDict())
    assert torch.equal(run_job(make_job(parts), text)[0], frames)


REFUSED = [
    (
        {"width": 64, "height": 32},
        None,
        "the kept blocks have 32 x 32 pixels and the video 64 x 32; use their size",
    ),
    ({"blocks": KEEP}, None, f"all {KEEP} blocks are kept, so there is nothing to make"),
    ({}, "4:0123456789abcdef", "the kept blocks are no longer there"),
    ({}, "four", "the kept blocks are 'four'"),
]


@pytest.mark.parametrize("change, text, sentence", REFUSED, ids=str)
def test_what_cannot_be_kept_is_refused_before_anything_runs(
    parts: Parts, kept: Kept, change: dict[str, int], text: str | None, sentence: str
) -> None:
    named, *_ = kept
    size = {"width": 32, "height": 32, "blocks": 9, **change}
    with pytest.raises(BadInput, match=sentence):
        SpeculativeSampler.validate_inputs(drafter=None, **size, kept_blocks=text or named)
    with pytest.raises(BadInput, match=sentence):
        run_job(with_inputs(make_job(parts), **change), text or named)


def test_a_run_up_to_a_block_makes_the_beginning_of_the_whole_one(parts: Parts) -> None:
    """As takes that are compared are made. Catches a route planned for fewer blocks."""
    whole = video_of(make_job(parts))
    part = video_of(replace(make_job(parts), until_block=5))
    assert torch.equal(part[1], whole[1][:, :, :15])
    assert [record.decision for record in part[2].blocks] == [record.decision for record in whole[2].blocks[:5]]


def test_a_kept_run_can_be_kept_on_and_a_take_made_after_it(parts: Parts, kept: Kept) -> None:
    """Its digests go on counting. Catches a count of the new blocks alone."""
    text, frames, _ = kept
    *_, live = run_job(make_job(parts), text)
    assert live.done
    further = f"6:{live.done['digests'][1]}"
    assert torch.equal(run_job(make_job(parts), further)[0], frames)
    part = run_job(replace(make_job(parts), until_block=7), further)
    assert [record.span.index for record in part[2].blocks] == [6]


def test_of_many_runs_only_the_newest_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: latents of every run of a day held in memory."""
    monkeypatch.setattr(store, "_clips", OrderedDict())
    spans = [Span(0, 0, 3), Span(1, 3, 3)]
    runs = [
        store.remember(torch.full((1, 4, 6, 2, 2), float(n)), spans, 0, 16, 16, 0)
        for n in range(store.MOST_CLIPS + 3)
    ]
    assert set(store._clips) == {digest for digests in runs[3:] for digest in digests}
    with pytest.raises(BadInput, match="no longer there"):
        store.find_kept(f"1:{runs[0][0]}")
