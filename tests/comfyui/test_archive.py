"""The archive that the registry gets, installed alone into a clean ComfyUI."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from running_server import ROOT, running_server
from server_prompts import KEPT, REPORT, pocket

pytestmark = pytest.mark.comfyui


def test_the_archive_alone_makes_the_pocket_video(tmp_path: Path) -> None:
    """Catches a file that the nodes need and .comfyignore leaves out."""
    archive = tmp_path / "sdvg.zip"
    subprocess.run([sys.executable, ROOT / "release" / "archive.py", archive], check=True)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "sdvg")
    with running_server(tmp_path / "base", pack=tmp_path / "sdvg") as server:
        done = server.run(pocket())
        assert done.status == "success", done.message("execution_error")
        record = json.loads(done.outputs[REPORT]["sdvg_report"][0])
        assert len(record["blocks"]) == 3
        assert done.outputs[KEPT]["latents"]
