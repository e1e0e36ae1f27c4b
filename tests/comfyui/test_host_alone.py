"""One model alone or in both roles, and what a run in ComfyUI refuses before anything is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from host_run import Parts, make_job, same_video, video_of
from sdvg_pack.nodes.host import run
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.sockets import RouterValue
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.errors import BadInput

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]


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
