"""Servers that answer what no ComfyUI does: nothing of it is believed, and a good server makes the videos."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_comfyui import Answer, Toy, as_json, entry, report_of, toys

from sdvg_core.errors import BadInput
from sdvg_core.servers import client as client_module
from sdvg_core.servers.answers import Refused, check_success, refusal_in, report_in, video_in
from sdvg_core.servers.client import Away, Client, parse_address
from sdvg_core.servers.orders import Order, deliver
from sdvg_core.servers.workflow import Workflow

ID = "11111111-2222-3333-4444-555555555555"
DEEP = "[" * 100 + "]" * 100


@pytest.fixture
def toy() -> Iterator[Toy]:
    with toys(1) as found:
        yield found[0]


@pytest.fixture
def client(toy: Toy) -> Client:
    return Client(parse_address(toy.url), timeout=5.0)


def text(content: str, status: int = 200, **headers: str) -> Answer:
    return status, content.encode(), headers


@pytest.mark.parametrize(
    "answer, why",
    [
        (text("<html>It works!</html>"), "not JSON"),
        (text("[]"), "not a JSON object"),
        (text('{"queue_running": 1, "queue_pending": []}'), "not a queue"),
        (text('{"queue_running": [], "queue_running": [], "queue_pending": []}'), "twice"),
        (text(DEEP), "nested too deeply"),
        (text("{}", 500), "with 500"),
        (text("{}", 302, Location="http://127.0.0.1:9/queue"), "with 302"),
        (text("{}", 401), "with 401"),
        (text("{}", **{"Content-Length": "5000"}), "broke off"),
        (text("{}", **{"Transfer-Encoding": "chunked"}), r"\w"),
        (text("\ud800".encode("utf-8", "surrogatepass").decode("latin-1")), "not JSON"),
        (text("{}", **{"Content-Length": str(10**12)}), "more than"),
        (text("{}", **{"X-" + "a" * 70000: "b"}), "header line"),
        (None, "closed connection"),
    ],
)
def test_an_answer_that_is_none_means_that_the_server_is_away(toy, client, answer, why):
    """Catches: a redirect that is followed, a traceback, an answer without end in memory."""
    toy.strange["/queue"] = lambda: answer
    with pytest.raises(Away, match=why):
        client.in_queue()


def test_an_answer_that_grows_beyond_the_bound_is_not_read_to_its_end(toy, client, monkeypatch):
    monkeypatch.setattr(client_module, "LARGEST_ANSWER", 1000)
    toy.strange["/queue"] = lambda: text('{"queue_running": [], "queue_pending": []}' + " " * 10**6)
    with pytest.raises(Away, match="more than"):
        client.in_queue()


def test_an_answer_that_drips_has_a_time(toy, client, monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_ANSWER", -1.0)
    with pytest.raises(Away, match="takes too long"):
        client.in_queue()


def test_a_silent_server_is_away():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = parse_address(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Away, match="timed out"):
            Client(address, timeout=0.05).in_queue()


def test_no_proxy_of_the_environment_is_asked(toy, client, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert client.in_queue() == (frozenset(), frozenset())


def test_another_id_than_ours_is_not_taken(toy, client):
    toy.strange["/prompt"] = lambda: as_json({"prompt_id": "../../etc", "node_errors": {}})
    with pytest.raises(Away, match="did not take the id"):
        client.queue(ID, {}, "me")


def entry_with(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    found = entry("a ball", 42)
    change(found)
    return found


def outputs(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda found: found["outputs"]["5"]["images"][0].update(changes)


def reported(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda found: found["outputs"]["6"].update(sdvg_report=value)


def spoiled(**changes: Any) -> str:
    return json.dumps({**json.loads(report_of("a ball", 42)), **changes})


SPOILED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda found: found.update(status=None), "neither that it is done nor why not"),
    (lambda found: found.update(status={"status_str": "error", "messages": [1, [2]]}), "nor why not"),
    (lambda found: found.update(outputs=[]), "no report"),
    (lambda found: found.update(outputs={"5": 3, "6": {"sdvg_report": 5}}), "no report"),
    (reported([]), "no report"),
    (reported([7]), "no report"),
    (reported([report_of("a ball", 42)] * 2), "one Route Report"),
    (reported(["{"]), "cannot be read"),
    (reported([DEEP]), "cannot be read"),
    (reported([spoiled(blocks=[])]), "at least one block"),
    (reported([spoiled(fps="x")]), "fps"),
    (reported([spoiled(settings={"seed": 7})]), "of another seed than 42"),
    (reported([spoiled(blocks=json.loads(report_of("a ball", 42))["blocks"] * 1400)]), "has 4200 blocks"),
    (lambda found: found["outputs"].pop("5"), "saved 0"),
    (lambda found: found["outputs"]["5"]["images"].append({"filename": "b.MP4"}), "saved 2"),
    (outputs(filename="picture.png"), "saved 0"),
    (outputs(filename=["a.mp4"]), "saved 0"),
    (outputs(filename="a" * 600 + ".mp4"), "saved 0"),
    (outputs(subfolder={}), "not a name"),
    (outputs(subfolder="\ud800"), "not a name"),
    (outputs(type="x" * 1000), "not a name"),
]


def read(found: dict[str, Any]) -> None:
    check_success(found)
    report_in(found, 42)
    video_in(found)


@pytest.mark.parametrize("change, why", SPOILED)
def test_a_history_that_says_something_else_is_one_sentence(change, why):
    with pytest.raises(Refused, match=why) as refused:
        read(entry_with(change))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) <= 400


@pytest.mark.parametrize(
    "answer, why",
    [
        ({}, "it did not say why"),
        ({"error": "no \x1b[31mway"}, r"no \\x1b\[31mway"),
        ({"error": "no\nsdvg: video 0001 finished\u2028"}, "no sdvg: video 0001 finished$"),
        ({"error": {"message": "no way\nand a page of help", "details": ""}}, "no way$"),
        ({"error": {"message": "m" * 5000, "details": []}}, "mmm"),
        ({"node_errors": {"4" * 5000: None}}, "did not say why"),
        ({"node_errors": {"4": {"errors": [], "class_type": 5}}}, "did not say why"),
        ({"node_errors": {"4": {"errors": [{"message": "no", "details": "x"}]}}}, "node 4 .*: no: x"),
    ],
)
def test_whatever_a_refusal_says_becomes_a_sentence(answer, why):
    with pytest.raises(Refused, match=why) as refused:
        raise Refused(refusal_in(answer, refused=True))
    assert len(str(refused.value)) <= 400


@pytest.mark.parametrize("name", ["../../evil.mp4", "/etc/evil.mp4", "..\\evil.mp4", "a\0b.mp4", "report.json.mp4"])
def test_a_name_of_a_server_is_never_a_path_here(toy, client, tmp_path, name):
    found = entry_with(outputs(filename=name))
    deliver(client, order(tmp_path / "out" / "0001"), found, lambda: False)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")} == {
        f"out/0001/{name}" for name in ("video.mp4", "report.json", "route.png", "request.json")
    }


@pytest.mark.parametrize(
    "answer, kind, why",
    [
        (text("<html>"), Refused, "is no mp4"),
        (text(""), Refused, "is no mp4"),
        (text("", 404), Refused, "does not have it"),
        (text("", 302, Location="/else"), Away, "with 302"),
        (text("\0\0\0\x18ftyp", **{"Content-Length": "100"}), Away, "broke off"),
        (text("\0\0\0\x18ftyp", **{"Content-Length": str(10**13)}), Refused, "more than"),
    ],
)
def test_what_is_no_whole_video_leaves_no_trace(toy, client, tmp_path, answer, kind, why):
    toy.strange["/view"] = lambda: answer
    with pytest.raises(kind, match=why):
        deliver(client, order(tmp_path / "out" / "0001"), entry("a ball", 42), lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_a_report_with_numbers_that_no_picture_holds_is_refused(toy, client, tmp_path):
    blocks = json.loads(report_of("a ball", 42))["blocks"]
    found = entry_with(reported([spoiled(blocks=[{**block, "score": 9e14} for block in blocks])]))
    with pytest.raises(Refused, match="numbers that no picture holds"):
        deliver(client, order(tmp_path / "out" / "0001"), found, lambda: False)
    assert list(tmp_path.iterdir()) == []


def order(folder: Path) -> Order:
    return Order(number=1, folder=folder, prompt="a ball", seed=42, request="...")


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8188", "ftp://host", "file:///etc/passwd", "http://", "http://host:99999", "http://[::1"),
        *(
            "http://me:secret@host",
            "http://host/?a=1",
            "http://host/#b",
            "http://höst",
            "http://ho\nst",
            "http://h/a b",
        ),
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(BadInput, match=r"has an address such as http.*, but got"):
        parse_address(url)


@pytest.mark.parametrize(
    "url, shown",
    [
        ("http://localhost:8188/", "http://localhost:8188"),
        ("https://host", "https://host:443"),
        ("HTTP://HOST", "http://host:80"),
        ("http://[::1]:8188/comfy/", "http://[::1]:8188/comfy"),
    ],
)
def test_an_address_is_shown_as_it_is_asked(url, shown):
    assert str(parse_address(url)) == shown


def test_a_path_before_the_interface_is_kept(toy):
    toy.strange["/comfy/queue"] = lambda: as_json({"queue_running": [], "queue_pending": []})
    assert Client(parse_address(toy.url + "/comfy/")).in_queue() == (frozenset(), frozenset())


def test_a_workflow_is_not_changed_by_filling_it():
    nodes = {"1": {"class_type": "A", "inputs": {"prompt": "old", "seed": 1}}}
    workflow = Workflow(nodes=nodes, prompts=(("1", "prompt"),), seed=("1", "seed"))
    assert workflow.filled("new", 2)["1"]["inputs"] == {"prompt": "new", "seed": 2}
    assert nodes["1"]["inputs"] == {"prompt": "old", "seed": 1}
