"""The choice to compile: refused where it cannot work, reported where it does, and never quietly left out."""

from __future__ import annotations

import subprocess

import pytest

from sdvg_core.causal_wan import forward
from sdvg_core.devices import execution
from sdvg_core.devices.execution import Execution
from sdvg_core.errors import BadInput
from sdvg_core.models.headers import check_models, part_fingerprints
from sdvg_core.models.loading import load_models
from sdvg_core.models.options import LoadOptions, ModelOptions
from sdvg_core.request.request import VideoRequest
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos.identity import request_fingerprint


def options(**changes) -> LoadOptions:
    preset = ModelOptions(preset="krea-14b")
    return LoadOptions(drafter=preset, target=preset, execution=Execution(**changes))


NO_HEADERS = subprocess.CalledProcessError(1, ["gcc"])  # of Python, needed when a kernel is first used


@pytest.mark.parametrize(
    "error, words",
    [
        (
            RuntimeError("no C++ compiler found\nand a long trace"),
            r"no C\+\+ compiler found\); install a C\+\+ compiler",
        ),
        (NO_HEADERS, r"Command '\['gcc'\]' returned non-zero exit status 1"),
    ],
)
def test_where_compiling_fails_it_is_said_before_any_weight_is_read(files, monkeypatch, error, words):
    """Catches a run that goes on uncompiled."""

    def failing(work, backend=None):
        raise error

    monkeypatch.setattr(execution, "compiled", failing)
    with pytest.raises(BadInput, match=r"compiling failed \(" + words):
        check_models(files, options(compile="default"))
    loaded = load_models(files, options(), check_models(files, options()))
    assert loaded.execution.compile == "off"


def test_a_loaded_run_uses_and_reports_what_was_chosen(files, monkeypatch):
    asked = []

    def note(work, backend="inductor"):
        asked.append((work.__name__, backend))
        return work

    monkeypatch.setattr(execution, "compiled", note)
    monkeypatch.setattr(forward, "compiled", note)
    monkeypatch.setattr("sdvg_core.decoders.wan_vae.compiled", note)
    chosen = options(compile="default", vae_layers="diffusers")
    loaded = load_models(files, chosen, check_models(files, chosen))
    assert loaded.execution == chosen.execution
    assert loaded.settings["vae"]["layers"] == "diffusers"
    layer = ["_before", "_between", "_after"]
    assert [name for name, _ in asked] == ["_trial", "_decode_frame", *layer, *layer]
    assert {backend for _, backend in asked} == {"inductor"}


def test_the_layers_of_the_vae_are_named_wherever_results_are_compared(files):
    """Catches a report, a key or a request without them: other layers round otherwise."""
    usual, planes, plain = options(), options(vae_layers="planes"), options(vae_layers="diffusers")
    loaded = load_models(files, usual, check_models(files, usual))
    assert loaded.settings["vae"]["layers"] == loaded.execution.vae_layers == "planes"
    codecs = [part_fingerprints(files, load, {}).codec for load in (usual, planes, plain)]
    requests = [
        request_fingerprint(files, load, VideoRequest(), one_prompt("a ball")) for load in (usual, planes, plain)
    ]
    for one, same, other in (codecs, requests):
        assert one == same != other
