"""Odd values, and small changes to bytes and JSON: what the grammars of all readers are made of.

Every choice is drawn from the `Random` that is given, so a case follows from its seed alone.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

NUMBERS = (
    *(0, -1, 1, 2, 3, 7, 255, 256, 1000, 65_537, 10**9),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400),
    *(-0.0, 0.5, 1.5, 1e-320, 1e20, 1e308, math.nan, math.inf, -math.inf),
)
TEXTS = (
    *("", " ", "a", "\0", "\n", "\r\n", "\t", "\x1b[2J", "\x7f", "\x85", "\u202e", "\u2028", "\ufeff", "\ud800"),
    *("é", "²", "٣", "🦊", "0", "-1", "1e999", "nan", "null", "[]", "{", "%s", "{0}", "__class__"),
    *("..", "../up", "/etc/passwd", "..\\up", "C:up", "CON", "~", "$HOME", "file:///etc/passwd", "a/../../b"),
    *("x" * 300, "9" * 5000, "y" * 70_000),
)
# These words stand for JSON that the writer would refuse to write; `to_json` puts it in their place.
DEEP, DEEPER, ENDLESS = "\x01deep\x01", "\x01deeper\x01", "\x01endless\x01"
RAW = {DEEP: "[" * 120 + "]" * 120, DEEPER: '{"a":' * 50_000 + "1" + "}" * 50_000, ENDLESS: "9" * 5000}
# Bytes that mean something to one format or another.
TOKENS = (b"\0", b"\xff", b"\x80", b"\n", b"\r", b"\xef\xbb\xbf", b"\xff\xfe", b"[", b'"', b"{", b"\xed\xa0\x80")


def odd_number(random: Random) -> float:
    number = random.choice(NUMBERS)
    return number + random.choice((-1, 1)) if random.random() < 0.2 else number


def odd_text(random: Random) -> str:
    text = random.choice(TEXTS)
    return text + random.choice(TEXTS) if random.random() < 0.2 else text


def odd_value(random: Random) -> Any:
    kind = random.randrange(8)
    if kind < 3:
        return odd_number(random)
    if kind < 5:
        return odd_text(random)
    if kind == 5:
        return [odd_value(random) for _ in range(random.randrange(4))]
    if kind == 6:
        return {odd_text(random)[:50]: odd_value(random) for _ in range(random.randrange(3))}
    return random.choice((None, True, False, [], {}, DEEP, DEEPER, ENDLESS))


def changed_json(random: Random, value: Any) -> Any:
    """Return a value that is another in one place: a member lost, repeated, renamed, added or changed itself."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.15:
        return odd_value(random)
    if isinstance(value, list):
        place = random.randrange(len(value))
        members = [changed_json(random, value[place])]
        if random.random() < 0.25:
            members = [value[place]] * random.choice((0, 2, 3, 1000))
        return [*value[:place], *members, *value[place + 1 :]]
    name = random.choice(list(value))
    rest = {key: member for key, member in value.items() if key != name}
    others = (rest, {**rest, odd_text(random): value[name]}, {**value, odd_text(random): odd_value(random)})
    return random.choice(others) if random.random() < 0.3 else {**value, name: changed_json(random, value[name])}


def to_json(value: Any) -> bytes:
    text = json.dumps(value)
    for word, raw in RAW.items():
        text = text.replace(json.dumps(word), raw)
    return text.encode()


def changed_bytes(random: Random, data: bytes) -> bytes:
    """Return the bytes after one to four changes: other ones, other numbers, some put in, left out or repeated."""
    for _ in range(random.randrange(1, 5)):
        place = random.randrange(len(data) + 1)
        piece = data[place : place + random.choice((1, 4, 32, 400))]
        number = random.choice((0, 1, 0x7FFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1))
        width = random.choice((1, 2, 4, 8))
        written = (number % 256**width).to_bytes(width, random.choice(("big", "little")))
        others = (
            bytes([random.randrange(256)]) + data[place + 1 :],
            written + data[place + width :],
            random.choice(TOKENS) * random.choice((1, 1, 2, 300)) + data[place:],
            data[place + len(piece) :],
            piece * random.choice((2, 3, 20)) + data[place + len(piece) :],
            b"",
        )
        data = data[:place] + random.choice(others)
    return data
