"""`generate` with a TAEHV in the VAE's place, from files to files."""

from dataclasses import replace
from pathlib import Path

import av
import pytest
import torch
from cli_runs import SMALL, generate, refused, report
from cli_runs import options as files_of
from PIL import Image
from safetensors.torch import save_file

from sdvg_core.checkpoints.latents import save_latents
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.decoders.taehv import Taehv
from sdvg_core.files.video import write_mp4

INCREMENTAL = [word for role in ("drafter", "target") for word in (f"--{role}-settings", "cache=incremental")]
WAYS = {
    "the start image": ["--start-image", "red.png"],
    "the clip to continue": ["--continue-from", "clip.mp4"],
    "the clip to restyle": ["--restyle", "clip.mp4"],
    "a clip shorter than a block": ["--continue-from", "two.safetensors"],
    "the control": ["--control", "clip.mp4"],
}


def options(files: ModelFiles) -> list[str]:
    return [*files_of(files), "--prompt", "a red ball rolls", "--blocks", "2"]


def write_tae(path: Path, *, encoder: bool = True) -> Path:
    net = Taehv(16, (8, 6, 5, 4), (4, 4, 4, 4) if encoder else None)
    draw = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(w.shape, generator=draw) * 0.2 for name, w in net.state_dict().items()}
    weights["decoder.22.bias"] += 0.5
    save_file(weights, path)
    return path


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """A TAEHV without an encoder, and starts that need one."""
    folder = tmp_path_factory.mktemp("half")
    Image.new("RGB", (32, 32), "red").save(folder / "red.png")
    write_mp4(folder / "clip.mp4", torch.zeros(9, 3, 32, 32), fps=16)
    save_latents(folder / "two.safetensors", torch.zeros(1, 16, 2, 4, 4), {})
    return write_tae(folder / "half_taew2_1.safetensors", encoder=False)


@pytest.mark.heavy
def test_a_fast_decoder_for_everything_is_marked_wherever_the_video_is_described(files, tmp_path):
    tae = write_tae(tmp_path / "tiny_taew2_1.safetensors")
    assert generate(options(replace(files, vae=tae)), tmp_path / "fast") == 0
    settings = report(tmp_path / "fast")
    assert settings["settings"]["vae"]["tae_kind"] == "taew2_1"
    assert any("fast decoder (TAEHV) made the video's pixels" in note for note in settings["notes"])
    with av.open(str(tmp_path / "fast" / "video.mp4")) as video:
        assert "fast decoder (TAEHV)" in video.metadata["comment"]


def test_without_an_encoder_a_taehv_decodes_a_video_that_needs_none(files, half, tmp_path):
    assert generate(options(replace(files, vae=half)), tmp_path / "out", *INCREMENTAL, "--preset", "fast") == 0


@pytest.mark.parametrize("need", [*WAYS, "the target's context"])
def test_without_an_encoder_a_taehv_is_refused_where_one_is_needed(files, half, tmp_path, capsys, need):
    asked = [*options(replace(files, vae=half)), *SMALL, "--output", str(tmp_path / "out")]
    if way := WAYS.get(need):
        asked += [*INCREMENTAL, way[0], str(half.parent / way[1])]
    assert f"the VAE has no encoder, which {need} needs; give the Wan 2.1 VAE" in refused(capsys, asked)
    assert not (tmp_path / "out").exists()
