"""Runs Krea's realtime-video session on a CPU, over miniatures of its model and VAE. See `standins.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from standins import (
    FULL_FRAME,
    Prompts,
    answer,
    drawing,
    float32_only,
    load,
    random_weights,
    replace_numbers,
    use_checkout,
    use_eager_attention,
    without_cuda,
)
from torch import Tensor

PACKAGES = ("wan", "wan.modules", "pipeline")
ABSENT = (
    *("wan.modules.tokenizers", "wan.modules.t5", "demo_utils.memory", "cv2", "dotenv", "msgpack", "omegaconf"),
    *("requests", "torchvision", "torchvision.transforms", "torchvision.transforms.functional"),
    *("fastapi", "fastapi.middleware", "fastapi.middleware.cors", "fastapi.responses"),
)
FADE = 2
"""Blocks of a fade between prompts: the least, in which the first still has the old prompt."""


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return each case's latents `b c t h w` and shown pixels `b f c h w` in [-1, 1], and the VAE's weights."""
    import diffusers.models.modeling_utils  # noqa: F401  before half precision is taken away

    without_cuda()
    float32_only()
    os.environ["DISABLE_SAGEATTENTION"] = "1"
    os.environ["MODEL_FOLDER"] = "none"
    use_checkout(checkout, packages=PACKAGES, absent=ABSENT)
    sys.modules["pydantic"] = settings_without_checks()
    studio = Studio(request)
    cases = {name: studio.make(**case) for name, case in request["cases"].items()}
    return {"cases": cases, "vae": studio.vae.state_dict()}


def settings_without_checks() -> ModuleType:

    class Values:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    module: Any = ModuleType("pydantic")
    module.BaseModel = Values
    module.ValidationError = ValueError
    return module


class Studio:
    """Its server module, with models of every name in the request."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        from wan.modules import attention

        use_eager_attention(attention)
        import pipeline.causal_inference as inference
        import release_server
        from demo_utils import vae_block3
        from wan.modules import causal_model as causal
        from wan.modules import vae

        self.request = request
        self.server = release_server
        self.inference = inference
        self.tokens = request["frame_tokens"]
        self.height, self.width = (8 * n for n in request["noise"].shape[3:])
        sizes = request["sizes"]
        model = causal.CausalWanModel
        model.from_pretrained = classmethod(lambda cls, _, **options: cls(**sizes, **options))
        replace_numbers(causal.CausalWanSelfAttention, "forward", {FULL_FRAME: self.tokens})
        replace_numbers(inference.CausalInferencePipeline, "__init__", {FULL_FRAME: self.tokens})
        picture = {480: self.height, 832: self.width}
        replace_numbers(release_server.GenerationSession, "get_clean_context_frames", picture)

        self.vae = random_weights(vae.WanVAE_(dim=8, z_dim=16, temperal_downsample=[False, True, True]), seed=0)
        self.encoder = vae_block3.VAEEncoderWrapper(SimpleNamespace(model=self.vae))
        narrow = vae_block3.VAEDecoder3d
        vae_block3.VAEDecoder3d = lambda: narrow(dim=8)
        self.decoder = vae_block3.VAEDecoderWrapper()
        self.decoder.load_state_dict(self.vae.state_dict(), strict=False)

    def make(self, *, fade: int = -1, scores: Sequence[float] = (), tau: float = 0.0, **settings: int) -> Any:
        """Return one case's latents and pixels. `fade`: see `plain`; `scores`, `tau`: see `speculative`."""
        names = ("target", "drafter") if scores else ("target",)
        sessions = [self.session(name, **settings) for name in names]
        shown = speculative(sessions, scores, tau) if scores else plain(sessions[0], fade)
        return {"latents": sessions[0].state.all_latents.transpose(1, 2), "pixels": torch.cat(shown, dim=1)}

    def session(self, weights: str, *, frames: int, steps: int, blocks: int = 9) -> Session:
        """Return a new session over one of the models. `frames`: of context."""
        from utils.wan_wrapper import WanDiffusionWrapper

        transformer = WanDiffusionWrapper(timestep_shift=5.0, is_causal=True)
        load(transformer.model, self.request["weights"][weights])
        for layer in transformer.model.blocks:
            layer.self_attn.fuse_projections()
        settings = SimpleNamespace(
            denoising_step_list=[1000, 937, 833, 625, 0],
            warp_denoising_step=False,
            num_frame_per_block=3,
            independent_first_frame=False,
            use_taehv=False,
        )
        prompts = Prompts(self.request["prompts"])
        pipe = self.inference.CausalInferencePipeline(
            settings, "cpu", generator=transformer, text_encoder=prompts, vae=self.decoder
        )
        models = self.server.Models(prompts, transformer, pipe, self.encoder, self.decoder)
        params = self.server.GenerateParams(
            prompt="first",
            width=self.width,
            height=self.height,
            seed=0,
            kv_cache_num_frames=frames,
            num_denoising_steps=steps,
            num_blocks=blocks,
        )
        state = self.server.GenerationSession(params, settings, frame_callback=lambda *shown: None, models=models)
        return Session(state, models, self.request["noise"].transpose(1, 2))


class Session:
    """One of its sessions, with noise `slots t c h w` given from outside."""

    def __init__(self, state: Any, models: Any, noise: Tensor) -> None:
        self.state = state
        self._models = models
        self._noise = noise
        state.noise = noise[:1].clone()

    def generate(self) -> Tensor:
        first = self.state.current_start_frame
        with drawing("randn", self._noise[:, first : first + 3], len(self.state.denoising_step_list)):
            shown: Tensor = self.state.generate_block(self._models)
        return shown

    def fade_to(self, prompt: str) -> None:
        self.state.interpolate_prompt_embeds(self._models, prompt, FADE)

    def follow(self, other: Session) -> None:
        """Take over what another session has made so far."""
        self.state.all_latents = other.state.all_latents.clone()
        self.state.decode_vae_cache = list(other.state.decode_vae_cache)
        self.state.frame_context_cache = other.state.frame_context_cache.copy()
        self.state.current_start_frame = other.state.current_start_frame
        self.state.block_idx = other.state.block_idx


def plain(session: Session, fade: int) -> list[Tensor]:
    """Make every block; before block `fade`, begin to fade to the second prompt."""
    shown = []
    for block in range(session.state.num_blocks):
        if block == fade:
            session.fade_to("second")
        shown.append(session.generate())
    return shown


def speculative(sessions: Sequence[Session], scores: Sequence[float], tau: float) -> list[Tensor]:
    """Run the method in the plainest way there is, over two of its sessions with one committed past.

    A block's draft is kept if its score is at least tau; the first block never is. Else the target makes the block
    from the same past and the same noise. Whichever model did not make the block takes over the other's past.
    """
    target, drafter = sessions
    shown = []
    for block, score in enumerate(scores):
        draft = drafter.generate()
        if block > 0 and score >= tau:
            shown.append(draft)
            target.follow(drafter)
        else:
            shown.append(target.generate())
            drafter.follow(target)
    return shown


if __name__ == "__main__":
    answer(run)
