"""Make a smaller file of a drafter, a target or a control module, in int8 or 4 bits; ComfyUI reads it too.

Attention and feed-forward weights are quantised, without calibration; the rest is stored in bfloat16. Prints the
error by kind of layer, and the ten worst layers. A command that was stopped goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..weights.model_files import QUANTISED_FORMATS, converted_name
from .shared import file_path

if TYPE_CHECKING:
    from ..loading.convert import Conversion, Errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=file_path, help="the file in bf16, fp16 or float32, or an index of shards")
    parser.add_argument(
        "--format", choices=QUANTISED_FORMATS, help="int8: half the bytes of bf16; w4a8: 0.28 of them, coarser"
    )
    parser.add_argument("--output", type=file_path, help="to write (default: NAME_int8.safetensors beside FILE)")
    parser.add_argument(
        "--measure", action="store_true", help="print the errors of both formats, and write nothing"
    )
    parser.add_argument("--device", default="auto", help="to compute on (auto: a GPU if there is one)")


def run(options: argparse.Namespace) -> int:
    """Write the file, or measure."""
    import torch

    from ..devices.device import check_device
    from ..files.unfinished import check_absent
    from ..loading.convert import Conversion, open_source
    from ..memory.plan import gigabytes
    from ..weights import kitchen

    if options.measure and (options.format or options.output):
        given = "--format" if options.format else "--output"
        raise BadInput(f"--measure compares both formats and writes nothing; leave {given} out")
    if not options.measure and not options.format:
        raise BadInput(f"convert needs --format, {' or '.join(QUANTISED_FORMATS)}, or --measure; add one")
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    device = check_device(usual if options.device == "auto" else options.device)
    source = open_source(options.file)
    names = (options.format,) if options.format else QUANTISED_FORMATS
    kinds = {name: Conversion(source=source, form=kitchen.FORMATS[name], device=device) for name in names}
    if options.measure:
        _measure(kinds)
        return 0
    conversion = kinds[options.format]
    output = options.output or Path(converted_name(source.checkpoint.weights.path, options.format))
    if output.suffix != ".safetensors":
        raise BadInput(f"{output.name} is no name for a safetensors file; let it end in .safetensors")
    check_absent(output)
    started = time.monotonic()
    try:
        with _bar(conversion) as watch:
            errors = conversion.write(output, watch)
    except KeyboardInterrupt:
        print("what was converted is kept, hidden; the same command goes on", file=sys.stderr)
        raise
    print(*_lines(errors), sep="\n")
    print(f"{output}: {gigabytes(output.stat().st_size)}, made in {time.monotonic() - started:.0f} s")
    return 0


def _measure(kinds: dict[str, Conversion]) -> None:
    from ..memory.plan import gigabytes

    errors = {}
    for name, conversion in kinds.items():
        with _bar(conversion) as watch:
            errors[name] = conversion.measure(watch)
    print(f"{'relative error':16}", *(f"{name:>8}" for name in kinds))
    columns = [part.by_kind for part in errors.values()]
    for kind in columns[0]:
        print(f"{kind:16}", *(f"{column[kind]:8.4f}" for column in columns))
    print(f"{'size':16}", *(f"{gigabytes(conversion.bytes):>8}" for conversion in kinds.values()))


def _lines(errors: Errors) -> Iterator[str]:
    yield "relative error by kind of layer"
    yield from (f"  {kind:30} {error:.4f}" for kind, error in errors.by_kind.items())
    yield "the layers with the largest"
    yield from (f"  {name:30} {error:.4f}" for name, error in errors.worst)


@contextmanager
def _bar(conversion: Conversion) -> Iterator[Callable[[int], object]]:
    """Yield a function that shows how many numbers are done, and the time left, on a terminal."""
    from tqdm import tqdm

    name = conversion.form.name
    with tqdm(total=conversion.numbers, unit="", unit_scale=True, desc=name, file=sys.stderr, disable=None) as bar:
        yield bar.update
