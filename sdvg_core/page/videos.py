"""The videos in a folder, as far as they can be read. Nothing outside the folder is looked at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..errors import BadInput
from ..files.outputs import PICTURE, REPORT, VIDEO
from ..files.thumbnails import Thumbnails, read_thumbnails
from ..report.run_report import RunReport, read_report


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """A finished video. `name`: of its folder. `links`: addresses of its files, from the page, by file name.

    `thumbnails`: None if there are none, and then `no_pictures` says why.
    """

    number: int
    name: str
    report: RunReport
    links: dict[str, str]
    thumbnails: Thumbnails | None = None
    no_pictures: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A folder whose video cannot be shown, and the sentence that says why."""

    number: int
    name: str
    reason: str


def find_videos(folder: Path) -> list[Path]:
    """Return the folders that hold a video or should: this one, and those in it that are numbered or have a report.

    Raises `BadInput` if the folder cannot be listed.
    """
    try:
        inner = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError as error:
        raise BadInput(
            f"the folder {folder} cannot be listed ({error.strerror or type(error).__name__}); give the folder "
            "that generate wrote into"
        ) from error
    found = [path for path in inner if path.name.isdecimal() or is_there(path / REPORT)]
    own = [folder] if is_there(folder / REPORT) else []
    return own + sorted(found, key=_natural)


def read_video(path: Path, number: int, top: Path, most_bytes: int) -> Video | Unreadable:
    """Return what is in a video's folder. `top`: nothing outside it is read. `most_bytes`: of its pictures."""
    name = path.resolve().name if path == top else path.name
    try:
        report = _report_in(path, top)
    except BadInput as error:
        return Unreadable(number=number, name=name, reason=without_folder(error, path))
    there = [file for file in (VIDEO, REPORT, PICTURE) if lies_in(path / file, top)]
    links = {file: _address(path / file, top) for file in there}
    try:
        pictures = read_thumbnails(_own(path / VIDEO, top), most_bytes)
    except BadInput as error:
        why = without_folder(error, path)
        return Video(number=number, name=name, report=report, links=links, no_pictures=why)
    return Video(number=number, name=name, report=report, links=links, thumbnails=pictures)


def is_there(path: Path) -> bool:
    """Whether there is anything by that name, be it a link that leads nowhere."""
    return os.path.lexists(path)


def lies_in(path: Path, top: Path) -> bool:
    """Whether a path is a file, and lies in the folder `top` wherever links lead."""
    try:
        real = path.resolve(strict=True)
        return real.is_relative_to(top.resolve(strict=True)) and real.is_file()
    except (OSError, RuntimeError):  # a circle of links is a RuntimeError up to Python 3.12
        return False


def without_folder(error: Exception, folder: Path) -> str:
    """Return an error's sentence for a page that is passed on: without the folder's place on this machine."""
    return str(error).replace(f"{folder}{os.sep}", "")


def _report_in(path: Path, top: Path) -> RunReport:
    if not path.resolve().is_relative_to(top.resolve()):
        raise BadInput(
            "a video lies in the folder of the page, but this is a link that leads out of it; move it there"
        )
    if not is_there(path / REPORT):
        raise BadInput(f"a finished video has a {REPORT}, but there is none; make it, or resume the run")
    return read_report(_own(path / REPORT, top))


def _own(path: Path, top: Path) -> Path:
    """Return a path. Raises `BadInput` unless it is a file in the folder `top`."""
    if not is_there(path):
        raise BadInput(f"a video has a {path.name}, but there is none; put it back")
    if not lies_in(path, top):
        raise BadInput(
            f"{path.name} must be a file in the folder of the page, but is none, or a link that leads out of it; "
            "put the file itself there"
        )
    return path


def _address(path: Path, top: Path) -> str:
    """Return an address for a link. Its first character keeps a browser from reading a scheme into a name."""
    return "./" + quote(os.fsencode(path.relative_to(top).as_posix()))


def _natural(path: Path) -> tuple[bool, int, str]:
    """Return a key that sorts 2 before 10, and numbers before names."""
    digits = path.name.lstrip("0") if path.name.isdecimal() else ""
    return not path.name.isdecimal(), len(digits), digits + path.name
