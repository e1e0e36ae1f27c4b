"""One HTML page for a folder of videos, which opens from disk without a server.

Files outside the folder are never read or linked, even through symbolic links: the folder may be a stranger's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined

from .. import __version__
from ..engine.records import BlockRecord
from ..errors import BadInput, printable, why
from ..files.outputs import PICTURE, REPORT, VIDEO, whole_file
from .run_report import RunReport, is_hidden, read_report, worst_score
from .summary import COLOURS, INKS, LETTERS, Outcome, block_line, outcome_of, summarise

PAGE = "index.html"
MARK = b'<meta name="generator" content="sdvg'
MOST_SQUARES = 400


def _text(value: object) -> object:
    return printable(value) if isinstance(value, str) else "" if value is None else value


# Text is escaped twice: control characters by `printable`, markup by jinja2.
JINJA = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_text)
TEMPLATE = JINJA.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page. `videos`: number of readable ones. `unreadable`: reasons by folder name."""

    html: str
    videos: int
    unreadable: dict[str, str]


def write_page(folder: Path) -> tuple[Path, Page]:
    """Write `index.html` into a folder of videos; return its path and the page.

    Raises `BadInput` if there is no video, the folder is not writable, or another program's page is there.
    """
    page = make_page(folder)
    path = folder / PAGE
    if path.is_file():
        with path.open("rb") as file:
            ours = MARK in file.read(4096)
        if not ours:
            raise BadInput(f"this command did not write {path}; move it away first")
    with whole_file(path) as part:
        part.write_bytes(page.html.encode("utf-8"))
    return path, page


def make_page(folder: Path) -> Page:
    """Return the page of a folder. Raises `BadInput` if there is no video in it."""
    cards = [_card(path, number, folder) for number, path in enumerate(_find_videos(folder), 1)]
    cards.sort(key=lambda card: card["rank"])
    unreadable = {card["name"]: card["reason"] for card in cards if "reason" in card}
    outcomes = [(kind.name, COLOURS[kind], INKS[kind], LETTERS[kind], kind.value) for kind in Outcome]
    keys = [("share", "Draft share"), ("seconds", "Seconds"), ("number", "Number")]
    scored = any(card.get("worst") is not None for card in cards)
    keys = [("worst", "Weakest frame"), *keys] if scored else [keys.pop(), *keys]
    html = TEMPLATE.render(
        title=folder.resolve().name,
        cards=cards,
        unreadable=len(unreadable),
        outcomes=outcomes,
        keys=keys,
        version=__version__,
    )
    return Page(html=html + "\n", videos=len(cards) - len(unreadable), unreadable=unreadable)


def _find_videos(folder: Path) -> list[Path]:
    """Return this folder if it has a report, and its subfolders that have a report or a number as name."""
    try:
        inner = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError as error:
        raise BadInput(f"the folder {folder} cannot be read ({why(error)}); name another folder") from error
    videos = [path for path in inner if path.name.isdecimal() or os.path.lexists(path / REPORT)]
    videos.sort(key=lambda path: (0, int(path.name), path.name) if path.name.isdecimal() else (1, 0, path.name))
    videos = [folder, *videos] if os.path.lexists(folder / REPORT) else videos
    if not videos:
        raise BadInput(f"{folder} has no video: no {REPORT}, no numbered folder; name another folder")
    return videos


def _card(path: Path, number: int, top: Path) -> dict[str, Any]:
    """Return the template's values for one video, or the reason why its report is unreadable."""
    name = path.resolve().name if path == top else path.name
    try:
        report = _report_in(path, top)
    except BadInput as error:
        # Leave this machine's paths out of the page.
        reason = str(error).replace(f"{path}{os.sep}", "")
        return {"rank": (2, 0.0, number), "number": number, "name": name, "reason": reason}
    worst = worst_score(report.worst_block) if report.worst_block else None
    known = {key: report.settings.get(key) for key in ("width", "height", "seed")}
    prompts = list(dict.fromkeys(record.prompt for record in report.blocks))
    shown = [prompt for prompt in prompts if not is_hidden(prompt)]
    squares = [_square(record, number, report) for number, record in enumerate(report.blocks, 1)]
    files = [file for file in (VIDEO, REPORT, PICTURE) if _lies_in(path / file, top)]
    return {
        "rank": (worst is None, worst or 0.0, number),
        "number": number,
        "name": name,
        "prompt": "; then ".join(shown) or f"Prompt kept out of the report ({', '.join(prompts[:3])})",
        "made": ", ".join(f"{key} {value}" for key, value in known.items() if value is not None),
        "worst": worst,
        "share": report.tally.draft_share,
        "seconds": report.seconds.total,
        "squares": squares[:MOST_SQUARES],
        "more": max(len(squares) - MOST_SQUARES, 0),
        "worst_line": squares[report.blocks.index(report.worst_block)]["line"] if report.worst_block else "",
        # With `./`, a browser cannot take a name such as `javascript:x` for a scheme.
        "links": {file: "./" + quote(os.fsencode((path / file).relative_to(top).as_posix())) for file in files},
        "summary": summarise(report).splitlines(),
    }


def _square(record: BlockRecord, number: int, report: RunReport) -> dict[str, Any]:
    earlier = ", made by an earlier run" if record.reused else ""
    line = f"{block_line(record, number, len(report.blocks))}; {record.seconds.total:.1f} s{earlier}"
    outcome = outcome_of(record)
    length = record.pixel_frames / report.fps
    return {"outcome": outcome.name, "letter": LETTERS[outcome], "length": length, "line": line}


def _lies_in(path: Path, top: Path) -> bool:
    """True if a path is a file that lies in the folder `top` with links followed."""
    try:
        real = path.resolve(strict=True)
        return real.is_relative_to(top.resolve(strict=True)) and real.is_file()
    except (OSError, RuntimeError):  # a cycle of links is a RuntimeError up to Python 3.12
        return False


def _report_in(path: Path, top: Path) -> RunReport:
    if not os.path.lexists(path / REPORT):
        raise BadInput(f"there is no {REPORT}; make the video, or resume its run")
    if not _lies_in(path / REPORT, top):
        raise BadInput(f"{REPORT} is no file, or a link out of the page's folder; put the file itself there")
    return read_report(path / REPORT)
