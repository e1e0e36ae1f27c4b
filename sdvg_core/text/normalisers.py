"""What a tokenizer's normaliser may make of a prompt, checked before a library runs it.

A normaliser is a small program. One that writes a megabyte for every letter takes any amount of memory on a short
prompt, so only the kinds that UMT5 needs are accepted, each once, and their replacements must be short.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from ..errors import BadInput

KINDS = ("Precompiled", "Replace", "Strip")
"""Of normalisers. UMT5's map characters (Precompiled) and replace runs of spaces by one."""
LONGEST_REPLACEMENT = 1
LONGEST_MAPPED = 64
"""Bytes that one character may become. Unicode's longest, U+FDFA in the form NFKC, has 33."""
MOST_SPLITTERS = 4
# In a SentencePiece model, a protobuf message: the numbers of the fields that lead to its map, and kinds of value.
NORMALISER_FIELD, MAP_FIELD = 3, 2
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 1_000_000


def check_normaliser(content: dict[str, Any], source: str, advice: str) -> None:
    """Raise `BadInput` unless what a `tokenizer.json` does to a prompt before it is split keeps it short."""
    kinds = [part.get("type") for part in _parts(content.get("normalizer"), "normalizers")]
    if any(kind not in KINDS for kind in kinds) or len(set(kinds)) < len(kinds):
        raise BadInput(
            f"the normaliser in {source} may have one each of {', '.join(KINDS)}, as UMT5's has, but has "
            f"{', '.join(map(str, kinds))!r:.80}; {advice}"
        )
    for part in _parts(content.get("normalizer"), "normalizers"):
        replacement = part.get("content", "")
        if not isinstance(replacement, str) or len(replacement) > LONGEST_REPLACEMENT:
            raise BadInput(
                f"a normaliser may replace text by at most {LONGEST_REPLACEMENT} character, but that in {source} "
                f"writes {replacement!r:.60}; {advice}"
            )
        if isinstance(part.get("precompiled_charsmap"), str):
            _check_base64(part["precompiled_charsmap"], source, advice)
    splitters = list(_parts(content.get("pre_tokenizer"), "pretokenizers"))
    if len(splitters) > MOST_SPLITTERS:
        raise BadInput(
            f"a tokenizer may split text in at most {MOST_SPLITTERS} ways, but {source} has {len(splitters)}; "
            f"{advice}"
        )


def check_pieces(model: bytes, source: str, advice: str) -> None:
    """Raise `BadInput` if the character map of a SentencePiece model is damaged, or maps to too long a text."""
    for normaliser in _fields(memoryview(model), NORMALISER_FIELD, source, advice):
        for charmap in _fields(normaliser, MAP_FIELD, source, advice):
            if charmap:
                _check_map(bytes(charmap), source, advice)


def _parts(part: Any, members: str) -> Iterator[dict[str, Any]]:
    """Yield a part of a tokenizer, and the parts inside it, but no sequence itself."""
    if not isinstance(part, dict):
        return
    if part.get("type") != "Sequence":
        yield part
    inner = part.get(members)
    for member in inner if isinstance(inner, list) else ():
        yield from _parts(member, members)


def _check_base64(text: str, source: str, advice: str) -> None:
    try:
        charmap = base64.b64decode(text)
    except binascii.Error:
        return  # the tokenizers package refuses it
    _check_map(charmap, source, advice)


def _check_map(charmap: bytes, source: str, advice: str) -> None:
    """Check a map: the length of its index, the index, and what it maps to, each closed by a zero."""
    length, rest = int.from_bytes(charmap[:4], "little"), charmap[4:]
    if length > len(rest):
        raise BadInput(f"the character map in {source} is not whole, but shorter than it states; {advice}")
    longest = max(map(len, rest[length:].split(b"\0")))
    if longest > LONGEST_MAPPED:
        raise BadInput(
            f"a character may become at most {LONGEST_MAPPED} bytes, but in the character map of {source} one "
            f"becomes {longest:,}; {advice}"
        )


def _fields(message: memoryview, wanted: int, source: str, advice: str) -> Iterator[memoryview]:
    """Yield the fields of a protobuf message with the number `wanted`. What is damaged is left to its library."""
    place = 0
    for _ in range(MOST_FIELDS):
        if place >= len(message):
            return
        tag, place = _varint(message, place)
        if tag & 7 == VARINT:
            _, place = _varint(message, place)
        elif tag & 7 == BYTES:
            length, place = _varint(message, place)
            if tag >> 3 == wanted:
                yield message[place : place + length]
            place += length
        elif tag & 7 in (FIXED64, FIXED32):
            place += 8 if tag & 7 == FIXED64 else 4
        else:
            return
    raise BadInput(f"a SentencePiece model has at most {MOST_FIELDS:,} parts, but {source} has more; {advice}")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    value = shift = 0
    while place < len(message) and shift < 70:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            break
    return value, place
