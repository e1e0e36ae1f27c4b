"""ComfyUI has the names that the nodes use, with the parameters that they pass; what it lacks is named."""

from __future__ import annotations

from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import host_names
import pytest

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def examples() -> dict[str, Any]:
    return host_names.examples()


def faults(examples: dict[str, Any]) -> list[str]:
    return host_names.missing(host_names.used_names(), examples)


def test_this_comfyui_has_all_that_is_used(examples: dict[str, Any]) -> None:
    assert faults(examples) == []


def test_the_list_holds_modules_functions_and_classes() -> None:
    names = host_names.used_names()
    wanted = {
        "comfy.ldm.wan.model.WanModel",
        "comfy.model_management.load_models_gpu",
        "comfy_api.latest.io.Schema",
        "folder_paths.get_filename_list",
        "server.PromptServer",
    }
    assert wanted <= set(names)
    assert (1, ("memory_required", "minimum_memory_required")) in names["comfy.model_management.load_models_gpu"]


def renamed(patch: pytest.MonkeyPatch, examples: dict[str, Any]) -> str:
    patch.delattr(mm, "loaded_models")
    return "comfy.model_management.loaded_models is not there"


def parameter_gone(patch: pytest.MonkeyPatch, examples: dict[str, Any]) -> str:
    patch.setattr(mm, "load_models_gpu", lambda models, memory_required=0: None)
    return "comfy.model_management.load_models_gpu does not take 1 by position, memory_required, minimum"


def method_gone(patch: pytest.MonkeyPatch, examples: dict[str, Any]) -> str:
    patch.delattr(comfy.model_patcher.ModelPatcher, "set_attachments")
    return "patcher: set_attachments is not there"


def layer_renamed(patch: pytest.MonkeyPatch, examples: dict[str, Any]) -> str:
    patch.delattr(examples["layer"].self_attn, "norm_q")
    return "layer: self_attn.norm_q is not there"


@pytest.mark.parametrize("plant", [renamed, parameter_gone, method_gone, layer_renamed])
def test_what_is_missing_is_named(plant: Any, examples: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = plant(monkeypatch, examples)
    assert any(fault.startswith(sentence) for fault in faults(examples)), faults(examples)
