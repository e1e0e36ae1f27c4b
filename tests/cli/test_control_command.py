"""Control by the command line: random models with random modules, which prove the arithmetic alone."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sdvg_core.cli import main
from sdvg_core.files.footage import read_footage
from sdvg_core.files.video import Mp4Writer, write_mp4
from tests.support.cli_runs import latents, override, refused, report, without
from tests.support.random_set import write_controls
from tests.support.sounds import heard, tone

pytestmark = pytest.mark.heavy

PROMPT = "a big blue ball drifts right from the left over sand"
ROUTE = ["--policy", "first", "--forced-blocks", "1"]
FRAMES = 21


@pytest.fixture(scope="module")
def asked(base) -> list[str]:
    return [*base, "--size", "64x64", "--blocks", "2", "--prompt", PROMPT, *ROUTE]


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> dict[str, Path]:
    """A module for each of the models, with one control block."""
    folder = tmp_path_factory.mktemp("modules")
    write_controls(folder)
    return {role: folder / f"tiny_vace_{role}.safetensors" for role in ("drafter", "target")}


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A video of two blocks to obey, and a mask that keeps its left half."""
    folder = tmp_path_factory.mktemp("clip")
    frames = torch.rand(FRAMES, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    write_mp4(folder / "depth.mp4", torch.nn.functional.interpolate(frames, scale_factor=16), fps=16)
    mask = Image.new("L", (64, 64), 255)
    mask.paste(0, (0, 0, 32, 64))
    mask.save(folder / "mask.png")
    return folder


@pytest.fixture(scope="module")
def words(asked, modules, clip) -> list[str]:
    return [*asked, "--control", str(clip / "depth.mp4"), "--control-modules", *map(str, modules.values())]


@pytest.fixture(scope="module")
def controlled(words, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("controlled") / "out"
    assert main([*words, "--output", str(out)]) == 0
    return out


def test_control_acts_unless_its_strength_is_zero(asked, words, controlled, tmp_path):
    assert main([*asked, "--output", str(tmp_path / "plain")]) == 0
    assert main([*words, "--control-strength", "0", "--output", str(tmp_path / "zero")]) == 0
    assert torch.equal(latents(tmp_path / "zero"), latents(tmp_path / "plain"))
    assert not torch.equal(latents(controlled), latents(tmp_path / "plain"))
    request = report(controlled)["request"]
    assert (request["control"], request["control_mask"], request["control_strength"]) == ("depth.mp4", None, 1.0)
    assert report(tmp_path / "plain")["request"]["control"] is None


def pictures(clip: Path, folder: Path, first: int, until: int) -> Path:
    """Write frames of a clip as pictures 001.png and so on, from `first` up to `until`."""
    folder.mkdir()
    for number, frame in enumerate(read_footage(clip, 64, 64).pixels[first:until], 1):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / f"{number:03}.png")
    return folder


@pytest.mark.parametrize(("origin", "frames"), [("", 9), (" from #0", 12)], ids=["fresh", "from"])
def test_shot_obeys_its_part_of_the_control(words, written, tmp_path, origin, frames):
    """Catches: a later shot that obeys, or keeps, the beginning of the control, or a frame too late."""
    clip = tmp_path / "long.mp4"
    noise = torch.rand(9 + frames, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    write_mp4(clip, noise, fps=16)
    mask = tmp_path / "mask.png"
    Image.fromarray(np.repeat([[0] * 32 + [255] * 32], 64, axis=0).astype(np.uint8)).save(mask)
    masked = override(words, "--control", str(clip), "--control-mask", str(mask))
    written.clear()
    film = override(masked, "--prompt", f"1: {PROMPT}\n2 fresh #a{origin}: {PROMPT}")
    assert main([*film, "--output", str(tmp_path / "film")]) == 0
    shown = torch.cat(written, dim=1)
    written.clear()
    part = pictures(clip, tmp_path / "part", 9, 9 + frames)
    own = override(masked, "--control", str(part), "--prompt", f"1 fresh #a: {PROMPT}", "--blocks", "1")
    if origin:
        levels = shown[0, 8].clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
        Image.fromarray(levels.numpy()).save(tmp_path / "start.png")
        shutil.copy(part / "001.png", part / "000.png")  # of the start image, which the film does not show again
        own = [*own, "--start-image", str(tmp_path / "start.png")]
    assert main([*own, "--output", str(tmp_path / "alone")]) == 0
    alone = torch.cat(written, dim=1)
    if origin:
        assert torch.equal(shown[:, -frames:], alone[:, -frames:])
        return
    assert torch.equal(latents(tmp_path / "film")[:, :, 3:], latents(tmp_path / "alone"))
    assert torch.equal(shown[:, 9:], alone)


def test_shot_after_a_joined_one_obeys_its_part(words, tmp_path):
    """A shot from another shows three frames more. Catches: a control that is three frames early after it."""
    clip = tmp_path / "long.mp4"
    write_mp4(clip, torch.rand(30, 3, 64, 64, generator=torch.Generator().manual_seed(2)), fps=16)
    lines = f"1: {PROMPT}\n2 fresh #a from #0: {PROMPT}\n3 fresh #b: {PROMPT}"
    film = override(words, "--control", str(clip), "--prompt", lines, "--blocks", "3")
    assert main([*film, "--output", str(tmp_path / "film")]) == 0
    part = pictures(clip, tmp_path / "part", 21, 30)
    alone = override(words, "--control", str(part), "--prompt", f"1 fresh #b: {PROMPT}", "--blocks", "1")
    assert main([*alone, "--output", str(tmp_path / "alone")]) == 0
    assert torch.equal(latents(tmp_path / "film")[:, :, -3:], latents(tmp_path / "alone"))


def test_video_has_the_sound_of_its_control(words, tmp_path):
    control = tone(tmp_path / "control.mkv", "flac")
    assert main(override(words, "--control", str(control), "--output", str(tmp_path / "out"))) == 0
    sound = heard(tmp_path / "out" / "video.mp4")
    assert np.array_equal(sound, heard(control)[: len(sound)])
    assert len(sound) / 48000 == pytest.approx(21 / 16, abs=0.1)


def test_sound_of_a_clip_replaces_its_controls(words, tmp_path):
    """Catches: the control's sound over the clip's own, or left out without a note."""
    clip = tone(tmp_path / "clip.mp4")
    control = tone(tmp_path / "long.mkv", "flac", frames=70)
    continued = override(words, "--control", str(control), "--continue-from", str(clip))
    assert main([*continued, "--output", str(tmp_path / "out")]) == 0
    sound = heard(tmp_path / "out" / "video.mp4")
    assert np.array_equal(sound, heard(clip)[: len(sound)])
    note = "The sound of long.mkv is left out: the video has that of clip.mp4."
    assert note in report(tmp_path / "out")["notes"]


def test_report_and_files_make_the_video_again(base, words, controlled, tmp_path, capsys):
    again = [*base, "--from", str(controlled), "--output", str(tmp_path / "two")]
    assert "add --control FILE" in refused(capsys, again)
    assert main([*again, *words[words.index("--control") :]]) == 0
    assert "bit for bit" in capsys.readouterr().out


@pytest.fixture
def written(monkeypatch) -> list[torch.Tensor]:
    """The frames of the next video, as they are written."""
    pixels: list[torch.Tensor] = []
    add = Mp4Writer.add
    monkeypatch.setattr(Mp4Writer, "add", lambda self, frames: pixels.append(frames) or add(self, frames))
    return pixels


def test_mask_keeps_the_last_four_frames(words, clip, tmp_path, written):
    """Catches: one mask for all frames, or for those of another latent frame."""
    (tmp_path / "mask").mkdir()
    for frame in range(FRAMES):
        Image.new("L", (64, 64), 255 * (frame < FRAMES - 4)).save(tmp_path / "mask" / f"{frame:02}.png")
    assert main([*words, "--control-mask", str(tmp_path / "mask"), "--output", str(tmp_path / "out")]) == 0
    video = torch.cat(written, dim=1)[0]
    control = read_footage(clip / "depth.mp4", 64, 64).pixels / 255
    kept = [torch.equal(frame, given) for frame, given in zip(video, control, strict=True)]
    assert kept == [False] * 17 + [True] * 4


@pytest.mark.parametrize("start", [(), ("--start-image",)])
def test_masked_pixels_are_those_of_the_control(start, words, clip, tmp_path, written):
    """Catches: pasting before decoding, a mask the wrong way round, late frames."""
    Image.new("RGB", (64, 64), (200, 30, 30)).save(tmp_path / "red.png")
    begin = [*start, str(tmp_path / "red.png")] if start else []
    mask = ["--control-mask", str(clip / "mask.png"), "--output", str(tmp_path / "out")]
    assert main([*words, *mask, *begin]) == 0
    video = torch.cat(written, dim=1)[0]
    control = read_footage(clip / "depth.mp4", 64, 64).pixels / 255
    control = torch.cat((control, control[-1:].expand(4, -1, -1, -1)))[: len(video)]
    first = 1 if start else 0
    assert torch.equal(video[first:, ..., :32], control[first:, ..., :32])
    assert not torch.equal(video[..., 32:], control[..., 32:])
    assert torch.equal(video[0, ..., :32], control[0, ..., :32]) != bool(start), "the start image is pasted over"


@pytest.fixture
def cut_out(tmp_path) -> Path:
    """A clip of which the left half is opaque, in a folder."""
    (tmp_path / "cut-out").mkdir()
    for frame in range(FRAMES):
        picture = Image.new("RGBA", (64, 64), (90, 40, 10 * frame, 0))
        picture.paste((200, 60, 10 * frame, 255), (0, 0, 32, 64))
        picture.save(tmp_path / "cut-out" / f"{frame:02}.png")
    return tmp_path / "cut-out"


def test_alpha_of_a_control_keeps_what_is_opaque(words, cut_out, tmp_path, written):
    """Catches: alpha dropped, or the wrong way round; a report from which the video cannot be made again."""
    masked = [*override(words, "--control", str(cut_out)), "--control-mask", "alpha"]
    assert main([*masked, "--output", str(tmp_path / "out")]) == 0
    video = torch.cat(written, dim=1)[0]
    control = read_footage(cut_out, 64, 64).pixels / 255
    assert torch.equal(video[..., :32], control[..., :32])
    assert not torch.equal(video[..., 32:], control[..., 32:])
    assert report(tmp_path / "out")["request"]["control_mask"] == "alpha"
    assert any("alpha of cut-out. What is opaque is kept" in note for note in report(tmp_path / "out")["notes"])


def test_alpha_comes_back_with_from(base, words, cut_out, tmp_path, capsys):
    """Catches: the word taken for the name of a file that is missing."""
    masked = [*override(words, "--control", str(cut_out)), "--control-mask", "alpha"]
    assert main([*masked, "--output", str(tmp_path / "out")]) == 0
    again = [*base, "--from", str(tmp_path / "out"), "--output", str(tmp_path / "two")]
    modules = words[words.index("--control-modules") :]
    assert main([*again, "--control", str(cut_out), *modules]) == 0
    assert f"The same video as in {tmp_path / 'out'}, bit for bit." in capsys.readouterr().out


def test_alpha_of_restyled_clip_marks_the_made(words, clip, cut_out, tmp_path, written):
    """Catches: the ground of a cut-out remade, and the cut-out kept."""
    masked = [*words, "--restyle", str(cut_out), "--control-mask", "alpha"]
    assert main([*masked, "--output", str(tmp_path / "out")]) == 0
    video = torch.cat(written, dim=1)[0]
    ground = read_footage(clip / "depth.mp4", 64, 64).pixels / 255
    assert torch.equal(video[..., 32:], ground[..., 32:])
    assert not torch.equal(video[..., :32], ground[..., :32])


@pytest.mark.parametrize("restyle", [False, True])
def test_alpha_mask_needs_a_clip_with_alpha(restyle, words, clip, tmp_path, capsys):
    """Catches: a video made without the mask that was asked for."""
    more = ["--restyle", str(clip / "depth.mp4")] if restyle else []
    masked = [*words, *more, "--control-mask", "alpha", "--output", str(tmp_path / "out")]
    assert "no alpha" in refused(capsys, masked)
    assert not (tmp_path / "out").exists()


def test_live_run_is_as_long_as_its_control(words, monkeypatch, tmp_path):
    """Without a number of blocks. Catches the many blocks of a live run, for which the control is too short."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = without(words, "blocks", "policy", "forced-blocks")
    assert main([*words, "--live", "--output", str(tmp_path / "out")]) == 0
    assert len(report(tmp_path / "out")["blocks"]) == 2


def test_video_is_as_long_as_its_control(words, tmp_path):
    assert main([*without(words, "blocks"), "--output", str(tmp_path / "out")]) == 0
    assert len(report(tmp_path / "out")["blocks"]) == 2


# --- what is refused


def test_model_without_its_control_module_is_refused(words, modules, tmp_path, capsys):
    for role, missing in (("drafter", "target"), ("target", "drafter")):
        incomplete = [*words[:-2], str(modules[role]), "--output", str(tmp_path / "out")]
        assert f"the {missing} has no control module" in refused(capsys, incomplete)


def test_route_of_drafts_needs_no_targets_module(words, modules, tmp_path):
    """Catches: a module asked for that no block of the route would read."""
    drafts = override(words, "--policy", "first", "--forced-blocks", "0", "--handover", "0")
    assert main([*drafts[:-2], str(modules["drafter"]), "--output", str(tmp_path / "out")]) == 0


REFUSALS = {
    "--control-strength -1": "control_strength is -1.0",
    "--control-edge 300": "control edge has no effect",
    "--blocks 4": "the video needs 45",
}


@pytest.mark.parametrize(("more", "keyword"), REFUSALS.items())
def test_impossible_control_is_refused(more, keyword, words, tmp_path, capsys):
    assert keyword in refused(capsys, override(words, *more.split(), "--output", str(tmp_path / "out")))


def test_module_of_no_models_width_is_refused(words, tmp_path, capsys):
    """Catches: of two modules, the second one's name."""
    modules = [tmp_path / "other.safetensors", tmp_path / "third.safetensors"]
    for width, module in zip((8, 16), modules, strict=True):
        save_file({"vace_patch_embedding.weight": torch.zeros(width, 96, 1, 2, 2)}, module)
    message = refused(capsys, [*words[:-2], *map(str, modules), "--output", str(tmp_path / "out")])
    assert "other.safetensors is for a width of 8" in message


def test_control_modules_are_found_by_their_names(asked, modules, clip, tmp_path):
    """Catches: a run that reads them without a control, or does not find them."""
    folder = tmp_path / "models" / "diffusion_models"
    folder.mkdir(parents=True)
    for role, size in (("drafter", "1_3B"), ("target", "14B")):
        shutil.copy(modules[role], folder / f"Wan2_1-VACE_module_{size}_bf16.safetensors")
    control = ["--control", str(clip / "depth.mp4"), "--output", str(tmp_path / "out")]
    assert main([*asked, "--models", str(tmp_path / "models"), *control]) == 0
    assert report(tmp_path / "out")["request"]["control"] == "depth.mp4"
