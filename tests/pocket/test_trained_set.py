"""The embedded set: whole or refused, small, in the published layouts. How good it is, tests/lab asks."""

import hashlib
import json

import pytest
import torch

from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.pocket import trained_set as embedded
from sdvg_core.weights.weight_file import open_weights


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A set of files that are no models, with their manifest."""
    files = {}
    for role, name in embedded.WEIGHT_FILES.items():
        (tmp_path / name).write_bytes(role.encode())
        files[role] = {"sha256": hashlib.sha256(role.encode()).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}), encoding="utf-8")
    monkeypatch.setattr(embedded, "WEIGHTS_FOLDER", tmp_path)
    return tmp_path


def test_whole_set_gives_its_files(folder):
    files = embedded.trained_set()
    assert {path.parent for path in (files.drafter, files.target, files.vae, files.reward)} == {folder}


@pytest.mark.parametrize("role", list(embedded.WEIGHT_FILES))
def test_a_damaged_or_missing_file_is_named(folder, role):
    path = folder / embedded.WEIGHT_FILES[role]
    path.write_bytes(b"?")
    with pytest.raises(BadInput, match=f"{path.name}, the embedded {role}, is damaged"):
        embedded.trained_set()
    path.unlink()
    with pytest.raises(BadInput, match=f"{path.name}, .*, is missing"):
        embedded.trained_set()


@pytest.mark.parametrize("text", [None, "{"])
def test_a_set_without_its_manifest_is_refused(folder, text):
    path = folder / "manifest.json"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"manifest\.json of the embedded models cannot be read"):
        embedded.trained_set()


@pytest.mark.heavy
def test_damaged_file_is_refused_where_read(tmp_path, monkeypatch, capsys):
    for path in embedded.WEIGHTS_FOLDER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / embedded.FAST_VAE_NAME).unlink()
    (tmp_path / embedded.FAST_VAE_NAME).write_bytes(b"?")
    monkeypatch.setattr(embedded, "WEIGHTS_FOLDER", tmp_path)
    assert embedded.trained_set().vae.parent == tmp_path
    assert main(["demo", "--output", str(tmp_path / "out")]) == 2
    assert "the embedded fast_vae, is damaged" in capsys.readouterr().err


def test_embedded_set_is_small_and_16_bit():
    """Catches: a file that the manifest does not list, or of another size."""
    files = embedded.manifest()["files"]
    names = {**embedded.WEIGHT_FILES, embedded.FAST_VAE: embedded.FAST_VAE_NAME}
    assert set(files) == set(names)
    assert {path.name for path in embedded.WEIGHTS_FOLDER.iterdir()} == {"manifest.json", *names.values()}
    assert sum(path.stat().st_size for path in embedded.WEIGHTS_FOLDER.iterdir()) < 26e6
    for role, known in files.items():
        path = embedded.WEIGHTS_FOLDER / names[role]
        assert path.stat().st_size == known["bytes"]
        if path.suffix == ".safetensors":
            kinds = {info.dtype for info in open_weights(path).info.values()}
            assert kinds <= {torch.float16, torch.uint8}
