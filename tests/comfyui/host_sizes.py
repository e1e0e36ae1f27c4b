"""Models of real size and without numbers, for what is said of a run's memory."""

import comfy.ops
import torch
from comfy.ldm.wan.model import WanModel
from comfy.ldm.wan.vae import AttentionBlock, WanVAE
from comfy.model_patcher import ModelPatcher
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.memory import plan_request
from sdvg_pack.nodes.host.sockets import HostScorer, PromptEntry, RouterValue
from sdvg_pack.sdvg_core.scorers import blip
from sdvg_pack.sdvg_core.scorers.blip import ImageRewardConfig
from sdvg_pack.sdvg_core.settings.request import VideoRequest
from sdvg_pack.sdvg_core.settings.route import Route

META = torch.device("meta")
CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
SECOND = torch.device("cuda", 1)
GB = 10**9
SOLD_UNIT = 2**30
"""What a card's gigabyte is when it is sold."""
CONTEXT = 8 * GB // 10
"""What CUDA takes beside the allocator, measured on a GPU."""
GAPS = GB
"""What the allocator needs beside the tensors, measured on a GPU."""
FULL = (60, 104)
"""Latents of 480 x 832."""
ROLES = ("target", "drafter", "vae", "scorer")
FP8 = "float8_e4m3fn"
IMAGE_REWARD = ImageRewardConfig()
SCORER = HostScorer(file="", model=None, tokenizer=None, config=IMAGE_REWARD, dtype=torch.float32, patcher=None)


class Empty(torch.nn.Module):
    """What a loaded MODEL holds."""

    def __init__(self, config, weights=torch.bfloat16):
        super().__init__()
        names = ("dim", "ffn_dim", "num_heads", "num_layers", "in_dim", "out_dim", "text_dim")
        sizes = {name: getattr(config, name) for name in names}
        self.diffusion_model = WanModel(
            model_type="t2v", device=META, dtype=weights, operations=comfy.ops.manual_cast, **sizes
        )
        self.weights = weights
        self.manual_cast_dtype = torch.bfloat16

    def get_dtype(self):
        return self.weights


def empty_model(config, weights=torch.bfloat16):
    return ModelPatcher(Empty(config, weights), load_device=GPU, offload_device=CPU)


def empty_scorer():
    return blip._empty_model(IMAGE_REWARD)


class EmptyVae:
    """The Wan VAE."""

    device = META

    def __init__(self, dtype, dim=96):
        layout = {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True]}
        self.vae_dtype = dtype
        with META:
            self.first_stage_model = WanVAE(dim=dim, z_dim=16, **layout).to(dtype)
        for module in self.first_stage_model.modules():
            if isinstance(module, AttentionBlock):
                module.optimized_attention = lambda q, k, v: v

    def process_output(self, video):
        return video


def real_request(drafter, target, dtype=torch.float16, **changes):
    """Return what is planned of a run of nine blocks in 832 x 480 with a pair of MODELs."""
    wires = {
        "vae": EmptyVae(dtype),
        "router": RouterValue(Route(), SCORER),
        "prompts": (PromptEntry(0, None, ""),),
        **changes,
    }
    request = VideoRequest(width=832, height=480, blocks=9)
    return plan_request(Job(drafter=drafter, target=target, request=request, **wires))
