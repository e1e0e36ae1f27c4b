"""Live sessions of the sampler: steered between blocks, and recorded as an ordinary job.

That a recording has the bits of its session is proved in tests/videos/test_live.py; here is what the nodes add.
"""

import zlib
from dataclasses import replace
from types import SimpleNamespace

import comfy.model_management as mm
import pytest
import torch
from host_run import SamplerRun, make_job, with_inputs
from host_tiny import generator_of
from sdvg_pack.nodes import live
from sdvg_pack.nodes.host.conditioning import with_lines, with_text
from sdvg_pack.nodes.host.memory import plan_request
from sdvg_pack.nodes.host.sockets import PromptEncoder, PromptEntry, RouterValue
from sdvg_pack.nodes.live import play_session
from sdvg_pack.nodes.page.live import RUNS
from sdvg_pack.nodes.page.steering import SESSIONS, LiveSession
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.settings.route import First, Route
from sdvg_pack.sdvg_core.text.prompts import read_prompt

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]

DRAFTED = RouterValue(Route(First(0)), None)
ENCODER = SimpleNamespace(load_device="cpu", model_size=lambda: 1)
ELSEWHERE = SimpleNamespace(load_device="cuda:0", model_size=lambda: 1)


def encoded(words):
    """Return the CONDITIONING of one prompt; equal words have equal embeddings."""
    embedding = torch.randn(1, 512, 32, generator=generator_of(zlib.crc32(words.encode())))
    return with_text([[embedding, {}]], words, encoder=PromptEncoder(encoded, patcher=ENCODER))


def prompts_of(text):
    return (PromptEntry(0, with_lines(read_prompt(text), encoded), ""),)


@pytest.fixture
def steered(monkeypatch):
    """A function that says what a page asks for, by the block that it counts from."""
    asked = {}

    class Steered(LiveSession):
        def waits(self):
            for act in asked.pop(self._steering.upcoming, []):
                self.act(act)
            return super().waits()

    monkeypatch.setattr(live, "LiveSession", Steered)
    return asked.update


def session_job(parts, text="a red ball", **changes):
    return make_job(parts, prompts=prompts_of(text), blocks=3, router=DRAFTED, **changes)


def newest_session():
    """Return the newest live session, as pages see it."""
    return next(run for run in reversed(RUNS.now()) if run.begin.get("live"))


def test_recording_makes_the_sessions_film(parts, steered):
    """From nothing, as the graph would with its values; in the session's own job no model is called."""
    steered(
        {
            2: [{"act": "prompt", "text": "a blue ring"}],
            3: [{"act": "prompt", "text": "a green box", "cut": True}],
            5: [{"act": "again", "block": 2}, {"act": "prompt", "text": "a grey cross"}],
            6: [{"act": "prompt", "fresh": True}],
            8: [{"act": "end"}],
        }
    )
    recorded = play_session(session_job(parts, seed=5), 12)
    events = newest_session().events
    made = SamplerRun(recorded.job)
    assert all(record.reused for record in made.report.blocks)
    assert recorded.values["blocks"] == len(events) == len(made.report.blocks) == 7
    assert recorded.values["takes"] == "2:2"
    values = {name: recorded.values[name] for name in ("blocks", "seed", "takes")}
    job = with_inputs(session_job(parts), **values)
    again = SamplerRun(replace(job, prompts=prompts_of(recorded.values["text"])))
    assert not any(record.reused for record in again.report.blocks)
    assert torch.equal(made.latents, again.latents)
    assert torch.equal(made.frames, again.frames)
    assert [event["words"] for event in events] == ["a red ball"] + ["a grey cross"] * 6
    assert [event["join"] for event in events] == ["", "", "", "", "", "fresh", ""]
    assert [event["edition"] for event in events] == [0, *[1] * 6]


def test_blocks_bring_what_they_record(parts, steered):
    """What a page needs if the server goes. Catches: words that *again* threw away; the same words twice."""
    steered(
        {
            2: [{"act": "prompt", "text": "a blue ring"}],
            4: [{"act": "again", "block": 2}],
            5: [{"act": "end"}],
        }
    )
    recorded = play_session(session_job(parts, seed=5), 12)
    events = newest_session().events
    brought = {event["number"]: event["recorded"] for event in events if "recorded" in event}
    values = {name: value for name, value in recorded.values.items() if name != "blocks"}
    assert brought == {1: {"text": "1: a red ball", "seed": 5, "takes": ""}, 2: values}
    assert values["takes"] == "2:2"


def test_prompt_with_other_bits_is_named(parts, steered):
    """Catches: a recording whose blocks are made again, and nobody says that a prompt was encoded otherwise."""
    steered({3: [{"act": "prompt", "text": "a blue ring"}], 5: [{"act": "end"}]})
    recorded = play_session(session_job(parts), 12)

    def finished(encode):
        lines = with_lines(read_prompt(recorded.values["text"]), encode)
        job = replace(with_inputs(session_job(parts), blocks=4), prompts=(PromptEntry(0, lines, ""),))
        return SamplerRun(job).report

    def moved(words):
        ((embedding, _),) = encoded(words)
        shift = 2**-20 if words == "a blue ring" else 0.0
        return with_text([[embedding + shift, {}]], words, encoder=PromptEncoder(moved, patcher=ELSEWHERE))

    fault = "The prompt from block 3 on has another embedding than in the live session with this seed"
    places = "(on cpu then, on cuda:0 now), so block 3"
    assert [note for note in finished(moved).notes if note.startswith(f"{fault} {places}")]
    assert not [note for note in finished(encoded).notes if "embedding" in note]


def test_fault_keeps_what_was_made(parts, steered, monkeypatch):
    """Catches: a session whose blocks are lost with a prompt that cannot be encoded, or NaN."""

    def broken(words):
        raise BadInput("the encoder returned NaN")

    monkeypatch.setattr(live._Words, "embedding", _failing(live._Words.embedding, "a blue ring", broken))
    steered({3: [{"act": "prompt", "text": "a blue ring"}]})
    recorded = play_session(session_job(parts), 12)
    assert recorded.values["blocks"] == 2
    assert newest_session().done["why"] == (
        "A fault ended the session, and what was made is kept: the encoder returned NaN."
    )
    assert newest_session().done["recording"] == recorded.values
    assert not newest_session().done["failed"]
    made = SamplerRun(recorded.job)
    assert [record.reused for record in made.report.blocks] == [True, True]
    assert newest_session().done["why"] in made.report.notes


@pytest.mark.parametrize(
    "text, words", [("a red\nball", "a blue ring"), ("a red ball", "a blue  ring"), ("a ball", "a\u3000b")]
)
def test_blanks_are_recorded_as_they_are_encoded(parts, steered, text, words):
    """Catches: a film of another text than its recording has, which makes its blocks again."""
    steered({2: [{"act": "prompt", "text": words}], 4: [{"act": "end"}]})
    recorded = play_session(session_job(parts, text), 12)
    made = SamplerRun(recorded.job)
    assert all(record.reused for record in made.report.blocks)
    job = replace(with_inputs(session_job(parts), blocks=3), prompts=prompts_of(recorded.values["text"]))
    assert torch.equal(made.latents, SamplerRun(job).latents)


def test_set_back_session_keeps_what_it_dropped(parts, steered, monkeypatch):
    """Catches: a fault in block 1 that is made again, with which all that was there is lost."""

    def broken(words):
        raise BadInput("the encoder returned NaN")

    monkeypatch.setattr(live._Words, "embedding", _failing(live._Words.embedding, "a blue ring", broken))
    steered({4: [{"act": "again", "block": 1}, {"act": "prompt", "text": "a blue ring"}]})
    recorded = play_session(session_job(parts), 12)
    assert recorded.values["blocks"] == 3
    assert recorded.values["takes"] == ""
    assert recorded.dropped == [recorded.values]
    assert newest_session().done["dropped"] == recorded.dropped
    assert all(record.reused for record in SamplerRun(recorded.job).report.blocks)


def test_plan_knows_that_prompts_come(parts):
    """Catches: a card that is too small for a session, and is told of it at the first word."""
    request = plan_request(session_job(parts))
    assert request.prompts == 1
    assert plan_request(replace(session_job(parts), live=True)).prompts == 2


def _failing(embed, text, fault):
    return lambda words, asked: fault(asked) if asked == text else embed(words, asked)


def test_interrupted_session_says_what_it_recorded(parts, steered, monkeypatch):
    """ComfyUI then shows no video; the page offers the recording, whose blocks are in the store."""

    def interrupt(session):
        if session._steering.upcoming == 3:
            raise mm.InterruptProcessingException

    monkeypatch.setattr(live.LiveSession, "waits", interrupt)
    with pytest.raises(mm.InterruptProcessingException):
        play_session(session_job(parts), 12)
    assert newest_session().done["recording"]["blocks"] == 2
    assert SESSIONS == {}


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({"directions": "dd."}, "directions"),
        ({"until_block": 2}, "until_block"),
        ({"prompts": (PromptEntry(0, [[torch.zeros(1, 512, 32), {}]], "a red ball"),)}, "text encoder"),
    ],
)
def test_session_refuses(changes, fault, parts):
    job = session_job(parts)
    job = with_inputs(job, **changes)
    with pytest.raises(BadInput, match=fault):
        play_session(job, 12)


def test_session_refuses_locked_blocks(parts):
    with pytest.raises(BadInput, match="unlock"):
        play_session(session_job(parts), 12, "1:0123456789abcdef")


def test_frames_must_fit_before_the_start(parts, monkeypatch):
    """Catches: an hour of drafts whose frames no memory holds."""
    monkeypatch.setattr(mm, "get_free_memory", lambda device: 1 << 20)
    with pytest.raises(BadInput, match=r"1000 blocks take .* lower live_blocks"):
        play_session(session_job(parts), 1000)


def test_models_come_back_after_a_prompt(parts, steered, monkeypatch):
    """Catches: a run that goes on without its models, which the encoder drove out."""
    loads = []
    load = live.mm.load_models_gpu
    monkeypatch.setattr(live.mm, "load_models_gpu", lambda *args, **more: loads.append(1) or load(*args, **more))
    steered({2: [{"act": "prompt", "text": "a blue ring"}], 4: [{"act": "end"}]})
    play_session(session_job(parts), 12)
    assert len(loads) == 2
