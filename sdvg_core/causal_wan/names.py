"""Translate the tensor names of any Wan 2.1 checkpoint into those of the original files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Parts of names left by training wrappers.
WRAPPERS = {"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "module"}
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.", "")
# Every Wan transformer has all of these, and no other part of a Wan pipeline has any.
WAN_TELLTALES = ("head.modulation", "blocks.0.self_attn.norm_q.weight", "time_projection.1.weight")
DIFFUSERS_TELLTALES = ("condition_embedder.time_proj.weight", "blocks.0.attn1.norm_q.weight")
# Some exports include rotary tables, which follow from the sizes.
ROTARY = {"freqs", "freqs_cos", "freqs_sin", "rope", "rotary_emb"}

# Where diffusers' WanTransformer3DModel uses other names. Its norm2 is the original's norm3.
DIFFUSERS_PARTS = (
    ("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
    ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
    ("condition_embedder.time_proj", "time_projection.1"),
    ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
    ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
    ("condition_embedder.image_embedder", "img_emb"),
    ("attn1", "self_attn"),
    ("attn2", "cross_attn"),
    ("to_q", "q"),
    ("to_k", "k"),
    ("to_v", "v"),
    ("to_out.0", "o"),
    ("norm2", "norm3"),
    ("ffn.net.0.proj", "ffn.0"),
    ("ffn.net.2", "ffn.2"),
    ("proj_out", "head.head"),
    ("scale_shift_table", "modulation"),
)

# How LoRAs' names of a layer begin: ComfyUI's, PEFT's, DiffSynth's and diffusers', then kohya's and LyCORIS's.
LORA_START = re.compile(
    r"((base_model\.model|(model\.)?diffusion_model|pipe\.dit|transformer|unet|model)\."
    r"|lora_unet_|lora_transformer_|lycoris_)*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStyle:
    """The naming scheme of a file's tensors: prefix, training wrappers or not, diffusers or Wan names."""

    prefix: str
    wrapped: bool
    diffusers: bool

    def __str__(self) -> str:
        words = "diffusers names" if self.diffusers else "Wan names"
        under = f" under {self.prefix.removesuffix('.')}" if self.prefix else ""
        return f"{words}{under}, training wrappers removed" if self.wrapped else words + under

    def wan_name(self, name: str) -> str | None:
        """Return the name in the original files, or None for a rotary table or a tensor outside the model."""
        name = unwrapped(name)
        if not name.startswith(self.prefix):
            return None
        name = name.removeprefix(self.prefix)
        if is_rotary(name):
            return None
        return from_diffusers(name) if self.diffusers else name


def key_styles(names: Iterable[str]) -> list[KeyStyle]:
    """Return the naming scheme of every Wan transformer in a file; it can hold several."""
    names = list(names)
    plain = {unwrapped(name) for name in names}
    wrapped = not plain.issuperset(names)
    return [
        KeyStyle(prefix=prefix, wrapped=wrapped, diffusers=diffusers)
        for diffusers, telltales in ((False, WAN_TELLTALES), (True, DIFFUSERS_TELLTALES))
        for prefix in PREFIXES
        if any(prefix + telltale in plain for telltale in telltales)
    ]


def unwrapped(name: str) -> str:
    """Return the name without the parts that FSDP, compilation and data parallelism add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def is_rotary(name: str) -> bool:
    """True for a table of rotary angles."""
    return not ROTARY.isdisjoint(name.split("."))


def from_diffusers(name: str) -> str:
    """Return the original name for a diffusers `name`."""
    if name == "scale_shift_table":
        return "head.modulation"
    padded = f".{name}."
    for theirs, ours in DIFFUSERS_PARTS:
        padded = padded.replace(f".{theirs}.", f".{ours}.")
    return padded[1:-1]


def flat_name(name: str) -> str:
    """Return the original name of a layer, with `_` for dots, from a LoRA's name in any known spelling."""
    flat = re.sub(r"[._]+", "_", f".{LORA_START.sub('', unwrapped(name), count=1)}.")
    if flat == "_scale_shift_table_":
        return "head_modulation"
    for wrapper in WRAPPERS:
        flat = flat.replace(f"_{wrapper.strip('_')}_", "_")
    for theirs, ours in DIFFUSERS_PARTS:
        flat = flat.replace(f"_{theirs}_".replace(".", "_"), f"_{ours}_".replace(".", "_"))
    return flat.strip("_")
