"""PyTorch pickles written by hand: programs that ask for what they should not have, in archives that lie."""

from __future__ import annotations

import io
import struct
import zipfile
from functools import cache
from random import Random

import torch

from .files import changed_bytes, odd_text

# What a checkpoint has no business with. Whatever is called leaves `ran` behind, if it is ever called.
WANTED = (
    *("os system", "builtins eval", "builtins getattr", "subprocess Popen", "shutil rmtree", "runpy run_path"),
    *("builtins set", "collections Counter", "_codecs encode", "torch Tensor", "torch.storage UntypedStorage"),
    *("torch.jit load", "torch load", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_sparse_tensor"),
    *("numpy.core.multiarray _reconstruct", "torch.nn.modules.linear Linear", "\x1b[2J \0", " ", "a.b.c d.e"),
)


@cache
def seeds() -> tuple[bytes, ...]:
    state = {"layer.0.weight": torch.ones(2, 2), "layer.0.bias": torch.ones(2)}
    contents = (
        state,
        {"generator_ema": state, "step": 3, "lr": 0.1, "note": "x"},
        {"a": torch.nn.Parameter(torch.ones(2)), "b": torch.ones(3, dtype=torch.bfloat16)},
        {"f": torch.zeros(2, dtype=torch.float8_e4m3fn), "v": torch.arange(6.0)[2:4]},
        {"m": torch.empty(3, device="meta"), "s": torch.eye(2).to_sparse()},
    )
    return tuple(_saved(content, zipped) for content in contents for zipped in (True, False))


def _saved(content: object, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def checkpoint(random: Random) -> bytes:
    """Return a pickle that is changed, or one in an archive that wants what it should not have."""
    if random.random() < 0.6:
        return changed_bytes(random, random.choice(seeds()))
    name = random.choice(("os system", random.choice(WANTED)))
    wanted = b"c" + name.replace(" ", "\n", 1).encode() + b"\n"
    called = wanted + b"(" + _text(random.choice(("touch ran", odd_text(random)[:40]))) + b"tR"
    program = b"\x80\x02}" + _text("a") + random.choice((wanted, called, called)) + b"s."
    return program if random.random() < 0.2 else _archive(random, program)


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _archive(random: Random, program: bytes) -> bytes:
    """A zip archive such as PyTorch's around a program."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, content in (
            ("data.pkl", program),
            ("version", b"3\n"),
            ("byteorder", b"little"),
            ("data/0", bytes(16)),
        ):
            zipped.writestr(f"archive/{name}", content)
    data = file.getvalue()
    return changed_bytes(random, data) if random.random() < 0.1 else data
