"""Find out what a PyTorch checkpoint would run, without running any of it.

A pickle is a program. PyTorch's reader with `weights_only=True` runs a restricted kind. But what it allows differs
between versions, can be widened by other code in the process, and includes calls that take any amount of memory. So
we read the program first, and refuse it if it names anything that tensors do not need.
"""

from __future__ import annotations

import io
import pickletools
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import BadInput

TENSOR_PARTS = {
    "collections.OrderedDict",
    "torch.Size",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch.storage.UntypedStorage",
}
DTYPES = ("float", "bfloat", "int", "uint", "complex", "bool")
# The description of a few thousand tensors takes a few hundred kilobytes.
LONGEST_PROGRAM = 4_000_000
LONGEST_LISTING = 4_000_000
MOST_ENTRIES = 50_000
# The old format: a magic number, a version, the system's type sizes, the content, and the names of the storages.
LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
LEGACY_PARTS = 5


def check_program(path: Path) -> None:
    """Raise `BadInput` unless the file is a PyTorch checkpoint of tensors alone.

    Checks the kind of archive, that nothing in it unpacks to more bytes than the file has, and every name the
    pickle would look up. A damaged archive may also raise other errors.
    """
    for program in _programs(path):
        wanted = next((name for name in globals_of(program) if not _is_part_of_tensor(name)), None)
        if wanted is not None:
            raise BadInput(
                f"a pickle may hold tensors alone, but {path.name} was refused: it wants to run {wanted}; "
                "use a .safetensors copy"
            )


def globals_of(program: io.BytesIO) -> Iterator[str]:
    """Yield the names that a pickle looks up, `module.name`, up to the end of the first pickle."""
    texts: list[str] = ["", ""]
    for operation, argument, _ in pickletools.genops(program):
        if operation.name in ("GLOBAL", "INST"):
            yield str(argument).replace(" ", ".")
        elif operation.name == "STACK_GLOBAL":
            # The name lies on the stack, usually the two texts before, but the program may put there what it likes.
            # PyTorch never writes this.
            yield f"{'.'.join(texts)}, or another name from its stack"
        elif operation.name.startswith("EXT"):
            yield f"the registered extension {argument}"
        elif isinstance(argument, str):
            texts = [texts[-1], argument]


def _is_part_of_tensor(name: str) -> bool:
    module, _, leaf = name.rpartition(".")
    return name in TENSOR_PARTS or (module == "torch" and (leaf.endswith("Storage") or leaf.startswith(DTYPES)))


def _programs(path: Path) -> Iterator[io.BytesIO]:
    if zipfile.is_zipfile(path):
        yield _zipped_program(path)
        return
    # A file can start like the old format and still be a tar archive; PyTorch would unpack that first.
    if tarfile.is_tarfile(path):
        raise _foreign(path)
    with path.open("rb") as file:
        program = io.BytesIO(file.read(LONGEST_PROGRAM))
    yield program
    if not program.getvalue().startswith(LEGACY_START):
        raise _foreign(path)
    for _ in range(LEGACY_PARTS - 1):
        yield program


def _foreign(path: Path) -> BadInput:
    return BadInput(
        f"a checkpoint must be in PyTorch's format, but {path.name} was refused: it is a pickle or an archive of "
        "another kind; use a .safetensors copy"
    )


class _ShortReads(io.BufferedReader):
    """A file that refuses to be read in huge pieces; zipfile reads the list of an archive's parts at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LONGEST_LISTING:
            raise BadInput(
                f"a checkpoint must be in PyTorch's format, but {Path(self.name).name} lists its parts in "
                f"{size:,} bytes; use a .safetensors copy"
            )
        return super().read(size)


def _zipped_program(path: Path) -> io.BytesIO:
    with _ShortReads(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
        if packed or len(entries) > MOST_ENTRIES:
            raise BadInput(
                f"a checkpoint must be in PyTorch's format, but {path.name} has {len(entries)} parts, "
                f"{len(packed)} of them compressed; use a .safetensors copy"
            )
        programs = [entry for entry in entries if entry.filename.endswith(".pkl")]
        if len(programs) != 1 or not programs[0].filename.endswith("/data.pkl"):
            names = ", ".join(entry.filename for entry in programs[:3]) or "none"
            raise BadInput(
                f"there must be one data.pkl in {path.name}, but found {names} (TorchScript cannot be read); "
                "save a state dict"
            )
        if programs[0].file_size > LONGEST_PROGRAM:
            raise BadInput(
                f"a checkpoint needs only a short description of its tensors, but in {path.name} it takes "
                f"{programs[0].file_size:,} bytes; use a .safetensors copy"
            )
        return io.BytesIO(archive.read(programs[0]))
