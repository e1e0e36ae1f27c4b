"""A control module from a file, as a MODEL that ComfyUI manages: ComfyUI itself loads only whole VACE checkpoints."""

from __future__ import annotations

import comfy.ops
import torch
from comfy.ldm.wan.model import VaceWanAttentionBlock
from comfy.model_patcher import ModelPatcher

from ...sdvg_core.causal_wan.checkpoint import fill
from ...sdvg_core.causal_wan.config import WanConfig, control_shapes
from ...sdvg_core.causal_wan.control_files import EMBEDDING, open_control
from ...sdvg_core.engine.control import CHANNELS
from .model import compute_dtype, config_of
from .residency import patcher_of

OPERATIONS = comfy.ops.disable_weight_init


class ControlModel(torch.nn.Module):
    """The control blocks alone, where a VACE MODEL has them; without memory until they are filled."""

    manual_cast_dtype = None

    def __init__(self, config: WanConfig, blocks: int, dtype: torch.dtype) -> None:
        super().__init__()
        settings = {"operations": OPERATIONS, "device": "meta", "dtype": dtype}
        sizes = (config.dim, config.ffn_dim, config.num_heads, (-1, -1), True, True, config.eps)
        tree = torch.nn.Module()
        tree.dim, tree.ffn_dim, self._dtype = config.dim, config.ffn_dim, dtype
        tree.vace_blocks = torch.nn.ModuleList(
            VaceWanAttentionBlock("t2v_cross_attn", *sizes, block_id=number, operation_settings=settings)
            for number in range(blocks)
        )
        patch = {"kernel_size": config.patch_size, "stride": config.patch_size}
        tree.vace_patch_embedding = OPERATIONS.Conv3d(CHANNELS, config.dim, **patch, device="meta")
        self.diffusion_model = tree

    def get_dtype(self) -> torch.dtype:
        """Return the dtype that it computes in."""
        return self._dtype


def load_control_file(path: str, model: ModelPatcher, role: str) -> ModelPatcher:
    """Load the control module of a file for a MODEL, in its dtype. Raises `BadInput` if it is for another size."""
    config, dtype = config_of(model.model.diffusion_model), compute_dtype(model)
    found = open_control(path, config, role)
    control, cpu = ControlModel(config, found.blocks, dtype), torch.device("cpu")
    shapes = control_shapes(config, found.blocks)
    # ComfyUI keeps the embedding in float32, also beside blocks of another dtype.
    embedding = [name for name in shapes if name.startswith(EMBEDDING)]
    for names, stored in ((embedding, torch.float32), ([name for name in shapes if name not in embedding], dtype)):
        fill(control.diffusion_model, found.weights, names, found.quantisation, cpu, stored)
    return patcher_of(control, load_device=model.load_device, offload_device=model.offload_device)
