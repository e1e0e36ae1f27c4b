"""Refuse a file that is no causal Wan 2.1 text-to-video transformer, with what it is instead."""

from __future__ import annotations

from collections.abc import Collection

from ..checkpoints.known_models import LORA, VARIANTS, family_of, is_lora
from ..errors import BadInput
from .config import PUBLISHED, WanConfig

GIVE_T2V = "give a causal Wan 2.1 text-to-video model (Self-Forcing, Krea Realtime, ...)"


def foreign(what: str, kind: str) -> BadInput:
    """Return the error for a file or MODEL, `what`, of another kind."""
    return BadInput(f"{what} is no Wan 2.1 transformer (found: {kind}); {GIVE_T2V}")


def refuse_foreign(file: str, names: Collection[str]) -> BadInput:
    """Return the error for a file without a Wan transformer."""
    kind = family_of(names)
    if kind == LORA:
        return _unmerged(file, names)
    return foreign(file, kind or ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else ""))


def check_no_additions(file: str, names: Collection[str], every: Collection[str]) -> None:
    """Refuse adapters among `every` name of a file, and by Wan's `names` the variants that take more than text."""
    if any(map(is_lora, every)):
        raise _unmerged(file, every)
    kind = family_of(names, VARIANTS)
    if kind:
        raise foreign(file, kind)


def check_sizes(file: str, config: WanConfig, stated: Collection[str]) -> None:
    """Refuse other inputs or outputs than Wan 2.1's latents, frame by frame, and a model that lost its last blocks.

    Blocks more or fewer leave no other trace, and the model would make a worse video unnoticed.
    `stated`: the sizes that the file states.
    """
    if (config.in_dim, config.out_dim) != (16, 16):
        raise foreign(file, f"{config.in_dim} input and {config.out_dim} output channels, not 16")
    if config.patch_size[0] != 1:
        raise foreign(file, f"tokens of {config.patch_size[0]} latent frames, not 1")
    for published in PUBLISHED.values():
        same = (config.dim, config.ffn_dim) == (published.dim, published.ffn_dim)
        if same and config.num_layers != published.num_layers and "num_layers" not in stated:
            blocks = f"{config.num_layers} of the {published.num_layers} blocks"
            raise BadInput(f"{file} has {blocks} of its width; fetch it again, or state num_layers in its metadata")


def _unmerged(file: str, names: Collection[str]) -> BadInput:
    adapters = [name for name in names if is_lora(name)]
    some = f"{len(adapters)} tensors such as {adapters[0]}"
    return BadInput(f"{file} holds a LoRA ({some}), not a model; load its base model and apply the LoRA to it")
