"""Models are found where ComfyUI finds them, and a file of their name elsewhere is named, not fetched again."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import refused

from sdvg_core.checkpoints import model_files
from sdvg_core.checkpoints.known_models import known_model
from sdvg_core.checkpoints.model_files import CONTROL_FILES, KNOWN_FILES, find_files, find_models
from sdvg_core.cli import main

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
