"""One prompt wire: a conditioning of ours carries its text, which then counts before a typed one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from comfy.sd import CLIP
from running_server import REPORT, Server
from sdvg_pack.nodes.host.conditioning import carried_text, resolve_texts, strengths_of, with_text
from sdvg_pack.nodes.pocket import NEAREST_NOTE
from sdvg_pack.nodes.prompts import Prompt
from sdvg_pack.nodes.sockets import PromptEntry
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pocket.grammar import nearest
from server_prompts import POCKET, pocket

from nodes import ConditioningAverage, ConditioningConcat, ConditioningZeroOut

pytestmark = pytest.mark.comfyui

THINGS = ("blue ball", "sand"), ("red ball", "snow")
SHOWN, STALE = "a calm sea", "a storm"


class Reader(CLIP):
    """A text encoder that answers with the text's length, and remembers nothing."""

    def __init__(self) -> None:
        pass

    def tokenize(self, text: str, **options: Any) -> str:
        return text

    def encode_from_tokens_scheduled(self, tokens: str, **options: Any) -> list[list[Any]]:
        return [[torch.full((1, 4, 8), float(len(tokens))), {"pooled_output": None}]]


def encoded(text: str) -> list[list[Any]]:
    return [[torch.zeros(1, 4, 8), {}]] if not text else with_text([[torch.zeros(1, 4, 8), {}]], text)


def test_the_conditioning_of_sdvg_prompt_carries_its_text_beside_what_the_encoder_made() -> None:
    [conditioning] = Prompt.execute(clip=Reader(), text=SHOWN).args
    assert carried_text(conditioning) == SHOWN
    [[embedding, extras]] = conditioning
    assert embedding.unique().tolist() == [len(SHOWN)]
    assert extras.pop("sdvg_embedding") is embedding
    assert extras == {"pooled_output": None, "sdvg_text": SHOWN}


@pytest.mark.parametrize("odd", [[], [*encoded(SHOWN), *encoded(STALE)], [[None, {"sdvg_text": 3}]]])
def test_a_conditioning_that_is_not_of_one_text_carries_none(odd: list[Any]) -> None:
    assert carried_text(odd) == ""


@pytest.mark.parametrize(
    "carried, typed, counts, notes",
    [
        (SHOWN, "", SHOWN, 0),
        ("", SHOWN, SHOWN, 0),
        (SHOWN, f" {SHOWN}\n", SHOWN, 0),
        (SHOWN, STALE, SHOWN, 1),
        ("", "", "", 0),
    ],
)
def test_the_text_of_the_conditioning_counts_and_another_one_beside_it_is_noted(
    carried: str, typed: str, counts: str, notes: int
) -> None:
    [entry], told = resolve_texts([PromptEntry(3, encoded(carried), typed)])
    assert entry.text == counts
    assert len(told) == notes
    assert all("From block 4 on" in note and STALE not in note for note in told)


CHANGES = {
    "Concat": lambda one, other: ConditioningConcat().concat(one, other)[0],
    "Average": lambda one, other: ConditioningAverage().addWeighted(one, other, 0.5)[0],
    "Zero Out": lambda one, other: ConditioningZeroOut().zero_out(one)[0],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_of_a_conditioning_that_was_changed_since_the_typed_text_counts(change: Any) -> None:
    """ComfyUI's nodes pass the text on beside another embedding, so it is not all that the video shows."""
    one, other = ([[torch.full((1, 4, 8), value), {}]] for value in (1.0, 2.0))
    changed = change(with_text(one, SHOWN), with_text(other, STALE))
    both = f"{SHOWN}, {STALE}"
    [entry], told = resolve_texts([PromptEntry(3, changed, both)])
    assert (entry.text, told) == (both, ())
    [entry], told = resolve_texts([PromptEntry(3, changed, "")])
    assert entry.text == SHOWN
    assert [note for note in told if "From block 4 on" in note and "was changed" in note]


def test_a_stale_text_on_the_sampler_changes_no_score_and_is_noted(server: Server) -> None:
    """A second copy of the prompt used to be scored against, in silence."""
    records = []
    for text in ("", STALE):
        records.append(server.make(pocket(blocks=2, sampler__prompt=text)).record())
    one, other = records
    scores, others = ([block["frame_scores"] for block in record["blocks"]] for record in records)
    assert scores == others
    assert scores[1]
    assert not any("carries its own text" in note for note in one["notes"])
    assert any("carries its own text" in note for note in other["notes"])


BALL, SNOW = (f"a big {what} drifts right from the left over {ground}" for what, ground in THINGS)


def test_lines_of_the_prompt_begin_at_their_blocks_and_what_is_before_them_is_used_again(server: Server) -> None:
    """Catches: lines that never reach the sampler, and blocks made again that no line changed."""

    def made(text: str) -> list[dict[str, Any]]:
        prompt = pocket(blocks=3, router__policy="always-target")
        prompt[POCKET]["inputs"]["prompt"] = text
        prompt[REPORT]["inputs"]["prompt_in_report"] = True
        return server.make(prompt).record()["blocks"]

    assert [block["prompt"] for block in made(BALL)] == [BALL] * 3
    blocks = made(f"{BALL}\n3: {SNOW}")
    assert [block["prompt"] for block in blocks] == [BALL, BALL, SNOW]
    assert [bool(block["reused"]) for block in blocks] == [True, True, False]


def test_lines_are_prompts_of_a_schedule_with_those_of_the_nodes() -> None:
    [lines] = Prompt.execute(clip=Reader(), text="a sea\n5: a storm\n7 strength light:\n9: a lake").args
    prompts = (PromptEntry(0, lines, ""), PromptEntry(3, encoded("a boat"), ""))
    settled, told = resolve_texts(prompts)
    assert [(entry.index, entry.text) for entry in settled] == [
        (0, "a sea"),
        (3, "a boat"),
        (4, "a storm"),
        (8, "a lake"),
    ]
    assert [entry.conditioning[0][0].unique().item() for entry in settled] == [5, 0, 7, 6]
    assert strengths_of(settled) == ((6, "light"),)
    assert told == ()
    with pytest.raises(BadInput, match="two prompts begin at block 5"):
        resolve_texts((*prompts, PromptEntry(4, encoded("a boat"), "")))
    with pytest.raises(BadInput, match="start at blocks 1, 7, 5"):
        Prompt.execute(clip=Reader(), text="a sea\n7: a storm\n5: a lake")


def test_the_pocket_world_shows_the_nearest_prompt_scores_by_it_and_the_report_says_so(server: Server) -> None:
    prompt = pocket(blocks=2)
    prompt[POCKET]["inputs"]["prompt"] = "two whales sing over the sea"
    prompt[REPORT]["inputs"]["prompt_in_report"] = True
    record = server.make(prompt).record()
    assert NEAREST_NOTE in record["notes"]
    assert nearest("two whales sing over the sea").text in json.dumps(record)
    assert "the nearest prompt is shown" in (server.folder / "log").read_text(encoding="utf-8")
