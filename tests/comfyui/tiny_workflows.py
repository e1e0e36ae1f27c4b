"""Workflows in API form, run with the tiny set's files."""

import io

import av
from sdvg_pack.sdvg_core.pocket import DEFAULT_PROMPT

TINY = {
    "self_forcing_dmd.pt": "tiny_self_forcing.pt",
    "causal_forcing-framewise.safetensors": "tiny_self_forcing.pt",
    "krea-realtime-video-14b.safetensors": "tiny_krea.safetensors",
    "wan_2.1_vae.safetensors": "tiny_wan_2.1_vae.safetensors",
    "ImageReward.pt": "TinyImageReward.pt",
    "Wan2_1-VACE_module_1_3B_bf16.safetensors": "tiny_vace_drafter.safetensors",
    "Wan2_1-VACE_module_14B_bf16.safetensors": "tiny_vace_target.safetensors",
    **dict.fromkeys(("film_net_fp16.safetensors", "RealESRGAN_x4plus.safetensors"), "tiny.safetensors"),
}
# A tiny drafter costs almost what its target does: less would buy no video.
SMALL = {"width": 64, "height": 64, "blocks": 2, "policy.budget": 0.98}
# The same of the other nodes: sizes; frames of nine blocks, with a start image four more; and a part's end.
SMALLER = {832: 64, 480: 64, 105: 21, 109: 25, -21: -6, 21: 6, 81: 21}
TEXT = "PrimitiveStringMultiline"
TEXT_NODES = ("CLIPLoader", "SelectCLIPDevice")
ENCODERS = ("SDVGPrompt", "CLIPTextEncode")
POCKET_CONDITIONING = 2


def names(node):
    """Return the names of a node's widgets, in the order of its values."""
    if node["type"] == "MarkdownNote":
        return ["text"]
    widgets = [slot["widget"]["name"] for slot in node["inputs"] if "widget" in slot]
    if node["type"] == "LoadImage" and "upload" not in widgets:
        return [*widgets, "upload"]
    if "seed" in widgets:  # what becomes of it after a run is a widget of the frontend's own
        widgets.insert(widgets.index("seed") + 1, "after")
    return widgets


def with_tiny_models(prompt):
    """Return a prompt (API form) with the tiny set's file names, small sizes, and the pocket's text encoder."""
    small = {}
    encoders = [key for key, node in prompt.items() if node["class_type"] in ENCODERS]
    for key, node in prompt.items():
        inputs = dict(node["inputs"])
        kind = node["class_type"]
        if kind in TEXT_NODES:
            continue
        if kind in ENCODERS:
            kind = "SDVGPocketModels"
            inputs = {"prompt": DEFAULT_PROMPT}
        for name, value in inputs.items():
            if isinstance(value, list) and value[0] in encoders:
                inputs[name] = [value[0], POCKET_CONDITIONING]
            elif isinstance(value, str):
                inputs[name] = DEFAULT_PROMPT if kind == TEXT else TINY.get(value, value)
            elif kind in ("SDVGSpeculativeSampler", "SDVGQualityRouter"):
                inputs[name] = SMALL.get(name, value)
            elif isinstance(value, int) and not kind.startswith("SDVG"):
                inputs[name] = SMALLER.get(value, value)
        small[key] = {"class_type": kind, "inputs": inputs}
    return small


def count_frames(video):
    with av.open(io.BytesIO(video)) as container:
        return sum(1 for _ in container.decode(video=0))
