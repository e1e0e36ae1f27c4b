"""Checkpoint files as MODELs, also those that ComfyUI's own loader refuses."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import comfy.model_management
import comfy.sd
import comfy.utils
import folder_paths
import pytest
import torch
from sdvg_pack.nodes.host import files as loading
from sdvg_pack.nodes.host.files import choose_weight_dtype, load_checkpoint, load_model, plan_card
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.model import origin_of, preset_of
from sdvg_pack.nodes.host.reuse import host_part_keys
from sdvg_pack.nodes.host.sockets import RouterValue
from sdvg_pack.nodes.loaders import DrafterLoader, attach_control
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.memory.plan import plan
from sdvg_pack.sdvg_core.memory.sizes import PlanRequest
from sdvg_pack.sdvg_core.settings.context import Recompute, Rolling, get_preset
from sdvg_pack.sdvg_core.settings.request import VideoRequest
from sdvg_pack.sdvg_core.settings.route import Route

pytestmark = pytest.mark.comfyui


@pytest.mark.parametrize(
    "weights, taken", [("ema", "generator_ema"), ("raw", "generator"), ("auto", "generator_ema")]
)
def test_chosen_weights_are_loaded_for_every_device(files, weights, taken):
    """Catches a reload that forgets which state dict it was; the raw weights of this file are all zero.

    ComfyUI's device nodes call `cached_patcher_init`; without it they leave the MODEL where it is.
    """
    model = load_checkpoint(str(files.drafter), "default", None, weights)
    again, arguments = model.cached_patcher_init[:2]
    for patcher in (model, model.clone(), again(*arguments, disable_dynamic=True)):
        assert origin_of(patcher).state_dict == taken
        spread = float(patcher.model.diffusion_model.state_dict()["blocks.0.self_attn.q.weight"].float().std())
        assert (spread == 0) is (taken == "generator")
        assert bool(origin_of(patcher).notes) is (weights == "auto")


@pytest.mark.parametrize("name", [name for name, options in loading.WEIGHT_DTYPES.items() if options])
def test_weights_are_kept_in_chosen_eight_bits(files, name):
    """For either role, by ComfyUI's own casting."""
    model = load_model(str(files.drafter), name)
    layer = model.model.diffusion_model.blocks[0].self_attn.q
    assert layer.weight.dtype == loading.WEIGHT_DTYPES[name]["dtype"]
    inputs = torch.ones(1, 4, layer.in_features)
    wide = inputs @ layer.weight.float().T + layer.bias.float()
    assert torch.allclose(layer(inputs).float(), wide, rtol=0.1, atol=0.1)


def test_preset_chooses_weights_unless_the_loader_does(files):
    """Catches: a preset's raw weights, taken for the averaged ones."""
    path = str(files.drafter)
    raw = get_preset("causal-forcing")
    assert origin_of(load_checkpoint(path, "default", raw)).state_dict == "generator"
    assert origin_of(load_checkpoint(path, "default", raw, "ema")).state_dict == "generator_ema"
    assert origin_of(load_checkpoint(path, "default", raw)).notes == ()


@pytest.mark.parametrize(
    "name, flushed", [("causal-forcing", True), ("longlive-1.0", False), ("self-forcing-1.3b", False)]
)
def test_new_prompt_flushes_only_windows_trained_so(name, flushed, files):
    """Catches: a flush beside LongLive's recache."""
    preset = get_preset(name)
    context = preset_of(load_checkpoint(str(files.drafter), "default", preset, flush=True)).context
    assert (isinstance(context, Rolling) and context.flush) is flushed
    assert preset_of(load_checkpoint(str(files.drafter), "default", preset)) == preset


@pytest.mark.parametrize(
    "inputs, flushed", [({}, True), ({"new_prompt": "flush"}, True), ({"new_prompt": "keep"}, False)]
)
def test_loader_chooses_whether_new_prompts_flush(inputs, flushed, files):
    """Catches: a default that is not the widget's."""
    folder_paths.add_model_folder_path("diffusion_models", str(files.drafter.parent))
    preset = {"preset": "causal-forcing"}
    [model] = DrafterLoader.execute(file=files.drafter.name, weight_dtype="default", preset=preset, **inputs).args
    assert preset_of(model).context.flush is flushed


@pytest.fixture
def known_file(files, tmp_path):
    """A drafter under the name of a published file."""
    (tmp_path / "chunkwise").mkdir()
    return str(shutil.copy(files.drafter, tmp_path / "chunkwise" / "causal_forcing.pt"))


def test_known_file_chooses_its_preset(known_file):
    model = load_checkpoint(known_file, "default", None)
    assert preset_of(model).name == "causal-forcing"
    assert origin_of(model).state_dict == "generator"
    [note] = origin_of(model.clone()).notes
    assert "preset causal-forcing" in note


def test_stated_preset_overrides_a_known_file(known_file):
    model = load_checkpoint(known_file, "default", get_preset("longlive-1.0"))
    assert preset_of(model).name == "longlive-1.0"
    assert origin_of(model).notes == ()


def test_model_of_another_loader_has_its_sizes_preset(files):
    """Catches: a preset guessed for a size that none is known of."""
    model = load_model(str(files.target), "default")
    with pytest.raises(BadInput, match="no preset is known"):
        preset_of(model)
    tree = model.model.diffusion_model
    for config, name in ((WAN_1_3B, "self-forcing-1.3b"), (WAN_14B, "krea-14b")):
        for field in ("dim", "ffn_dim", "num_layers", "num_heads"):
            assert hasattr(tree, field)
            setattr(tree, field, getattr(config, field))
        assert preset_of(model).name == name


def load_by_node(**inputs):
    chosen = {"file": "none", "weight_dtype": "auto", "preset": {"preset": "longlive-1.0"}, **inputs}
    [loaded] = DrafterLoader.execute(**chosen).args
    return loaded


def test_wired_model_gets_the_preset_of_its_loader(files):
    """A size without a preset, behind GGUF's loader. Catches: *name one*, where no node can."""
    model = load_model(str(files.target), "default")
    with pytest.raises(BadInput, match="wire it through SDVG Drafter Loader"):
        preset_of(model)
    loaded = load_by_node(model=model)
    assert preset_of(loaded).name == "longlive-1.0"
    assert not preset_of(loaded).context.flush
    assert loaded.model is model.model
    custom = {"preset": "custom", "block_frames": 1, "policy": "incremental"}
    assert preset_of(load_by_node(model=model, preset=custom)).block_frames == 1
    assert preset_of(load_by_node(model=model, preset={"preset": "causal-forcing"})).context.flush
    assert preset_of(load_by_node(model=loaded, preset={"preset": "auto"})).name == "longlive-1.0"
    assert origin_of(model).preset is None


def test_changed_widget_of_another_context_is_noted(files):
    """Catches: a window that is set and never used, or one that is refused where a user only looked at it."""
    model = load_model(str(files.target), "default")
    custom = {"preset": "custom", "block_frames": 3, "policy": "recompute", "window": 12, "relative": True}
    loaded = load_by_node(model=model, preset=custom)
    assert preset_of(loaded).context == Recompute()
    assert origin_of(loaded).notes[-1:] == ("Without effect with recompute: window.",)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"file": "tiny_krea.safetensors", "model": True}, "set file to none"),
        ({"weight_dtype": "fp8_e4m3fn", "model": True}, "set file to none"),
        ({"weights": "ema", "model": True}, "set file to none"),
        ({}, "choose a file"),
    ],
)
def test_one_model_of_file_and_wire_is_taken(changes, words, files):
    """Catches: a choice that has no effect, unsaid."""
    folder_paths.add_model_folder_path("diffusion_models", str(files.target.parent))
    if "model" in changes:
        changes = {**changes, "model": load_model(str(files.target), "default")}
    with pytest.raises(BadInput, match=words):
        load_by_node(**changes)


def test_control_of_wire_and_file_is_refused(files):
    """Catches: one of two controls, chosen without a word."""
    model = load_model(str(files.target), "default")
    with pytest.raises(BadInput, match="control and control_file both"):
        attach_control(model, "drafter", model, "vace.safetensors")


# --- auto as the weight dtype


FP8 = "fp8_e4m3fn"
DEFAULT = "default"
CARDS = {12: FP8, 16: FP8, 24: FP8, 48: DEFAULT, 80: DEFAULT}


def checkpoint(quantisation="none"):
    """Stands in for an opened file of the real size."""
    path = Path("krea-realtime-video-14b.safetensors")
    label = SimpleNamespace(label=quantisation)
    return SimpleNamespace(config=WAN_14B, quantisation=label, weights=SimpleNamespace(path=path))


def put_in(monkeypatch, gigabytes, kind="cuda"):
    """Let the machine have a card of that size."""
    device = torch.device(kind)
    monkeypatch.setattr(comfy.model_management, "get_torch_device", lambda: device)
    monkeypatch.setattr(comfy.model_management, "get_total_memory", lambda on: gigabytes * 2**30)


@pytest.mark.parametrize("gigabytes, expected", CARDS.items())
def test_auto_weight_dtype_is_what_the_planner_chooses(gigabytes, expected, monkeypatch):
    """Catches: weights in 8 bits where the whole ones fit, or the other way round."""
    put_in(monkeypatch, gigabytes)
    chosen, note = choose_weight_dtype(checkpoint(), get_preset("krea-14b"), "target")
    assert chosen == expected == (FP8 if plan(gigabytes, PlanRequest(), card=True).fp8 else DEFAULT)
    assert f"auto is {chosen} for krea-realtime-video-14b.safetensors" in note
    assert f"a card of {gigabytes} GB" in note
    assert ("convert" in note) == (gigabytes < 48), "the command for a smaller file, where one would copy less"


@pytest.mark.parametrize("gigabytes", CARDS)
def test_plan_that_fits_leaves_room_for_cuda(gigabytes):
    """Catches: a plan that takes the whole card."""
    card = plan_card(gigabytes * 2**30, WAN_14B, None)
    assert card.fits == (gigabytes > 12)
    assert card.fits == (card.peak <= gigabytes * 2**30 - 1_800_000_000)


@pytest.mark.parametrize(
    "kind, quantisation, role",
    [("cpu", "none", "target"), ("cuda", "scaled fp8", "target"), ("cuda", "none", "drafter")],
    ids=["on a CPU", "of an fp8 file", "of a drafter"],
)
def test_weights_stay_as_they_are(kind, quantisation, role, monkeypatch):
    """Catches: weights that are rounded where that saves nothing."""
    put_in(monkeypatch, 12, kind)
    assert choose_weight_dtype(checkpoint(quantisation), None, role) == (DEFAULT, "")


@pytest.fixture
def auto_is_fp8(monkeypatch):
    """What `auto` is asked about, where it answers with 8 bits."""
    questions = []

    def choose(checkpoint, preset, role):
        questions.append((preset, role))
        return FP8, "chosen"

    monkeypatch.setattr(loading, "choose_weight_dtype", choose)
    return questions


def test_model_is_loaded_in_the_chosen_dtype(files, auto_is_fp8):
    """Catches: a choice on the loader that its MODEL does not have; `default` that asks all the same."""
    preset = get_preset("custom")
    small = load_checkpoint(str(files.target), "auto", preset)
    assert small.model_dtype() == torch.float8_e4m3fn
    assert origin_of(small).notes == ("chosen",)
    assert auto_is_fp8 == [(preset, "target")]
    assert load_checkpoint(str(files.target), DEFAULT, preset).model_dtype() == torch.float32


def test_blocks_of_another_weight_dtype_have_other_keys(files):
    """Catches: blocks that were made in 8 bits, used in a run without."""
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(files.vae)))
    keys = set()
    for dtype in (DEFAULT, FP8):
        target = load_checkpoint(str(files.target), dtype, get_preset("custom"))
        router = RouterValue(Route(), None)
        job = Job(target=target, vae=vae, router=router, prompts=(), request=VideoRequest(blocks=1))
        keys.add(host_part_keys(job).target)
    assert len(keys) == 2


def test_auto_on_a_cpu_loads_without_a_note(files):
    assert origin_of(load_checkpoint(str(files.target), "auto", get_preset("custom"))).notes == ()
