"""The names that a Python program imports: what they refuse, and what they print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sdvg_core
from sdvg_core import (
    BadInput,
    Streamer,
    VideoRequest,
    make,
    pocket_options,
    read_report,
    route_preset,
    trained_set,
)

PROMPT = "a big red ball runs right from the left over sand"
ODD = (None, 5, "text", "", "a" * 300, "a\0b", "\ud800", b"x", [], {}, object(), float("nan"), len)
CALLS = {
    "the models of make": lambda value: make(PROMPT, models=value, out="nowhere/../x"),
    "the folder of make": lambda value: make(PROMPT, out=value, blocks=0),
    "the preset of make": lambda value: make(PROMPT, preset=value, out="nowhere/../x"),
    "a picture of make": lambda value: make(PROMPT, start_image=value, out="nowhere/../x"),
    "the lines of make": lambda value: make(PROMPT, say="x" if callable(value) else value, out="nowhere/../x"),
    "a report": read_report,
    "a preset": route_preset,
    "the files of a streamer": lambda value: Streamer(value, pocket_options()),
    "the options of a streamer": lambda value: Streamer(trained_set(), value),
}


@pytest.mark.parametrize("value", ODD, ids=lambda value: ascii(value)[:12])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_argument_of_another_type_is_refused(call, value, tmp_path, monkeypatch):
    """Catches: `'NoneType' object has no attribute ...` for a mistake in a call of ours."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput):
        call(value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["models", "out", "say"])
def test_refusal_names_the_argument(name):
    """Catches: another one than the one that is wrong."""
    with pytest.raises(BadInput, match=f"^{name} is 7; give a "):
        make(PROMPT, **{name: 7})


@pytest.mark.parametrize("value", ["", [], "other"])
def test_value_that_is_no_preset_is_refused(value, tmp_path):
    """Catches: an empty preset that runs the default one."""
    with pytest.raises(BadInput, match="preset"):
        make(PROMPT, preset=value, models="pocket", blocks=1, out=tmp_path / "out")


@pytest.fixture(scope="module")
def streamer() -> Streamer:
    return Streamer(trained_set(), pocket_options())


@pytest.mark.parametrize("value", ODD, ids=lambda value: ascii(value)[:12])
def test_a_stream_of_anything_else_is_refused(streamer, value):
    """Catches: an error about an attribute, or a stream that is left open."""
    with pytest.raises(BadInput, match="request is"):
        streamer.stream(value, PROMPT)
    if value not in ("text", "a" * 300):
        with pytest.raises(BadInput):
            streamer.stream(VideoRequest(blocks=1, width=64, height=64), value)


def test_path_of_a_report_may_be_text(tmp_path):
    """The file is missing, so the file is refused and not the text. Catches: a path that must be a `Path`."""
    with pytest.raises(BadInput, match="is no run report"):
        read_report(str(tmp_path / "report.json"))


def test_public_names_are_listed_without_importing():
    """Catches: completion that offers modules, and none of the names."""
    program = "import sdvg_core, sys; print(*dir(sdvg_core), 'torch' in sys.modules)"
    environment = {"PYTHONPATH": str(Path(sdvg_core.__file__).parents[1])}
    listed = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment).split()
    assert {"make", "Streamer", "BadInput", "__version__"} <= set(listed)
    assert "import_module" not in listed
    assert listed[-1] == "False"
    assert all(getattr(sdvg_core, name) for name in dir(sdvg_core))


def test_make_prints_nothing_unless_it_is_asked(tmp_path, capfd):
    """Catches: lines on the standard error of somebody else's program."""
    request = {"preset": "fast", "blocks": 2, "seed": 3}
    lines: list[str] = []
    folder, _ = make(PROMPT, out=tmp_path / "silent", **request)
    other, _ = make(PROMPT, out=tmp_path / "spoken", say=lines.append, **request)
    assert capfd.readouterr() == ("", "")
    assert lines[0].startswith("loading ")
    assert [line.partition(":")[0] for line in lines[-2:]] == ["block 1/2", "block 2/2"]
    assert (folder / "latents.safetensors").read_bytes() == (other / "latents.safetensors").read_bytes()
