"""What a run in ComfyUI takes from earlier ones, and when it must take nothing; stopping."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_management
import pytest
import torch
from host_clip import with_lora
from host_run import Parts, load_parts, make_job, same_video, video_of, with_inputs
from host_tiny import generator_of
from sdvg_pack.nodes.host import reuse, run
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.live import RUNS, LiveRun, LiveRuns
from sdvg_pack.nodes.host.progress import NodeProgress
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.routes import answer_stop
from sdvg_pack.nodes.sockets import PromptEntry, RouterValue
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.engine.memo import GIGABYTE, PixelStore, Store
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.text.prompts import read_prompt
from strip_modules import call, write_modules

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The blocks that models were really asked for, by model and number."""
    made: list[tuple[str, int]] = []
    real = CausalWanGenerator.generate

    def counted(self: Any, call: Any) -> Any:
        made.append((self.name, call.span.index))
        return real(self, call)

    monkeypatch.setattr(CausalWanGenerator, "generate", counted)
    return made


@pytest.fixture(scope="module")
def stores(parts: Parts) -> dict[str, Any]:
    """What is kept of one run; the jobs that are changed after it add to it."""
    kept = {"_STORE": Store(0), "_PIXELS": PixelStore()}
    with pytest.MonkeyPatch.context() as patched:
        for name, store in kept.items():
            patched.setattr(reuse, name, store)
        video_of(scored(parts, middle_tau(parts)))
    return kept


@pytest.fixture
def after_a_run(empty_store: None, stores: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, store in stores.items():
        monkeypatch.setattr(reuse, name, store)


# --- re-use -------------------------------------------------------------------------------------------------------


def test_the_same_run_again_makes_nothing_and_shows_the_same_video(
    parts: Parts, calls: list[tuple[str, int]]
) -> None:
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
def test_a_changed_job_makes_what_a_run_from_nothing_makes(
    after_a_run: None, parts: Parts, change: dict[str, Any], unchanged: int | None
) -> None:
    changed_job = with_inputs(scored(parts, middle_tau(parts)), **change)
    again = video_of(changed_job)
    if unchanged is not None:
        assert sum(one.reused for one in again[2].blocks) >= unchanged
    if unchanged == 0:
        assert not any(one.reused for one in again[2].blocks)
    assert same_video(again, alone(changed_job))


def test_a_moved_shot_is_made_as_by_a_run_from_nothing(parts: Parts, tmp_path: Path) -> None:
    """Moved by the cards' own code; its blocks take their makers and takes along, the blocks before it stay.

    Catches: a moved block taken from memory for its prompt, take and maker alone, as noise belongs to its place.
    """
    values = {"text": "a sea\n4: fog\n7: night", "blocks": 9, "directions": "....t....", "takes": "4:2"}
    source = "(values) => js.writeBoard(js.moveShot(js.readBoard(values), 1, 2))"
    [moved] = call(write_modules(tmp_path), source, [values])
    assert moved == {"text": "a sea\n4: night\n7: fog", "blocks": 9, "directions": ".......t.", "takes": "7:2"}
    before = video_of(of_shots(parts, values))
    after = video_of(of_shots(parts, moved))
    assert [record.reused for record in after[2].blocks] == [True] * 3 + [False] * 6
    assert torch.equal(after[1][:, :, :9], before[1][:, :, :9])
    assert same_video(after, alone(of_shots(parts, moved)))


def of_shots(parts: Parts, values: dict[str, Any]) -> Job:
    """Return the job of what the nodes hold: each prompt with an embedding of its own."""
    prompts = tuple(
        PromptEntry(block, [[torch.randn(1, 512, 32, generator=generator_of(sum(text.encode()))), {}]], text)
        for block, text in read_prompt(values["text"]).entries
    )
    asked = {name: values[name] for name in ("directions", "takes")}
    return with_inputs(make_job(parts), reuse_bytes=GIGABYTE, prompts=prompts, **asked)


def test_a_draft_of_one_step_takes_one_pass_and_the_report_states_it(parts: Parts) -> None:
    """Catches: an input of the node that reaches neither the drafter nor the report, or reaches the target too."""
    made = alone(replace(scored(parts, -3.0, count=3), draft_steps=1))[2]
    assert [block.draft.denoising_passes for block in made.blocks if block.draft] == [1, 1]
    assert made.blocks[0].target.denoising_passes == 2
    assert (made.settings["drafter"]["draft_steps"], "draft_steps" in made.settings["target"]) == (1, False)


def test_a_whole_colour_hold_leaves_no_drift_and_the_report_states_it(parts: Parts) -> None:
    """Catches: an input of the node that reaches neither the models nor the report."""
    job = scored(parts, middle_tau(parts))
    plain, held = video_of(job)[2], video_of(with_inputs(job, colour_hold=1.0))[2]
    assert max(block.drift for block in held.blocks if block.drift is not None) < 1e-3
    assert min(block.drift for block in plain.blocks if block.drift is not None) > 1e-2
    assert (plain.settings["colour_hold"], held.settings["colour_hold"]) == (0.0, 1.0)


def test_a_long_video_says_what_its_frames_take(
    after_a_run: None, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = scored(parts, middle_tau(parts))
    assert "IMAGE" not in " ".join(video_of(job)[2].notes)
    monkeypatch.setattr(run, "LONG_BYTES", 800_000)
    frames, _, report = video_of(job)
    assert frames.nbytes == 847_872
    assert f"The IMAGE of {len(frames)} frames takes 0.8 MB of the computer's memory" in " ".join(report.notes)


def test_of_a_model_with_another_lora_file_kernel_or_number_of_threads_no_block_is_used_again(
    after_a_run: None, parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert same_video(again, alone(changed_job))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert not any(one.reused for one in video_of(job)[2].blocks)


def test_an_interrupt_keeps_what_was_finished(
    parts: Parts, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run makes no finished block again, and its video is the same."""
    job = scored(parts, middle_tau(parts), count=3, schedules=TWO_STEPS)
    whole, real = alone(job), NodeProgress.block

    def block(self: NodeProgress, record: Any, frames: Any) -> None:
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


def test_a_stopped_run_returns_what_it_finished_and_the_next_one_goes_on(
    parts: Parts, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(scored(parts, middle_tau(parts)), node_id="5")
    whole = alone(job)
    real = NodeProgress.block

    def block(self: NodeProgress, record: Any, frames: Any) -> None:
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


def test_a_stop_for_what_does_not_run_is_one_sentence() -> None:
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


def test_of_many_runs_the_newest_of_each_node_and_a_few_before_are_remembered() -> None:
    """Catches: pictures that are gone while the next run is compared with them, and those of a whole day."""
    runs = LiveRuns()
    made = [LiveRun({"node": "5", "workflow": "w"}) for _ in range(9)]
    for one in made:
        runs.begin(one)
    assert runs.now() == made[-5:]


# --- jobs that re-use what earlier ones made


TWO_STEPS = {"drafter": "1000,625", "target": "1000,625"}


def scored(parts: Parts, tau: float, **changes: Any) -> Job:
    router = RouterValue(RouterConfig(tau=tau, **changes.pop("router", {})), parts.scorer)
    return make_job(
        parts,
        script="a" * changes.pop("count", 6),
        router=router,
        reuse_bytes=GIGABYTE,
        **{"schedules": TWO_STEPS, **changes},
    )


def alone(job: Job) -> Any:
    """The video of a job that re-uses nothing, and leaves the store as it is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reuse, "_STORE", Store(0))
        return video_of(replace(job, reuse_bytes=0))


@functools.cache
def middle_tau(parts: Parts) -> float:
    """A tau that some drafts reach and others miss."""
    report = alone(scored(parts, -3.0))[2]
    scores = sorted(one.decision.score for one in report.blocks if one.decision.score is not None)
    return scores[len(scores) // 2]
