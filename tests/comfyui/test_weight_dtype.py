"""`auto` as the weight dtype: what the planner says of the card, known by its size alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.model_management
import comfy.sd
import comfy.utils
import pytest
import torch
from random_set import write_random_set
from sdvg_pack.nodes.host import files
from sdvg_pack.nodes.host.files import CARD_GB, choose_weight_dtype, load_checkpoint, plan_card
from sdvg_pack.nodes.host.identity import identify
from sdvg_pack.nodes.host.model import file_notes
from sdvg_pack.nodes.loaders import DrafterLoader, TargetLoader
from sdvg_pack.sdvg_core.causal_wan.config import WAN_14B
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.devices.execution import Execution
from sdvg_pack.sdvg_core.plan.choose import plan

pytestmark = pytest.mark.comfyui

FP8, DEFAULT = "fp8_e4m3fn", "default"
CARDS = {12: FP8, 16: FP8, 24: FP8, 48: DEFAULT, 80: DEFAULT}


def checkpoint(quantisation: str = "none") -> Any:
    """Stands in for an opened file of the real size."""
    path = Path("krea-realtime-video-14b.safetensors")
    label = SimpleNamespace(label=quantisation)
    return SimpleNamespace(config=WAN_14B, quantisation=label, weights=SimpleNamespace(path=path))


def put_in(monkeypatch: pytest.MonkeyPatch, gigabytes: float, kind: str = "cuda") -> None:
    """Let the machine have a card of that size."""
    device = torch.device(kind)
    monkeypatch.setattr(comfy.model_management, "get_torch_device", lambda: device)
    monkeypatch.setattr(comfy.model_management, "get_total_memory", lambda on: gigabytes * CARD_GB)


@pytest.mark.parametrize("gigabytes, expected", CARDS.items())
def test_the_choice_is_the_planners_and_what_it_plans_fits(
    gigabytes: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, gigabytes)
    chosen, told = choose_weight_dtype(checkpoint(), get_preset("krea-14b"), "target")
    assert chosen == expected == (FP8 if plan(gigabytes).setting.fp8 else DEFAULT)
    assert f"auto is {chosen} for krea-realtime-video-14b.safetensors" in told
    assert f"a card of {gigabytes} GB" in told
    found = plan_card(gigabytes * CARD_GB, WAN_14B, None)
    assert found.fits
    assert found.peak <= gigabytes * 10**9


@pytest.mark.parametrize(
    "kind, quantisation, role",
    [("cpu", "none", "target"), ("cuda", "scaled fp8", "target"), ("cuda", "none", "drafter")],
    ids=["on a CPU", "of an fp8 file", "of a drafter"],
)
def test_weights_stay_as_they_are(kind: str, quantisation: str, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, 12, kind)
    assert choose_weight_dtype(checkpoint(quantisation), None, role) == (DEFAULT, "")


@pytest.mark.parametrize("preset", [None, get_preset("causal-forcing-framewise"), get_preset("longlive-1.0")])
def test_a_target_of_any_preset_is_planned(preset: Any) -> None:
    assert plan_card(24 * CARD_GB, WAN_14B, preset).setting.fp8


def test_a_model_is_loaded_in_the_dtype_that_was_chosen_and_reused_blocks_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, preset = write_random_set(tmp_path), get_preset("custom")
    path, asked = str(made.target), []
    whole = load_checkpoint(path, "auto", preset)
    assert file_notes(whole) == ()

    def choose(found: Any, known: Any, role: str) -> tuple[str, str]:
        asked.append((found.config, known, role))
        return FP8, "chosen"

    monkeypatch.setattr(files, "choose_weight_dtype", choose)
    small = load_checkpoint(path, "auto", preset)
    assert (small.model_dtype(), file_notes(small)) == (torch.float8_e4m3fn, ("chosen",))
    assert asked[0][1:] == (preset, "target")
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(made.vae)))
    keys = [
        identify({"target": (model, preset)}, {"vae": vae}, None, Execution(), "auto").target
        for model in (whole, small)
    ]
    assert keys[0] != keys[1]
    assert load_checkpoint(path, DEFAULT, preset).model_dtype() == whole.model_dtype() != small.model_dtype()


@pytest.mark.parametrize("node, role", [(DrafterLoader, "drafter"), (TargetLoader, "target")])
def test_each_loader_states_its_role_and_auto_is_for_new_nodes(node: Any, role: str) -> None:
    [dtype] = [one for one in node.define_schema().inputs if one.id == "weight_dtype"]
    assert (dtype.options, dtype.default) == (["auto", *files.WEIGHT_DTYPES], "auto")
    assert node.role == role
