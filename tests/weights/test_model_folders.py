"""Models are found where ComfyUI finds them, and a file of their name elsewhere is named, not fetched again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.weights import model_files
from sdvg_core.weights.extra_paths import extra_folders
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
    """Make an empty file of this name, where a layout of folders has it."""
    older = OLDER.get(role_folder, role_folder)
    path = folder / layout.format(folder=role_folder, older=older, name=name, NAME=name.upper())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_models_are_found_wherever_comfyui_lists_them(layout, tmp_path):
    """All names of all roles. Catches: 28.6 GB asked for again, because they lie in a subfolder or in `unet`."""
    for known in EVERY:
        # At the top, a name's own folder is not looked for in other letters.
        for name in known.names if layout != "{NAME}" else [name for name in known.names if "/" not in name]:
            folder = tmp_path / known.role / name.replace("/", "_")
            path = lay(folder, layout, known.folder, name)
            assert find_models(folder, [known]) == {known.role: path}


def test_model_is_known_in_any_letter_case():
    """By its preset. Catches: a model that is found, and run in another way."""
    assert known_model(Path("x/SELF_FORCING_SID.PT")) == known_model(Path("self_forcing_sid.pt"))
    assert known_model(Path("ChunkWise/Causal_Forcing.pt")).preset == "causal-forcing"


def test_usual_place_goes_before_better_names(tmp_path):
    """Catches: another file taken than before, since a better name lies deeper down."""
    usual = lay(tmp_path, "{folder}/{name}", "vae", "Wan2.1_VAE.pth")
    lay(tmp_path, "{folder}/new/{name}", "vae", "wan_2.1_vae.safetensors")
    assert find_files(tmp_path, ("wan_2.1_vae.safetensors", "Wan2.1_VAE.pth"), ("vae",)) == usual


@pytest.mark.parametrize(
    "files",
    [
        ("z/model.pt", "a/b/c/model.pt", "a/b/model.pt"),
        ("a/model.pt", "b/model.pt"),
        ("a/b/c/model.pt", "z/smaller.pt"),
        ("MODEL.pt", "a/model.pt"),
    ],
    ids=["least nested", "first in the alphabet", "better name", "another letter case"],
)
def test_several_fitting_files_have_an_order(files, tmp_path):
    """The first of them is taken. Catches: a copy in a folder of old models that comes first in a listing."""
    for file in reversed(files):
        lay(tmp_path, "{folder}/{name}", "vae", file)
    assert find_files(tmp_path, ("model.pt", "smaller.pt"), ("vae",)) == tmp_path / "vae" / files[0]


def test_circles_of_links_end(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "MOST_FILES", 500)
    lay(tmp_path, "{folder}/new/{name}", "vae", "wan_2.1_vae.safetensors")
    (tmp_path / "vae" / "circle").symlink_to(tmp_path / "vae")
    (tmp_path / "vae" / "second").symlink_to(tmp_path / "vae")
    assert find_files(tmp_path, ("wan_2.1_vae.safetensors",), ("vae",)).is_file()


def test_linked_folder_is_searched(tmp_path):
    """As ComfyUI does: many keep their models on another disk."""
    lay(tmp_path / "disk", "{name}", "", "wan_2.1_vae.safetensors")
    (tmp_path / "models" / "vae").mkdir(parents=True)
    (tmp_path / "models" / "vae" / "disk").symlink_to(tmp_path / "disk")
    file = find_files(tmp_path / "models", ("wan_2.1_vae.safetensors",), ("vae",))
    assert file == tmp_path / "models" / "vae" / "disk" / "wan_2.1_vae.safetensors"


def test_model_elsewhere_is_named_not_fetched_again(tmp_path, capsys):
    """As the Hub's command lays it into the folder of all models. Catches: its source, and 28.6 GB."""
    models = tmp_path / "models"
    target = lay(models, "krea/{name}", "", "krea-realtime-video-14b.safetensors")
    encoder = lay(models, "split_files/text_encoders/{NAME}", "", "umt5_xxl_fp16.safetensors")
    lay(models, "vae/{name}", "", "wan_2.1_vae.safetensors")
    assert main(["doctor", "--models", str(models)]) == 0
    lines = capsys.readouterr().out
    assert f"MISSING: move {target} into diffusion_models/, or give it as --target" in lines
    assert "MISSING: get ImageReward.pt (1.79 GB) into image_reward/" in lines
    words = ["generate", "--models", str(models), "--prompt", "x", "--output", str(tmp_path / "out")]
    sentence = refused(capsys, [*words, "--target", str(target)])
    # Of a long sentence the middle is left out.
    assert f"{encoder.name} into text_encoders/, or give it as --text-encoder" in sentence


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
def test_extra_model_paths_are_searched_last(place, tmp_path):
    """As ComfyUI reads them: several lines, relative paths, comments. Catches: a base path of another section."""
    disk = tmp_path / "disk"
    models = tmp_path / "ComfyUI" / "models"
    models.mkdir(parents=True)
    (tmp_path / place / "extra_model_paths.yaml").write_text(YAML.format(disk=disk))
    target = lay(disk / "shared" / "models" / "unet", "wan/{name}", "", "krea-realtime-video-14b.safetensors")
    vae = lay(disk / "shared" / "models" / "vae", "{name}", "", "wan_2.1_vae.safetensors")
    encoder = lay(tmp_path / place / "beside", "{name}", "", "umt5_xxl_fp16.safetensors")
    lay(disk / "web ui" / "models" / "Stable-diffusion", "{name}", "", "self_forcing_dmd.pt")
    files = find_models(models)
    assert (files["target"], files["vae"], files["text_encoder"]) == (target, vae, encoder)
    assert files["drafter"] is None
    usual = lay(models, "{folder}/{name}", "vae", "wan_2.1_vae.safetensors")
    assert find_models(models)["vae"] == usual
    assert extra_folders(models, ("clip",)) == [disk / "shared" / "C:\\models"]


def test_base_directory_is_searched_in_its_models(tmp_path):
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
def test_unreadable_file_of_paths_is_named(content, tmp_path):
    """Catches: a traceback, and minutes for a file made to hurt."""
    (tmp_path / "extra_model_paths.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match="yaml is not read"):
        find_models(tmp_path)


def test_empty_file_of_paths_names_none(tmp_path):
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


def test_folder_of_several_kinds_is_listed_once(tmp_path, monkeypatch):
    """Catches: minutes on a disk of many files that all kinds share."""
    listed = []
    glob = model_files.iglob

    def noting(pattern, *, root_dir, **options):
        listed.append(root_dir)
        return glob(pattern, root_dir=root_dir, **options)

    monkeypatch.setattr(model_files, "iglob", noting)
    kinds = "".join(f"  {kind}: disk\n" for kind in ("vae", "clip", "unet", "diffusion_models", "text_encoders"))
    (tmp_path / "extra_model_paths.yaml").write_text(f"c:\n{kinds}", encoding="utf-8")
    lay(tmp_path / "disk", "{name}", "", "other.txt")
    find_models(tmp_path)
    assert listed.count(tmp_path / "disk") == 1


def test_paths_that_are_no_text_are_ignored(tmp_path):
    """Catches a few aliases that stand for 10 ** 9 entries, whose text would fill the memory."""
    doubled = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))
    text = f"a0: &a0 [x, x]\n{doubled}\ncomfyui:\n  base_path: {tmp_path}\n  vae: *a9\n  loras: here\n"
    (tmp_path / "extra_model_paths.yaml").write_text(text, encoding="utf-8")
    assert extra_folders(tmp_path, ("vae", "loras")) == [tmp_path / "here"]
