"""A video on the page: pictures that play, the route, the figures that the page is sorted by."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import accumulate

from ..engine.records import BlockRecord
from ..engine.router import LARGEST
from ..files.outputs import VIDEO
from ..files.thumbnails import Thumbnails
from ..report.run_report import RunReport, is_hidden, worst_score
from ..report.summary import percent, summarise
from .markup import Markup, element, joined
from .route import said_of, strip
from .videos import Unreadable, Video

FASTEST, SLOWEST = 80, 400
"""Milliseconds that a picture is shown for; between them, a video plays as fast as it is."""
SHOWN = ("width", "height", "seed")


def worst_first(video: Video | Unreadable) -> tuple[int, float, int]:
    """Return the key of the page's first order: worst frame, then what was not scored, then what is unreadable."""
    worst = _worst(video.report) if isinstance(video, Video) else None
    rank = 0 if worst is not None else 1 + isinstance(video, Unreadable)
    return rank, worst or 0.0, video.number


def card(video: Video | Unreadable) -> Markup:
    """Return a video's entry in the list."""
    if isinstance(video, Unreadable):
        return element(
            "li",
            element("h2", video.name),
            element("p", "Unreadable: ", video.reason, class_="reason"),
            class_="card unreadable",
            data_number=video.number,
            data_find=f"{video.name} unreadable {video.reason}",
        )
    report = video.report
    prompts = list(dict.fromkeys(record.prompt for record in report.blocks))
    made = _made(report)
    worst = _worst(report)
    return element(
        "li",
        _film(video),
        element("h2", video.name),
        element("p", _prompt_text(prompts), class_="prompt"),
        strip(report.blocks),
        element("p", _said(report), class_="said", aria_hidden="true"),
        _figures(report),
        element("p", made, class_="faint") if made else None,
        element("p", *_links(video.links), class_="links"),
        element("details", element("summary", "Summary"), element("pre", summarise(report))),
        class_="card",
        data_number=video.number,
        data_worst=worst,
        data_share=report.tally.draft_share,
        data_seconds=report.seconds.total,
        data_find=" ".join((video.name, made, *prompts)),
    )


def _worst(report: RunReport) -> float | None:
    return worst_score(report.worst_block) if report.worst_block else None


def _film(video: Video) -> Markup:
    pictures = video.thumbnails
    if pictures is None:
        return element("p", "No pictures: ", video.no_pictures, class_="film reason")
    source = Markup("data:image/jpeg;base64," + base64.b64encode(pictures.jpeg).decode("ascii"))
    width, height, count = pictures.width, pictures.height, len(pictures.frames)
    image = element("image", href=source, width=width * count, height=height)
    # The inner one cuts off the other pictures, whatever the shape of the outer one.
    shown = element("svg", element("svg", image, width=width, height=height), viewBox=f"0 0 {width} {height}")
    return element(
        "a",
        shown,
        class_="film",
        href=video.links[VIDEO],
        aria_label=f"Play {VIDEO} of {video.name}",
        data_width=width,
        data_blocks=" ".join(map(str, _blocks_shown(pictures, video.report.blocks))),
        data_pause=round(min(max(1000 * pictures.of / video.report.fps / count, FASTEST), SLOWEST)),
    )


def _blocks_shown(pictures: Thumbnails, blocks: Sequence[BlockRecord]) -> list[int]:
    """Return the place of the block that each picture shows; -1 for a clip that the video continues."""
    before = pictures.of - sum(record.pixel_frames for record in blocks)
    ends = list(accumulate(record.pixel_frames for record in blocks))
    return [sum(frame - before >= end for end in ends) if 0 <= before <= frame else -1 for frame in pictures.frames]


def _prompt_text(prompts: Sequence[str]) -> str:
    shown = [prompt for prompt in prompts if not is_hidden(prompt)]
    if not shown:
        return f"Prompt kept out of the report ({', '.join(prompts[:3])})"
    return "; then ".join(shown)


def _figures(report: RunReport) -> Markup:
    worst = _worst(report)
    figures = {
        "worst frame": "not scored" if worst is None else f"{worst:.2f}",
        "draft share": percent(report.tally.draft_share),
        "seconds": f"{report.seconds.total:.1f}",
    }
    return element("dl", *(element("div", element("dt", n), element("dd", value)) for n, value in figures.items()))


def _made(report: RunReport) -> str:
    """Return size, length, seed and speed-up, as far as the report has them."""
    known = {name: report.settings.get(name) for name in SHOWN}
    width, height, seed = (v if type(v) is int and abs(v) < LARGEST else None for v in known.values())
    size = f"{width}x{height}" if width is not None and height is not None else ""
    length = f"{len(report.blocks)} blocks, {report.pixel_frames} frames at {report.fps:g} fps"
    speed = f"{report.speed_up:.2f}x as fast as target-only" if report.speed_up else ""
    return ", ".join(filter(None, (size, length, "" if seed is None else f"seed {seed}", speed)))


def _said(report: RunReport) -> str:
    """Return the sentence of the block with the worst frame; it stands there until another square is looked at."""
    worst = report.worst_block
    return said_of(worst, report.blocks.index(worst) + 1, len(report.blocks)) if worst else ""


def _links(links: dict[str, str]) -> list[Markup]:
    return [joined((element("a", name, href=address), " ")) for name, address in links.items()]
