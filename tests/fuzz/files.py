"""Odd values, small changes to bytes and JSON, and safetensors files written by hand, whose headers can lie.

Every choice is drawn from the `Random` that is given, so a case follows from its seed alone.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
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
DEEP = "\x01deep\x01"
DEEPER = "\x01deeper\x01"
ENDLESS = "\x01endless\x01"
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


# name, dtype, shape
Entry = tuple[str, str, tuple[int, ...]]
Files = dict[str, bytes]

BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 1, "C64": 8},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
}
DTYPES = (*BYTES, "Q4", "", "f32")
# A tensor that would be larger than this is written with a lie about where it lies.
LARGEST = 1 << 16
# Zeros, ones and NaN in float32, NaN in fp8, and what a mark of quantisation says.
BODIES = (b"", b"", b"\0\0\x80\x3f", b"\0\0\xc0\x7f", b"\xff", b'{"format":"float8_e4m3fn"}')
PREFIXES = ("model.", "module.", "vae.", "diffusion_model.", "\x1b[1m.", "..")
ENDINGS = ("comfy_quant", "weight_scale", "scale_weight", "lora_A.weight", "input_scale", "bias", "freqs")
LAYERS = ("0", "1", "2", "7", "00", "²", "٣", "99999", "1000000000", "9" * 5000)
SIZES = (0, 1, 2, 3, 5, 8, 16, 36, 48, 2**16, 2**20, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)


def entries_of(shapes: Mapping[str, Sequence[int]], dtype: str = "F32") -> list[Entry]:
    return [(name, dtype, tuple(shape)) for name, shape in shapes.items()]


def header_of(entries: Sequence[Entry]) -> tuple[list[tuple[str, Any]], int]:
    """Return the header's members in order, as pairs, so that a name can come twice, and the length of the body."""
    members: list[tuple[str, Any]] = []
    offset = 0
    for name, dtype, shape in entries:
        size = min(math.prod(shape) * BYTES.get(dtype, 4), LARGEST)
        members.append((name, {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}))
        offset += size
    return members, offset


def safetensors(entries: Sequence[Entry], metadata: Any = None, body: bytes = b"") -> bytes:
    members, length = header_of(entries)
    if metadata is not None:
        members.insert(0, ("__metadata__", metadata))
    return assembled(members_text(members), _filled(body, length))


def members_text(members: Sequence[tuple[str, Any]]) -> bytes:
    return b"{" + b",".join(json.dumps(name).encode() + b":" + to_json(value) for name, value in members) + b"}"


def assembled(header: bytes, body: bytes, length: int | None = None) -> bytes:
    """Return a file of a header and a body; `length`: what it says of the header, the truth if None."""
    return struct.pack("<Q", len(header) if length is None else length % 2**64) + header + body


def _filled(body: bytes, length: int) -> bytes:
    return (body * (length // len(body) + 1))[:length] if body else bytes(length)


def changed_file(random: Random, entries: Sequence[Entry], metadata: Any = None) -> bytes:
    """Return the file with other tensors than it should hold, or with a header that lies."""
    if random.random() < 0.3:
        return lying_file(random, entries, metadata)
    if metadata is None or random.random() < 0.7:
        return safetensors(changed_entries(random, entries), metadata, random.choice(BODIES))
    name = random.choice(list(metadata))
    inner = changed_json(random, json.loads(metadata[name]))
    return safetensors(entries, {**metadata, name: to_json(inner).decode()}, random.choice(BODIES))


def changed_entries(random: Random, entries: Sequence[Entry]) -> list[Entry]:
    """Return entries after one to three changes of name, shape or dtype; offsets follow, so the file is sound."""
    changed = list(entries)
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(changed))
        name, dtype, shape = changed[place]
        names = (
            *(odd_text(random), random.choice(PREFIXES) + name, re.sub(r"\d+", random.choice(LAYERS), name)),
            f"{name.rpartition('.')[0]}.{random.choice(ENDINGS)}",
        )
        shapes = (shape[:-1], (*shape, random.choice(SIZES)), tuple(random.choices(SIZES, k=random.randrange(6))))
        others = (
            (random.choice(names), dtype, shape),
            (name, dtype, random.choice(shapes)),
            (name, random.choice(DTYPES), shape),
        )
        deed = random.random()
        if deed < 0.1 and len(changed) > 1:
            del changed[place]
        elif deed < 0.2:
            changed.append(random.choice(others))
        else:
            changed[place] = random.choice(others)
    return changed


def lying_file(random: Random, entries: Sequence[Entry], metadata: Any = None) -> bytes:
    """Return a file whose header is wrong about itself: offsets, shapes, names, its own length, its JSON."""
    members, length = header_of(entries)
    header: Any = dict(members) if metadata is None else {"__metadata__": metadata, **dict(members)}
    for _ in range(random.randrange(1, 4)):
        header = changed_json(random, header)
    text = to_json(header)
    if random.random() < 0.1:
        text = changed_bytes(random, text)
    lies = (0, 1, len(text) - 1, len(text) + 1, 2**27, 2**32, 2**63, 2**64 - 1)
    stated = random.choice(lies) if random.random() < 0.1 else None
    return assembled(text, bytes(random.choice((length, length, 0, 1, length + 1))), stated)
