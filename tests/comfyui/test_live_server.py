"""Live sessions of a real server, steered by its route. What an act does: test_steering_page.py."""

import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from running_server import EXTRA, SAMPLER, Refused, change, node, pocket
from sdvg_pack.nodes import sampler
from sdvg_pack.nodes.loaders import stated_target
from sdvg_pack.nodes.sampler import SpeculativeSampler as Sampler

pytestmark = pytest.mark.comfyui


def live_run(server, ready=bool):
    """Return the live session under way once it fulfils `ready`."""
    for _ in range(6000):
        for run in server.ask("/sdvg/runs")["runs"]:
            if run.get("live") and run["done"] is None and ready(run):
                return run
        time.sleep(0.01)
    raise TimeoutError("no such session")


@pytest.fixture
def session(server):
    """A session that nobody plays further than its first blocks: its queued prompt and its run."""
    server.forget()
    prompt = pocket(sampler__seed=5, sampler__live=True, sampler__blocks=2)
    queued = server.queue(prompt)
    run = live_run(server)["run"]
    server.steer(run, "play", page="test", at=0)
    live_run(server, lambda known: known["events"])
    yield prompt, queued, run
    with suppress(Refused):  # it may have ended
        server.steer(run, "end")
    server.wait(queued)


def test_session_is_steered_over_http(server, session):
    """Its recording makes the same film in the graph, and every block of the session is used again."""
    prompt, queued, run = session
    block = server.steer(run, "prompt", text="A blue ring moving up")["block"]
    server.steer(run, "play", page="test", at=block + 1)
    live_run(server, lambda known: len(known["events"]) > block)
    assert server.steer(run, "hold")["block"] > block
    assert live_run(server)["state"]["why"] == "asked"
    server.steer(run, "end")
    done = server.wait(queued)
    [recording] = done.outputs[SAMPLER]["sdvg_recording"]
    events = done.outputs[SAMPLER]["sdvg_route"]
    [lived] = [known["events"] for known in server.ask("/sdvg/runs")["runs"] if known["run"] == run]
    recorded = {event["number"]: event["recorded"] for event in lived if "recorded" in event}
    assert list(recorded) == [1, block], "what a page needs if the server goes comes where it is new"
    assert {**recorded[block], "blocks": recording["blocks"]} == recording
    assert [event["reused"] for event in events] == [True] * recording["blocks"]
    assert recording["text"].splitlines()[1].startswith(f"{block}: ")
    graph = {f"sampler__{name}": recording[name] for name in ("seed", "takes", "blocks")}
    graph |= {"sampler__live": False, "pocket__prompt": recording["text"]}
    [begun] = done.outputs[SAMPLER]["sdvg_run"]
    assert begun["signature"]["all"] == server.ask("/sdvg/runs", change(prompt, **graph))["asked"][SAMPLER]["all"]
    drafts = {"router__policy": "first", "router__policy__target_blocks": 0, "router__policy__handover_steps": 2}
    again = server.make(change(prompt, **graph, **drafts))
    assert torch.equal(server.latents(done), server.latents(again))
    assert again.record()["totals"]["passes"]["drafter_denoising"] == 0
    # Finished by the gate, with own drafts: no draft is made again.
    finished = server.make(change(prompt, **graph, sampler__drafter_context="own")).record()
    assert finished["totals"]["passes"]["drafter_denoising"] == 0
    assert finished["totals"]["passes"]["target_denoising"] > 0


def test_session_is_never_taken_from_the_cache(server):
    """Catches: a second session that shows the film of the first."""
    prompt = pocket(sampler__live=True, sampler__live_blocks=2)
    server.make(prompt)
    again = server.make(prompt)
    assert SAMPLER not in again.message("execution_cached")["nodes"]
    assert again.outputs[SAMPLER]["sdvg_recording"][0]["blocks"] == 2


def test_interrupted_session_frees_the_queue(server, session):
    """Also while it is held."""
    _, queued, run = session
    server.steer(run, "hold")
    server.ask("/interrupt", {})
    assert server.wait(queued, seconds=60).status == "error"
    with pytest.raises(Refused, match="no such live session"):
        server.steer(run, "hold")


def status_of(server, body, headers=None):
    """Return the status of the answer to a message as it is sent."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/sdvg/steer", body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code if json.loads(error.read())["error"] else 0


def test_junk_is_answered_with_a_sentence(server, session):
    """A thousand messages at once, a prompt without end, and what is no message at all; the session goes on."""
    _, _, run = session
    message = json.dumps({"run": run, "act": "play", "page": "test", "at": 0}).encode()
    assert {status_of(server, message) for _ in range(1000)} == {200, 429}
    assert status_of(server, b"{" * 1000) == 400
    assert status_of(server, b"[]") == 400
    assert status_of(server, b"[" * 100_000) == 400
    assert status_of(server, b'{"run": "%s", "act": "play", "at": %s}' % (run.encode(), b"9" * 400)) in (200, 429)
    assert status_of(server, b"{}", {"Content-Type": "application/json; charset=none"}) == 400
    assert status_of(server, json.dumps({"run": run, "act": "prompt", "text": "x" * 300_000}).encode()) == 413
    assert status_of(server, [b"{}"]) == 413, "its length is not stated"
    time.sleep(1)
    assert status_of(server, json.dumps({"run": run, "act": "prompt", "text": "x" * 20_001}).encode()) == 400
    assert server.steer(run, "prompt", text="A blue ring moving up")["block"]


def test_message_that_breaks_off_changes_nothing(server, session):
    """Its connection closes in the middle. Catches: a session that waits for the rest, or half a prompt taken."""
    _, _, run = session
    whole = json.dumps({"run": run, "act": "end"}).encode()
    head = f"POST /sdvg/steer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(whole)}\r\n\r\n".encode()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + whole[:-1])
    time.sleep(0.5)  # all of them are answered
    block = server.steer(run, "prompt", text="A blue ring moving up")["block"]
    server.steer(run, "play", page="test", at=block + 1)
    assert live_run(server, lambda known: len(known["events"]) > block)["run"] == run


def test_session_reads_no_weights_of_the_target(server):
    """Its loader says what a block is like. Catches: 14 GB that are read before the first word."""
    loader = node("SDVGTargetLoader", file="tiny_krea.safetensors", weight_dtype="default", preset="krea-14b")
    prompt = pocket(sampler__target=[EXTRA, 0], sampler__live=True, sampler__live_blocks=2, extra=loader)
    done = server.make(prompt)
    assert [event["reused"] for event in done.outputs[SAMPLER]["sdvg_route"]] == [True, True]
    seen = server.run(change(prompt, extra=loader) | {"see": node("PreviewAny", source=[EXTRA, 0])})
    assert EXTRA not in seen.message("execution_cached")["nodes"]


@pytest.mark.parametrize(
    "changes, needed",
    [
        ({"target": None}, ["target"]),
        ({"target": None, "live": True}, []),
        ({"target": "made", "live": True}, []),
        ({"target": "made"}, []),
        ({}, []),
    ],
)
def test_target_is_asked_for(changes, needed, monkeypatch):
    """Before the sampler runs. Catches: a run without its target; a session that waits for it."""
    loader = node("SDVGTargetLoader", file="krea", preset="krea-14b")
    prompt = {"1": node("SDVGSpeculativeSampler", target=["2", 0]), "2": loader}
    monkeypatch.setattr(sampler, "stated_target", lambda asked, name: asked is prompt and name == "1")
    monkeypatch.setattr(Sampler, "hidden", SimpleNamespace(prompt=prompt, unique_id="1"))
    assert Sampler.check_lazy_status(**changes) == needed


def test_unknown_target_has_no_header():
    """Catches: blocks of another length than those of a target that no header tells."""
    assert stated_target({"1": node("S", target=["2", 0]), "2": node("CheckpointLoader", file="x")}, "1") is None
    assert stated_target({"1": node("S"), "2": node("SDVGTargetLoader", file="x")}, "1") is None
    assert stated_target({"1": node("S", target=["2", 0]), "2": node("SDVGTargetLoader", file="no")}, "1") is None
