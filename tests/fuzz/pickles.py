"""PyTorch pickles written by hand: programs that ask for what they should not have, in archives that lie."""

from __future__ import annotations

import io
import struct
import zipfile
from functools import cache
from random import Random

import torch

from .values import changed_bytes, odd_text

# What a checkpoint has no business with. Whatever is called leaves `ran` behind, if it is ever called.
WANTED = (
    *("os system", "posix system", "builtins eval", "builtins exec", "builtins open", "builtins getattr"),
    *("subprocess Popen", "shutil rmtree", "pathlib Path", "runpy run_path", "importlib import_module"),
    *("builtins set", "builtins complex", "collections Counter", "_codecs encode"),
    *("torch Tensor", "torch FloatTensor", "torch.storage UntypedStorage", "torch.storage TypedStorage"),
    *("torch.jit load", "torch load", "torch.hub load", "torch._utils _rebuild_sparse_tensor"),
    *("torch._utils _rebuild_device_tensor_from_cpu_tensor", "torch._tensor _rebuild_from_type_v2"),
    *("torch._utils _rebuild_wrapper_subclass", "torch._utils _rebuild_parameter_with_state", "torch device"),
    *("numpy.core.multiarray _reconstruct", "numpy dtype", "argparse Namespace", "torch.nn.modules.linear Linear"),
    *("collections OrderedDict", "torch Size", "torch._utils _rebuild_tensor_v2", "\x1b[2J \0", " ", "a.b.c d.e"),
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
    """Return a pickle that is changed, wants something, or sits in an archive that lies."""
    if random.random() < 0.3:
        return changed_bytes(random, random.choice(seeds()))
    program = _program(random)
    if random.random() < 0.1:
        return program + random.choice((b"", b"rest"))
    return _archive(random, program)


def _program(random: Random) -> bytes:
    """A dict that is filled with what calls and lookups give, or a checkpoint's own program, changed."""
    if random.random() < 0.3:
        with zipfile.ZipFile(io.BytesIO(random.choice(seeds()[::2]))) as file:
            return changed_bytes(random, file.read("archive/data.pkl"))
    values = b"".join(_text(odd_text(random)[:40]) + _value(random) for _ in range(random.randrange(1, 4)))
    return b"\x80" + bytes([random.choice((2, 2, 2, 0, 4, 5))]) + b"}(" + values + b"u."


def _value(random: Random, depth: int = 0) -> bytes:
    deed = random.randrange(8)
    if deed < 4 and depth < 3:
        wanted = b"c" + random.choice(WANTED).replace(" ", "\n", 1).encode() + b"\n"
        given = b"".join(_value(random, depth + 1) for _ in range(random.randrange(3)))
        return wanted + b"(" + given + b"t" + random.choice((b"R", b"R", b"R", b"\x81", b"b", b""))
    if deed == 4:
        return b"\x8c\x02os\x8c\x06system\x93(" + _text("touch ran") + b"tR"
    if deed == 5:
        return b"(" + _text("touch ran") + b"ios\nsystem\n"
    if deed == 6:
        return _tensor(random)
    return b"J" + struct.pack("<i", random.choice((0, 1, 3, -1, 2**20, 10**9, 2 * 10**9, 2**31 - 1)))


def _tensor(random: Random) -> bytes:
    """A tensor over a storage of the archive, whose number of values, sizes and strides may be lies."""

    def number(*choices: int) -> bytes:
        return b"J" + struct.pack("<i", random.choice(choices))

    storage = b"(" + _text("storage") + b"ctorch\nFloatStorage\n" + _text("0") + _text("cpu")
    storage += number(4, 4, 0, 1, 5, 10**9) + b"tQ"
    sizes = b"(" + b"".join(number(2, 2, 0, 10**9) for _ in range(random.randrange(3))) + b"t"
    strides = b"(" + number(2, 1, 0, -1, 10**9) + number(1, 0, 10**9) + b"t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(0, 1, -1, 10**9)
    return tensor + sizes + strides + b"\x89ccollections\nOrderedDict\n)RtR"


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _archive(random: Random, program: bytes) -> bytes:
    """A zip archive such as PyTorch's around a program."""
    file, packed = io.BytesIO(), zipfile.ZIP_DEFLATED if random.random() < 0.1 else zipfile.ZIP_STORED
    entries = [("data.pkl", program), ("version", b"3\n"), ("byteorder", b"little"), ("data/0", bytes(16))]
    deed = random.randrange(10)
    if deed == 0:
        entries.append((random.choice(("constants.pkl", "code/x.py", "../ran", "/ran", "data/1")), b"x"))
    elif deed == 1:
        del entries[random.randrange(len(entries))]
    elif deed == 2:
        entries[2] = ("byteorder", random.choice((b"big", b"", b"x" * 99)))
    elif deed == 3:
        entries.append(("data/bomb", bytes(2_000_000)))
        packed = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(file, "w", packed) as zipped:
        for name, content in entries:
            zipped.writestr(zipfile.ZipInfo(f"archive/{name}"), content, packed)
    data = file.getvalue()
    return changed_bytes(random, data) if random.random() < 0.1 else data
