"""A nine-block run on tiny models that can be made to fail at any call, and what it takes to judge the damage."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from PIL import Image

from sdvg_core.causal_wan import context, generator
from sdvg_core.causal_wan.context import AnchorEncoder
from sdvg_core.engine.plan import plan_blocks
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.reuse import PartKeys
from sdvg_core.files.outputs import LATENTS, lock_folder, staged_video
from sdvg_core.loading.load import Models
from sdvg_core.report.run_report import RunReport
from sdvg_core.settings.load import LoadOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import Gate, Route
from sdvg_core.text.prompts import Conditions
from sdvg_core.videos import blocks, rendering
from sdvg_core.videos.film import ResolvedFilm
from sdvg_core.videos.rendering import finished, render_blocks, write_report
from sdvg_core.videos.resolve import ResolvedRequest
from sdvg_core.weights.latents import load_latents
from tests.support.cli_runs import names as names
from tests.support.reuse_folders import FrameLog
from tests.support.tiny import PROMPT, BrightScorer, EchoCodec, make_engine

CONDITIONS = Conditions(((0, PROMPT),))
IDENTITY = {"seed": "42"}
# Drafts are kept and remade in turn, so that every kind of call comes before and after every other.
REQUEST = VideoRequest(blocks=9, width=16, height=16, route=Route(Gate(0.3)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubles(Models):
    """An engine in place of files."""

    engine: Engine

    @property
    def part_keys(self) -> PartKeys:
        return self.by_files

    def build(self, **options: Any) -> Engine:
        return self.engine


def make_loaded(policy: str = "recompute", **options: Any) -> Models:
    """The doubles of tests/support/tiny.py as the loaders would hand them over; `options`: see `make_engine`."""
    engine: Any = make_engine(policy, **options)
    settings = {"drafter": {}, "target": {}, "vae": {"tae_kind": None}, "device": "cpu"}
    cpu = torch.device("cpu")
    return Doubles(
        drafter=None,
        target=None,
        codec=engine.codec,
        scorer=engine.scorer,
        settings=settings,
        options=LoadOptions(),
        device=cpu,
        side=cpu,
        by_files=PartKeys(drafter="d", target="t", codec="c", scorer="s"),
        engine=engine,
    )


def make_video(
    loaded: Models,
    folder: Path,
    request: VideoRequest = REQUEST,
    on_block: Callable[[BlockRecord], None] = lambda record: None,
    *,
    conditions: Conditions = CONDITIONS,
) -> RunReport:
    """Make a video as the command line does, without its loading and talking."""
    bar: Any = SimpleNamespace(block=on_block, step=None)
    with lock_folder(folder), staged_video(folder, IDENTITY, replace=True) as work:
        report = finished(render_blocks(loaded, film_of(request), conditions, work, "", bar))
        write_report(report, work)
        return report


def film_of(request: VideoRequest) -> ResolvedFilm:
    """Return the request as a film of one run."""
    return ResolvedFilm(request=request, runs=(resolve(request),))


def resolve(request: VideoRequest) -> ResolvedRequest:
    sizes = {"drafter": 3, "target": 3}
    options = {"directions": request.directions, "takes": request.takes}
    plan = plan_blocks(request.route, blocks=request.blocks, block_frames=sizes, **options)
    return ResolvedRequest(request=request, width=16, height=16, plan=plan)


def result(folder: Path, report: RunReport) -> tuple[Any, ...]:
    """What must be the same to the bit: latents, frames, and all decisions with their scores."""
    latents = load_latents(folder / LATENTS).latents
    decisions = tuple(str(record.decision) for record in report.blocks)
    return hashlib.sha256(latents.numpy().tobytes()).hexdigest(), FrameLog.newest, decisions


@contextmanager
def quick() -> Iterator[None]:
    """Take digests of frames, and do without the picture of the route, which takes longer than all the rest."""
    with (
        patch.object(rendering, "Mp4Writer", FrameLog),
        patch.object(rendering, "route_picture", lambda report: Image.new("RGB", (8, 8))),
    ):
        yield


class Trap:
    """Counts calls by stage, and raises at one of them."""

    def __init__(self, at: int | None = None, error: BaseException | None = None) -> None:
        self.stages: list[str] = []
        self._at = at
        self._error = error

    def __call__(self, stage: str) -> None:
        self.stages.append(stage)
        error = self._error
        if len(self.stages) == self._at and error is not None:
            self._error = None  # its traceback holds what the run held
            raise error

    @contextmanager
    def set(self) -> Iterator[None]:
        """Hear of every call to a model, decoder, encoder, scorer and file. Files are heard of before and after."""
        places = (
            (generator, "denoise_pass", "model", ""),
            (context, "context_pass", "model", ""),
            (EchoCodec, "decode", "decode", ""),
            (AnchorEncoder, "__call__", "encode", ""),
            (BrightScorer, "score", "score", ""),
            (FrameLog, "add", "write video", "wrote video"),
            (blocks, "write_block", "write block", "wrote block"),
            (rendering, "save_latents", "write latents", "wrote latents"),
            (Path, "write_text", "write report", "wrote report"),
            (Path, "replace", "move", "moved"),
            (Path, "rename", "rename", "renamed"),
        )
        with ExitStack() as patches:
            for owner, name, before, after in places:
                patches.enter_context(patch.object(owner, name, self._around(owner, name, before, after)))
            yield

    def _around(self, owner: Any, name: str, before: str, after: str) -> Callable[..., Any]:
        work = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self(before)
            returned = work(*arguments, **options)
            if after:
                self(after)
            return returned

        return call


def footprint() -> dict[str, int]:
    """Live tensors, open files and threads of this process."""
    gc.collect()
    return {
        "tensors": sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


def resident_bytes() -> int:
    """Host memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
