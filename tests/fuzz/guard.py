"""What a reader may do to a file it does not trust: refuse it in a sentence, soon, in little memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdvg_core.errors import BadInput

from .files import Files
from .readers import Reader

SECONDS, MEGABYTES = 1.0, 200.0
LONGEST_SENTENCE = 400
ROOT = Path(__file__).parents[2]
# Events of Python's own audit by which code is run, or the machine left.
FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "subprocess.Popen"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "ftplib.connect", "smtplib.connect"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown"),
    *("shutil.rmtree", "shutil.move", "shutil.copyfile", "tempfile.mkdtemp", "tempfile.mkstemp"),
    *("ctypes.dlopen", "code.__new__", "webbrowser.open"),
)

# Code from a text is run, or about to be. A module that is imported is, too.
CODE = ("exec", "compile")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case came to.

    `refusal`: where in the code it was refused, None if it was taken. `problem`: the promise it broke, empty if
    none. `seconds`: of the processor. `megabytes`: the memory it took at its peak, beyond the files themselves.
    """

    refusal: str | None
    problem: str
    seconds: float
    megabytes: float


@dataclass(slots=True)
class Watch:
    """Notes what a reader does by Python's audit, while it is on. There is no taking an audit hook off again."""

    folder: str = ""
    seen: list[str] = field(default_factory=list)
    on: bool = False
    installed: bool = False

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take note of an event; called by Python."""
        if not self.on:
            return
        if event in FORBIDDEN or (event in CODE and not _importing()):
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "open" and not self._may_open(arguments[0], arguments[2]):
            self.seen.append(f"open {arguments!r:.200}")

    def _may_open(self, path: Any, flags: Any) -> bool:
        if isinstance(path, int):
            return True
        place = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are not to be followed
        if place.startswith((self.folder + os.sep, "/dev/urandom", "/proc/")):
            return not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        # Modules are imported when they are first needed.
        module = place.startswith((sys.prefix, sys.base_prefix, sys.pycache_prefix or sys.prefix)) or (
            place.startswith(str(ROOT)) and place.endswith((".py", ".pyc"))
        )
        return module and not flags & (os.O_WRONLY | os.O_RDWR)

    @contextlib.contextmanager
    def over(self, folder: Path) -> Iterator[None]:
        if not self.installed:
            sys.addaudithook(self.audit)
            self.installed = True
        kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # of a module that is imported now
        self.folder, self.seen, self.on = str(folder), [], True
        try:
            yield
        finally:
            self.on, sys.dont_write_bytecode = False, kept


WATCH = Watch()


def _importing() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def run_case(reader: Reader, files: Files, folder: Path) -> Outcome:
    """Write the files into an empty folder, have the reader read the first, and say what came of it."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    forget_peak()
    before, began = megabytes_of("VmRSS:"), time.process_time()
    raised: BaseException | None = None
    with WATCH.over(folder):
        try:
            reader.read(folder / next(iter(files)))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # whatever comes out is what is looked for here
            raised = error
    seconds = time.process_time() - began
    megabytes = megabytes_of("VmHWM:") - before - sum(map(len, files.values())) / 1e6
    problem = f"did what it must not: {WATCH.seen[0]}" if WATCH.seen else ""
    problem = problem or _spoken(raised) or _broken_promise(seconds, megabytes) or left_behind(folder, files)
    shutil.rmtree(folder)
    return Outcome(_place(raised) if raised else None, problem, seconds, max(megabytes, 0.0))


def _spoken(raised: BaseException | None) -> str:
    if raised is None or isinstance(raised, BadInput):
        return spoken_badly(str(raised)) if raised else ""
    return f"{type(raised).__name__}: {raised!s:.300} at {_place(raised)}"


# A refusal says the fault, and after a semicolon what to do.
REFUSAL = re.compile(r"\w+ .*; \w+ ", re.DOTALL)


def spoken_badly(sentence: str) -> str:
    if not REFUSAL.search(sentence):
        return f"a refusal without fault or remedy: {sentence!r:.300}"
    if not all(c.isprintable() or c == "\n" for c in sentence):
        return f"a refusal with characters that are no text: {sentence!r:.300}"
    return f"a refusal of {len(sentence)} characters" if len(sentence) > LONGEST_SENTENCE else ""


def left_behind(folder: Path, files: Mapping[str, bytes]) -> str:
    there, meant = {path.name for path in folder.iterdir()}, set(files)
    if there != meant:
        return f"left behind or removed {', '.join(sorted(there ^ meant))}"
    strangers = [name for name in ("ran",) if Path(name).exists()]
    return f"wrote {strangers[0]} into the current folder" if strangers else ""


def _broken_promise(seconds: float, megabytes: float) -> str:
    if seconds > SECONDS:
        return f"took {seconds:.1f} s of the processor"
    return f"took {megabytes:.0f} MB beyond its files" if megabytes > MEGABYTES else ""


def _place(error: BaseException) -> str:
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [place for place in places if "sdvg_core" in place[0]]
    name, line = (ours or places)[-1]
    return f"{Path(name).name}:{line}"


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
