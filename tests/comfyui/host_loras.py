"""LoRAs for a tiny model, and prompts whose sampler's model comes through their loaders."""

from host_tiny import lora_weights
from running_server import node
from safetensors.torch import save_file
from sdvg_pack.nodes.host.loras import notes_on_loras

LAYER = "blocks.0.self_attn.q"


def save(folder, name, metadata=None, *, prefix="diffusion_model.", **more):
    """Save a LoRA. `more`: further parts of its layer."""
    halves = {key.replace("diffusion_model.", prefix): part for key, part in lora_weights((LAYER,)).items()}
    save_file(
        {**halves, **{f"{prefix}{LAYER}.{part}": value for part, value in more.items()}}, folder / name, metadata
    )
    return folder / name


def upstream(*loaders, role="drafter"):
    """A prompt whose sampler's model comes through loaders, the first one nearest to the model's."""
    prompt = {"1": node("SDVGDrafterLoader", file="a.safetensors")}
    wire = ["1", 0]
    for number, (kind, inputs) in enumerate(loaders):
        prompt[f"3:{number}"] = node(kind, model=wire, **inputs)
        wire = [f"3:{number}", 0]
    return {**prompt, "7:2": node("SDVGSpeculativeSampler", **{role: wire})}


def notes_of(patcher, *loaders):
    return notes_on_loras(upstream(*loaders), "7:2", {"drafter": patcher})["drafter"]
