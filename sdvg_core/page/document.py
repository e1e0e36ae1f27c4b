"""The whole page: one file that asks for nothing else, and that a browser lets do nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..errors import BadInput
from ..files.outputs import staged_outputs
from ..report.fates import fate_of
from .cards import card, worst_first
from .markup import Markup, element, joined
from .route import colours, legend
from .videos import Unreadable, Video, find_videos, is_there, read_video

PAGE = "index.html"
MARK = b'<meta name="generator" content="sdvg'
MOST_PICTURES, MOST_ALL_PICTURES = 90_000, 40_000_000
"""Bytes of one video's pictures, and of all videos'; in the page a third more."""
KEYS = {"worst": "Worst frame", "share": "Draft share", "seconds": "Seconds", "number": "Number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page, and what is on it. `unreadable`: why, by the names of the folders."""

    html: str
    videos: int
    unreadable: dict[str, str]


def write_page(folder: Path) -> tuple[Path, Page]:
    """Write `index.html` into a folder of videos; return where it is, and what is on it.

    Raises `BadInput` if there is no video, if the folder cannot be written to, or if somebody else's page is there.
    """
    page = make_page(folder)
    _refuse_other(folder / PAGE)
    with staged_outputs(folder) as staging:
        staging.path(PAGE).write_bytes(page.html.encode("utf-8"))
    return folder / PAGE, page


def make_page(folder: Path) -> Page:
    """Return the page of a folder. Raises `BadInput` if there is no video in it."""
    found = find_videos(folder)
    if not found:
        raise BadInput(
            f"there is no video in {folder}, for it has no report.json and no numbered folders; give the "
            "folder that generate wrote into"
        )
    most = min(MOST_PICTURES, MOST_ALL_PICTURES // max(len(found), 1))
    videos = [read_video(path, number, folder, most) for number, path in enumerate(found, 1)]
    videos.sort(key=worst_first)
    body = (_top(folder, videos), _gallery(videos))
    return Page(
        html=_document(folder.resolve().name, joined(body)),
        videos=sum(isinstance(video, Video) for video in videos),
        unreadable={video.name: video.reason for video in videos if isinstance(video, Unreadable)},
    )


def _top(folder: Path, videos: Sequence[Video | Unreadable]) -> Markup:
    readable = sum(isinstance(video, Video) for video in videos)
    counts = [f"{readable} video{'s' * (readable != 1)}"] if readable else []
    counts += [f"{len(videos) - readable} unreadable"] if len(videos) > readable else []
    buttons = [
        element("button", words, type="button", data_sort=key, aria_pressed=str(key == "worst").lower())
        for key, words in KEYS.items()
    ]
    sort = element("div", element("span", "Sort by"), *buttons, role="group", aria_label="Sort the videos")
    search = element("input", type="search", placeholder="Filter by text", aria_label="Filter by text")
    return element(
        "header",
        element("h1", folder.resolve().name),
        element("p", ", ".join(counts), class_="faint", id="count", role="status"),
        element("div", sort if videos else None, search, class_="controls", hidden=True),
    )


def _gallery(videos: Sequence[Video | Unreadable]) -> Markup | None:
    if not videos:
        return None
    present = {fate_of(record) for v in videos if isinstance(v, Video) for record in v.report.blocks}
    return joined((legend(present), element("ol", *map(card, videos), class_="gallery")))


def _document(title: str, body: Markup) -> str:
    style = Markup(f"{_read('page.css')}\n{colours()}\n")
    script = Markup(_read("page.js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hashed(style)}; script-src {_hashed(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=Markup(policy)),
        element("meta", name="generator", content=f"sdvg {__version__}"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - SDVG"),
        element("style", style),
    )
    page = element("html", element("head", *head), element("body", body, element("script", script)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    """Return the source expression that allows this very text, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _refuse_other(path: Path) -> None:
    """Raise `BadInput` if there is a page that this command did not write."""
    if not is_there(path) or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            ours = MARK in file.read(4096)
    except OSError:
        ours = False
    if not ours:
        raise BadInput(f"{path} should be a page of this command, but something else wrote it; move it away first")
