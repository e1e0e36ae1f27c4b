"""`generate` with a judge, from files to files: the same video, other scores, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from cli_runs import SMALL, generate, latents, refused, report
from cli_runs import options as files_of
from reuse_folders import made
from safetensors.torch import load_file, save_file

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.decoders.taehv import Taehv
from sdvg_core.files.video import write_mp4

SCRIPT = ["--policy", "scripted", "--script", "rardta", "--blocks", "6"]


def options(files: ModelFiles) -> list[str]:
    return [*files_of(files), "--prompt", "a red ball rolls"]


def write_tae(path: Path, channels: int = 16, *, encoder: bool = True) -> Path:
    net = Taehv(channels, (8, 6, 5, 4), (4, 4, 4, 4) if encoder else None)
    draw = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(w.shape, generator=draw) * 0.2 for name, w in net.state_dict().items()}
    weights["decoder.22.bias"] += 0.5
    save_file(weights, path)
    return path


@pytest.fixture(scope="module")
def tae(tmp_path_factory) -> Path:
    return write_tae(tmp_path_factory.mktemp("judge") / "tiny_taew2_1.safetensors")


def test_a_judge_changes_no_pixel_of_a_route_and_the_report_names_both_decoders(files, tae, tmp_path):
    base = [*options(files), *SMALL, *SCRIPT]
    *plain, before = made(tmp_path / "plain", base)
    *judged, said = made(tmp_path / "judged", [*base, "--judge-vae", str(tae)])
    assert judged[1] == plain[1], "the frames"
    assert torch.equal(latents(tmp_path / "judged"), latents(tmp_path / "plain"))
    assert said["settings"]["vae"] == before["settings"]["vae"]
    assert said["settings"]["judge"]["file"] == tae.name
    assert said["settings"]["judge"]["tae_kind"] == "taew2_1"
    assert before["settings"]["judge"] is None
    assert before["delivery_seconds"] is None
    assert said["delivery_seconds"] >= 0
    assert any("judge" in note for note in said["notes"])
    assert not any("judge" in note for note in before["notes"])

    def scored(of: dict[str, Any]) -> list[list[float]]:
        return [block["frame_scores"] for block in of["blocks"] if block["frame_scores"]]

    assert len(scored(said)) == len(scored(before)) == 3
    assert scored(said) != scored(before), "the judge's frames are scored"


def test_a_judge_that_nobody_asks_is_refused_and_a_damaged_one_too(files, tae, tmp_path, capsys):
    """Its weights hold NaN, which a loader refuses."""
    weights = {"decoder.1.weight": torch.full((8, 16, 3, 3), torch.nan)}
    damaged = tmp_path / "damaged_taew2_1.safetensors"
    save_file(load_file(tae) | weights, damaged)
    video = ["--blocks", "2", "--judge-vae", str(damaged)]
    assert generate(options(files), tmp_path / "first", "--preset", "fast", *video) == 2
    assert "--preset does not heed --judge-vae" in capsys.readouterr().err
    assert generate(options(files), tmp_path / "paper", *video) == 2


@pytest.mark.heavy
def test_a_fast_decoder_for_everything_is_marked_wherever_the_video_is_described(files, tae, tmp_path):
    assert generate(options(replace(files, vae=tae)), tmp_path / "fast", *SCRIPT) == 0
    said = report(tmp_path / "fast")
    assert said["settings"]["vae"]["tae_kind"] == "taew2_1"
    assert any("fast decoder (TAEHV) made the video's pixels" in note for note in said["notes"])
    with av.open(str(tmp_path / "fast" / "video.mp4")) as video:
        assert "fast decoder (TAEHV)" in video.metadata["comment"]


def test_refusals_are_one_sentence_each(files, tae, tmp_path, capsys):
    small = [*SMALL, "--output", str(tmp_path / "video"), "--blocks", "2"]

    def says(*more: str, vae: Path | None = None) -> str:
        return refused(capsys, [*options(replace(files, vae=vae or files.vae)), *small, *more])

    other = write_tae(tmp_path / "other_taew2_1.safetensors", channels=8)
    assert "give a judge of Wan 2.1's latents" in says("--judge-vae", str(other))
    assert "leave --judge-vae out" in says("--judge-vae", str(files.vae))
    assert "swap them" in says("--judge-vae", str(files.vae), vae=tae)
    unnamed = write_tae(tmp_path / "tiny.safetensors")
    assert "--tae-kind" in says("--judge-vae", str(unnamed))
    assert "state taew2_1" in says("--judge-vae", str(tae), "--tae-kind", "lighttaew2_1")
    half = write_tae(tmp_path / "half_taew2_1.safetensors", encoder=False)
    assert "and this as --judge-vae" in says(vae=half)
    incremental = [word for role in ("drafter", "target") for word in (f"--{role}-settings", "cache=incremental")]
    write_mp4(tmp_path / "depth.mp4", torch.zeros(5, 3, 32, 32), fps=16)
    said = says(*incremental, "--control", str(tmp_path / "depth.mp4"), vae=half)
    assert "has no encoder for a start or a control" in said
    assert "there is no judge_vae at" in says("--judge-vae", str(tmp_path / "none.pth"))
    assert not (tmp_path / "video").exists()
