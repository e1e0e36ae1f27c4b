"""The command line on a tiny set of real files, made to stop where a test wants it to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from faulty import FrameLog
from safetensors.torch import load_file

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import main
from sdvg_core.pipeline import rendering
from sdvg_core.report.progress import RouteBar

OUTPUTS = ["blocks.safetensors", "latents.safetensors", "report.json", "route.png", "video.mp4"]
ROLES = ("drafter", "target", "vae", "text_encoder", "reward")
SMALL = ["--width", "16", "--height", "16", "--schedule", "1000", "--blocks", "5", "--tau", "0.1"]


def base(files: ModelFiles) -> list[str]:
    """The options that name the models."""
    named = [part for role in ROLES for part in (f"--{role.replace('_', '-')}", str(getattr(files, role)))]
    presets = ["--drafter-preset", "self-forcing-1.3b", "--target-preset", "krea-14b", "--text-dtype", "float32"]
    return ["generate", *named, *presets, *SMALL]


@contextmanager
def stopped_after(blocks: int, error: BaseException | None = None) -> Iterator[None]:
    """Stop the run, by Ctrl-C unless told otherwise, when so many blocks have been shown."""
    honest, shown = RouteBar.block, 0

    def block(self: RouteBar, record: Any) -> None:
        nonlocal shown
        honest(self, record)
        shown += 1
        if shown == blocks:
            raise error or KeyboardInterrupt

    with patch.object(RouteBar, "block", block):
        yield


def made(folder: Path, arguments: list[str]) -> tuple[bytes, str, dict[str, Any]]:
    """Run to the end; return the bytes of the latents' file, a digest of all frames, and the report."""
    with patch.object(rendering, "Mp4Writer", FrameLog):
        assert main([*arguments, "--output", str(folder)]) == 0
    return (folder / "latents.safetensors").read_bytes(), FrameLog.newest, report(folder)


def report(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return loaded


def decisions(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("index", "author", "reason", "score", "threshold", "frame_scores", "pixel_frames", "prompt")
    return [tuple(str(block[name]) for name in names) for block in found["blocks"]]


def latents(folder: Path) -> Any:
    return load_file(folder / "latents.safetensors")["latents"]
