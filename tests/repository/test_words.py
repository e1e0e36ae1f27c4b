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
    for path in ROOT.glob("locales/*/*.json"):
        yield from texts(json.loads(path.read_text(encoding="utf-8")))
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
def test_each_thing_has_one_word(word: str) -> None:
    """Catches: another name for what the page already has a word for, in either language."""
    assert [match[0] for text in spoken() for match in re.finditer(WORN[word], text)] == []


# --- the words of the page's JavaScript, in locales/*/main.json

WEB = ROOT / "nodes/web"
COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'`\w])//[^\n]*", re.DOTALL)
LITERAL = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`")
SENTENCE = re.compile(r"[\u3040-\u9fff]|[A-Za-z]{2,}[,:]? [a-z]+ [a-z]{2,}")
USE = re.compile(r"\btext\(\s*((?:[^()`\"]|\"[^\"]*\"|`[^`]*`)*)")
NAME = re.compile(r"\{\w+\}")


def page_words(language: str) -> dict[str, str]:
    """Return key -> text of a language, with `one` and `many` of a text as keys of their own."""
    tree = json.loads((ROOT / f"locales/{language}/main.json").read_text(encoding="utf-8"))
    return dict(flat(tree.pop("sdvg"))) | dict.fromkeys(tree, "no other key is ours")


def flat(tree: dict[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of nested dictionaries, with keys such as `outcome.kept`."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, str(value)


def scripts() -> dict[str, str]:
    """Return the page's scripts without comments, by name."""
    return {path.name: COMMENT.sub("", path.read_text(encoding="utf-8")) for path in WEB.rglob("*.js")}


def used_keys() -> set[str]:
    """Return the keys that the scripts ask for; one that ends in a dot stands for all that begin so."""
    arguments = [use for script in scripts().values() for use in USE.findall(script)]
    literals = [literal[1:-1] for use in arguments for literal in LITERAL.findall(use.partition(",")[0])]
    return {literal.partition("${")[0] for literal in literals}


def test_scripts_hold_no_sentence() -> None:
    """Catches: words in JavaScript, where no translator looks."""
    sentences = [
        (name, literal)
        for name, script in scripts().items()
        for literal in LITERAL.findall(script)
        if SENTENCE.search(re.sub(r"sdvg-[\w-]+|\[[^\]]*\]|\$\{[^}]*\}", "", literal))
    ]
    assert sentences == []


def test_every_key_has_its_pair() -> None:
    """Catches: a text that one language lacks, or whose `{name}` it does not fill in."""
    english = page_words("en")
    chinese = page_words("zh")
    assert english.keys() == chinese.keys()
    names = {key: set(NAME.findall(text)) for key, text in english.items()}
    assert {key: set(NAME.findall(text)) for key, text in chinese.items()} == names


def test_every_key_is_used() -> None:
    """Catches: a text that no script asks for, and a key that has no text."""
    keys = {re.sub(r"\.(one|many)$", "", key) for key in page_words("en")}
    used = used_keys()
    groups = tuple(key for key in used if key.endswith("."))
    assert {key for key in keys if not key.startswith(groups)} == {key for key in used if not key.endswith(".")}
    assert all(any(key.startswith(group) for key in keys) for group in groups)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_texts_hold_no_sign_of_translations(language: str) -> None:
    """Catches: a `{`, `}`, `|` or `@`, by which ComfyUI's own translations read a text otherwise."""
    rests = {key: NAME.sub("", text) for key, text in page_words(language).items()}
    assert {key: rest for key, rest in rests.items() if re.search(r"[{}|@]", rest)} == {}
