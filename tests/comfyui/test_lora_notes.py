"""LoRAs of ComfyUI's own loaders: what their files state and ComfyUI does not read is said in the report."""

import json
import re
from dataclasses import replace

import pytest
import torch
from comfy_page import browse
from host_loras import LAYER, notes_of, save, upstream
from host_run import load_parts, make_job, video_of
from host_tiny import CONFIG, load_model, lora_weights, onto_device, random_weights
from running_server import ROOT, node
from safetensors.torch import load_file, save_file
from sdvg_pack.nodes.host import loras as notes_of_host
from sdvg_pack.nodes.host.loras import loaders_upstream, notes_on_loras
from sdvg_pack.nodes.run import run_job
from sdvg_pack.sdvg_core.causal_wan.checkpoint import find_lora, load_wan, open_wan
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pocket.trained_set import trained_set

from nodes import LoraLoader

pytestmark = pytest.mark.comfyui

ROLES = ("drafter", "target")
RANK = 4
SIXTEEN = {"lora_adapter_metadata": json.dumps({"transformer.r": RANK, "transformer.lora_alpha": 16})}
"""Metadata of a LoRA of rank 4 that is meant four times as strong as its halves' product."""


@pytest.fixture(scope="module")
def patcher(tmp_path_factory):
    return load_model(tmp_path_factory.mktemp("model"))


def only(name, strength=0.7):
    return "LoraLoaderModelOnly", {"lora_name": name, "strength_model": strength}


def pair_of(drafter, target):
    """A prompt whose drafter and target each come through loaders of their own."""
    prompt = upstream(*drafter)
    for name, part in upstream(*target, role="target").items():
        wires = {
            key: [f"t{wire[0]}", wire[1]] if isinstance(wire, list) else wire
            for key, wire in part["inputs"].items()
        }
        prompt[f"t{name}"] = {**part, "inputs": wires}
    prompt["7:2"]["inputs"]["target"] = prompt["t7:2"]["inputs"]["target"]
    return prompt


@pytest.mark.parametrize("stated, factor", [("alpha 16", 4), ("rsLoRA", 2)])
def test_noted_strength_gives_what_the_file_means(stated, factor, loras, tmp_path):
    """Catches: a LoRA four times too weak, unsaid; a factor turned over."""
    more = {"alpha": torch.tensor(4.0)} if stated == "rsLoRA" else {}
    path = save(loras, "style.safetensors", SIXTEEN if stated == "alpha 16" else None, **more)
    if stated == "rsLoRA":
        save_file({**load_file(path), "use_rslora_flag": torch.tensor(True)}, path)
    model = load_model(tmp_path)
    (note,) = notes_of(model, only("style.safetensors"))
    assert f"{factor} times" in note
    strength = 0.7 * float(re.search(r"strength_model ([\d.]+) is the file's 1", note)[1])
    theirs, _ = LoraLoader().load_lora(model, None, "style.safetensors", strength, 0)
    theirs = onto_device(theirs).model.diffusion_model.get_submodule(LAYER).weight
    checkpoint = open_wan(tmp_path / "model.safetensors")
    lora = find_lora(f"{path}:0.7", checkpoint)
    ours = load_wan(checkpoint, dtype=torch.float32, loras=[lora]).tree.get_submodule(LAYER).weight
    torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "metadata, more",
    [
        (None, {}),
        ({"lora_adapter_metadata": json.dumps({"r": RANK, "lora_alpha": RANK})}, {}),
        (SIXTEEN, {"alpha": torch.tensor(16.0)}),
        ({"ss_network_alpha": "16"}, {}),
    ],
)
def test_lora_merged_as_meant_has_no_note(metadata, more, loras, patcher):
    """Catches: a note on every LoRA."""
    save(loras, "style.safetensors", metadata, **more)
    assert notes_of(patcher, only("style.safetensors")) == ()


def test_every_comfyui_loader_of_a_chain_is_noted(loras, patcher):
    """Catches: only the nearest; another pack's loader taken for ComfyUI's; one of strength 0."""
    for name in "abcde":
        save(loras, f"{name}.safetensors", SIXTEEN)
    clip = {"clip": ["9", 1], "strength_clip": 1.0}
    chain = (
        only("a.safetensors", 1),
        ("LoraLoader", {"lora_name": "b.safetensors", "strength_model": 0.5, **clip}),
        ("PowerLoraLoader", {"lora_name": "c.safetensors", "strength_model": 1.0}),
        only("d.safetensors", 0),
        only("e.safetensors", ["8", 0]),
        only(["8", 0], 1.0),
        only("gone.safetensors", 1.0),
    )
    on_e, on_b, on_a = notes_of(patcher, *chain)
    assert "a.safetensors" in on_a
    assert "b.safetensors" in on_b
    assert "strength_model 4 is the file's 1, and the 0.5 set here is its 0.125" in on_b
    assert "e.safetensors" in on_e
    assert on_e.endswith("strength_model 4 is the file's 1."), "its strength comes over a wire"
    assert notes_on_loras(upstream(*chain), "7:2", {"target": patcher}) == {"target": ()}


@pytest.mark.parametrize(
    "drafter, target, noted",
    [
        ([], [only("style.safetensors")], ("drafter",)),
        ([only("style.safetensors")], [], ("target",)),
        ([only("small.safetensors")], [only("large.safetensors")], ()),
        ([], [only("style.safetensors", 0)], ()),
        ([], [], ()),
    ],
)
def test_note_names_the_model_without_the_lora(drafter, target, noted, patcher):
    """Catches: a look that only some blocks have, unsaid; a note where each model has a LoRA of its own."""
    notes = notes_on_loras(pair_of(drafter, target), "7:2", {"target": patcher, "drafter": patcher})
    assert tuple(role for role, lacking in notes.items() if lacking) == noted
    assert all("style.safetensors" in note for lacking in notes.values() for note in lacking)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A MODEL twice as wide."""
    weights = random_weights(1, replace(CONFIG, dim=128, num_heads=4))
    return load_model(tmp_path_factory.mktemp("wide"), weights, num_heads=4)


def save_kohya(path, width):
    """Save kohya's LoRA for a model of a width."""
    halves = {"lora_down.weight": torch.ones(RANK, width), "lora_up.weight": torch.ones(width, RANK)}
    save_file({f"lora_unet_blocks_0_self_attn_q.{part}": half for part, half in halves.items()}, path)


@pytest.mark.parametrize(
    "drafter, target, inert, lacking",
    [
        ("small", "large", (), ()),
        ("large", "small", ("drafter", "target"), ()),
        (None, "small", ("target",), ()),
        ("large", None, ("drafter",), ()),
        ("large", "large", ("drafter",), ("drafter",)),
        (None, "large", (), ("drafter",)),
        ("unknown", None, ("drafter",), ()),
        ("unknown", "large", ("drafter",), ("drafter",)),
        ("zeros", None, ("drafter",), ()),
    ],
)
def test_lora_without_effect_is_named_and_lacks_nowhere(drafter, target, inert, lacking, loras, patcher, wide):
    """Catches: a LoRA for the other model taken for one that changes its own, and missed in the other."""
    save_kohya(loras / "small.safetensors", 64)
    save_kohya(loras / "large.safetensors", 128)
    save(loras, "unknown.safetensors", prefix="transformer.")
    zeros = {name: torch.zeros_like(half) if "lora_B" in name else half for name, half in lora_weights().items()}
    save_file(zeros, loras / "zeros.safetensors")
    chains = [[only(f"{name}.safetensors")] if name else [] for name in (drafter, target)]
    notes = notes_on_loras(pair_of(*chains), "7:2", {"target": wide, "drafter": patcher})
    assert tuple(role for role in ROLES if "changes nothing" in " ".join(notes[role])) == inert
    assert tuple(role for role in ROLES if "lacks" in " ".join(notes[role])) == lacking
    assert sum(map(len, notes.values())) == len(inert) + len(lacking)


HALF_UP = ("lora_up.weight", (64, RANK))
HALF_DOWN = ("lora_down.weight", (RANK, 64))
WIDE_HALVES = (("lora_A.weight", (RANK, 64)), ("lora_B.weight", (96, RANK)))
LACKING_PARTS = {
    "down of kohya": [HALF_DOWN],
    "down of PEFT": [("lora_A.weight", (RANK, 64))],
    "up": [HALF_UP],
    "alpha": [("alpha", ())],
    "down and alpha": [HALF_DOWN, ("alpha", ())],
    "magnitudes": [("dora_scale", (64, 1))],
    "LoHa": [("hada_w1_a", (64, RANK)), ("hada_w1_b", (RANK, 64))],
    "LoKr": [("lokr_w1", (2, 2))],
}


@pytest.mark.parametrize("lacking", LACKING_PARTS)
def test_lora_without_whole_layers_changes_nothing(lacking, loras, patcher):
    """Catches: a file that lacks a part of every layer, taken for one whose look only one model has."""
    tensors = {
        f"diffusion_model.{layer}.{part}": torch.ones(shape)
        for layer in (LAYER, "blocks.1.self_attn.k")
        for part, shape in LACKING_PARTS[lacking]
    }
    save_file(tensors, loras / "half.safetensors")
    notes = notes_on_loras(pair_of([], [only("half.safetensors")]), "7:2", {"target": patcher, "drafter": patcher})
    (note,) = notes["target"]
    assert "changes nothing in the target" in note
    assert "lack" in note
    assert notes["drafter"] == ()


def test_incomplete_layers_of_a_lora_are_counted(loras, patcher):
    """Catches: layers that lack a half, dropped without a word beside whole ones."""
    tensors = lora_weights((LAYER,))
    for layer in ("blocks.1.self_attn.k", "blocks.2.self_attn.k"):
        tensors[f"diffusion_model.{layer}.lora_A.weight"] = torch.ones(RANK, 64)
    save_file(tensors, loras / "some.safetensors")
    (note,) = notes_of(patcher, only("some.safetensors"))
    assert "2 layers of the LoRA some.safetensors" in note
    assert "half" in note


ABSENT_LAYERS = {
    "blocks beyond the last": {
        f"diffusion_model.blocks.{number}.self_attn.q.{part}": torch.ones(shape)
        for number in (30, 39)
        for part, shape in (HALF_UP, HALF_DOWN)
    },
    "another shape": {
        "diffusion_model.blocks.1.self_attn.q.lora_down.weight": torch.ones(RANK, 128),
        "diffusion_model.blocks.1.self_attn.q.lora_up.weight": torch.ones(128, RANK),
        "diffusion_model.patch_embedding.diff": torch.ones(64, 36, 1, 2, 2),
        "diffusion_model.blocks.1.cross_attn.k_img.diff_b": torch.ones(64),
    },
    "names that ComfyUI does not know": {
        f"transformer.blocks.{number}.self_attn.q.{part}": torch.ones(shape)
        for number in (1, 2)
        for part, shape in (HALF_UP, HALF_DOWN)
    },
    "an adapter's name": {
        f"diffusion_model.blocks.{number}.self_attn.q.{part}": torch.ones(shape)
        for number in (1, 2)
        for part, shape in (("lora_A.style.weight", (RANK, 64)), ("lora_B.style.weight", (64, RANK)))
    },
}


@pytest.mark.parametrize("absent", ABSENT_LAYERS)
def test_tensors_that_a_model_leaves_out_are_counted(absent, loras, patcher):
    """Catches: a LoRA for a longer model, or in names of two kinds, of which a part has no effect, unsaid."""
    more = ABSENT_LAYERS[absent]
    tensors = {f"diffusion_model.{LAYER}.diff": torch.ones(64, 64)}
    save_file({**tensors, **more}, loras / "some.safetensors")
    (note,) = notes_of(patcher, only("some.safetensors"))
    assert "4 tensors of the LoRA some.safetensors" in note
    assert any(source in note for source in more)


@pytest.mark.parametrize(
    "change, word",
    [
        ({"diff": torch.ones(128, 128)}, "size"),
        ({"lokr_w1": torch.ones(2, 2), "lokr_w2": torch.ones(64, 64)}, "size"),
        ({f"hada_w{n}_{half}": torch.ones(128, 128) for n in (1, 2) for half in "ab"}, "size"),
        ({"diff": torch.zeros(64, 64)}, "zeros"),
        ({"lora_A.weight": torch.zeros(4, 64), "lora_B.weight": torch.ones(64, 4)}, "zeros"),
        (
            {"lora_A.weight": torch.ones(4, 64), "lora_B.weight": torch.ones(64, 4), "alpha": torch.zeros(())},
            "zeros",
        ),
        ({"diff": torch.ones(64, 64), "alpha": torch.zeros(())}, ""),
        (
            {
                "lora_A.weight": torch.ones(4, 64),
                "lora_B.weight": torch.zeros(64, 4),
                "dora_scale": torch.ones(64, 1),
            },
            "",
        ),
        ({"lora_A.weight": torch.ones(4, 64), "lora_B.weight": torch.ones(64, 4).to(torch.float8_e4m3fn)}, ""),
        ({"lokr_w1": torch.ones(2, 2), "lokr_w2": torch.ones(32, 32)}, ""),
    ],
)
def test_note_of_no_effect_is_true_of_comfyui(change, word, loras, tmp_path):
    """Catches: a note that ComfyUI's merge belies; a whole difference, LoHa or LoKr whose size is not known."""
    save_file(
        {f"diffusion_model.{LAYER}.{part}": value for part, value in change.items()}, loras / "style.safetensors"
    )
    model = load_model(tmp_path)
    notes = notes_of(model, only("style.safetensors"))
    assert [word in note and "changes nothing" in note for note in notes] == ([True] if word else [])
    plain = onto_device(model).model.diffusion_model.get_submodule(LAYER).weight.clone()
    merged, _ = LoraLoader().load_lora(model, None, "style.safetensors", 1.0, 0)
    weight = onto_device(merged).model.diffusion_model.get_submodule(LAYER).weight
    assert torch.equal(weight, plain) == bool(word)


def test_lora_without_effect_is_rounded_nowhere(loras, patcher, monkeypatch):
    """Catches: a remedy for the rounding of a LoRA of which nothing is merged, on a model of 8 bits."""
    monkeypatch.setattr(notes_of_host, "form_of", lambda weight: "int8")
    save(loras, "unknown.safetensors", prefix="transformer.")
    save(loras, "style.safetensors")
    (inert,) = notes_of(patcher, only("unknown.safetensors"))
    assert "changes nothing" in inert
    (rounded,) = notes_of(patcher, only("style.safetensors"))
    assert "bypass" in rounded


def test_lora_that_fits_one_layer_changes_something(loras, patcher):
    """Catches: a LoRA called one for another size by a single layer; one that is zero in its first."""
    fitting = lora_weights((LAYER, "blocks.1.ffn.0"))
    first = f"diffusion_model.{LAYER}.lora_B.weight"
    save_file({**fitting, first: torch.ones(128, 4)}, loras / "size.safetensors")
    save_file({**fitting, first: torch.zeros(64, 4)}, loras / "zero.safetensors")
    (note,) = notes_of(patcher, only("size.safetensors"), only("zero.safetensors"))
    assert "2 tensors of the LoRA size.safetensors" in note


def test_loader_on_the_text_encoder_is_not_upstream():
    """Catches: a note on a LoRA that no block is made with."""
    prompt = upstream(only("a.safetensors"))
    prompt["3:0"]["inputs"]["strength_model"] = ["5", 0]
    prompt["5"] = node("PrimitiveFloat", value=1.0)
    prompt["6"] = node("LoraLoader", model=["1", 0], clip=["9", 0], lora_name="b.safetensors", strength_model=1.0)
    prompt["3:0"]["inputs"]["clip"] = ["6", 1]
    assert [loader.name for loader in loaders_upstream(prompt, ["3:0", 0])] == ["a.safetensors"]


def test_lora_of_alpha_zero_is_noted(loras, patcher):
    """Catches: a run that fails in a division, as the header means a LoRA that changes nothing."""
    none = {"lora_adapter_metadata": json.dumps({"r": RANK, "lora_alpha": 0})}
    save(loras, "style.safetensors", none)
    (note,) = notes_of(patcher, only("style.safetensors"))
    assert "is meant 0 times as strong as it is merged" in note
    assert note.endswith("strength_model 0 is the file's 1.")


def test_scales_that_differ_by_layer_give_a_range(loras, patcher):
    """Catches: a strength that is right for some layers alone."""
    settings = {"r": RANK, "lora_alpha": 16, "alpha_pattern": {"k": 8}}
    tensors = lora_weights((LAYER, "blocks.0.self_attn.k"))
    save_file(tensors, loras / "style.safetensors", {"lora_adapter_metadata": json.dumps(settings)})
    (note,) = notes_of(patcher, only("style.safetensors"))
    assert "2 to 4 times" in note


@pytest.mark.parametrize(
    "prefix, more, word",
    [
        ("transformer.", {}, "changes nothing in the drafter"),
        ("diffusion_model.", {"lora_magnitude_vector": torch.ones(64)}, "DoRA"),
        ("diffusion_model.", {"alpha": torch.tensor(8.0)}, "two scales"),
    ],
)
def test_lora_parts_that_comfyui_ignores_are_noted(prefix, more, word, loras, patcher):
    """Catches: a DoRA merged as a LoRA, unsaid; names that ComfyUI passes over."""
    save(loras, "style.safetensors", SIXTEEN if "alpha" in more else None, prefix=prefix, **more)
    (note,) = notes_of(patcher, only("style.safetensors"))
    assert word in note


@pytest.mark.parametrize("kohya", [False, True])
def test_spelling_that_comfyui_converts_has_no_note(kohya, loras, patcher):
    """Catches: Wan Fun's names, which ComfyUI renames, called unknown."""
    name = "blocks_0_cross_attn_k" if not kohya else "blocks_0_self_attn_q"
    halves = {"lora_down.weight": torch.ones(RANK, 64), "lora_up.weight": torch.ones(64, RANK)}
    prefix = "lora_unet_" if kohya else "lora_unet__"
    save_file({f"{prefix}{name}.{part}": value for part, value in halves.items()}, loras / "style.safetensors")
    assert notes_of(patcher, only("style.safetensors")) == ()


@pytest.mark.parametrize(
    "prompt", [None, {}, {"7:2": None}, {"7:2": {}}, {"7:2": {"inputs": {"drafter": ["7:2", 0]}}}]
)
def test_prompt_without_loaders_has_no_notes(prompt, patcher):
    assert notes_on_loras(prompt, "7:2", {"drafter": patcher}) == {"drafter": ()}


# --- in a run


def test_notes_on_loras_are_shown_at_the_sampler(loras, parts):
    """Catches: a LoRA four times too weak, or read in part, which the report alone says. Kind: all such notes."""
    save(loras, "style.safetensors", SIXTEEN)
    save(loras, "old.safetensors", prefix="unet.diffusion_model.odd.")
    prompt = upstream(only("style.safetensors"), only("old.safetensors"))
    job = make_job(parts, script="ra", api_prompt=prompt, node_id="7:2")
    notes = notes_on_loras(prompt, "7:2", job.models)["drafter"]
    _, _, report, live, _ = run_job(job)
    assert {word for word in ("style", "old") if any(word in note for note in notes)} == {"style", "old"}
    assert [note for note in notes if note not in report.notes] == []
    assert [note for note in notes if note not in live.begin["note"]] == []


# --- NaN


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return load_parts(tmp_path_factory.mktemp("parts"))


def refusal_with(parts, role, *loaders):
    """Return what stops a run whose MODEL of a role goes through LoRA loaders."""
    model = getattr(parts, role)
    for _, inputs in loaders:
        model, _ = LoraLoader().load_lora(model, None, inputs["lora_name"], inputs["strength_model"], 0)
    wired = replace(parts, **{role: model})
    prompt = upstream(*loaders, role=role)
    script = "ra" if role == "drafter" else "r"
    with pytest.raises(BadInput) as refusal:
        video_of(make_job(wired, script=script, api_prompt=prompt, node_id="7:2"))
    return str(refusal.value)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2])
def test_nan_of_a_lora_names_file_and_tensor(role, bad, dtype, loras, parts):
    """Catches: the blame on the model's file, where a LoRA on it has NaN."""
    save(loras, "sound.safetensors")
    tensors = lora_weights(("blocks.1.ffn.0",))
    source = "diffusion_model.blocks.1.ffn.0.lora_A.weight"
    tensors[source][0, 0] = bad
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, loras / "bad.safetensors")
    message = refusal_with(parts, role, only("sound.safetensors"), only("bad.safetensors"))
    assert f"{source} in bad.safetensors" in message
    assert f"{role} latents" in message
    assert "that model's file" not in message


def test_nan_beside_finite_loras_names_model_and_loras(loras, parts):
    """Catches: the blame on the model alone, where a LoRA's numbers grow too large."""
    save_file(
        {f"diffusion_model.blocks.1.ffn.0.{part}": torch.full(shape, 1e30) for part, shape in WIDE_HALVES},
        loras / "large.safetensors",
    )
    message = refusal_with(parts, "target", only("large.safetensors"))
    assert "that model's file" in message
    assert "large.safetensors" in message


def test_nan_without_loras_blames_the_model_alone(loras, parts):
    """Catches: LoRAs on the other model, or of strength 0, blamed."""
    save(loras, "sound.safetensors")
    weight = parts.target.model.diffusion_model.blocks[1].ffn[0].weight
    broken = replace(parts, target=parts.target.clone())
    key = "diffusion_model.blocks.1.ffn.0.weight"
    broken.target.add_patches({key: (torch.full_like(weight, torch.nan),)}, 1.0)
    prompt = pair_of([only("sound.safetensors")], [only("sound.safetensors", 0)])
    with pytest.raises(BadInput, match="that model's file") as refusal:
        video_of(make_job(broken, script="r", api_prompt=prompt, node_id="7:2"))
    assert "LoRA" not in str(refusal.value)


# --- on a server


DEMO = ROOT / "workflows" / "sdvg_01_pocket_demo.json"
BYPASSED = 4
"""A node's mode in a saved workflow."""


def pocket_lora(folder, name):
    """Save a LoRA for the pocket drafter into a server's folder."""
    weights = load_file(trained_set().drafter)
    rows, columns = next(tensor for key, tensor in weights.items() if key.endswith(f"{LAYER}.weight")).shape
    halves = {"lora_A.weight": torch.ones(RANK, columns) * 0.01, "lora_B.weight": torch.ones(rows, RANK) * 0.01}
    loras = folder / "models" / "loras"
    loras.mkdir(exist_ok=True)
    save_file({f"diffusion_model.{LAYER}.{part}": half for part, half in halves.items()}, loras / name, SIXTEEN)


def with_loaders(names_and_modes):
    """Return the demo as a saved workflow, its drafter through LoRA loaders."""
    workflow = json.loads(DEMO.read_text(encoding="utf-8"))
    link = workflow["links"][0]
    assert link == [1, 1, 0, 3, 0, "MODEL"]
    source = 1
    for number, (name, mode) in enumerate(names_and_modes, start=100):
        wires = {"inputs": [{"name": "model", "type": "MODEL", "link": link[0]}]}
        wires["outputs"] = [{"name": "MODEL", "type": "MODEL", "links": [number]}]
        place = {"pos": [0, 0], "size": [300, 100], "flags": {}, "order": 0, "properties": {}}
        loader = {"id": number, "type": "LoraLoaderModelOnly", "mode": mode, "widgets_values": [name, 1.0]}
        workflow["nodes"].append({**loader, **wires, **place})
        link[3:5] = [number, 0]
        source = number
        link = [number, source, 0, 3, 0, "MODEL"]
        workflow["links"].append(link)
    sampler = next(part for part in workflow["nodes"] if part["type"] == "SDVGSpeculativeSampler")
    sampler["inputs"][0]["link"] = link[0]
    return workflow


def test_bypassed_loader_has_no_note(server, tmp_path):
    """Catches: a note on a LoRA that is switched off; notes that never reach the report."""
    for name in ("on.safetensors", "off.safetensors"):
        pocket_lora(server.folder, name)
    workflow = tmp_path / "with_loras.json"
    workflow.write_text(json.dumps(with_loaders([("on.safetensors", 0), ("off.safetensors", BYPASSED)])))
    page = browse(server, tmp_path, "drop.js", files=[str(workflow)], runs=[], blueprints=[])
    prompt = page["dropped"][0]["prompt"]
    assert [part["inputs"]["lora_name"] for part in prompt.values() if "lora_name" in part["inputs"]] == [
        "on.safetensors"
    ]
    prompt["3"]["inputs"]["blocks"] = 2
    (note,) = [note for note in server.make(prompt).record()["notes"] if "strength_model" in note]
    assert "on.safetensors is meant 4 times" in note
