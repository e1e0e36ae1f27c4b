"""The choice to compile: refused where it cannot work, reported where it does, and never quietly left out."""

from __future__ import annotations

import subprocess

import pytest
import torch
from random_set import write_random_set

from sdvg_core.causal_wan import forward
from sdvg_core.cli import main
from sdvg_core.cli.options import load_options
from sdvg_core.devices import execution
from sdvg_core.devices.execution import Execution, check_compile, compiler_of
from sdvg_core.errors import BadInput
from sdvg_core.pipeline.checking import check_models
from sdvg_core.pipeline.identity import identify, identify_parts
from sdvg_core.pipeline.loading import load_models
from sdvg_core.pipeline.options import LoadOptions, ModelOptions
from sdvg_core.pipeline.request import VideoRequest
from sdvg_core.text.prompts import one_prompt

CPU = torch.device("cpu")


def failing(work, backend=None):
    def run(*arguments):
        raise RuntimeError("no C++ compiler found\nand a long trace")

    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_random_set(tmp_path_factory.mktemp("models"))


def options(**changes) -> LoadOptions:
    preset = ModelOptions(preset="krea-14b")
    return LoadOptions(drafter=preset, target=preset, execution=Execution(**changes))


def test_off_asks_for_nothing(monkeypatch):
    monkeypatch.setattr(execution, "compiled", failing)
    check_compile("off", CPU)
    assert compiler_of("off") is None
    assert compiler_of("default") == "inductor"


def test_where_compiling_fails_it_is_said_before_any_weight_is_read(files, monkeypatch):
    """Catches a run that goes on uncompiled."""
    monkeypatch.setattr(execution, "compiled", failing)
    with pytest.raises(BadInput, match=r"compiling failed \(no C\+\+ compiler found\); install a C\+\+ compiler"):
        check_models(files, options(compile="default"))


def test_a_compiler_that_ends_with_an_error_of_its_own_is_told_of_in_the_same_sentence(monkeypatch):
    """As it does without Python's headers, which a kernel's starter is compiled with when it is first used."""

    def failing(work):
        raise subprocess.CalledProcessError(1, ["gcc"])

    monkeypatch.setattr(execution, "compiled", failing)
    with pytest.raises(BadInput, match=r"compiling failed \(Command '\['gcc'\]' returned non-zero exit status 1"):
        check_compile("default", CPU)


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
    assert loaded.parts.execution == chosen.execution
    assert loaded.parts.vae["layers"] == "diffusers"
    layer = ["_before", "_between", "_after"]
    assert [name for name, _ in asked] == ["_trial", "_decode_frame", *layer, *layer]
    assert {backend for _, backend in asked} == {"inductor"}


def test_the_layers_that_auto_takes_are_named_wherever_results_are_compared(files):
    """Catches `auto` in a report, a key or a request: what it means depends on device and version."""
    auto, planes, plain = (options(vae_layers=name) for name in ("auto", "planes", "diffusers"))
    loaded = load_models(files, auto, check_models(files, auto))
    assert loaded.parts.vae["layers"] == loaded.parts.execution.vae_layers == "planes"
    codecs = [identify_parts(files, load, None, None).codec for load in (auto, planes, plain)]
    requests = [identify(files, load, VideoRequest(), one_prompt("a ball")) for load in (auto, planes, plain)]
    for one, same, other in (codecs, requests):
        assert one == same != other


def test_by_default_a_loaded_run_compiles_nothing(files, monkeypatch):
    for owner in (execution, forward):
        monkeypatch.setattr(owner, "compiled", failing)
    loaded = load_models(files, options(), check_models(files, options()))
    assert loaded.parts.execution.compile == "off"


def test_the_command_line_passes_the_choice_on():
    import argparse

    from sdvg_core.cli.shared import add_device_options, add_model_options

    parser = argparse.ArgumentParser()
    add_model_options(parser)
    add_device_options(parser)
    found = load_options(parser.parse_args(["--compile", "default", "--vae-layers", "diffusers"]))
    assert (found.execution.compile, found.execution.vae_layers) == ("default", "diffusers")


def test_layers_that_are_gone_are_refused_with_what_replaces_them(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "a ball", "--vae-layers", "channels-last"])
    assert "channels-last is gone; take planes" in capsys.readouterr().err
