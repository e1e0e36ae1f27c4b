"""From files to the parts of a run. Everything is checked before the first weight is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..causal_wan.attention import TorchOps
from ..causal_wan.backends import AttentionBackend, choose_attention
from ..causal_wan.build import Wan, WanShape, build_engine
from ..causal_wan.checkpoint import WanCheckpoint, load_wan, open_wan
from ..causal_wan.presets import Preset
from ..causal_wan.stages import compiled_stages
from ..checkpoints.model_files import ModelFiles
from ..checkpoints.weights import check_finite_weights
from ..decoders import load_wan_vae
from ..decoders.wan_vae import open_wan_vae
from ..decoders.wan_vae_sizes import WanVaeSizes
from ..devices.compiling import check_compile, compiler_of
from ..devices.device import check_device
from ..devices.dtypes import dtype_name, parse_dtype
from ..engine.parts import Engine
from ..errors import BadInput
from ..report.assemble import ModelSettings, PartSettings
from ..scorers.image_reward import ImageRewardScorer, check_reward_dtype, load_image_reward
from ..text import load_umt5
from ..text.umt5 import check_text_dtype
from .options import LoadOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checked:
    """Models that can be loaded and fit together, as their headers tell; no weight has been read."""

    drafter: WanCheckpoint
    target: WanCheckpoint
    drafter_preset: Preset
    target_preset: Preset
    vae: WanVaeSizes
    overlap: bool = False

    @property
    def shapes(self) -> tuple[WanShape, WanShape]:
        """What the engine needs to know of drafter and target before a run."""
        return (
            WanShape.of("drafter", self.drafter.config, self.drafter_preset),
            WanShape.of("target", self.target.config, self.target_preset),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """The parts of a run in memory.

    `build`: makes the engine for one video; takes the callback before every forward pass. `device`: of the
    transformers; `side`: of text encoder, VAE and scorer. `kernel_notes`: what a reader must know of the kernels.
    """

    build: Callable[..., Engine]
    scorer: ImageRewardScorer | None
    parts: PartSettings
    device: torch.device
    side: torch.device
    kernel_notes: tuple[str, ...] = ()


def check_models(files: ModelFiles, options: LoadOptions) -> Checked:
    """Check from the files' headers that the models can be loaded and fit together. Raises `BadInput` if not."""
    device = check_device(options.device)
    parse_dtype(options.vae_dtype)
    check_text_dtype(parse_dtype(options.text_dtype))
    check_reward_dtype(parse_dtype(options.reward_dtype))
    check_compile(options.execution.compile, device)
    drafter, target = open_wan(files.drafter), open_wan(files.target)
    _check_pair(files, drafter, target)
    for found in (drafter, target):
        _attention(found, options, device)
    _, vae, _ = open_wan_vae(files.vae)
    return Checked(
        drafter=drafter,
        target=target,
        drafter_preset=options.drafter.resolve(drafter, options.schedule),
        target_preset=options.target.resolve(target, options.schedule),
        vae=vae,
        overlap=options.execution.overlap,
    )


def _check_pair(files: ModelFiles, drafter: WanCheckpoint, target: WanCheckpoint) -> None:
    names = {"in_dim": "latent channels", "text_dim": "text channels", "patch_size": "patches"}
    for field, words in names.items():
        small, large = getattr(drafter.config, field), getattr(target.config, field)
        if small != large:
            raise BadInput(
                f"drafter and target must have the same {words}, but {files.drafter.name} (drafter) has {small} "
                f"and {files.target.name} (target) has {large}; load two models that share one VAE and text encoder"
            )


def encode_prompts(files: ModelFiles, texts: Iterable[str], options: LoadOptions) -> dict[str, Tensor]:
    """Return the embedding `(1, 512, c)` of each text. The encoder is in memory only while this runs.

    Raises `BadInput` if the encoder returns NaN or infinity.
    """
    encoder = load_umt5(
        files.text_encoder,
        tokenizer=files.tokenizer,
        device=options.side,
        dtype=parse_dtype(options.text_dtype),
    )
    device = check_device(options.device)
    embeddings = {text: encoder.encode(text).to(device) for text in dict.fromkeys(texts)}
    for text, embedding in embeddings.items():
        if not bool(torch.isfinite(embedding).all()):
            raise BadInput(
                f"the text encoder {files.text_encoder.name} made NaN or infinity of {text[:60]!r}; check its "
                "file, and try a wider --text-dtype"
            )
    return embeddings


def load_models(files: ModelFiles, options: LoadOptions, checked: Checked) -> Loaded:
    """Load VAE, drafter, target, and the scorer if `files` has one."""
    device, side, execution = check_device(options.device), options.side, options.execution
    codec = load_wan_vae(
        files.vae,
        device=side,
        dtype=parse_dtype(options.vae_dtype),
        layers=execution.vae_layers,
        compiler=compiler_of(execution.compile),
    )
    scorer = _load_scorer(files, options) if files.reward else None
    drafter, drafter_kernel = _load_wan(checked.drafter, checked.drafter_preset, options, device)
    target, target_kernel = _load_wan(checked.target, checked.target_preset, options, device)
    kernels = (drafter_kernel, target_kernel)
    return Loaded(
        build=partial(build_engine, drafter, target, codec, scorer, overlap=execution.overlap),
        scorer=scorer,
        parts=_describe(files, options, checked, (drafter, target), kernels),
        device=device,
        side=side,
        kernel_notes=tuple(filter(None, dict.fromkeys(kernel.note for kernel in kernels))),
    )


def _load_scorer(files: ModelFiles, options: LoadOptions) -> ImageRewardScorer:
    assert files.reward is not None
    scorer = load_image_reward(
        files.reward,
        vocabulary=files.vocabulary,
        device=options.side,
        dtype=parse_dtype(options.reward_dtype),
        crop=options.crop,
    )
    check_finite_weights(scorer.model, files.reward.name)
    return scorer


def _load_wan(
    found: WanCheckpoint, preset: Preset, options: LoadOptions, device: torch.device
) -> tuple[Wan, AttentionBackend]:
    path: Path = found.weights.path
    wan = load_wan(path, device=device, dtype=parse_dtype(options.dtype) if options.dtype else None)
    check_finite_weights(wan.tree, path.name)
    kernel = _attention(found, options, device)
    stages = compiled_stages(compiler_of(options.execution.compile))
    ops, kv_fp8 = TorchOps(wan.dtype, kernel), options.execution.kv_fp8
    return Wan(tree=wan.tree, ops=ops, preset=preset, device=device, kv_fp8=kv_fp8, stages=stages), kernel


def _describe(
    files: ModelFiles,
    options: LoadOptions,
    checked: Checked,
    wans: tuple[Wan, Wan],
    kernels: tuple[AttentionBackend, AttentionBackend],
) -> PartSettings:
    def model(found: WanCheckpoint, wan: Wan, kernel: AttentionBackend) -> ModelSettings:
        dtype = options.dtype or dtype_name(found.dtype)
        return ModelSettings(
            file=found.weights.path.name,
            size=found.config.size,
            preset=wan.preset,
            dtype=dtype,
            attention=kernel.name,
            quantisation=found.quantisation.label,
            bytes=sum(tensor.nbytes for tensor in wan.tree.state_dict().values()),
        )

    return PartSettings(
        drafter=model(checked.drafter, wans[0], kernels[0]),
        target=model(checked.target, wans[1], kernels[1]),
        vae={"file": files.vae.name, "dtype": options.vae_dtype, "layers": options.execution.vae_layers},
        text_encoder={"file": files.text_encoder.name, "dtype": options.text_dtype},
        device=options.device,
        side_device=options.side_device or options.device,
        execution=options.execution,
    )


def _attention(found: WanCheckpoint, options: LoadOptions, device: torch.device) -> AttentionBackend:
    """Return the kernel for a checkpoint. Raises `BadInput` if the requested one is not available."""
    dtype = parse_dtype(options.dtype) if options.dtype else found.dtype
    name = options.execution.attention
    return choose_attention(name, device=device, dtype=dtype, head_dim=found.config.head_dim)
