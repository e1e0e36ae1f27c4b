"""What a run in ComfyUI takes from earlier ones, and when it must take nothing; stopping; what it shows."""

import copy
import functools
import json
from contextlib import contextmanager
from dataclasses import asdict, replace
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
from sdvg_pack.nodes.host.model import CONTROL
from sdvg_pack.nodes.host.sockets import RouterValue
from sdvg_pack.nodes.host.vae import FastVAE
from sdvg_pack.nodes.page.live import RUNS, LiveRun, LiveRuns
from sdvg_pack.nodes.page.progress import NodeProgress, block_event
from sdvg_pack.nodes.page.routes import answer_stop, register_routes
from sdvg_pack.nodes.run import run_job
from sdvg_pack.nodes.sampler import SpeculativeSampler
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_pack.sdvg_core.engine.reuse import GIGABYTE, PixelStore, Store
from sdvg_pack.sdvg_core.engine.types import Span
from sdvg_pack.sdvg_core.pocket.trained_set import pocket_fast_vae
from sdvg_pack.sdvg_core.settings.decision import Decision, Reason
from sdvg_pack.sdvg_core.settings.execution import Execution
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
    """Catches: a key in which something changes from run to run."""
    job = scored(parts, middle_tau(parts))
    first = video_of(job)
    calls.clear()
    again = video_of(job)
    report = again[2]
    assert calls == []
    assert same_video(first, again)
    assert all(block.reused and block.seconds.total == 0 for block in report.blocks)
    assert report.speed_up is None
    assert "Blocks 1 to 6 were made before" in " ".join(report.notes)


@pytest.mark.parametrize(
    "change, unchanged",
    [
        ({"takes": "4:2"}, 3),
        ({"seed": 2}, 0),
        ({"colour_hold": 0.5}, 0),
    ],
    ids=str,
)
def test_changed_job_makes_what_a_fresh_run_makes(after_a_run, parts, change, unchanged):
    """Catches: a block of another setting. Every setting: tests/engine/test_reuse.py."""
    changed_job = with_inputs(scored(parts, middle_tau(parts)), **change)
    video = video_of(changed_job)
    assert reused_blocks(video) == unchanged
    assert same_video(video, alone(changed_job))


def reused_blocks(video):
    return sum(block.reused for block in video[2].blocks)


def test_bytes_of_a_long_video_are_noted(after_a_run, parts, monkeypatch):
    """Catches: a computer that runs out of memory after hours, unwarned."""
    job = scored(parts, middle_tau(parts))
    assert "IMAGE" not in " ".join(video_of(job)[2].notes)
    monkeypatch.setattr(run, "LONG_BYTES", 800_000)
    frames, _, report = video_of(job)
    assert frames.nbytes == 847_872
    assert f"The IMAGE of {len(frames)} frames takes 0.8 MB of the computer's memory" in " ".join(report.notes)


def with_kernel(patcher):
    """Return a MODEL under an attention override that makes the same bits."""
    patched = patcher.clone()
    patched.model_options.setdefault("transformer_options", {})["optimized_attention_override"] = (
        lambda attention, *args, **kwargs: attention(*args, **kwargs)
    )
    return patched


CHANGES = {
    "LoRA on the target": (lambda parts, _: {"target": with_lora(parts.target)}, 0),
    "LoRA on the drafter": (lambda parts, _: {"drafter": with_lora(parts.drafter)}, 1),
    "another drafter": (lambda parts, folder: {"drafter": load_parts(folder, seed=5).drafter}, 1),
    "fewer draft steps": (lambda parts, _: {"draft_steps": 1}, 1),
}
"""What of a model may change, and how many blocks stay: the first is the target's."""


@pytest.mark.parametrize("change", CHANGES)
def test_changed_model_makes_its_blocks_again(change, after_a_run, parts, tmp_path):
    """In doubt a block is made again. Catches: a block of another LoRA, file or schedule."""
    inputs_of, unchanged = CHANGES[change]
    job = replace(scored(parts, middle_tau(parts)), **inputs_of(parts, tmp_path))
    video = video_of(job)
    assert reused_blocks(video) == unchanged
    assert same_video(video, alone(job))


def test_target_under_another_kernel_makes_its_blocks_again(after_a_run, parts):
    """It makes the same bits, so the drafts after them are what they were, too."""
    job = scored(parts, middle_tau(parts))
    drafted = sum(block.author == "drafter" for block in video_of(job)[2].blocks)
    assert 0 < drafted < 5
    assert reused_blocks(video_of(replace(job, target=with_kernel(parts.target)))) == drafted


def with_control(patcher):
    """Return a MODEL with another one attached as its control."""
    controlled = patcher.clone()
    controlled.set_attachments(CONTROL, patcher)
    return controlled


@functools.cache
def fast_vae():
    return FastVAE(pocket_fast_vae())


def of_kind(kind):
    """Return the embedded TAEHV as one for latents of this kind."""
    vae = copy.copy(fast_vae())
    vae.tae_kind = kind
    return vae


def in_half(vae):
    """Return a VAE that computes in half precision."""
    half = copy.copy(vae)
    half.vae_dtype = torch.float16
    return half


def scored_in_half(parts):
    return {"router": RouterValue(Route(), replace(parts.scorer, dtype=torch.float16))}


MODELS = {"drafter", "target"}
OF_PARTS = {
    "keys and values in fp8": (lambda parts: {"execution": Execution(kv_dtype="float8_e4m3fn")}, MODELS),
    "schedule of both": (lambda parts: {"schedules": dict.fromkeys(MODELS, "two-step")}, MODELS),
    "schedule of the target": (lambda parts: {"schedules": {"target": "two-step"}}, {"target"}),
    "fewer draft steps": (lambda parts: {"draft_steps": 1}, {"drafter"}),
    "LoRA on the target": (lambda parts: {"target": with_lora(parts.target)}, {"target"}),
    "kernel of the target": (lambda parts: {"target": with_kernel(parts.target)}, {"target"}),
    "control of the target": (lambda parts: {"target": with_control(parts.target), "controlled": True}, {"target"}),
    "dtype of the VAE": (lambda parts: {"vae": in_half(parts.vae)}, {"codec"}),
    "a TAEHV": (lambda parts: {"vae": fast_vae()}, {"codec"}),
    "dtype of the scorer": (scored_in_half, {"scorer"}),
    "no scorer": (lambda parts: {"router": RouterValue(Route(), None)}, {"scorer"}),
    "a copy of the target": (lambda parts: {"target": parts.target.clone()}, set()),
    "directions": (lambda parts: {"directions": "d" * 9}, set()),
    "memory for re-use": (lambda parts: {"reuse_bytes": 1}, set()),
}
"""What is wired or set otherwise, and the parts whose results follow from it."""


@pytest.mark.parametrize("change", OF_PARTS)
def test_key_of_a_part_has_its_settings(change, parts):
    """And no others. Catches: a block, frames or scores that were made with other settings."""
    inputs_of, changed = OF_PARTS[change]
    before = asdict(reuse.host_part_keys(make_job(parts)))
    after = asdict(reuse.host_part_keys(with_inputs(make_job(parts), **inputs_of(parts))))
    assert {part for part in before if before[part] != after[part]} == changed


@pytest.mark.parametrize(
    "name", ["object_patches", "weight_wrapper_patches", "injections", "force_cast_weights", "model_options"]
)
def test_key_of_a_model_has_what_nodes_set(name, parts, monkeypatch):
    """Catches: blocks of a MODEL without a patch, shown for one with it."""
    before = asdict(reuse.host_part_keys(make_job(parts)))
    target = parts.target.clone()
    monkeypatch.setattr(target, name, {"diffusion_model.blocks.0": "another"})
    after = asdict(reuse.host_part_keys(with_inputs(make_job(parts), target=target)))
    assert {part for part in before if before[part] != after[part]} == {"target"}


def test_codecs_key_has_the_kind_of_its_latents(parts):
    """Catches: frames of latents that were scaled for the other kind."""
    kinds = [of_kind(kind) for kind in ("taew2_1", "lighttaew2_1")]
    first, second = (reuse.host_part_keys(with_inputs(make_job(parts), vae=vae)).codec for vae in kinds)
    assert first != second


def test_other_number_of_threads_makes_all_blocks_again(after_a_run, parts, monkeypatch):
    """Which rounds otherwise."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert reused_blocks(video_of(scored(parts, middle_tau(parts)))) == 0


def test_interrupt_keeps_finished_blocks(parts, calls):
    """The next run makes no finished block again, and its video is the same."""
    job = scored(parts, middle_tau(parts), count=3, schedules=TWO_STEPS)
    whole = alone(job)
    interrupt = comfy.model_management.interrupt_current_processing
    interrupted = pytest.raises(comfy.model_management.InterruptProcessingException)
    with after_each_block(lambda index: interrupt(index == 1)), interrupted:
        run_job(job)
    calls.clear()
    assert same_video(video_of(job), whole)
    assert {index for _, index in calls} == {2}


@contextmanager
def after_each_block(act):
    """Have something done with the number of every block once it is shown."""
    show = NodeProgress.block

    def block(self, number, record, frames):
        show(self, number, record, frames)
        act(record.span.index)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NodeProgress, "block", block)
        yield


# --- stop and keep ------------------------------------------------------------------------------------------------


@pytest.fixture
def stoppable(parts):
    """A job of six blocks by the node 5."""
    return replace(scored(parts, middle_tau(parts)), node_id="5")


def stop_after_three(job):
    with after_each_block(lambda index: index == 2 and RUNS.stop(job.node_id)):
        return run_job(job)


def test_stopped_run_returns_finished_blocks(stoppable):
    """Catches: a block that was begun, or a video that says nothing of the stop."""
    whole = alone(stoppable)
    frames, latent, report, live, _ = stop_after_three(stoppable)
    assert len(report.blocks) == 3
    assert len(frames) == 9 + 12 + 12
    assert torch.equal(frames, whole[0][: len(frames)])
    assert torch.equal(latent["samples"], whole[1][:, :, :9])
    assert "Stopped after block 3 of 6, as asked." in report.notes
    assert live.done["stopped"]
    assert (live.done["blocks"], live.done["of"]) == (3, 6)
    assert not RUNS.stop("5"), "it has ended"


def test_run_after_a_stop_makes_the_rest(stoppable, calls):
    stop_after_three(stoppable)
    calls.clear()
    video = video_of(stoppable)
    assert {index for _, index in calls} == {3, 4, 5}
    assert same_video(video, alone(stoppable))


@pytest.fixture
def running():
    """Runs of which the node 5 makes one."""
    runs = LiveRuns()
    runs.begin(LiveRun({"node": "5", "workflow": "w"}))
    return runs


@pytest.mark.parametrize(
    "request_, status, words",
    [
        (None, 400, "send the id of its sampler"),
        ([], 400, "send the id of its sampler"),
        ({"node": 5}, 400, "send the id of its sampler"),
        ({"node": "6"}, 404, "node '6' is not making a video"),
    ],
)
def test_stop_of_what_does_not_run_is_refused(request_, status, words, running):
    answer = answer_stop(request_, running)
    assert answer.status == status
    assert words in json.loads(answer.text)["error"]


def test_stop_of_a_running_node_is_taken(running):
    assert answer_stop({"node": "5"}, running).status == 200


def test_newest_five_runs_of_a_node_are_remembered():
    """Catches: pictures that are gone while the next run is compared with them, and those of a whole day."""
    runs = LiveRuns()
    of_node = [LiveRun({"node": "5", "workflow": "w"}) for _ in range(9)]
    for run_ in of_node:
        runs.begin(run_)
    assert runs.now() == of_node[-5:]


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


def test_preview_has_the_size_of_the_video(monkeypatch):
    """Catches: a largest side, to which ComfyUI would also blow up a small video, and a second picture."""
    previews = []
    bar = []

    def send(event, data, client_id):
        if event == BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA:
            previews.append(data)

    page = SimpleNamespace(client_id="me", send_progress_text=lambda *_: None, send_sync=send)
    monkeypatch.setattr(PromptServer, "instance", page, raising=False)
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, preview, **more: bar.append(preview))
    record = BlockRecord(
        span=Span(1, 3, 3),
        pixel_frames=12,
        prompt="a",
        decision=Decision(
            accepted=True, reason=Reason.REACHED, score=-0.5, threshold=-0.7, frame_scores=(-0.5, 0.5)
        ),
        draft=None,
        target=None,
        decodes=1,
        seconds=Seconds(draft=0.5),
    )
    NodeProgress("3", blocks=1, steps=4).block(1, record, torch.zeros(1, 9, 3, 48, 832))
    [((kind, picture, largest_side), place)] = previews
    assert kind == "JPEG"
    assert picture.size == (832, 48)
    assert largest_side is None
    assert place["display_node_id"] == "3.film"
    assert bar == [None], "ComfyUI's bar shows no picture"


def test_second_copy_of_the_pack_is_logged(monkeypatch, logged):
    """The page asks the first copy, and the nodes are the last one's: squares and Stop fail."""
    monkeypatch.setattr(PromptServer, "instance", SimpleNamespace(routes=web.RouteTableDef()), raising=False)
    register_routes(SpeculativeSampler.validate_inputs)
    assert logged.getvalue() == ""
    register_routes(SpeculativeSampler.validate_inputs)
    assert "SDVG is installed twice" in logged.getvalue()


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
    decisions = [block.decision for block in report.blocks]
    scores = sorted(decision.score for decision in decisions if decision.score is not None)
    return scores[len(scores) // 2]


def test_event_has_the_seconds_of_one_decode(parts):
    """A draft that is scored and rejected has two. Catches: the next run said to take twice as long."""
    (_, _, report) = video_of(make_job(parts, script="tr"))
    record = report.blocks[1]
    assert record.decodes == 2
    record = replace(record, seconds=replace(record.seconds, decode=3.0))
    assert block_event(record, 2, 2)["decode"] == 1.5
    assert block_event(replace(record, decodes=0), 2, 2)["decode"] == 0


def test_full_store_is_noted(monkeypatch):
    """What earlier runs had and is dropped, and what this run could not keep. Catches: one number for the other."""
    store = Store()
    monkeypatch.setattr(reuse, "STORE", store)
    result = (torch.zeros(256),)
    room = store_of_one(result)
    for key in ("a", "b", "c"):
        store.put(key, result)
    store.begin_run(2 * room)
    assert reuse.store_notes()[0].endswith("are full: the oldest runs lost 1 result.")
    for key in ("d", "e", "f"):
        store.put(key, result)
    dropped, refused = reuse.store_notes()
    assert "the oldest runs lost 3 results." in dropped
    assert refused.startswith("1 result of this run did not fit")


def store_of_one(result):
    """The bytes that one result takes."""
    store = Store()
    store.put("one", result)
    return store.bytes
