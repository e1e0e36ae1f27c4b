"""One word for one thing, in all that an artist reads on the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"`[^`]*`")
LATIN = re.compile(r"[A-Za-z_]+")
WORN = {
    "route": r"\bpolic(y|ies)\b|策略",
    "lock": r"\b(keep|kept) blocks?\b|保持不变",
    "by rule": r"\(always\)|大模型.固定",
}
"""The word of the page -> what it was called besides."""


def spoken() -> Iterator[str]:
    """Yield the texts of the nodes, the strip, the help pages and the notes of templates, without names in code."""
    for path in ROOT.glob("locales/*/nodeDefs.json"):
        yield from texts(json.loads(path.read_text(encoding="utf-8")))
    yield (ROOT / "nodes/web/strip_words.js").read_text(encoding="utf-8")
    for path in ROOT.glob("nodes/web/docs/**/*.md"):
        names = LATIN if path.stem == "zh" else CODE
        yield names.sub("", path.read_text(encoding="utf-8"))
    for path in ROOT.glob("workflows/*.json"):
        for node in json.loads(path.read_text(encoding="utf-8"))["nodes"]:
            yield node.get("title", "")
            yield from node["widgets_values"] if node["type"] == "MarkdownNote" else ()


def texts(value: object) -> Iterator[str]:
    """Yield every text in nested dictionaries."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    else:
        yield str(value)


@pytest.mark.parametrize("word", WORN)
def test_the_page_has_one_word_for_it(word: str) -> None:
    """Catches: another name for what the page already has a word for, in either language."""
    assert [found[0] for text in spoken() for found in re.finditer(WORN[word], text)] == []
