"""Cases that once broke the promise, each under what was wrong, with words of the refusal it must get now."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import models, pictures, texts
from .files import Entry, Files, assembled, entries_of, safetensors, to_json


@dataclass(frozen=True, slots=True)
class Case:
    """Files for a reader, and words of the refusal; empty words if it must be taken."""

    reader: str
    files: Files
    words: str


Cases = Iterator[tuple[str, Case]]
QUOTED = '\\"'


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    named = [case for family in FAMILIES for case in family()]
    assert len(dict(named)) == len(named)
    return dict(named)


def _each(reader_and_file: tuple[str, str], *rows: tuple[str, bytes, str]) -> Cases:
    reader, file = reader_and_file
    for name, data, words in rows:
        yield name, Case(reader, {file: data}, words)


def headers() -> Cases:
    """Safetensors headers and the names in them."""
    many = {f"{n:x}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(100_000)}
    first, second = (to_json({"a": {"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]}}) for n in (0, 1))
    size = "states a header of"
    printable = "a tensor name of"
    between = "bytes between its texts"
    tensor = '"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    texts_ = ",".join(f'"{n}":""' for n in range(1_000_000))
    wide = "1," * 4_000_000
    yield from _each(
        ("safetensors", "model.safetensors"),
        ("a header that states 101 MB", struct.pack("<Q", 101_000_000) + b"{}", size),
        ("a header that states 100 MB", struct.pack("<Q", 100_000_000) + b"{}", "no whole safetensors"),
        ("a million texts", assembled(f'{{"__metadata__":{{{texts_}}},{tensor}}}'.encode(), b""), between),
        (
            "a shape of four million",
            assembled(tensor.join("{}").replace("[0]", f"[{wide}1]").encode(), b""),
            between,
        ),
        (
            "a text of 50 MB",
            assembled(f'{{"__metadata__":{{"a":"{QUOTED * 25_000_000}"}},{tensor}}}'.encode(), b""),
            "",
        ),
        ("a name that clears the screen", safetensors([("\x1b[2J", "F32", (1,))]), printable),
        ("a name of a megabyte", safetensors([("x" * 10**6, "F32", (1,))]), printable),
        ("a tensor of nothing, 2**64 - 1 wide", safetensors([("a", "F32", (0, 2**64 - 1))]), "impossible shape"),
        ("a name of 30,000 parts", safetensors([("a." * 30_000, "F32", (1,))]), printable),
        ("100,000 tensors of nothing", assembled(json.dumps(many).encode(), b""), between),
        ("a tensor stated twice", assembled(first[:-1] + b"," + second[1:], b"\0\0"), "no whole safetensors"),
    )


def sizes() -> Cases:
    """Sizes and layers that would have been built before they were compared."""
    for number in (str(10**9), "9" * 5000):
        kind = "a billion" if len(number) < 20 else "of 5000 digits"
        encoder = models.text_encoder_entries()[0]
        layer = [(f"encoder.block.{number}.layer.0.SelfAttention.q.weight", "F32", (8, 8))]
        words = _too_long(number, "unknown")
        yield f"text encoder, layer {kind}", _model("text-encoder", [*encoder, *layer], words)
        vision = [(f"blip.visual_encoder.blocks.{number}.norm1.weight", "F32", (8,))]
        rewards = [*models.reward_entries(), *vision]
        yield f"reward, layer {kind}", _model("reward", rewards, _too_long(number, ""))
        for name in ("encoder.down_blocks.{}.conv1.weight", "decoder.upsamples.{}.residual.0.gamma"):
            entries = [*models.vaes()["upsamples" in name], (name.format(number), "F32", (1,))]
            yield f"vae, {name.split('.')[1]} {kind}", _model("vae", entries, words)
    wide = [(n, d, (2**62, 0) if n == "shared.weight" else s) for n, d, s in models.text_encoder_entries()[0]]
    yield "text encoder, a table of 2**62 rows of nothing", _model("text-encoder", wide, "impossible shape")
    whole = [(n, "I8", s) for n, _, s in models.vaes()[0]]
    yield "a vae of whole numbers", _model("vae", whole, "another quantisation")
    flat = [(n, d, () if n == "decoder.conv_out.weight" else s) for n, d, s in models.vaes()[0]]
    yield "a vae whose last weight is a number", _model("vae", flat, "has the shape")
    mark: list[Entry] = [("blocks.0.ffn.0.comfy_quant", "F32", (2,))]
    marked = [*_wan(), *mark]
    yield "a mark of quantisation in float32", _model("transformer", marked, "not JSON of", models.HEADS)
    long = [*_wan(), ("blocks.0.ffn.0.comfy_quant", "U8", (5000,))]
    yield "a mark of quantisation of 5,000 bytes", _model("transformer", long, "not JSON of", models.HEADS)
    layer = "blocks.1.self_attn.q."
    point = [(n, "F8_E4M3", ()) if n == f"{layer}weight" else (n, d, s) for n, d, s in _wan()]
    scaled = [*point, (f"{layer}weight_scale", "F32", (2,))]
    yield "a scaled weight without axes", _model("transformer", scaled, "not one number or one a row", models.HEADS)


def configs() -> Cases:
    """JSON inside and beside weights."""
    endless = {"config": json.dumps({"transformer": {"num_heads": "y" * 100_000}})}
    yield "a number that goes on for ever", _model("transformer", _wan(), "whole number", endless)
    screen = {**models.HEADS, "_quantization_metadata": '{"layers": {"blocks.0.ffn.0": {"format": "\\u001b[2J"}}}'}
    yield "a format that clears the screen", _model("transformer", _wan(), "not float8_e4m3fn or", screen)
    deep = to_json({"image_reward": "\x01deeper\x01"}).decode()
    words = "nested too deeply|vision_heads"  # Python 3.14 nests deeper, and then the content is refused
    yield "deep metadata of a reward model", _model("reward", models.reward_entries(), words, {"config": deep})


def pickles() -> Cases:
    """Programs and archives."""
    head = b"\x80\x02}X\x01\0\0\0a"
    tail = b"s."
    small = b"ctorch\nTensor\nK\x64\x85R"
    many = small + b"".join(b"sX\x01\0\0\0%c%b" % (letter, small) for letter in b"bcdefghijklmnopqrstuvwxyz")
    calls = (
        ("a pickle that calls a program", b"cos\nsystem\n(X\x09\0\0\0touch rantR", "run os.system"),
        ("a pickle that looks up by the stack", b"\x8c\x02os\x8c\x06system\x93", "no pickle of tensors"),
        ("a pickle of an instance", b"(X\x09\0\0\0touch ranios\nsystem\n", "no pickle of tensors"),
        ("a tensor made up", b"ctorch\nTensor\nJ\0\x94\x35\x77\x85R", "more than the file has"),
        ("tensors made up, each smaller than the file", many, "would take 10,400 bytes, more than the file has"),
    )
    packed = _zip({"data.pkl": b"}.", "data/0": bytes(2_000_000)}, packed=True)
    yield from _each(
        ("pickle", "model.pt"),
        *((name, _zip({"data.pkl": head + call + tail}), words) for name, call, words in calls),
        ("a plain pickle", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "no pickle of tensors"),
        ("packed parts", packed, "compressed"),
        ("TorchScript", _zip({"data.pkl": b"}.", "constants.pkl": b"}."}), "TorchScript"),
    )


def words_files() -> Cases:
    """Tokenizers and vocabularies."""
    short = models.piece_model() + _map_field(b"\xff" * 8)
    yield "pieces with a map shorter than it states", Case("pieces", {"spiece.model": short}, "damaged")
    twice = "\n".join((*models.REWARD_WORDS, "a")).encode()
    yield "a vocabulary with a token twice", Case("vocabulary", {"vocab.txt": twice}, "some twice")


def reports() -> Cases:
    """Reports of runs that never ran."""
    seed = texts.report_seed()
    block, judged = seed["blocks"]
    for name, changed, words in (
        ("a rate of 400 digits", {"fps": 10**400}, "finite"),
        ("seconds of 400 digits", {"blocks": [{**block, "drift": -(10**400)}]}, "finite"),
        ("a score of 400 digits", {"blocks": [{**judged, "frame_scores": [10**400]}]}, "finite"),
        ("settings without a floor", {"settings": {"x": "\x01deep\x01"}}, "nested more than 32 times"),
    ):
        yield name, Case("report", {"report.json": to_json({**seed, **changed})}, words)


def pictures_() -> Cases:
    """Pictures that are programs or larger than they are."""
    yield from _each(
        ("picture", "picture.png"),
        ("a picture that is a program", pictures.POSTSCRIPT, "is no picture"),
        ("a picture of 3.6 thousand million pixels", pictures.png(60_000, 60_000), "picture"),
        ("a picture of 81 million pixels", pictures.png(9000, 9000), "at most 40 million"),
        ("300 pictures of 36 million pixels", pictures.gif(6000, 6000, 300), "at most 10 billion"),
    )


def prompts() -> Cases:
    """Prompts nobody wrote."""
    yield from _each(
        ("prompt-list", "prompts.txt"),
        ("a prompt of 10 MB", b"x" * 10_000_000, "over 20000"),
        ("a prompt that clears the screen", b"a ball \x1b[2J", "control character U[+]001B"),
        ("a prompt with an end of text in it", b"a ball\0", "control character U[+]0000"),
        ("prompts in another encoding", "a ball".encode("utf-16"), "UTF-8"),
        ("a separator inside a prompt", "a\u2028ball".encode(), ""),
    )
    spaces = b"9:" + b" " * 5_000_000
    yield "a line of spaces", Case("prompt-list", {"prompts.txt": spaces}, "says nothing")


FAMILIES: tuple[Callable[[], Cases], ...] = (
    *(headers, sizes, configs, pickles, words_files, reports, pictures_, prompts),
)


def _map_field(charmap: bytes) -> bytes:
    inner = b"\x12" + _length(charmap) + charmap
    return b"\x1a" + _length(inner) + inner


def _length(content: bytes) -> bytes:
    number = len(content)
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*coded, number])


def _model(reader: str, entries: list[Entry], words: str, metadata: Any = None) -> Case:
    files = {"model.safetensors": safetensors(entries, metadata)}
    if reader == "reward":
        metadata = metadata or {"config": json.dumps({"image_reward": {"vision_heads": 1, "text_heads": 1}})}
        vocabulary = "\n".join(models.REWARD_WORDS).encode()
        files = {"model.safetensors": safetensors(entries, metadata), "vocab.txt": vocabulary}
    return Case(reader, files, words)


def _too_long(number: str, words: str) -> str:
    return words if len(number) < 500 else "a tensor name of"


def _wan() -> list[Entry]:
    return entries_of({name: shape for name, _, shape in models.transformers()[0][0]}, "BF16")


def _zip(parts: dict[str, bytes], *, packed: bool = False) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, content in {"version": b"3\n", "byteorder": b"little", **parts}.items():
            archive.writestr(f"archive/{name}", content)
    return file.getvalue()
