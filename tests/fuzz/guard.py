"""What a reader may do to a file it does not trust: refuse it in a sentence, soon, in little memory."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from sdvg_core.errors import BadInput

from .files import Files
from .readers import Reader

SECONDS = 5.0
"""Of the processor: the promise is 1, and a busy machine cannot explain 5."""
MEGABYTES = 200.0
LONGEST_SENTENCE = 400
# A refusal says the fault, and after a semicolon what to do.
REFUSAL = re.compile(r"\w+ .*; \w+ ", re.DOTALL)


def problem_of(reader: Reader, files: Files, folder: Path) -> str:
    """Write the files into an empty folder and have the reader read the first; return what promise it broke."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    forget_peak()
    before, began = megabytes_of("VmRSS:"), time.process_time()
    problem = ""
    try:
        reader.read(folder / next(iter(files)))
    except BadInput as error:
        problem = spoken_badly(str(error))
    except Exception as error:
        problem = f"{type(error).__name__}: {error!s:.300}"
    taken = time.process_time() - began
    megabytes = megabytes_of("VmHWM:") - before - sum(map(len, files.values())) / 1e6
    if taken > SECONDS:
        problem = problem or f"took {taken:.1f} s of the processor"
    if megabytes > MEGABYTES:
        problem = problem or f"took {megabytes:.0f} MB beyond its files"
    problem = problem or left_behind(folder, files)
    shutil.rmtree(folder)
    return problem


def spoken_badly(sentence: str) -> str:
    if not REFUSAL.search(sentence):
        return f"a refusal without fault or remedy: {sentence!r:.300}"
    if not all(c.isprintable() or c == "\n" for c in sentence):
        return f"a refusal with characters that are no text: {sentence!r:.300}"
    return f"a refusal of {len(sentence)} characters" if len(sentence) > LONGEST_SENTENCE else ""


def left_behind(folder: Path, files: Mapping[str, bytes]) -> str:
    """`ran`: what the pickles of these tests write, if their code is run."""
    changed = {path.name for path in folder.iterdir()} ^ set(files)
    if changed:
        return f"left behind or removed {', '.join(sorted(changed))}"
    return "ran the code of a file" if Path("ran").exists() else ""


def forget_peak() -> None:
    """Have the system measure the peak of memory anew; on Linux alone."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def megabytes_of(field_name: str) -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(status.split(field_name)[1].split()[0]) / 1024
