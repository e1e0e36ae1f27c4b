"""How far a fast execution's video is from the plain one's."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from bench_parts import case, tiny_bench

from benchmarks.__main__ import main
from benchmarks.check import Video, compare_videos, video_of
from benchmarks.measure import Bench
from benchmarks.variants import OURS, parse_variant

CHANNELS_LAST, OVERLAP = parse_variant("channels-last"), parse_variant("overlap")


def video(latent=0.0, pixel=0.0, scores=(1.0, 2.0, 4.0, 5.0)) -> Video:
    return Video(latents=torch.tensor([3.0, 4.0 + latent]), frames=torch.tensor([0.5 + pixel, 0.5]), scores=scores)


def test_the_greatest_difference_counts_beside_the_size_of_what_differs():
    found = compare_videos(video(), video(latent=-0.25, pixel=0.125, scores=(1.0, 2.5, 4.0, 5.25)))
    assert (found["latents"], found["frames"], found["scores"]) == (0.25, 0.125, 0.5)
    assert found["latents_rms"] == pytest.approx(12.5**0.5)
    assert (found["tau"], found["scored_drafts"], found["decided_otherwise"]) == (3.0, 4, [])


def test_a_draft_on_the_other_side_of_the_widest_gap_is_named():
    assert compare_videos(video(), video(scores=(1.0, 3.0, 2.9, 5.0)))["decided_otherwise"] == [1, 2]


def test_without_two_scores_there_is_nothing_to_decide():
    found = compare_videos(video(scores=(1.0,)), video(scores=(9.0,)))
    assert (found["tau"], found["decided_otherwise"], found["scores"]) == (None, [], 8.0)


@pytest.mark.parametrize("other", [CHANNELS_LAST, parse_variant("diffusers")], ids=lambda other: other.name)
def test_every_execution_starts_from_the_same_noise(other):
    bench = tiny_bench(OURS, other)
    plain, fast = (video_of(bench, case("r=2", execution, 4)) for execution in (OURS, other))
    found = compare_videos(plain, fast)
    assert plain.latents.shape[2] == 12
    assert found["scored_drafts"] == 3
    assert found["latents"] < 1e-3 * found["latents_rms"]
    assert 0 < found["frames"] < 1e-3  # float32 in another order of sums, and so not the very same


def test_the_overlapped_execution_makes_the_very_same_video():
    bench = tiny_bench(OURS, OVERLAP)
    plain, ahead = (video_of(bench, case("r=2", execution, 4)) for execution in (OURS, OVERLAP))
    found = compare_videos(plain, ahead)
    assert (found["latents"], found["frames"], found["scores"]) == (0.0, 0.0, 0.0)


@pytest.mark.heavy
def test_the_compiled_execution_makes_the_same_video_from_the_command_on(capsys, monkeypatch):
    """With a stand-in for the compiler proper, which takes minutes over a VAE: traced and carried out as it is."""
    honest = torch.compile
    monkeypatch.setattr(torch, "compile", lambda work, **options: honest(work, **{**options, "backend": "eager"}))
    asked = ["--scale", "tiny", "--blocks", "3", "--repeats", "1", "--executions", "compiled", "--json"]
    assert main([*asked, "--check"]) == 0
    plain, fast = json.loads(capsys.readouterr().out)["checks"]
    assert (plain["execution"], fast["execution"]) == ("ours", "compiled")
    assert fast["latents"] < 1e-3 * fast["latents_rms"]
    assert fast["decided_otherwise"] == []
    assert main([*asked, "--routes", "target-only", "r=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conditions"]["executions"]["compiled"] == {
        **{"schedule": "four-step", "as_published": False, "compile": "default", "vae_layers": "channels-last"},
        **{"attention": {"drafter": "sdpa", "target": "sdpa"}, "overlap": False, "vae": "wan", "judge": None},
    }
    assert [entry["ratio_to_target_only"] is not None for entry in found["cases"]] == [True, True]
    torch._dynamo.reset()


def test_the_command_prints_one_line_for_every_execution_but_the_authors(capsys):
    asked = ["--scale", "tiny", "--blocks", "3", "--check", "--executions", "ours", "as-published"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["route"] == "rrr"
    assert [check["execution"] for check in found["checks"]] == ["ours"]
    assert found["checks"][0]["latents"] == found["checks"][0]["frames"] == 0
    assert main(asked) == 0
    assert "0 of 2 drafts decided otherwise" in capsys.readouterr().out


@pytest.mark.parametrize("stop, code", [(KeyboardInterrupt, 130), (RuntimeError, None)])
def test_what_was_compared_before_an_interrupt_or_an_error_is_printed(stop, code, capsys, monkeypatch):
    """Catches minutes on a GPU lost with the one execution that fails, or that the time did not suffice for."""
    honest = Bench.run

    def run(self, asked, engine, blocks=None):
        if asked.variant == CHANNELS_LAST:
            raise stop
        return honest(self, asked, engine, blocks)

    monkeypatch.setattr(Bench, "run", run)
    asked = ["--scale", "tiny", "--blocks", "3", "--check", "--executions", "channels-last"]
    with pytest.raises(stop) if code is None else contextlib.nullcontext():
        assert main([*asked, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["interrupted"]
    assert [check["execution"] for check in found["checks"]] == ["ours"]
