"""From files to the parts of a run. Everything is checked before the first weight is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..causal_wan.attention import TorchOps
from ..causal_wan.backends import AttentionBackend, choose_attention
from ..causal_wan.checkpoint import WanCheckpoint, load_wan, open_wan
from ..causal_wan.context import AnchorEncoder, ContextPolicy, Incremental, Recompute
from ..causal_wan.fp8_cache import KV_DTYPES
from ..causal_wan.generator import CausalWanGenerator
from ..causal_wan.presets import Preset, get_preset, guess_preset
from ..causal_wan.schedule import get_schedule
from ..causal_wan.stages import compiled_stages
from ..checkpoints.model_files import ModelFiles
from ..checkpoints.weights import check_finite_weights
from ..decoders import VaeLayers, WanCodec, load_wan_vae
from ..devices.compiling import CompileMode, check_compile, compiler_of
from ..engine.parts import Engine
from ..errors import BadInput
from ..scorers.image_reward import ImageRewardScorer, load_image_reward
from ..scorers.preprocess import Crop
from ..text import load_umt5
from .described import describe_model, notes_on

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How one transformer is run: a preset, and what replaces its values (None keeps them)."""

    preset: str = AUTO
    policy: Literal["recompute", "incremental"] | None = None
    block_frames: int | None = None
    context_frames: int | None = None
    window: int | None = None
    sink: int | None = None

    def resolve(self, found: WanCheckpoint) -> Preset:
        """Return the preset for a checkpoint. Raises `BadInput` if it is unknown or contradicts itself."""
        base = guess_preset(found.config) if self.preset == AUTO else get_preset(self.preset)
        names = ("policy", "block_frames", "context_frames", "window", "sink")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return base.replace(**changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Where and how the models run.

    `device`: of the transformers; `side_device`: of text encoder, VAE and scorer (the paper's second GPU), None for
    the same one. `dtype`: of the transformers, None as stored. `schedule`: for both models, None the presets'.
    `vae_layers`: diffusers' own, `lean`, a CPU's for miniature widths, or a GPU's, `channels-last` and `planes`.
    `compile`: what of the transformers and the VAE's decoder is compiled. `attention`: the transformers' kernel,
    one of `ATTENTIONS`. `kv_dtype`: of their keys and values, one of `KV_DTYPES`. `overlap`: whether the next block
    is begun beside the decoding of the newest (overlap.py).
    """

    drafter: ModelOptions = field(default_factory=ModelOptions)
    target: ModelOptions = field(default_factory=ModelOptions)
    schedule: str | None = None
    device: str = "cpu"
    side_device: str | None = None
    dtype: str | None = None
    vae_dtype: str = "float32"
    vae_layers: VaeLayers = "diffusers"
    text_dtype: str = "bfloat16"
    reward_dtype: str = "float32"
    crop: Crop = "center"
    attention: str = AUTO
    kv_dtype: str = AUTO
    overlap: bool = False
    compile: CompileMode = "off"

    @property
    def beside(self) -> torch.device:
        """The device of text encoder, VAE and scorer."""
        return check_device(self.side_device or self.device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checked:
    """Two transformers that can be loaded and fit one another; nothing of them is in memory yet."""

    drafter: WanCheckpoint
    target: WanCheckpoint
    drafter_preset: Preset
    target_preset: Preset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """The parts of a run, and what the report says of them. `overlap`: as in `LoadOptions`."""

    engine: Engine
    codec: WanCodec
    scorer: ImageRewardScorer
    patch: int
    settings: dict[str, Any]
    notes: tuple[str, ...]
    overlap: bool = False


def check_device(name: str) -> torch.device:
    """Return a device by its name. Raises `BadInput` if there is none such here."""
    try:
        # With its number, so that cuda and cuda:0 are known for one.
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(
            f"expected a device of this machine, but {name!r} is none ({str(error).splitlines()[0][:120]}); "
            "use cpu, or cuda on a machine with an NVIDIA GPU and its build of torch"
        ) from error


def device_clock(*devices: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that waits for what its caller began on the devices, so that work is booked where
    it was done. What another thread does there beside it is not waited for.
    """
    waited_for = tuple(device for device in dict.fromkeys(devices) if device.type == "cuda")
    if not waited_for:
        return time.perf_counter

    def synchronised() -> float:
        for device in waited_for:
            torch.cuda.current_stream(device).synchronize()
        return time.perf_counter()

    return synchronised


def check_models(files: ModelFiles, options: LoadOptions) -> Checked:
    """See from the files' headers that both transformers can be loaded and fit one another.

    Raises `BadInput` if not.
    """
    drafter, target = open_wan(files.drafter), open_wan(files.target)
    for what in ("in_dim", "text_dim", "patch_size"):
        small, large = getattr(drafter.config, what), getattr(target.config, what)
        if small != large:
            names = {"in_dim": "latent channels", "text_dim": "text channels", "patch_size": "patches"}
            raise BadInput(
                f"expected two models with the same {names[what]}, but {files.drafter.name} (drafter) has {small} "
                f"and {files.target.name} (target) has {large}; load two models that share one VAE and text encoder"
            )
    for found in (drafter, target):
        _attention(found, options)
    _keeps_fp8(options)
    check_compile(options.compile, check_device(options.device))
    presets = options.drafter.resolve(drafter), options.target.resolve(target)
    if options.schedule is not None:
        get_schedule(options.schedule)
        presets = replace(presets[0], schedule=options.schedule), replace(presets[1], schedule=options.schedule)
    return Checked(drafter=drafter, target=target, drafter_preset=presets[0], target_preset=presets[1])


def encode_prompts(files: ModelFiles, texts: Iterable[str], options: LoadOptions) -> dict[str, Tensor]:
    """Return the embedding `(1, 512, c)` of every text; the encoder is in memory only while this runs.

    Raises `BadInput` if the encoder makes numbers that are not finite.
    """
    encoder = load_umt5(
        files.text_encoder,
        tokenizer=files.tokenizer,
        device=options.beside,
        dtype=_dtype(options.text_dtype),
    )
    device = check_device(options.device)
    embeddings = {text: encoder.encode(text).to(device) for text in dict.fromkeys(texts)}
    for text, embedding in embeddings.items():
        if not bool(torch.isfinite(embedding).all()):
            raise BadInput(
                f"expected finite text embeddings, but there is NaN or infinity in the embedding of {text[:60]!r}; "
                f"check {files.text_encoder.name}, and try a wider --text-dtype"
            )
    return embeddings


def load_engine(
    files: ModelFiles,
    options: LoadOptions,
    checked: Checked,
    before_pass: Callable[[str], None],
) -> Loaded:
    """Load VAE, scorer, drafter and target. `before_pass` is called before every forward pass with its kind."""
    vae_dtype = _dtype(options.vae_dtype)
    codec = load_wan_vae(
        files.vae,
        device=options.beside,
        dtype=vae_dtype,
        layers=options.vae_layers,
        compiler=compiler_of(options.compile),
    )
    scorer = load_image_reward(
        files.reward,
        vocabulary=files.vocabulary,
        device=options.beside,
        dtype=_dtype(options.reward_dtype),
        crop=options.crop,
    )
    check_finite_weights(scorer.model, files.reward.name)
    device = check_device(options.device)
    clock, encoder = device_clock(device), AnchorEncoder(codec.encode)

    def build(name: str, found: WanCheckpoint, path: Any, preset: Preset) -> CausalWanGenerator:
        wan = load_wan(path, device=device, dtype=_dtype(options.dtype) if options.dtype else None)
        check_finite_weights(wan.tree, path.name)
        return CausalWanGenerator(
            wan.tree,
            name=name,
            ops=TorchOps(wan.dtype, _attention(found, options)),
            # Only a draft that was begun ahead may be on a wrong guess.
            context=_policy(preset, encoder, undo=options.overlap and name == "drafter"),
            schedule=get_schedule(preset.schedule),
            block_frames=preset.block_frames,
            device=device,
            kv_fp8=_keeps_fp8(options),
            stages=compiled_stages(compiler_of(options.compile)),
            before_pass=before_pass,
            clock=clock,
        )

    drafter = build("drafter", checked.drafter, files.drafter, checked.drafter_preset)
    target = build("target", checked.target, files.target, checked.target_preset)
    described = scorer.describe()
    notes = described.pop("notes")
    kernels = tuple(_attention(found, options) for found in (checked.drafter, checked.target))
    settings = {
        "drafter": describe_model(checked.drafter, checked.drafter_preset, options, kernels[0]),
        "target": describe_model(checked.target, checked.target_preset, options, kernels[1]),
        "vae": {"file": files.vae.name, "dtype": options.vae_dtype, "layers": options.vae_layers},
        "text_encoder": {"file": files.text_encoder.name, "dtype": options.text_dtype},
        "scorer": described,
        "device": options.device,
        "side_device": options.side_device or options.device,
        "overlap": options.overlap,
        "compile": options.compile,
    }
    engine = Engine(drafter=drafter, target=target, codec=codec, scorer=scorer)
    patch = checked.target.config.patch_size[1]
    return Loaded(
        engine=engine,
        codec=codec,
        scorer=scorer,
        patch=patch,
        settings=settings,
        notes=(*notes, *notes_on(options, kernels)),
        overlap=options.overlap,
    )


def _policy(preset: Preset, encoder: AnchorEncoder, *, undo: bool) -> ContextPolicy:
    if preset.policy == "recompute":
        return Recompute(encode_anchor=encoder, frames=preset.context_frames)
    return Incremental(window=preset.window, sink=preset.sink, undo=undo)


def _attention(found: WanCheckpoint, options: LoadOptions) -> AttentionBackend:
    """Return the kernel for a checkpoint. Raises `BadInput` if the one asked for cannot be had."""
    dtype = _dtype(options.dtype) if options.dtype else found.dtype
    device = check_device(options.device)
    return choose_attention(options.attention, device=device, dtype=dtype, head_dim=found.config.head_dim)


def _keeps_fp8(options: LoadOptions) -> bool:
    if options.kv_dtype not in KV_DTYPES:
        raise BadInput(
            f"expected a kv_dtype among {', '.join(KV_DTYPES)}, but got {options.kv_dtype!r}; choose one of them"
        )
    return options.kv_dtype != AUTO


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise BadInput(f"expected a dtype among {', '.join(DTYPES)}, but got {name!r}; choose one of them")
    return DTYPES[name]
