"""A disk that is full, or a folder that cannot be written, is told of early and in one sentence."""

import errno
import os

import pytest
import torch
from cli_runs import override
from faulty import Trap, make_loaded, make_video, names, quick, result
from reuse_folders import five, made

from sdvg_core.checkpoints.latents import save_latents
from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import check_disk_space
from sdvg_core.models.headers import check_models
from sdvg_core.models.options import LoadOptions, ModelOptions
from sdvg_core.request.request import VideoRequest
from sdvg_core.request.resolve import predict_bytes, resolve_files
from sdvg_core.videos import batch, maker

pytestmark = pytest.mark.heavy

WRITES = ("write video", "write block", "write latents", "write report", "move", "rename")


def test_too_little_room_is_refused_before_any_model_is_read(files, tmp_path, monkeypatch, capsys):
    for room, reader in ((batch, "encode_prompts"), (maker, "load_models")):
        monkeypatch.delattr(room, reader)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("sdvg_core.files.outputs.shutil.disk_usage", lambda path: usage)
    assert main(override(five(files), "--prompt", "x", "--output", str(tmp_path / "out"))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the run needs about " in line
    assert "but 0.0 MB are free; free some space or name another folder" in line
    assert not (tmp_path / "out").exists()


def test_the_room_of_a_video_is_foreseen_within_reason(files, tmp_path):
    """Enough for what a run does write; for nine blocks of the paper's size tens of megabytes, not thousands."""
    made(tmp_path / "out", override(five(files), "--prompt", "a red ball", "--size", "64x64"))
    large = [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".mp4", ".safetensors")]
    written = sum(path.stat().st_size for path in large)
    krea = ModelOptions(preset="krea-14b")
    headers = check_models(files, LoadOptions(drafter=krea, target=krea))

    def predict(request: VideoRequest) -> int:
        return predict_bytes(resolve_files(request, headers), headers.vae)

    foreseen = predict(VideoRequest(blocks=5, width=64, height=64))
    assert 0.3 * written < foreseen < 10 * written
    assert 10e6 < predict(VideoRequest()) < 100e6
    save_latents(tmp_path / "clip.safetensors", torch.zeros(1, 16, 6, 8, 8), {})
    longer = VideoRequest(blocks=5, continue_from=tmp_path / "clip.safetensors")
    assert foreseen < predict(longer) < 2 * foreseen


def test_room_is_looked_for_where_the_folder_will_be(tmp_path):
    check_disk_space(tmp_path / "new" / "run", 1)
    with pytest.raises(BadInput, match=r"the run needs about .* GB in .*run, but"):
        check_disk_space(tmp_path / "new" / "run", 10**18)
    assert names(tmp_path) == []


def test_a_disk_or_quota_that_fills_up_at_any_write_is_one_sentence_and_nothing_half(tmp_path):
    """And the next run, when there is room, goes on from the last block."""
    with quick():
        loaded, whole = make_loaded(), Trap()
        with whole.set():
            fresh = result(tmp_path / "whole", make_video(loaded, tmp_path / "whole"))
        writes = [n for n, stage in enumerate(whole.stages, 1) if stage in WRITES]
        for number, code in zip([*writes[:6], *writes[-10:]], (errno.ENOSPC, errno.EDQUOT) * 8, strict=True):
            folder = tmp_path / str(number)
            full = Trap(number, OSError(code, os.strerror(code)))
            with full.set(), pytest.raises(BadInput, match="is full; free some space"):
                make_video(loaded, folder)
            assert not (folder / "video.mp4").exists()
            assert result(folder, make_video(loaded, folder)) == fresh
