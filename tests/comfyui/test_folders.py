"""The pack loads on machines whose folders cannot be written or read: ComfyUI drops a pack whose loading fails."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import folder_paths
import pytest
from sdvg_pack.nodes import folders

pytestmark = pytest.mark.comfyui


@pytest.fixture(autouse=True)
def known_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ComfyUI has them without us."""
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", dict(folder_paths.folder_names_and_paths))
    folder_paths.folder_names_and_paths.pop(folders.CATEGORY, None)


def test_a_models_folder_that_cannot_be_written_is_told_and_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container may mount its models read-only. A file in the folder's place refuses to root as well."""
    (tmp_path / "models").touch()
    monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "models"))
    with caplog.at_level(logging.WARNING):
        folders.register_reward_folder()
    assert folders.reward_files() == []
    assert "image_reward" in caplog.text


def test_a_home_that_this_user_may_not_read_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as another user than its HOME belongs to."""
    real = os.stat

    def guarded(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "home")):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **more)

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "models"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", guarded)
        folders.register_reward_folder()
    assert folder_paths.folder_names_and_paths[folders.CATEGORY][0][0] == str(tmp_path / "models" / "image_reward")


def test_a_user_without_a_home_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may run without HOME, under a number that no user has."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "models"))
    folders.register_reward_folder()
    assert (tmp_path / "models" / "image_reward").is_dir()
