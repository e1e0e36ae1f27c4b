"""What a run in ComfyUI takes from earlier ones, and when it must take nothing; stopping; what it shows."""

import functools
import json
from dataclasses import replace
from types import SimpleNamespace

import comfy.model_management
import comfy.utils
import pytest
import torch
from aiohttp import web
from host_run import load_parts, make_job, same_video, video_of, with_inputs
from host_tiny import with_lora
from protocol import BinaryEventTypes
from sdvg_pack.nodes import run
from sdvg_pack.nodes.host import reuse
from sdvg_pack.nodes.host.sockets import RouterValue
from sdvg_pack.nodes.page.live import RUNS, LiveRun, LiveRuns
from sdvg_pack.nodes.page.progress import NodeProgress
from sdvg_pack.nodes.page.routes import answer_stop, register_routes
from sdvg_pack.nodes.run import run_job
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_pack.sdvg_core.engine.reuse import GIGABYTE, PixelStore, Store
from sdvg_pack.sdvg_core.engine.types import Span
from sdvg_pack.sdvg_core.settings.decision import Decision, Reason
from sdvg_pack.sdvg_core.settings.route import Gate, Route
from server import PromptServer

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]


@pytest.fixture
def calls(monkeypatch):
    """The blocks that models were really asked for, by model and number."""
    made = []
    real = CausalWanGenerator.generate

    def counted(self, call):
        made.append((self.name, call.span.index))
        return real(self, call)

    monkeypatch.setattr(CausalWanGenerator, "generate", counted)
    return made


@pytest.fixture(scope="module")
def stores(parts):
    """What is kept of one run; the jobs that are changed after it add to it."""
    kept = {"STORE": Store(0), "PIXELS": PixelStore()}
    with pytest.MonkeyPatch.context() as patched:
        for name, store in kept.items():
            patched.setattr(reuse, name, store)
        video_of(scored(parts, middle_tau(parts)))
    return kept


@pytest.fixture
def after_a_run(empty_store, stores, monkeypatch):
    for name, store in stores.items():
        monkeypatch.setattr(reuse, name, store)


# --- re-use -------------------------------------------------------------------------------------------------------


def test_same_run_again_makes_no_block(parts, calls):
    job = scored(parts, middle_tau(parts))
    first = video_of(job)
    calls.clear()
    again = video_of(job)
    assert calls == []
    assert same_video(first, again)
    assert all(one.reused and one.seconds.total == 0 for one in again[2].blocks)
    assert again[2].speed_up is None
    assert "Blocks 1 to 6 were made by an earlier run" in " ".join(again[2].notes)


@pytest.mark.parametrize(
    "change, unchanged",
    [
        ({"blocks": 8}, 6),
        ({"takes": "4:2"}, 3),
        ({"directions": "....t."}, None),
        ({"seed": 2}, 0),
        ({"drafter_context": "own"}, 1),
        ({"colour_hold": 0.5}, 0),
    ],
    ids=str,
)
def test_changed_job_makes_what_a_fresh_run_makes(after_a_run, parts, change, unchanged):
    changed_job = with_inputs(scored(parts, middle_tau(parts)), **change)
    again = video_of(changed_job)
    if unchanged is not None:
        assert sum(one.reused for one in again[2].blocks) >= unchanged
    if unchanged == 0:
        assert not any(one.reused for one in again[2].blocks)
    assert same_video(again, alone(changed_job))


def test_a_long_video_says_what_its_frames_take(after_a_run, parts, monkeypatch):
    job = scored(parts, middle_tau(parts))
    assert "IMAGE" not in " ".join(video_of(job)[2].notes)
    monkeypatch.setattr(run, "LONG_BYTES", 800_000)
    frames, _, report = video_of(job)
    assert frames.nbytes == 847_872
    assert f"The IMAGE of {len(frames)} frames takes 0.8 MB of the computer's memory" in " ".join(report.notes)


def test_of_a_model_with_another_lora_file_kernel_or_number_of_threads_no_block_is_used_again(
    after_a_run, parts, tmp_path, monkeypatch
):
    """In doubt a block is made again. Another drafter leaves the first block, which is the target's. This kernel
    makes the target's blocks as they were, so the drafter's after them are what they were too.
    """
    job, kernel = scored(parts, middle_tau(parts)), parts.target.clone()
    kernel.model_options.setdefault("transformer_options", {})["optimized_attention_override"] = (
        lambda attention, *args, **kwargs: attention(*args, **kwargs)
    )
    drafted = sum(block.author == "drafter" for block in video_of(job)[2].blocks)
    assert 0 < drafted < 5
    for change, still_there in (
        ({"target": with_lora(parts.target)}, 0),
        ({"drafter": with_lora(parts.drafter)}, 1),
        ({"drafter": load_parts(tmp_path, seed=5).drafter}, 1),
        ({"target": kernel}, drafted),
        ({"draft_steps": 1}, 1),
    ):
        changed_job = replace(job, **change)
        again = video_of(changed_job)
        assert sum(one.reused for one in again[2].blocks) == still_there
        assert not still_there or same_video(again, alone(changed_job))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert not any(one.reused for one in video_of(job)[2].blocks)


def test_interrupt_keeps_finished_blocks(parts, calls, monkeypatch):
    """The next run makes no finished block again, and its video is the same."""
    job = scored(parts, middle_tau(parts), count=3, schedules=TWO_STEPS)
    whole, real = alone(job), NodeProgress.block

    def block(self, record, frames):
        real(self, record, frames)
        comfy.model_management.interrupt_current_processing(record.span.index == 1)

    with monkeypatch.context() as patched:
        patched.setattr(NodeProgress, "block", block)
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            run_job(job)
    calls.clear()
    assert same_video(video_of(job), whole)
    assert {index for _, index in calls} == {2}


# --- stop and keep ------------------------------------------------------------------------------------------------


def test_a_stopped_run_returns_what_it_finished_and_the_next_one_goes_on(parts, calls, monkeypatch):
    job = replace(scored(parts, middle_tau(parts)), node_id="5")
    whole = alone(job)
    real = NodeProgress.block

    def block(self, record, frames):
        real(self, record, frames)
        if record.span.index == 2:
            assert RUNS.stop("5")

    with monkeypatch.context() as patched:
        patched.setattr(NodeProgress, "block", block)
        frames, latent, report, live = run_job(job)
    assert (len(report.blocks), frames.shape[0]) == (3, 9 + 12 + 12)
    assert torch.equal(frames, whole[0][: frames.shape[0]])
    assert torch.equal(latent["samples"], whole[1][:, :, :9])
    assert "Stopped after block 3 of 6, as asked." in report.notes
    assert (live.done["stopped"], live.done["blocks"], live.done["of"]) == (True, 3, 6)
    assert not RUNS.stop("5"), "it has ended"
    calls.clear()
    assert same_video(video_of(job), whole)
    assert {index for _, index in calls} == {3, 4, 5}


def test_a_stop_for_what_does_not_run_is_one_sentence():
    runs = LiveRuns()
    runs.begin(LiveRun({"node": "5", "workflow": "w"}))
    for asked, status, sentence in (
        (None, 400, "send the id of its sampler"),
        ([], 400, "send the id of its sampler"),
        ({"node": 5}, 400, "send the id of its sampler"),
        ({"node": "6"}, 404, "node '6' is not making a video"),
    ):
        answer = answer_stop(asked, runs)
        assert answer.status == status
        assert sentence in json.loads(answer.text)["error"]
    assert answer_stop({"node": "5"}, runs).status == 200


def test_newest_five_runs_of_a_node_are_remembered():
    """Catches: pictures that are gone while the next run is compared with them, and those of a whole day."""
    runs = LiveRuns()
    made = [LiveRun({"node": "5", "workflow": "w"}) for _ in range(9)]
    for one in made:
        runs.begin(one)
    assert runs.now() == made[-5:]


# --- what a run says


@pytest.mark.parametrize("kind", ["denoise", "context", "target"])
def test_interrupt_stops_a_run_before_any_pass(kind, monkeypatch):
    """Our own check: ComfyUI's progress bar, which would stop a denoising step as well, is not connected here."""
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", None)
    progress = NodeProgress(None, blocks=1, steps=4)
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        progress.before_pass(kind)
    progress.before_pass(kind)


def test_the_preview_has_the_size_of_the_video(monkeypatch):
    """Catches: a largest side, to which ComfyUI would also blow up a small video, and a second picture."""
    sent, bar = [], []
    ear = SimpleNamespace(client_id="me", send_progress_text=lambda *_: None)
    ear.send_sync = lambda event, data, client_id: sent.append((event, data))
    monkeypatch.setattr(PromptServer, "instance", ear, raising=False)
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, preview, **more: bar.append(preview))
    kept = Decision(accepted=True, reason=Reason.REACHED, score=-0.5, threshold=-0.7, frame_scores=(-0.5, 0.5))
    made = {"draft": None, "target": None, "decodes": 1, "seconds": Seconds(draft=0.5)}
    record = BlockRecord(span=Span(1, 3, 3), pixel_frames=12, prompt="a", decision=kept, **made)
    NodeProgress("3", blocks=1, steps=4).block(record, torch.zeros(1, 9, 3, 48, 832))
    [((kind, picture, largest_side), place)] = [
        data for name, data in sent if name == BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA
    ]
    assert (kind, picture.size, largest_side) == ("JPEG", (832, 48), None)
    assert (place["display_node_id"], bar) == ("3.film", [None])


def test_a_second_copy_of_the_pack_is_told(monkeypatch, caplog):
    """The page asks the first copy, and the nodes are the last one's: squares and Stop fail."""
    monkeypatch.setattr(PromptServer, "instance", SimpleNamespace(routes=web.RouteTableDef()), raising=False)
    register_routes()
    assert caplog.text == ""
    register_routes()
    assert "SDVG is installed twice" in caplog.text


# --- jobs that re-use what earlier ones made


TWO_STEPS = {"drafter": "1000,625", "target": "1000,625"}


def scored(parts, tau, **changes):
    router = RouterValue(Route(Gate(tau, **changes.pop("gate", {}))), parts.scorer)
    return make_job(
        parts,
        script="a" * changes.pop("count", 6),
        router=router,
        reuse_bytes=GIGABYTE,
        **{"schedules": TWO_STEPS, **changes},
    )


def alone(job):
    """The video of a job that re-uses nothing, and leaves the store as it is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reuse, "STORE", Store(0))
        return video_of(replace(job, reuse_bytes=0))


@functools.cache
def middle_tau(parts):
    """A tau that some drafts reach and others miss."""
    report = alone(scored(parts, -3.0))[2]
    scores = sorted(one.decision.score for one in report.blocks if one.decision.score is not None)
    return scores[len(scores) // 2]
