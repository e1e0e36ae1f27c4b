"""Models are found where ComfyUI finds them, and a file of their name elsewhere is named, not fetched again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sdvg_core.cli import main
from sdvg_core.engine.plan import Lead
from sdvg_core.errors import BadInput
from sdvg_core.weights import model_files
from sdvg_core.weights.extra_paths import extra_folders
from sdvg_core.weights.latents import lead_metadata, load_latents, read_lead, save_latents
from sdvg_core.weights.model_files import (
    CONTROL_FILES,
    KNOWN_FILES,
    find_files,
    find_models,
    known_model,
)
from tests.support.cli_runs import refused

EVERY = (*KNOWN_FILES, *CONTROL_FILES)
OLDER = {"diffusion_models": "unet", "text_encoders": "clip"}
"""ComfyUI reads both."""
LAYOUTS = {
    "as documented": "{folder}/{name}",
    "at the top": "{name}",
    "an older name of the folder": "{older}/{name}",
    "a subfolder": "{folder}/wan/2.1/{name}",
    "as the Hub's command lays it down": "{folder}/split_files/{folder}/{name}",
    "a subfolder of the older folder": "{older}/wan/{name}",
    "another letter case": "{folder}/wan/{NAME}",
    "another letter case at the top": "{NAME}",
}


def lay(folder: Path, layout: str, role_folder: str, name: str) -> Path:
    older = OLDER.get(role_folder, role_folder)
    path = folder / layout.format(folder=role_folder, older=older, name=name, NAME=name.upper())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_model_is_found_wherever_comfyui_lists_it(layout, tmp_path):
    """All names of all roles. Catches: 28.6 GB asked for again, because they lie in a subfolder or in `unet`."""
    for known in EVERY:
        # At the top, a name's own folder is not looked for in other letters.
        for name in known.names if layout != "{NAME}" else [name for name in known.names if "/" not in name]:
            folder = tmp_path / known.role / name.replace("/", "_")
            path = lay(folder, layout, known.folder, name)
            assert find_models(folder, [known]) == {known.role: path}


def test_a_model_is_known_whatever_the_case_of_its_name():
    """By its preset. Catches: a model that is found, and run in another way."""
    assert known_model(Path("x/SELF_FORCING_SID.PT")) == known_model(Path("self_forcing_sid.pt"))
    assert known_model(Path("ChunkWise/Causal_Forcing.pt")).preset == "causal-forcing"


def test_what_was_found_before_still_comes_first(tmp_path, monkeypatch):
    """A better name deeper down changes nothing, and links that lead in circles are not followed for ever."""
    monkeypatch.setattr(model_files, "MOST_FILES", 500)
    usual = lay(tmp_path, "{folder}/{name}", "vae", "Wan2.1_VAE.pth")
    lay(tmp_path, "{folder}/new/{name}", "vae", "wan_2.1_vae.safetensors")
    (tmp_path / "vae" / "circle").symlink_to(tmp_path / "vae")
    (tmp_path / "vae" / "second").symlink_to(tmp_path / "vae")
    assert find_files(tmp_path, ("wan_2.1_vae.safetensors", "Wan2.1_VAE.pth"), ("vae",)) == usual
    usual.unlink()
    assert find_files(tmp_path, ("wan_2.1_vae.safetensors",), ("vae",)).is_file()


def test_a_linked_folder_is_searched(tmp_path):
    """As ComfyUI does: many keep their models on another disk."""
    lay(tmp_path / "disk", "{name}", "", "wan_2.1_vae.safetensors")
    (tmp_path / "models" / "vae").mkdir(parents=True)
    (tmp_path / "models" / "vae" / "disk").symlink_to(tmp_path / "disk")
    found = find_files(tmp_path / "models", ("wan_2.1_vae.safetensors",), ("vae",))
    assert found == tmp_path / "models" / "vae" / "disk" / "wan_2.1_vae.safetensors"


def test_a_model_in_a_folder_of_others_is_named_and_not_asked_for_again(tmp_path, capsys):
    """As the Hub's command lays it into the folder of all models. Catches: its source, and 28.6 GB."""
    models = tmp_path / "models"
    target = lay(models, "krea/{name}", "", "krea-realtime-video-14b.safetensors")
    encoder = lay(models, "split_files/text_encoders/{NAME}", "", "umt5_xxl_fp16.safetensors")
    lay(models, "vae/{name}", "", "wan_2.1_vae.safetensors")
    assert main(["doctor", "--models", str(models)]) == 0
    lines = capsys.readouterr().out
    assert f"MISSING: move {target} into diffusion_models/, or give it as --target" in lines
    assert "MISSING: get ImageReward.pt (1.79 GB) into image_reward/" in lines
    asked = ["generate", "--models", str(models), "--prompt", "x", "--output", str(tmp_path / "out")]
    sentence = refused(capsys, [*asked, "--target", str(target)])
    assert f"none was given or found in {models}; move {encoder} into text_encoders/, or give it as " in sentence
    assert "--text-encoder, or try --models pocket" in sentence


YAML = """
# of another program
a111:
    base_path: {disk}/web ui/
    checkpoints: models/Stable-diffusion
comfyui:
    is_default: true
    base_path: "{disk}/shared"   # quoted
    diffusion_models: |
         models/diffusion_models
         models/unet
    vae: models/vae/
    clip: C:\\models
relative:
    text_encoders: beside
empty:
"""


@pytest.mark.parametrize("place", ["ComfyUI", "ComfyUI/models"])
def test_the_folders_of_extra_model_paths_are_searched_after_the_models_folder(place, tmp_path):
    """As ComfyUI reads them: several lines, relative paths, comments. Catches: a base path of another section."""
    disk, models = tmp_path / "disk", tmp_path / "ComfyUI" / "models"
    models.mkdir(parents=True)
    (tmp_path / place / "extra_model_paths.yaml").write_text(YAML.format(disk=disk))
    target = lay(disk / "shared" / "models" / "unet", "wan/{name}", "", "krea-realtime-video-14b.safetensors")
    vae = lay(disk / "shared" / "models" / "vae", "{name}", "", "wan_2.1_vae.safetensors")
    encoder = lay(tmp_path / place / "beside", "{name}", "", "umt5_xxl_fp16.safetensors")
    lay(disk / "web ui" / "models" / "Stable-diffusion", "{name}", "", "self_forcing_dmd.pt")
    found = find_models(models)
    assert (found["target"], found["vae"], found["text_encoder"]) == (target, vae, encoder)
    assert found["drafter"] is None
    mine = lay(models, "{folder}/{name}", "vae", "wan_2.1_vae.safetensors")
    assert find_models(models)["vae"] == mine
    assert extra_folders(models, ("clip",)) == [disk / "shared" / "C:\\models"]


def test_a_base_directory_is_searched_in_its_models(tmp_path):
    vae = lay(tmp_path / "models", "{folder}/{name}", "vae", "wan_2.1_vae.safetensors")
    assert find_models(tmp_path)["vae"] == vae


SEXAGESIMAL = "59:" * 60_000 + "59"
REFUSED = {
    "no YAML": "a: [",
    "too long": "x" * 100_000,
    "a number of base 60": f"a: {SEXAGESIMAL}",
    "a NUL byte": '{a: {base_path: "x\\0y", vae: x}}',
    "half a character": '{a: {base_path: "x\\ud800y", vae: x}}',
    "a long name": f"{{a: {{vae: {'x' * 300}}}}}",
    "nested": "[" * 2_000,
    "a list as a name": "{[a]: b}",
    "within itself": "a: &a [*a]",
    "merges": "a: &a {vae: x}\nb: {<<: *a}",
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_a_file_of_paths_that_cannot_be_read_is_named(content, tmp_path):
    """Catches: a traceback, and minutes for a file made to hurt."""
    (tmp_path / "extra_model_paths.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match="yaml is not read"):
        find_models(tmp_path)


def test_an_empty_file_of_paths_names_none(tmp_path):
    (tmp_path / "extra_model_paths.yaml").touch()
    assert extra_folders(tmp_path, ("vae",)) == []


@pytest.mark.parametrize("value", ["59:59:59", "2026-11-28", "0x7f", "yes", "1_000", "!!int 59:59", "12e3"])
def test_every_value_of_a_path_is_text(value, tmp_path):
    """Catches: a folder of the name 2026-11-28 that is passed over, as YAML has another type for it."""
    (tmp_path / "extra_model_paths.yaml").write_text(f"comfyui:\n  vae: {value}\n", encoding="utf-8")
    assert extra_folders(tmp_path, ("vae",)) == [tmp_path / value.removeprefix("!!int ")]


def test_folders_of_too_many_files_are_refused(tmp_path, monkeypatch):
    """Catches: `base_path: /`, by which every role searches the whole disk, role by role."""
    monkeypatch.setattr(model_files, "MOST_SEARCHED", 25)
    for number in range(30):
        lay(tmp_path / "disk", "{name}", "", f"{number}.txt")
    (tmp_path / "extra_model_paths.yaml").write_text(
        f"c:\n  base_path: {tmp_path}\n  vae: disk\n", encoding="utf-8"
    )
    with pytest.raises(BadInput, match="over 25 files; name fewer"):
        find_models(tmp_path)


def test_a_folder_of_several_kinds_is_listed_once(tmp_path, monkeypatch):
    """Catches: minutes on a disk of many files that all kinds share."""
    listed = []
    glob = model_files.iglob
    monkeypatch.setattr(model_files, "iglob", lambda *what, **how: listed.append(how) or glob(*what, **how))
    kinds = "".join(f"  {kind}: disk\n" for kind in ("vae", "clip", "unet", "diffusion_models", "text_encoders"))
    (tmp_path / "extra_model_paths.yaml").write_text(f"c:\n{kinds}", encoding="utf-8")
    lay(tmp_path / "disk", "{name}", "", "other.txt")
    find_models(tmp_path)
    assert [how["root_dir"] for how in listed].count(tmp_path / "disk") == 1


def test_what_is_no_text_in_the_folders_of_comfyui_is_passed_over(tmp_path):
    """Catches a few aliases that stand for 10 ** 9 entries, whose text would fill the memory."""
    doubled = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))
    text = f"a0: &a0 [x, x]\n{doubled}\ncomfyui:\n  base_path: {tmp_path}\n  vae: *a9\n  loras: here\n"
    (tmp_path / "extra_model_paths.yaml").write_text(text, encoding="utf-8")
    assert extra_folders(tmp_path, ("vae", "loras")) == [tmp_path / "here"]


CLIP = torch.randn(1, 4, 12, 2, 2, generator=torch.Generator().manual_seed(0))
IMAGE = Lead(frames=12, start_image_frames=3)
PIXELS = Lead(frames=12, from_pixels=9)


@pytest.mark.parametrize("lead", [IMAGE, PIXELS], ids=["image", "pixels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("first", "last", "begins"), [(0, 12, True), (0, 6, True), (0, 2, True), (3, 12, False)])
def test_a_cut_clip_keeps_what_its_beginning_was_only_if_it_still_begins_so(
    first, last, begins, dtype, lead, tmp_path
):
    """Catches a tail that is taken for a start image, whose pixels are then left out of the video."""
    clip = CLIP.to(dtype)
    values = lead_metadata(lead, clip)
    cut = clip[:, :, first:last]
    frames = last - first
    kept = {
        "start_image_frames": min(lead.start_image_frames, frames),
        "from_pixels": min(lead.from_pixels, frames),
    }
    wanted = Lead(frames=frames, **(kept if begins else {}))
    assert read_lead(values, cut) == wanted
    save_latents(tmp_path / "cut.safetensors", cut, values)
    file = load_latents(tmp_path / "cut.safetensors")
    assert read_lead(file.metadata, file.latents) == wanted


def test_a_whole_clip_with_other_values_keeps_it():
    """A node between two samplers may sharpen latents; how many frames came as pixels is still true."""
    assert read_lead(lead_metadata(PIXELS, CLIP), CLIP * 1.01) == PIXELS


def test_a_clip_that_models_made_says_nothing():
    assert lead_metadata(Lead(frames=12), CLIP) == {}
    assert read_lead({}, CLIP) == Lead(frames=12)
