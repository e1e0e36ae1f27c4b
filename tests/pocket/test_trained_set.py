"""The embedded set is taken whole and undamaged, or refused by the name of what is wrong."""

import hashlib
import json

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.pocket import trained_set as embedded


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A set of files that are no models, with their manifest."""
    files = {}
    for role, name in embedded.NAMES.items():
        (tmp_path / name).write_bytes(role.encode())
        files[role] = {"sha256": hashlib.sha256(role.encode()).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}), encoding="utf-8")
    monkeypatch.setattr(embedded, "FOLDER", tmp_path)
    return tmp_path


def test_a_whole_set_is_found(folder):
    files = embedded.trained_set()
    assert {path.parent for path in (files.drafter, files.target, files.vae, files.reward)} == {folder}


@pytest.mark.parametrize("role", list(embedded.NAMES))
def test_a_damaged_or_missing_file_is_named(folder, role):
    path = folder / embedded.NAMES[role]
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
