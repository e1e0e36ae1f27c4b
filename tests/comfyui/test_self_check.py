"""The self-check: ComfyUI's own layer, control block and VAE against ours, and a host's changes that it catches."""

import json
from dataclasses import replace

import comfyui_version
import pytest
import torch
from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor
from host_run import changed, load_parts, make_job, state_of, video_of
from host_tiny import CONFIG, load_model, load_vae, random_weights, with_lora
from host_vace import job_of, load_vace, positive
from sdvg_pack.nodes.host import self_check
from sdvg_pack.nodes.host.model import CONTROL, attach_origin
from sdvg_pack.nodes.host.self_check import check_host
from sdvg_pack.nodes.run import run_job
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.settings.context import get_preset
from stored_weights import STORED

from tests.support.thinned import in_turn

pytestmark = pytest.mark.comfyui


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch):
    monkeypatch.setattr(self_check, "_CHECKED", type(self_check._CHECKED)())


def job_over(parts, patcher):
    """A job of one block by a target."""
    target = attach_origin(patcher, preset=get_preset("krea-14b"))
    return make_job(replace(parts, target=target), script="r")


def compared(patcher, *dtypes):
    """The differences of one layer, by dtype."""
    with torch.inference_mode():
        return dict(self_check._compared(patcher, "it", dtypes, lambda dtype: self_check._layer(patcher, dtype)))


# --- what agrees

FINE = "tokens of one latent pixel"


@in_turn("stored, share", [*STORED, "float32 with a LoRA", FINE], [None, 0, 0.5])
def test_host_that_agrees_is_taken(stored, share, parts, tmp_path):
    """Whatever its weights are stored in, also partly loaded. Catches: a refusal for nothing but rounding."""
    stored, _, lora = stored.partition(" with ")
    if stored == FINE:
        weights = random_weights(4, replace(CONFIG, patch_size=(1, 1, 1)))
        patcher = load_model(tmp_path, weights, patch_size=[1, 1, 1], out_dim=16)
    else:
        patcher = load_model(tmp_path, STORED[stored](random_weights()))
    job = job_over(parts, with_lora(patcher) if lora else patcher)
    if share is not None:
        job.target.load(torch.device("cpu"), lowvram_model_memory=1 + int(share * patcher.model_size()))
    wired = replace(parts, target=job.target)
    before = state_of(wired)
    differences = check_host(job)
    assert "float32" in differences
    assert changed(before, state_of(wired)) == [], "nothing is left on the MODEL"


def test_passed_check_is_in_the_record_alone(parts):
    """Catches: a figure for developers among the notes that an artist reads."""
    report = run_job(make_job(parts))[2]
    assert "float32" in report.settings["host_differences"]
    assert [note for note in report.notes if "ComfyUI" in note] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_model_is_also_compared_in_float32(dtype, tmp_path):
    """Catches: layers that ComfyUI loaded in their dtype, which take no other without a cast; a cast left on."""
    patcher = load_model(tmp_path, {name: w.to(dtype) for name, w in random_weights().items()})
    tree = patcher.model.diffusion_model.to(dtype)
    tree.patch_embedding.float()
    for module in tree.modules():
        module.comfy_cast_weights = False
    patcher.set_model_compute_dtype(dtype)
    patcher.model.manual_cast_dtype = dtype
    differences = compared(patcher, dtype, torch.float32)
    assert list(differences) == [str(dtype).removeprefix("torch."), "float32"]
    assert differences["float32"] < 1e-5
    assert not any(module.comfy_cast_weights for module in tree.modules())


def quantised(form):
    """The weights of a layer that is wide enough for every form, as ComfyUI writes them in that form."""
    weights = {}
    for name, weight in random_weights(0, replace(CONFIG, dim=256, ffn_dim=512, num_layers=1)).items():
        if weight.ndim != 2 or not name.startswith("blocks."):
            weights[name] = weight.bfloat16()
            continue
        tensor = QuantizedTensor.from_float(weight.bfloat16(), QUANT_ALGOS[form]["comfy_tensor_layout"])
        parts = {key: part.contiguous() for key, part in tensor.state_dict(name).items() if torch.is_tensor(part)}
        stated = json.dumps({"format": form}).encode()
        mark = torch.tensor(list(stated), dtype=torch.uint8)
        weights |= {**parts, f"{name.removesuffix('.weight')}.comfy_quant": mark}
    return weights


@pytest.mark.parametrize("form", QUANT_ALGOS)
def test_every_quantised_form_of_the_host_is_taken(form, parts, tmp_path):
    """Computed as ComfyUI computes it: equal in the MODEL's dtype. Catches: 8-bit inputs, which step, refused."""
    try:
        weights = quantised(form)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"this ComfyUI does not write {form} on a CPU: {error}")
    patcher = load_model(tmp_path, weights)
    assert isinstance(patcher.model.diffusion_model.blocks[0].ffn[0].weight, QuantizedTensor)
    assert check_host(job_over(parts, patcher))
    with torch.inference_mode():
        theirs, ours = self_check._layer(patcher, torch.bfloat16)
    assert torch.equal(theirs, ours)
    stepped = self_check._compared(patcher, "a step", (torch.float16,), lambda dtype: (theirs, 1.03 * ours))
    assert stepped["float16"] == pytest.approx(0.03, abs=1e-3)


def test_layers_without_float32_are_compared_in_their_dtype(tmp_path):
    """As those of 4 bits on a GPU. Catches: a host refused for a kernel that it has in no other dtype."""
    patcher = load_model(tmp_path)

    def refuse(module, inputs):
        if inputs[0].dtype == torch.float32:
            raise NotImplementedError("no kernel")

    patcher.model.diffusion_model.blocks[0].self_attn.q.register_forward_pre_hook(refuse)
    assert list(compared(patcher, torch.bfloat16, torch.float32)) == ["bfloat16"]


@pytest.fixture
def checked_job(parts, tmp_path):
    """A job whose host was checked, and the layers that are called from then on."""
    job = job_over(parts, load_model(tmp_path))
    calls = []
    for number, block in enumerate(job.target.model.diffusion_model.blocks):
        block.ffn.register_forward_hook(lambda *_, number=number: calls.append(number))
    check_host(job)
    assert set(calls) == {0}, "of the other layers, and so of an offloaded model, nothing is touched"
    calls.clear()
    return job, calls


def test_host_is_checked_once(checked_job):
    job, calls = checked_job
    check_host(job)
    assert calls == []


def test_new_patches_are_checked_again(checked_job):
    """Catches: a check that passes for what another pack has patched since."""
    job, calls = checked_job
    check_host(replace(job, target=with_lora(job.target)))
    assert set(calls) == {0}


def test_another_version_of_the_host_is_checked_again(checked_job, monkeypatch):
    job, calls = checked_job
    monkeypatch.setattr(comfyui_version, "__version__", "9.9.9")
    check_host(job)
    assert set(calls) == {0}


def test_every_linear_layer_gets_three_axes_at_most(tmp_path):
    """Catches: fp8_e4m3fn_fast without an effect, as ComfyUI's fp8 arithmetic takes no fourth axis."""
    parts = load_parts(tmp_path)
    parts.target.set_attachments(CONTROL, load_vace(tmp_path, 3, CONFIG, 1))
    parts.drafter.set_attachments(CONTROL, load_vace(tmp_path, 4, CONFIG, 1))
    job = job_of(parts, positive(parts), script="raarar")
    axes = {}
    for patcher in (*job.models.values(), job.target.get_attachment(CONTROL)):
        for name, module in patcher.model.diffusion_model.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda m, args, name=name: axes.update({name: args[0].ndim}))
    assert video_of(job)[2].settings["host_differences"]
    assert len(axes) > 3 * 10
    assert {name for name, count in axes.items() if count > 3} == set()


# --- changes of a host, planted


def container(block):
    """The attention lies inside another module."""
    outside = torch.nn.Module()
    outside.forward = block.self_attn.forward
    block.self_attn = outside


def fused_prologue(block):
    """Attention takes what is not normalised yet."""
    norm = block.norm1
    block.norm1 = torch.nn.Identity()
    attend = block.self_attn.forward
    block.self_attn.forward = lambda x, *args, **more: attend(norm(x), *args, **more)


def swapped_modulation(block):
    """Scale comes before shift."""
    forward = block.forward
    block.forward = lambda *args, e, **more: forward(*args, e=e.flip(-2), **more)


def other_signature(block):
    forward = block.forward
    block.forward = lambda hidden, conditioning: forward(hidden, **conditioning)


def head_without_modulation(tree):
    tree.head.forward = lambda x, e: tree.head.head(tree.head.norm(x))


def cache_of_its_own(vae):
    """The decoder keeps its features itself, and no longer in what it is given."""
    forward = vae.decoder.forward
    decode = vae.decode
    caches = []

    def whole(z):
        caches.append([None] * 64)
        try:
            return decode(z)
        finally:
            caches.clear()

    def frame(x, feat_cache, feat_idx):
        return forward(x, feat_cache=caches[0] if caches else [None] * len(feat_cache), feat_idx=feat_idx)

    vae.decoder.forward = frame
    vae.decode = whole


def scaled_latents(vae):
    decode = vae.decode
    vae.decode = lambda z: decode(z * 0.9)


WRONG_CALLS = (container, other_signature, cache_of_its_own)
"""Changes that end in an error instead of other numbers."""
OF_A_BLOCK = (container, fused_prologue, swapped_modulation, other_signature)
CONTROL_BLOCK = "control block 1 of the target"
PLANTED = [
    *((plant, "layer 1 of the target") for plant in OF_A_BLOCK),
    (head_without_modulation, "layer 1 of the target"),
    *((plant, CONTROL_BLOCK) for plant in OF_A_BLOCK),
    (cache_of_its_own, "the VAE"),
    (scaled_latents, "the VAE"),
]


@pytest.mark.parametrize("plant, part", PLANTED, ids=lambda value: getattr(value, "__name__", value))
def test_changed_host_is_refused_with_part_and_difference(plant, part, parts, tmp_path):
    """Catches: a ComfyUI whose layers compute something else, noticed by nobody."""
    job = job_over(replace(parts, vae=load_vae()), load_model(tmp_path))
    control = load_vace(tmp_path, 7, CONFIG, 1)
    job.target.set_attachments(CONTROL, control)
    job = replace(job, controlled=True)
    assert check_host(job)
    self_check._CHECKED.clear()
    tree = job.target.model.diffusion_model
    modules = {
        "the VAE": job.vae.first_stage_model,
        CONTROL_BLOCK: control.model.diffusion_model.vace_blocks[0],
        "layer 1 of the target": tree.blocks[0] if plant in OF_A_BLOCK else tree,
    }
    plant(modules[part])
    with pytest.raises(BadInput) as refusal:
        check_host(job)
    message = str(refusal.value)
    assert comfyui_version.__version__ in message
    assert part in message
    assert ("apart in float32" in message) == (plant not in WRONG_CALLS), message


def test_infinite_numbers_are_left_to_the_run(tmp_path):
    """Catches: the blame on ComfyUI for a model's own numbers."""
    patcher = load_model(tmp_path)
    with torch.no_grad():
        patcher.model.diffusion_model.head.head.weight.fill_(float("inf"))
    assert compared(patcher, torch.float32) == {}


def test_check_out_of_memory_is_refused(parts, tmp_path):
    job = job_over(parts, load_model(tmp_path))

    def full(*args, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    job.target.model.diffusion_model.blocks[0].forward = full
    with pytest.raises(BadInput, match="out of memory on cpu"):
        video_of(job)
