"""Load the models of a run from files that were checked, according to its memory plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..causal_wan.checkpoint import WanCheckpoint, WanFile, load_control, load_wan
from ..causal_wan.context import Wan
from ..causal_wan.forward import compiled_stages
from ..causal_wan.generator import build_engine
from ..causal_wan.modules import ControlTree
from ..decoders.open import LIGHT_BASE, VaeFile, load_vae
from ..devices.compiling import compiler_of
from ..devices.device import DTYPES, check_device, dtype_name, side_device
from ..engine.plan import EVERY_ROLE, Roles
from ..engine.protocols import BlockGenerator, Engine, VideoCodec
from ..engine.reuse import PartKeys
from ..errors import BadInput, see
from ..memory.plan import Plan, gigabytes, memory_notes, plan, savings
from ..memory.sizes import GB, PUBLISHED_BASE, PlanRequest, Stored
from ..report.assemble import ReportedModel
from ..scorers.image_reward import ImageRewardScorer, load_image_reward
from ..settings.execution import AUTO, Execution, WeightDtype
from ..settings.load import DecoderName, LoadOptions
from ..text.umt5 import load_umt5
from ..weights.lora_beside import beside_bytes
from ..weights.model_files import ModelFiles
from ..weights.quantized import multiply_in_fp8
from ..weights.weight_file import check_finite_weights, stored_tensors, weight_digest
from .headers import FileHeaders, Headers, file_part_keys

DEFAULT_DTYPE: WeightDtype = "default"
ROUNDED: WeightDtype = "fp8_e4m3fn"
FAST: WeightDtype = "fp8_e4m3fn_fast"
SHARE_TO_PLAN = 0.94
"""Share of free memory to plan with: on an H100, videos took up to 5.5 % more than planned."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Models:
    """The loaded models of a run; custom ones may replace some.

    `settings`: for the report. `options`: that they were loaded by. `device`: of the transformers; `side`: of text
    encoder, VAE and scorer. `by_files`: keys from the files alone. `plan`: of the memory, if it was planned.
    """

    drafter: Wan | BlockGenerator | None
    target: Wan | BlockGenerator | None
    codec: VideoCodec
    scorer: ImageRewardScorer | None
    settings: Mapping[str, Any]
    options: LoadOptions
    device: torch.device
    side: torch.device
    by_files: PartKeys
    plan: Plan | None = None

    @property
    def execution(self) -> Execution:
        """How they run."""
        return self.options.execution

    @property
    def wans(self) -> dict[str, Wan]:
        """The transformers, by role."""
        both = {"drafter": self.drafter, "target": self.target}
        return {role: wan for role, wan in both.items() if isinstance(wan, Wan)}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on kernels and memory, with the peak so far."""
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        # One model in both roles has one tree.
        sizes = {id(wan.tree): (role, wan.copied) for role, wan in self.wans.items()}
        bytes_of = {role: self.settings[role]["bytes"] for role, _ in sizes.values()}
        loaded = {role: (bytes_of[role] - copied, bytes_of[role]) for role, copied in sizes.values()}
        of_kernels = filter(None, dict.fromkeys(wan.ops.backend.note for wan in self.wans.values()))
        return (*of_kernels, *memory_notes(loaded, self.plan.peak if self.plan else None, peak))

    @cached_property
    def part_keys(self) -> PartKeys:
        """Keys of the parts with a hash of all weights, computed at first use."""
        digest = cache(weight_digest)
        of_wans = {
            role: " ".join((getattr(self.by_files, role), *map(digest, filter(None, (wan.tree, wan.control)))))
            for role, wan in self.wans.items()
        }
        of_scorer = {"scorer": f"{self.by_files.scorer} {digest(self.scorer.model)}"} if self.scorer else {}
        return replace(self.by_files, **of_wans, **of_scorer)

    def build(self, *, needed: Roles = EVERY_ROLE, **options: Any) -> Engine:
        """Return the engine for one video, with the models in `needed`. `options`: see `build_engine`."""
        return build_engine(
            self.drafter if "drafter" in needed else None,
            self.target if "target" in needed else None,
            self.codec,
            self.scorer if "scorer" in needed else None,
            **options,
        )


def encode_prompts(files: ModelFiles, texts: Iterable[str], options: LoadOptions) -> dict[str, Tensor]:
    """Return the embedding `(1, 512, c)` of each text. Loads the encoder and frees it again.

    Raises `BadInput` if the encoder returns NaN or infinity.
    """
    encode = load_encoder(files, options)
    return {text: encode(text) for text in dict.fromkeys(texts)}


def load_encoder(files: ModelFiles, options: LoadOptions) -> Callable[[str], Tensor]:
    """Load the text encoder; return a function from text to embedding `(1, 512, c)` on `options.device`.

    The function raises `BadInput` if the encoder returns NaN or infinity.
    """
    side = side_device(options)
    vram = free_vram(side, options.vram) if side == check_device(options.device) else None
    encoder = load_umt5(
        files.text_encoder,
        tokenizer=files.tokenizer,
        device=side,
        dtype=DTYPES[options.text_dtype],
        room=None if vram is None else vram * GB,
    )
    device = check_device(options.device)

    def encode(text: str) -> Tensor:
        embedding = encoder.encode(text).to(device)
        if not bool(torch.isfinite(embedding).all()):
            fault = f"the text encoder {files.text_encoder.name} made NaN or infinity of {text[:60]!r}"
            raise BadInput(f"{fault}; check its file, and try a wider --text-dtype DTYPE")
        return embedding

    return encode


def free_vram(device: torch.device, vram: float | Literal["auto", "all"]) -> float | None:
    """Return the GB of a device to plan with, or None for no plan."""
    if vram == "all" or (vram == AUTO and device.type != "cuda"):
        return None
    if vram != AUTO:
        return float(vram)
    torch.cuda.empty_cache()
    return SHARE_TO_PLAN * torch.cuda.mem_get_info(device)[0] / GB


def plan_memory(headers: FileHeaders, options: LoadOptions, width: int, height: int, blocks: int) -> Plan | None:
    """Return the memory plan of a video, or None if `options.vram` asks for none. `width`, `height`: pixels.

    Raises `BadInput` if it does not fit.
    """
    device = check_device(options.device)
    vram = free_vram(device, options.vram)
    if vram is None:
        return None
    if headers.one_model:
        if options.vram != AUTO:
            raise BadInput("vram plans two models, but drafter and target are one; leave it out")
        return None
    files = {role: model.checkpoint for role, model in headers.models.items()}
    request = replace(
        memory_request(headers, width, height, blocks),
        needed=Roles(headers.models) | Roles(["scorer"] if headers.scorer else []),
        dtype=dtype_name(max((file.dtype for file in files.values()), key=lambda dtype: dtype.itemsize)),
        execution=options.execution,
        side=side_device(options) != device,
        where="on the command line",
        stored=_stored(files.get("target"), options.weight_dtype),
        drafter_stored=_stored(files.get("drafter")),
        vae_dtype=options.vae_dtype,
        reward_dtype=options.scorer_dtype,
    )
    added = sum(beside_bytes(model.loras, model.checkpoint.dtype) for model in headers.models.values())
    layout = plan(max(vram - added / GB, 1 / GB), request)
    if not layout.fits:
        cure = " or ".join((*savings(request, layout.usable), "a smaller --size"))
        fault = f"{device} has {gigabytes(layout.missing)} less memory than the video needs"
        raise BadInput(f"{fault}; try {cure}" + see("Out of memory"))
    return layout


def _stored(file: WanCheckpoint | None, weight_dtype: WeightDtype = DEFAULT_DTYPE) -> Stored:
    """Return how the weights of a file will be. `weight_dtype`: as asked."""
    forms = [layer.form.name for layer in file.quantisation.layers.values()] if file else []
    if forms:
        return "int8" if "int8" in forms else "w4a8"
    rounded = weight_dtype != DEFAULT_DTYPE or (file is not None and file.quantisation.label != "none")
    return "fp8" if rounded else "plain"


def memory_request(headers: Headers, width: int, height: int, blocks: int) -> PlanRequest:
    """Return the request of a memory plan; a missing model counts with the header of the other one."""
    decoder: DecoderName = "lightvae" if headers.vae.decoder_base == LIGHT_BASE else "wan"
    return PlanRequest(
        width=width,
        height=height,
        blocks=blocks,
        drafter=headers.shape("drafter"),
        target=headers.shape("target"),
        vae="tae" if headers.vae.tae_kind else decoder,
        vae_base=headers.vae.decoder_base or PUBLISHED_BASE,
    )


def load_models(
    files: ModelFiles, options: LoadOptions, headers: FileHeaders, planned: Plan | None = None
) -> Models:
    """Load the VAE, the transformers in `headers`, and the scorer if `files` has one.

    `planned`: the memory plan; without one, nothing is streamed. Raises `BadInput` for NaN or infinity in weights.
    """
    device = check_device(options.device)
    side = side_device(options)
    one_model = headers.one_model
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    codec = load_decoder(headers.vae, options)
    scorer: ImageRewardScorer | None = None
    if files.reward:
        dtype = DTYPES[options.scorer_dtype]
        scorer = load_image_reward(files.reward, vocabulary=files.vocabulary, device=side, dtype=dtype)
        check_finite_weights(scorer.model, files.reward.name)
    wans: dict[str, Wan] = {}
    settings: dict[str, dict[str, Any]] = {}
    for role, header in sorted(headers.models.items()):
        shared = next(iter(wans.values()), None) if one_model else None
        streamed = planned.streamed.get(role, 0) if planned else 0
        weight_dtype = options.weight_dtype if role == "target" or one_model else DEFAULT_DTYPE
        wans[role] = _load_wan(header, options, device, shared, streamed, weight_dtype)
        settings[role] = _reported(header, options, wans[role], weight_dtype).as_dict()
    return Models(
        drafter=wans.get("drafter"),
        target=wans.get("target"),
        codec=codec,
        scorer=scorer,
        settings={
            "drafter": settings.get("drafter"),
            "target": settings.get("target"),
            "vae": {
                "file": files.vae.name,
                "dtype": options.vae_dtype,
                "layers": options.execution.vae_layers,
                "tae_kind": headers.vae.tae_kind,
            },
            "text_encoder": {"file": files.text_encoder.name, "dtype": options.text_dtype},
            "device": options.device,
            "side_device": options.side_device or options.device,
            "compile": options.execution.compile,
        },
        options=options,
        device=device,
        side=side,
        by_files=file_part_keys(files, options, headers.models),
        plan=planned,
    )


def load_decoder(vae: Path | VaeFile, options: LoadOptions) -> VideoCodec:
    """Load a VAE or a TAEHV, opened or not, onto the side device."""
    execution = options.execution
    return load_vae(
        vae,
        tae_kind=options.tae_kind,
        device=side_device(options),
        dtype=DTYPES[options.vae_dtype],
        layers=execution.vae_layers,
        compiler=compiler_of(execution.compile),
    )


def _load_wan(
    header: WanFile,
    options: LoadOptions,
    device: torch.device,
    shared: Wan | None,
    streamed: int,
    weight_dtype: WeightDtype,
) -> Wan:
    """Load a transformer. `shared`: the same weights, loaded for the other role.

    `streamed`: number of streamed layers. `weight_dtype`: of linear layers.
    """
    checkpoint = header.checkpoint
    if shared:
        return replace(shared, preset=header.preset, control=_load_control(header, device))
    fast = weight_dtype == FAST
    if fast and checkpoint.dtype != torch.bfloat16:
        dtype = dtype_name(checkpoint.dtype)
        raise BadInput(f"{FAST} works on a model in bfloat16, not {dtype}; add --dtype bfloat16")
    if fast and streamed:
        raise BadInput(f"the target does not fit whole, and {FAST} copies no layers over; take {ROUNDED}")
    layers = checkpoint.config.num_layers
    wan = load_wan(
        checkpoint,
        preset=header.preset,
        device="cpu" if fast else device,
        loras=header.loras,
        fp8=weight_dtype == ROUNDED,
        # Evenly spread, for as much work as possible between two copies.
        streamed=[n for n in range(layers) if (n + 1) * streamed // layers > n * streamed // layers],
        attention=header.attention,
    )
    check_finite_weights(wan.tree, checkpoint.weights.path.name)
    return replace(
        wan,
        tree=multiply_in_fp8(wan.tree, device) if fast else wan.tree,
        device=device,
        kv_fp8=options.execution.kv_fp8,
        stages=compiled_stages(compiler_of(options.execution.compile)),
        control=_load_control(header, device),
    )


def _reported(header: WanFile, options: LoadOptions, wan: Wan, weight_dtype: WeightDtype) -> ReportedModel:
    checkpoint = header.checkpoint
    dtype = dtype_name(checkpoint.dtype)
    as_stored = weight_dtype == DEFAULT_DTYPE
    return ReportedModel(
        file=checkpoint.weights.path.name,
        dictionary=checkpoint.weights.state_dict or None,
        size=checkpoint.config.size,
        preset=header.preset,
        dtype=dtype,
        kv_dtype=options.execution.kept_in(dtype),
        attention=wan.ops.backend.name,
        quantisation=checkpoint.quantisation.label if as_stored else f"{weight_dtype}, as asked",
        bytes=sum(part.nbytes for weight in wan.tree.state_dict().values() for part in stored_tensors(weight)),
        loras_and_patches=sum(len(lora.changes) for lora in header.loras),
        loras=tuple(map(str, header.loras)),
    )


def _load_control(header: WanFile, device: torch.device) -> ControlTree | None:
    if header.control is None:
        return None
    module = load_control(header.control, device=device, dtype=header.checkpoint.dtype)
    check_finite_weights(module, header.control.weights.path.name)
    return module
