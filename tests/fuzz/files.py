"""Safetensors files written by hand, so that their headers can lie."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from .values import changed_bytes, changed_json, odd_number, odd_text, to_json

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
    if random.random() < 0.7:
        body = random.choice(BODIES)
        if metadata is not None and random.random() < 0.3:
            metadata = changed_metadata(random, metadata)
        else:
            entries = changed_entries(random, entries)
        return safetensors(entries, metadata, body)
    return lying_file(random, entries, metadata)


def changed_metadata(random: Random, metadata: Mapping[str, str]) -> Any:
    name = random.choice(list(metadata))
    if random.random() < 0.8:
        try:
            inner = json.loads(metadata[name])
        except ValueError:
            inner = metadata[name]
        return {**metadata, name: to_json(changed_json(random, inner)).decode()}
    return changed_json(random, dict(metadata))


def changed_entries(random: Random, entries: Sequence[Entry]) -> list[Entry]:
    """Return entries after one to three changes of name, shape or dtype; offsets follow, so the file is sound."""
    changed = list(entries)
    for _ in range(random.randrange(1, 4)):
        if not changed:
            break
        place = random.randrange(len(changed))
        name, dtype, shape = changed[place]
        deed = random.randrange(10)
        if deed < 3:
            changed[place] = (changed_name(random, name), dtype, shape)
        elif deed < 6:
            changed[place] = (name, dtype, changed_shape(random, shape))
        elif deed == 6:
            changed[place] = (name, random.choice(DTYPES), shape)
        elif deed == 7:
            del changed[place]
        elif deed == 8:
            changed.append((changed_name(random, name), dtype, shape))
        else:
            dtype = random.choice(DTYPES)
            changed = [(n, dtype, s) for n, _, s in changed]
    return changed


def changed_name(random: Random, name: str) -> str:
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    if numbers and random.random() < 0.5:
        number = random.choice(("0", "1", "2", "7", "00", "²", "٣", "99999", str(10**9), str(10**15), "9" * 5000))
        parts[random.choice(numbers)] = number
        return ".".join(parts)
    deed = random.randrange(5)
    if deed == 0:
        return odd_text(random)
    if deed == 1:
        return random.choice(("model.", "module.", "vae.", "diffusion_model.", "\x1b[1m.", "..")) + name
    if deed == 2:
        endings = ("comfy_quant", "weight_scale", "scale_weight", "lora_A.weight", "input_scale", "bias", "freqs")
        return f"{name.rpartition('.')[0]}.{random.choice(endings)}"
    parts[random.randrange(len(parts))] = odd_text(random)
    return ".".join(parts)


def changed_shape(random: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    deed = random.randrange(6)
    if deed == 0:
        return shape[:-1]
    if deed == 1:
        return (*shape, random.choice(SIZES))
    if deed == 2 or not shape:
        return tuple(random.choice(SIZES) for _ in range(random.randrange(6)))
    place = random.randrange(len(shape))
    others = (0,) if deed == 3 else ()
    return (*others, *shape[:place], random.choice(SIZES), *shape[place + 1 :])


def lying_file(random: Random, entries: Sequence[Entry], metadata: Any = None) -> bytes:
    """Return a file whose header is wrong about itself: offsets, shapes, names, its own length, its JSON."""
    members, length = header_of(entries)
    if metadata is not None:
        members.insert(0, ("__metadata__", metadata))
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(members))
        name, value = members[place]
        deed = random.randrange(5)
        if deed == 0:
            members.append((name, value))
        elif deed == 1 and isinstance(value, dict):
            members[place] = (name, {**value, "data_offsets": [odd_number(random), odd_number(random)]})
        elif deed == 2:
            members[place] = (random.choice((odd_text(random), "__metadata__")), value)
        else:
            members[place] = (name, changed_json(random, value))
    header = members_text(members)
    deed = random.randrange(8)
    if deed == 0:
        header = changed_bytes(random, header)
    lies = (0, 1, len(header) - 1, len(header) + 1, 2**27, 2**32, 2**63, 2**64 - 1)
    stated = random.choice(lies) if deed == 1 else None
    body = bytes(length if deed != 2 else random.choice((0, 1, length // 2, length + 1)))
    return assembled(header, body, stated)
