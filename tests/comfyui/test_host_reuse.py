"""What a run in ComfyUI takes from earlier ones, and when it must take nothing; stopping; one model alone."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_management
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from host_clip import with_lora
from host_run import Parts, changed, load_parts, make_job, same_video, state_of, video_of
from host_tiny import generator_of
from sdvg_pack.nodes.host import identity, kept, run
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.live import RUNS, LiveRun, LiveRuns
from sdvg_pack.nodes.host.presets import attach_preset
from sdvg_pack.nodes.host.progress import NodeProgress
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.routes import answer_stop
from sdvg_pack.nodes.sockets import PromptEntry, RouterValue
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.engine.store import GIGABYTE, Store
from sdvg_pack.sdvg_core.errors import BadInput

pytestmark = pytest.mark.comfyui


TWO_STEPS = {"drafter": "1000,625", "target": "1000,625"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return load_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_STORE", Store(0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The blocks that models were really asked for, by model and number."""
    made: list[tuple[str, int]] = []
    real = CausalWanGenerator.generate

    def counted(self: Any, history: Any, span: Any, *rest: Any) -> Any:
        made.append((self.name, span.index))
        return real(self, history, span, *rest)

    monkeypatch.setattr(CausalWanGenerator, "generate", counted)
    return made


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
        patched.setattr(kept, "_STORE", Store(0))
        return video_of(replace(job, reuse_bytes=0))


@functools.cache
def middle_tau(parts: Parts) -> float:
    """A tau that some drafts reach and others miss."""
    report = alone(scored(parts, -3.0))[2]
    scores = sorted(one.decision.score for one in report.blocks if one.decision.score is not None)
    return scores[len(scores) // 2]


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
        ({"directions": "..d..."}, None),
        ({"seed": 2}, 0),
        ({"drafter_context": "own"}, 1),
    ],
    ids=str,
)
def test_a_changed_job_makes_what_a_run_from_nothing_makes(
    parts: Parts, change: dict[str, Any], unchanged: int | None
) -> None:
    job = scored(parts, middle_tau(parts))
    video_of(job)
    changed_job = replace(job, **change)
    again = video_of(changed_job)
    if unchanged is not None:
        assert sum(one.reused for one in again[2].blocks) >= unchanged
    if unchanged == 0:
        assert not any(one.reused for one in again[2].blocks)
    assert same_video(again, alone(changed_job))


def test_another_prompt_at_block_4_goes_on_there(parts: Parts, calls: list[tuple[str, int]]) -> None:
    job = scored(parts, middle_tau(parts))
    video_of(job)
    embedding = torch.randn(1, 512, 32, generator=generator_of(99))
    later = replace(job, prompts=(*job.prompts, PromptEntry(3, [[embedding, {}]], "a storm")))
    calls.clear()
    again = video_of(later)
    assert min(index for _, index in calls) == 3
    assert [one.reused for one in again[2].blocks] == [True] * 3 + [False] * 3
    assert same_video(again, alone(later))


def stronger(job: Job, role: str) -> Job:
    return replace(job, **{role: with_lora(getattr(job, role))})


def other_drafter(job: Job, folder: Path) -> Job:
    return replace(job, drafter=load_parts(folder, seed=5).drafter)


def set_option(job: Job) -> Job:
    target = job.target.clone()
    target.model_options.setdefault("transformer_options", {})["optimized_attention_override"] = (
        lambda kernel, *args, **kwargs: kernel(*args, **kwargs)
    )
    return replace(job, target=target)


def test_another_lora_another_file_another_kernel_or_another_number_of_threads_means_no_reuse(
    parts: Parts, tmp_path: Path
) -> None:
    """Any doubt means no re-use. Another drafter leaves the first block, which is the target's."""
    job = scored(parts, middle_tau(parts))
    video_of(job)
    for changed_job, still_there in (
        (stronger(job, "target"), 0),
        (stronger(job, "drafter"), 1),
        (other_drafter(job, tmp_path), 1),
        (set_option(job), 0),
    ):
        again = video_of(changed_job)
        assert sum(one.reused for one in again[2].blocks) == still_there
        assert same_video(again, alone(changed_job))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert not any(one.reused for one in video_of(job)[2].blocks)
    finally:
        torch.set_num_threads(threads)


def test_a_tensor_among_the_options_of_a_model_does_no_harm(parts: Parts) -> None:
    """ComfyUI's own AR Video nodes leave one there. Two tensors cannot be compared with one `==`."""
    job = scored(parts, middle_tau(parts), count=2)
    target = job.target.clone()
    target.model_options.setdefault("transformer_options", {})["ar_config"] = {"initial_latent": torch.zeros(3)}
    job = replace(job, target=target)
    video_of(job)
    assert all(one.reused for one in video_of(job)[2].blocks)


@pytest.mark.parametrize("forgotten", ["LoRA", "device"])
def test_a_key_that_forgot_the_lora_or_the_device_would_be_seen(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """Two planted mistakes: with either, a run takes what another one made."""
    job = scored(parts, middle_tau(parts), count=2)
    threads = torch.get_num_threads()
    if forgotten == "LoRA":
        monkeypatch.setattr(
            ModelPatcher, "patches_uuid", property(lambda self: "same", lambda self, new: None), False
        )
        changed_job = stronger(job, "target")
    else:
        monkeypatch.setattr(identity, "arithmetic_on", lambda device: {})
        changed_job = job
    video_of(job)
    try:
        torch.set_num_threads(threads + (forgotten == "device"))
        assert all(one.reused for one in video_of(changed_job)[2].blocks)
    finally:
        torch.set_num_threads(threads)


def test_an_interrupt_keeps_what_was_finished(
    parts: Parts, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every pass of a run: the next one makes no finished block again, and its video is the same."""
    job = scored(parts, middle_tau(parts), count=3, schedules=TWO_STEPS)
    whole = alone(job)
    real, real_block = NodeProgress.before_pass, NodeProgress.block
    for at in itertools.count(1):
        monkeypatch.setattr(kept, "_STORE", Store(0))
        calls.clear()
        passes = itertools.count(1)

        def before_pass(self: NodeProgress, kind: str, at: int = at, passes: Iterator[int] = passes) -> None:
            comfy.model_management.interrupt_current_processing(next(passes) == at)
            real(self, kind)

        finished: list[int] = []

        def block(self: NodeProgress, record: Any, frames: Any, finished: list[int] = finished) -> None:
            finished.append(record.span.index)
            real_block(self, record, frames)

        with monkeypatch.context() as patched:
            patched.setattr(NodeProgress, "before_pass", before_pass)
            patched.setattr(NodeProgress, "block", block)
            try:
                run_job(job)
            except comfy.model_management.InterruptProcessingException:
                pass
            else:
                break
        calls.clear()
        again = video_of(job)
        assert same_video(again, whole), at
        assert not {index for _, index in calls} & set(finished), at
    assert at > 8, "there were passes to interrupt"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_random_changes_one_after_the_other_make_what_runs_from_nothing_make(parts: Parts, seed: int) -> None:
    random_changes(parts, seed, 3)


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_make_what_runs_from_nothing_make(parts: Parts, seed: int) -> None:
    random_changes(parts, 1000 + seed, 2)


def random_changes(parts: Parts, seed: int, steps: int) -> None:
    """Every other seed with the other context policy, and one in three with overlap."""
    dice = random.Random(seed)
    if seed % 2:
        parts = replace(parts, drafter=incremental(parts.drafter), target=incremental(parts.target))
    tau = middle_tau(parts) if seed % 2 == 0 else 0.0
    job = scored(parts, tau, count=5, overlap=seed % 3 == 0)
    video_of(job)
    for _ in range(steps):
        name = dice.choice(sorted(CHANGES))
        job = replace(job, **CHANGES[name](dice, job, tau))
        assert same_video(video_of(job), alone(job)), name


def incremental(patcher: Any) -> Any:
    return attach_preset(patcher.clone(), get_preset("custom").replace(policy="incremental", window=9, sink=3))


def _router(dice: random.Random, job: Job, tau: float) -> dict[str, Any]:
    config = replace(
        job.router.config,
        tau=tau + dice.choice((-1.0, -0.01, 0.0, 0.01, 1.0)),
        forced_blocks=dice.choice((0, 1, 1, 2)),
    )
    return {"router": replace(job.router, config=config)}


def _prompt(dice: random.Random, job: Job, tau: float) -> dict[str, Any]:
    embedding = torch.randn(1, 512, 32, generator=generator_of(dice.randint(1, 3)))
    return {"prompts": (job.prompts[0], PromptEntry(dice.randint(1, 4), [[embedding, {}]], "a storm"))}


Change = Callable[[random.Random, Job, float], dict[str, Any]]
CHANGES: dict[str, Change] = {
    "router": _router,
    "prompt": _prompt,
    "directions": lambda dice, job, tau: {
        "blocks": 5,
        "directions": "".join(dice.choice("..tdar") for _ in range(5)),
    },
    "takes": lambda dice, job, tau: {"takes": f"{dice.randint(1, 5)}:{dice.randint(1, 3)}", "blocks": 5},
    "blocks": lambda dice, job, tau: {"blocks": dice.randint(1, 7), "directions": "", "takes": ""},
    "seed": lambda dice, job, tau: {"seed": dice.randint(1, 2)},
    "schedule": lambda dice, job, tau: {
        "schedules": {**TWO_STEPS, "drafter": dice.choice(("1000,625", "1000,500"))}
    },
    "LoRA": lambda dice, job, tau: {"target": with_lora(job.target)},
    "swap": lambda dice, job, tau: {"drafter": job.target, "target": job.drafter},
    "drafter context": lambda dice, job, tau: (
        {} if job.execution.overlap else {"drafter_context": dice.choice(("committed", "own"))}
    ),
}


def test_over_its_limit_the_store_drops_the_oldest_run_and_says_so(parts: Parts) -> None:
    job = scored(parts, -3.0, count=3)
    video_of(job)
    used = kept._STORE.bytes
    limit = used + used // 2
    report = video_of(replace(job, seed=7, reuse_bytes=limit))[2]
    assert kept._STORE.bytes <= limit
    assert "results of the oldest runs were dropped" in " ".join(report.notes)
    assert all(one.reused for one in video_of(replace(job, seed=7, reuse_bytes=limit))[2].blocks)
    too_small = video_of(replace(job, seed=8, reuse_bytes=used // 2))[2]
    assert "did not fit into" in " ".join(too_small.notes)
    video_of(replace(job, reuse_bytes=0))
    assert kept._STORE.bytes == 0


def test_reuse_leaves_the_models_as_they_were(parts: Parts) -> None:
    job = scored(parts, middle_tau(parts), count=3)
    video_of(job)
    before = state_of(parts)
    video_of(replace(job, takes="2:2"))
    assert not changed(before, state_of(parts))


# --- one model alone ----------------------------------------------------------------------------------------------


def test_one_model_alone_makes_what_it_makes_beside_another(parts: Parts) -> None:
    both = make_job(parts, script="aaa", router=RouterValue(RouterConfig(policy="always-target"), None))
    assert same_video(video_of(both), video_of(replace(both, drafter=None)))
    drafts = RouterValue(RouterConfig(policy="always-draft", forced_blocks=0), None)
    both = make_job(parts, script="aaa", router=drafts)
    only = video_of(replace(both, target=None))
    assert same_video(video_of(both), only)
    assert only[2].settings["target"] is None
    forced = replace(both, target=None, router=RouterValue(RouterConfig(policy="always-draft"), None))
    said = video_of(forced)
    assert same_video(said, only)
    assert "There is no target, so the first block was not forced." in said[2].notes


@pytest.mark.parametrize(
    "missing, policy, sentence",
    [
        ("drafter", "reward", "the policy reward needs a drafter, but there is none"),
        ("target", "reward", "the policy reward needs a target, but there is none"),
        ("target", "anchor-only", "the policy anchor-only needs a target, but there is none"),
        ("drafter", "anchor-only", "the policy anchor-only needs a drafter, but there is none"),
    ],
)
def test_a_missing_model_is_one_sentence(parts: Parts, missing: str, policy: str, sentence: str) -> None:
    job = make_job(parts, script="aaa", router=RouterValue(RouterConfig(policy=policy), parts.scorer))
    with pytest.raises(BadInput, match=sentence):
        run_job(replace(job, **{missing: None}))
    with pytest.raises(BadInput, match="neither is wired in"):
        run_job(replace(job, drafter=None, target=None))


def test_one_model_with_two_schedules_is_a_pair(parts: Parts) -> None:
    script = RouterValue(RouterConfig(policy="scripted", script="tdr"), parts.scorer)
    job = make_job(parts, script="aaa", router=script)
    one = replace(job, drafter=job.target, schedules={"drafter": "1000,625"})
    report = video_of(one)[2]
    assert [block.author for block in report.blocks] == ["target", "drafter", "target"]
    assert [report.settings[role]["schedule"] for role in ("drafter", "target")] == [
        [1000.0, 625.0],
        pytest.approx([1000.0, 937.5, 833.33, 625.0], abs=0.01),
    ]
    assert [block.draft.denoising_passes for block in report.blocks[1:]] == [2, 2]
    with pytest.raises(BadInput, match="one model with one schedule"):
        run_job(replace(one, schedules={}))


def test_directions_and_takes_that_do_not_fit_are_refused_before_anything_is_loaded(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(run, "while_resident")
    job = make_job(parts, script="aaaaaa")
    for change, sentence in (
        ({"directions": "..x..."}, "directions use only the letters"),
        ({"directions": "..."}, "one letter for each of the 6 blocks"),
        ({"takes": "7:2"}, "the take 7:2 is of block 7, but the run has blocks 1 to 6"),
        ({"takes": "two"}, "a take is written as 6:2"),
    ):
        with pytest.raises(BadInput, match=sentence):
            run_job(replace(job, **change))


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
    runs.begin(LiveRun("5", "w", {}))
    for asked, status, sentence in (
        (None, 400, "send the id of its sampler"),
        ([], 400, "send the id of its sampler"),
        ({"node": 5}, 400, "send the id of its sampler"),
        ({"node": "x" * 1000}, 400, "send the id of its sampler"),
        ({"node": "6"}, 404, "node '6' is not making a video"),
    ):
        answer = answer_stop(asked, runs)
        assert answer.status == status
        assert sentence in json.loads(answer.text)["error"]
    assert answer_stop({"node": "5"}, runs).status == 200
