"""Folders of videos that never ran, for the page; their frames have one colour a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from sample_reports import record, report, route

from sdvg_core.engine.router import RouterConfig
from sdvg_core.files.video import write_mp4
from sdvg_core.report.run_report import RunReport

SCORES = ((0.0,), (0.5, -0.2), (-0.9, 0.3), (0.1,))
EVIL = "</script><script>hacked = 1</script><img src=x onerror='hacked = 2'>\" onpointerenter=\"hacked = 3"


def some_report(worst: float = -0.9, prompt: str = "a red fox in snow", seconds: float = 1.0) -> RunReport:
    """Four blocks, one of them with the given worst frame."""
    decisions = route(RouterConfig(), (*SCORES[:2], (worst, 0.9), SCORES[3]))
    found = report(decisions, fps=16.0)
    blocks = tuple(record(decision, index, prompt) for index, decision in enumerate(decisions))
    blocks = tuple(replace(b, seconds=replace(b.seconds, target=seconds)) for b in blocks)
    return replace(found, blocks=blocks)


def write_video(
    folder: Path,
    found: RunReport | None = None,
    *,
    frames: bool = True,
    change: Callable[[str], str] = lambda text: text,
) -> Path:
    """Write a video's folder. `change`: what to make of the text of its report."""
    found = found or some_report()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(change(found.to_json()), encoding="utf-8")
    (folder / "route.png").write_bytes(b"never read")
    if frames:
        write_mp4(folder / "video.mp4", shades([b.pixel_frames for b in found.blocks]), found.fps)
    return folder


def shades(lengths: Sequence[int], size: int = 32) -> torch.Tensor:
    """Return frames `f c h w`, of one grey per block, each brighter than the one before."""
    parts = [torch.full((n, 3, size, size), (i + 1) / (len(lengths) + 1)) for i, n in enumerate(lengths)]
    return torch.cat(parts)


class Seen(HTMLParser):
    """What a parser makes of a page: its elements with their attributes, and the text of each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "img", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts.setdefault(tag, []).append(data)

    def all(self, tag: str, style: str = "") -> list[dict[str, Any]]:
        """Return the attributes of every element of a kind, with a class."""
        return [
            found
            for name, found in self.elements
            if name == tag and (not style or style in (found.get("class") or "").split())
        ]
