"""docs/models.md is what the code knows, and the table of models is whole and consistent."""

import re
import runpy
from pathlib import Path

import pytest

from sdvg_core.causal_wan.presets import PRESETS
from sdvg_core.checkpoints.known_models import KNOWN_MODELS, known_model
from sdvg_core.checkpoints.model_files import KNOWN_FILES

ROOT = Path(__file__).resolve().parents[2]
each = pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda m: m.name)


def test_the_page_is_what_the_code_gives():
    """After a change: python docs/list_models.py."""
    script = runpy.run_path(str(ROOT / "docs" / "list_models.py"))
    written = script["page"]()
    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == written
    assert all(name in written for name in (*script["OTHERS"], *(model.name for model in KNOWN_MODELS)))


@each
def test_a_row_is_whole(model):
    assert model.preset in PRESETS
    assert all((model.files, model.licence, model.repository))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", model.read)
    assert Path(model.path).name == Path(model.files[0]).name
    assert bool(model.sha256) == bool(model.digest_source)
    assert model.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", model.sha256)


@each
def test_the_file_of_a_row_leads_back_to_it(model):
    for name in model.files:
        assert known_model(Path("models/diffusion_models") / name) is model
    assert known_model(Path(model.path)) is model


def test_the_files_looked_for_are_those_of_the_table():
    for known in KNOWN_FILES[:2]:
        rows = [model for model in KNOWN_MODELS if model.role == known.role]
        assert known.names == tuple(name for row in rows for name in row.files)
        assert known.source.startswith(rows[0].repository)
        assert known.gigabytes == rows[0].gigabytes
