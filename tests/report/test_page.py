"""The page of a folder of videos: what is on it, in a browser too, and what a hostile folder cannot put there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from browser import browse
from cli_runs import names, refused
from read_only import make_read_only
from sample_reports import record, report, route

from sdvg_core.cli import main
from sdvg_core.engine.router import RouterConfig
from sdvg_core.errors import BadInput
from sdvg_core.files.video import write_mp4
from sdvg_core.report.page import make_page, write_page
from sdvg_core.report.run_report import RunReport

SCORES = ((0.0,), (0.5, -0.2), (-0.9, 0.3), (0.1,))
EVIL = "</script><script>hacked = 1</script><img src=x onerror='hacked = 2'>\" onpointerenter=\"hacked = 3"


def some_report(worst: float = -0.9, prompt: str = "a red fox in snow", seconds: float = 1.0) -> RunReport:
    """Four blocks, one of them with the given worst frame."""
    decisions = route(RouterConfig(), (*SCORES[:2], (worst, 0.9), SCORES[3]))
    found = report(decisions, fps=16.0)
    blocks = tuple(record(decision, index, prompt) for index, decision in enumerate(decisions))
    blocks = tuple(replace(b, seconds=replace(b.seconds, target=seconds)) for b in blocks)
    return replace(found, blocks=blocks)


def write_video(
    folder: Path,
    found: RunReport | None = None,
    *,
    frames: bool = True,
    change: Callable[[str], str] = lambda text: text,
) -> Path:
    """Write a video's folder. `change`: what to make of the text of its report."""
    found = found or some_report()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(change(found.to_json()), encoding="utf-8")
    (folder / "route.png").write_bytes(b"never read")
    if frames:
        greys = [torch.full((b.pixel_frames, 3, 32, 32), b.span.index / len(found.blocks)) for b in found.blocks]
        write_mp4(folder / "video.mp4", torch.cat(greys), found.fps)
    return folder


class Seen(HTMLParser):
    """What a parser makes of a page: its elements with their attributes, and the text of each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts.setdefault(tag, []).append(data)

    def all(self, tag: str, style: str = "") -> list[dict[str, Any]]:
        """Return the attributes of every element of a kind, with a class."""
        return [
            found
            for name, found in self.elements
            if name == tag and (not style or style in (found.get("class") or "").split())
        ]


def test_a_page_lists_every_video_once_worst_frame_first(tmp_path, capsys):
    for number, worst in enumerate((-0.8, -2.0, -1.0), 1):
        write_video(tmp_path / f"{number:04d}", some_report(worst))
    write_video(tmp_path / "0010", some_report(0.2))
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'index.html'}\n"
    seen = Seen((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert seen.texts["h2"] == ["0002", "0003", "0001", "0010"]
    worst = [float(card["data-worst"]) for card in seen.all("li", "card")]
    assert worst == pytest.approx([-2.0, -1.0, -0.8, -0.2])
    assert [int(card["data-number"]) for card in seen.all("li", "card")] == [2, 3, 1, 4]
    pressed = [b["aria-pressed"] for b in seen.all("button") if "data-sort" in b]
    assert pressed == ["true", "false", "false", "false"]


def test_a_square_has_the_letter_the_colour_and_the_sentence_of_its_block(tmp_path):
    write_video(tmp_path)
    html = make_page(tmp_path).html
    squares = [button for button in Seen(html).all("button") if "tabindex" in button]
    assert [square["class"] for square in squares] == ["FORCED", "KEPT", "REMADE", "KEPT"]
    assert squares[2]["title"].startswith("block 3/4: remade by the large model, weakest frame -0.90 < -0.70; ")
    assert all(square["title"] == square["aria-label"] for square in squares)
    assert [square["tabindex"] for square in squares] == ["0", "-1", "-1", "-1"], "one stop of Tab a video"
    assert ".REMADE { background: #D55E00; color: #000000; }" in html
    assert re.findall(r'title="block \d[^>]*>(\w)<', html) == ["F", "a", "r", "a"]


def test_the_page_asks_for_nothing_but_the_files_beside_it(tmp_path):
    write_video(tmp_path / "0001")
    html = make_page(tmp_path).html
    assert re.findall(r"https?:|url\(|@import|//[a-z]", html) == []
    seen = Seen(html)
    addresses = [a[name] for _, a in seen.elements for name in ("href", "src") if name in a]
    assert len(addresses) == 5
    assert all((tmp_path / unquote(address)).is_file() for address in addresses)
    (policy,) = [m["content"] for m in seen.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    (video,) = seen.all("video")
    assert {"muted", "loop"} <= set(video)


def test_a_prompt_and_names_of_folders_are_text_even_if_they_are_html(tmp_path):
    """Catches text that is not escaped: in an element, in an attribute, in an address."""
    write_video(tmp_path / "javascript:hacked=1 <b>", some_report(prompt=EVIL))
    found = make_page(tmp_path)
    seen = Seen(found.html)
    assert len(seen.all("script")) == 1
    assert len(seen.all("b")) == 6, "the letters of the legend"
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]
    assert seen.texts["h2"] == ["javascript:hacked=1 <b>"]
    assert EVIL in seen.texts["p"]
    assert all(not (a.get("href") or "").startswith("javascript") for _, a in seen.elements)
    (film,) = seen.all("a", "film")
    assert (tmp_path / unquote(film["href"])).is_file()


HOSTILE = {
    "no JSON": lambda text: "not json",
    "NaN": lambda text: text.replace('"fps": 16.0', '"fps": NaN'),
    "deeply nested": lambda text: "[" * 100_000,
    "deep settings": lambda text: text.replace('"seed": 42', '"seed": ' + "[" * 300 + "]" * 300),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_report_that_cannot_be_read_is_listed_with_its_reason(tmp_path, change):
    write_video(tmp_path / "0001", change=change)
    write_video(tmp_path / "0002")
    path, page = write_page(tmp_path)
    assert (page.videos, list(page.unreadable)) == (1, ["0001"])
    assert len(page.unreadable["0001"]) < 400
    html = path.read_text(encoding="utf-8")
    assert str(tmp_path) not in html, "a page that is passed on tells no folders of this machine"
    assert Seen(html).texts["h2"] == ["0002", "0001"]


def test_a_folder_that_is_read_only_is_named_and_not_a_hidden_file(tmp_path, monkeypatch):
    """The kind: a refusal that names what the user never saw. Catches `the system refused .index.html.1a2b3c4d`."""
    write_video(tmp_path)
    make_read_only(tmp_path, monkeypatch)
    fault = rf"cannot write into the folder {tmp_path} \(Read-only file system\); allow it, or copy"
    with pytest.raises(BadInput, match=fault):
        write_page(tmp_path)


def odd_settings(text: str) -> str:
    content = json.loads(text)
    content["settings"] = {"seed": {"<b>": 1}, "width": "<script>", "height": [[]], "router": None}
    content["blocks"][1] |= {"score": 9e14, "threshold": -9e14, "frame_scores": []}
    content["blocks"][2]["prompt"] = "\ud800 \u202e" + "x" * 50_000
    content["blocks"][3] |= {
        "pixel_frames": 10**14,
        "seconds": dict.fromkeys(content["blocks"][3]["seconds"], 9e14),
    }
    return json.dumps(content)


def test_a_report_with_strange_values_is_shown_for_what_it_is(tmp_path):
    """Catches a score without frame scores, a lone surrogate, sums that no float holds."""
    write_video(tmp_path, change=odd_settings)
    path, page = write_page(tmp_path)
    assert page.unreadable == {}
    assert path.stat().st_size < 150_000
    assert len(Seen(path.read_text(encoding="utf-8")).all("script")) == 1


def secret(folder: Path) -> Path:
    return write_video(folder, some_report(prompt="a secret of another folder"))


OUTSIDE = {
    "a link to a folder": lambda place, outside: (
        place.rmdir(),
        place.symlink_to(outside, target_is_directory=True),
    ),
    "a link to a report": lambda place, outside: (place / "report.json").symlink_to(outside / "report.json"),
    "a pipe for a report": lambda place, outside: os.mkfifo(place / "report.json"),
}


@pytest.mark.skipif(os.name == "nt", reason="links and pipes as POSIX has them")
@pytest.mark.parametrize("put", OUTSIDE)
def test_nothing_outside_the_folder_is_read_and_nothing_hangs(tmp_path, put):
    """Catches a link that is followed, and a pipe that nobody ever writes into."""
    top = tmp_path / "top"
    write_video(top / "0002")
    (top / "0001").mkdir()
    OUTSIDE[put](top / "0001", secret(tmp_path / "outside"))
    page = make_page(top)
    assert (page.videos, list(page.unreadable)) == (1, ["0001"])
    assert "secret" not in page.html


def test_a_video_that_leads_outside_is_neither_read_nor_linked(tmp_path):
    outside = secret(tmp_path / "outside")
    top = write_video(tmp_path / "top", frames=False)
    (top / "video.mp4").symlink_to(outside / "video.mp4")
    seen = Seen(make_page(top).html)
    assert seen.all("video") == seen.all("a", "film") == []
    assert "./video.mp4" not in [link.get("href") for link in seen.all("a")]
    assert "There is no video.mp4 in this folder; put it back." in seen.texts["p"]


def test_a_page_of_somebody_else_is_left_alone(tmp_path, capsys):
    write_video(tmp_path)
    (tmp_path / "index.html").write_text("<p>my site</p>", encoding="utf-8")
    assert "move it away first" in refused(capsys, ["report", str(tmp_path)])
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == "<p>my site</p>"
    (tmp_path / "index.html").unlink()
    write_page(tmp_path)
    write_page(tmp_path)


def test_a_folder_without_videos_is_refused_in_a_sentence(tmp_path, capsys):
    assert " has no video: no report.json, no numbered folder" in refused(capsys, ["report", str(tmp_path)])
    assert "cannot be read (" in refused(capsys, ["report", str(tmp_path / "nowhere")])
    assert names(tmp_path) == []


@pytest.mark.heavy
def test_in_a_browser_videos_play_sort_and_filter_from_disk_and_nothing_else_is_fetched(tmp_path):
    folder = tmp_path / "ein Ordner # 100%"
    write_video(folder / "0001", some_report(-0.8, seconds=3.0))
    write_video(folder / "0002", some_report(-2.0, prompt=EVIL, seconds=2.0))
    write_video(folder / "0003", some_report(0.2, prompt="an owl", seconds=1.0))
    (folder / "0004").mkdir()
    path, _ = write_page(folder)
    found = browse(Path(__file__).with_name("browser") / "page.js", file=str(path))
    assert (found["errors"], found["hacked"]) == ([], None)
    assert sorted(found["asked"]) == [f"{path.parent.as_uri()}/000{n}/video.mp4" for n in (1, 2, 3)]
    assert (found["wide400"], found["wide1600"]) == (400, 1600), "nothing sticks out at the side"

    assert found["still"]["paused"]
    assert found["still"]["line"].startswith("block 3/4: remade by the large model, weakest frame -2.00")
    assert not found["playing"]["paused"]
    assert found["playing"]["now"] >= 0
    assert (found["left"]["paused"], found["left"]["now"]) == (True, -1)
    assert found["looked"]["now"] == 2
    assert found["looked"]["time"] == pytest.approx((9 + 12 + 6) / 16), "the middle of the third block"

    worst, number, share, slow, fast = found["orders"]
    assert worst == ["0002", "0001", "0003", "0004"]
    assert number == ["0001", "0002", "0003", "0004"]
    assert share == ["0003", "0001", "0002", "0004"]
    assert slow == ["0001", "0002", "0003", "0004"]
    assert fast == ["0003", "0002", "0001", "0004"], "what has no number is last either way"
    assert found["filtered"] == ["0003"]

    assert found["first"] == "film"
    assert found["arrow"]["title"].startswith("block 2/4: ")
    assert found["arrow"]["line"] == found["arrow"]["title"]
    assert found["arrow"]["now"] == 1
    assert found["after"] == "video.mp4", "the strip is one stop of Tab"
