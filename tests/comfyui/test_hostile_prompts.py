"""Prompts that nobody means are refused in a sentence, and the server stays up."""

from __future__ import annotations

import json
import re
import urllib.error
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import hostile
import pytest
from running_server import ROOT, Finished, Refused, Server

pytestmark = pytest.mark.comfyui

LONGEST_SENTENCE = 2500
OURS = "custom_nodes/sdvg"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a kind that the nodes read, in no folder of the server."""
    file = tmp_path_factory.mktemp("outside") / "secret.safetensors"
    file.write_bytes(b"secret")
    return file


@pytest.fixture(scope="module", autouse=True)
def forgotten(server: Server) -> Iterator[None]:
    """A page that is opened later need not read hundreds of broken prompts."""
    yield
    server.ask("/history", {"clear": True})


@pytest.fixture(scope="module")
def prompts() -> dict[str, hostile.Prompt]:
    workflow = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    return hostile.usual(workflow, "tiny_self_forcing.pt")


def test_unspoiled_they_all_run(server: Server, prompts: dict[str, hostile.Prompt]) -> None:
    """Without it, prompts that nothing comes of would prove nothing."""
    for prompt in prompts.values():
        server.make(prompt)


@pytest.mark.parametrize("seeds", [range(210), pytest.param(range(210, 5210), marks=pytest.mark.exhaustive)])
def test_spoiled_prompts_are_refused_in_a_sentence_and_the_server_stays_up(
    seeds: range, server: Server, prompts: dict[str, hostile.Prompt], outside: Path
) -> None:
    refusals: Counter[str] = Counter()
    for seed in seeds:
        prompt, workflow = hostile.spoiled(Random(seed), prompts, str(outside))
        place, problem = outcome_of(server, prompt, {"extra_pnginfo": workflow})
        assert not problem, f"seed {seed}: {problem}"
        refusals[place] += 1
    server.make(prompts[hostile.SAMPLER])
    # Most get as far as a node of ours, or ComfyUI's look at its inputs.
    assert min(refusals["ours"], refusals["ComfyUI's"]) >= len(seeds) // 8, refusals


def outcome_of(server: Server, prompt: hostile.Prompt, extra_data: dict[str, Any]) -> tuple[str, str]:
    """Return who refused a prompt, if anybody did, and what is wrong with how it was done; empty if nothing."""
    try:
        done = server.wait(server.queue(prompt, extra_data=extra_data))
    except Refused as refused:
        return "ComfyUI's", refused_badly(refused)
    except urllib.error.URLError as error:
        return "ComfyUI's", f"the server is gone: {error}"
    except ValueError:  # an answer that is no JSON: ComfyUI's own handler gave up on it, before any node was asked
        return "ComfyUI's", ""
    error = done.message("execution_error")
    return ("taken", "") if error is None else ("ours", spoken_badly(done, error))


def refused_badly(refused: Refused) -> str:
    said = [message for messages in refused.errors.values() for message in messages]
    if any(OURS in message for message in said):
        return f"an error in our code: {said!r:.600}"
    return "" if said or "message" in str(refused) else f"a refusal without a word: {refused}"


def spoken_badly(done: Finished, error: dict[str, Any]) -> str:
    """Return what is wrong with an error as a refusal; one of another pack's node is its own."""
    if not any(OURS in line or str(ROOT) in line for line in error["traceback"]):
        return ""
    sentence = str(error["exception_message"]).strip()
    if not str(error["exception_type"]).endswith("BadInput"):
        return f"{error['exception_type']}: {sentence:.300} {error['traceback'][-1]}"
    if not re.search(r"\w+ .*; \w+ ", sentence, re.DOTALL):
        return f"a refusal without fault or remedy: {sentence:.300}"
    if not all(c.isprintable() or c == "\n" for c in sentence):
        return f"a refusal with characters that are no text: {sentence!r:.300}"
    return f"a refusal of {len(sentence)} characters" if len(sentence) > LONGEST_SENTENCE else ""
