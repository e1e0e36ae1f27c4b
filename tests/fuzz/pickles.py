"""PyTorch pickles written by hand: programs that ask for what they should not have, in archives that lie."""

from __future__ import annotations

import io
import pickletools
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
LEGACY_PARTS = 5  # magic number, protocol, system, content, keys


@cache
def seeds() -> tuple[bytes, ...]:
    """Return small checkpoints as PyTorch writes them."""
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
    deed = random.randrange(10)
    if deed < 3:
        return changed_bytes(random, random.choice(seeds()))
    program = _program(random)
    if deed == 9:
        return program + random.choice((b"", b"rest"))
    return _legacy(program) if deed == 8 else archive(random, program)


def _program(random: Random) -> bytes:
    if random.random() < 0.3:
        with zipfile.ZipFile(io.BytesIO(random.choice(seeds()[::2]))) as file:
            return changed_bytes(random, file.read("archive/data.pkl"))
    called = b"".join(_call(random) for _ in range(random.randrange(1, 4)))
    return b"\x80" + bytes([random.choice((2, 2, 2, 0, 4, 5))]) + b"}(" + called + b"u" + b"."


def _call(random: Random) -> bytes:
    """A name and the value that calling something gives, for a dict that is being filled."""
    return _text(random.choice(("a", "generator", odd_text(random)[:40]))) + _value(random, 0)


def _value(random: Random, depth: int) -> bytes:
    deed = random.randrange(9)
    if deed < 4 and depth < 3:
        return _wanted(random) + _arguments(random, depth) + random.choice((b"R", b"R", b"R", b"\x81", b"b", b""))
    if deed == 4:
        return b"\x8c\x02os\x8c\x06system\x93" + _arguments(random, depth) + b"R"
    if deed == 5:
        return b"(" + _text("touch ran") + b"ios\nsystem\n"
    if deed == 6:
        return _persistent(random)
    return _number(random)


def _wanted(random: Random) -> bytes:
    return b"c" + random.choice(WANTED).replace(" ", "\n", 1).encode() + b"\n"


def _arguments(random: Random, depth: int) -> bytes:
    return b"(" + b"".join(_argument(random, depth) for _ in range(random.randrange(3))) + b"t"


def _argument(random: Random, depth: int) -> bytes:
    deed = random.randrange(4)
    if deed == 0:
        return _text(random.choice(("touch ran", "open('ran', 'w')", "ran", odd_text(random)[:100])))
    return _value(random, depth + 1) if deed == 1 else _number(random)


def _number(random: Random) -> bytes:
    number = random.choice((0, 1, 3, -1, 2**20, 10**9, 2 * 10**9, 2**31 - 1))
    if random.random() < 0.2:
        return b"\x8a\x09" + random.choice((2**40, 2**62, 2**63, 2**70)).to_bytes(9, "little")
    return b"J" + struct.pack("<i", number)


def _persistent(random: Random) -> bytes:
    """A tensor over a storage of the archive, whose number of values may be a lie."""
    count = random.choice((4, 4, 0, 1, 5, 10**9))
    storage = b"(" + _text("storage") + b"ctorch\nFloatStorage\n" + _text("0") + _text("cpu")
    storage += b"J" + struct.pack("<i", count) + b"tQ"
    sizes = b"".join(b"J" + struct.pack("<i", random.choice((2, 2, 0, 10**9))) for _ in range(random.randrange(3)))
    strides = b"".join(b"J" + struct.pack("<i", random.choice((2, 1, 0, -1, 10**9))) for _ in range(2))
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + _number(random)
    return tensor + b"(" + sizes + b"t(" + strides + b"t\x89ccollections\nOrderedDict\n)RtR"


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def archive(random: Random, program: bytes) -> bytes:
    """Return a zip archive such as PyTorch's around a program."""
    file, packed = io.BytesIO(), random.random() < 0.1
    entries = [("data.pkl", program), ("version", b"3\n"), ("byteorder", b"little"), ("data/0", bytes(16))]
    deed = random.randrange(12)
    if deed == 0:
        entries.append((random.choice(("constants.pkl", "code/x.py", "../ran", "/ran", "data/1")), b"x"))
    elif deed == 1:
        del entries[random.randrange(len(entries))]
    elif deed == 2:
        entries[2] = ("byteorder", random.choice((b"big", b"", b"x" * 99)))
    elif deed == 3:
        entries.append(("data/bomb", bytes(2_000_000)))
        packed = True
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as zipped:
        for name, content in entries:
            zipped.writestr(zipfile.ZipInfo(f"archive/{name}"), content, zipped.compression)
    data = file.getvalue()
    return changed_bytes(random, data) if random.random() < 0.1 else data


def _legacy(program: bytes) -> bytes:
    """Return the old format around a program; its other parts are PyTorch's own."""
    whole = io.BytesIO(seeds()[1])
    parts = [_pickle_at(whole) for _ in range(LEGACY_PARTS)]
    return b"".join((*parts[:3], program, *parts[4:])) + whole.read()


def _pickle_at(file: io.BytesIO) -> bytes:
    start = file.tell()
    for _ in pickletools.genops(file):
        pass
    return file.getvalue()[start : file.tell()]
