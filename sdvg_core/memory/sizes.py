"""Bytes of a run's parts: on the device in each phase of a block, and copied in every pass.

Weights, keys, values and the VAE's state are counted exactly from shapes. Temporary buffers are constants, counted
on meta tensors at the published sizes as the most bytes alive at once (a test repeats it); measuring on one GPU
would include its allocator. Workspaces of the device's libraries are not included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..causal_wan.cache import SCALE_DTYPE
from ..causal_wan.checkpoint import PUBLISHED_DRAFTER, PUBLISHED_TARGET, WanHeader
from ..causal_wan.config import QUANTISED, WanConfig, common_patch, control_shapes, wan_shapes
from ..causal_wan.generator import REMEMBERED_PROMPTS
from ..decoders.open import LIGHT_BASE
from ..devices.device import DTYPES
from ..engine.plan import EVERY_ROLE, Roles, check_size
from ..engine.wrappers import check_sub_blocks
from ..scorers.blip import ImageRewardConfig, scorer_parameters
from ..settings.context import Preset, Rolling
from ..settings.execution import Execution, VaeLayers
from ..settings.load import DecoderName
from ..weights.kitchen import FORMATS, layer_of, stored_shapes

VAE_STRIDE = 8
PUBLISHED_BASE = 96
"""Base width of the Wan VAE."""
IN_COMFYUI = Execution(vae_layers="diffusers")
"""Execution in ComfyUI, whose VAE layers are like diffusers'."""
Where = Literal["in ComfyUI", "on the command line"]
"""The program that loads the models."""
Stored = Literal["plain", "fp8", "int8", "w4a8"]
"""How linear weights are stored: in the dtype of activations, in fp8, or in a format of `convert`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The run to plan; the defaults are the real pair at the paper's size.

    `width`, `height`: pixels. `dtype`: of the transformers' activations and unquantised weights. `side`: whether
    VAE and scorer have a second device. `stored`: how the target's weights are; None for plain or fp8, whichever
    copies less. `drafter_stored`: how the drafter's are. `vae`: the decoder. `vae_base`: base width of a Wan VAE.
    `needed`: models of the route (see `RunPlan`). `prompts`: their number. Raises `BadInput` for a size or a pair
    of models that cannot be.
    """

    width: int = 832
    height: int = 480
    blocks: int = 9
    drafter: WanHeader = PUBLISHED_DRAFTER
    target: WanHeader = PUBLISHED_TARGET
    dtype: str = "bfloat16"
    execution: Execution = IN_COMFYUI
    side: bool = False
    where: Where = "in ComfyUI"
    stored: Stored | None = None
    drafter_stored: Stored = "plain"
    vae: DecoderName = "wan"
    vae_base: int = PUBLISHED_BASE
    vae_dtype: str = "float16"
    reward: ImageRewardConfig = field(default_factory=ImageRewardConfig)
    reward_dtype: str = "float16"
    needed: Roles = EVERY_ROLE
    prompts: int = 1

    def __post_init__(self) -> None:
        check_size(self.width, self.height, self.step)
        check_sub_blocks(self.drafter.block_frames, self.drafter.anchor_horizon, self.target.block_frames)

    @property
    def parts(self) -> tuple[str, ...]:
        """Roles of the models that the route may load."""
        return (*(role for role in ("target", "drafter", "scorer") if role in self.needed), "vae")

    @property
    def step(self) -> int:
        """Pixels of which width and height are multiples."""
        return VAE_STRIDE * common_patch((self.drafter.config, self.target.config))

    @property
    def pixels(self) -> int:
        """Pixels of a frame."""
        return self.width * self.height

    @property
    def models(self) -> Mapping[str, WanHeader]:
        """Both transformers."""
        return {"drafter": self.drafter, "target": self.target}

    @property
    def decoder(self) -> tuple[DecoderName, int]:
        """The decoder's name, and the base width of a Wan VAE."""
        return self.vae, LIGHT_BASE if self.vae == "lightvae" else self.vae_base

    def itemsize(self, name: str) -> int:
        """Return the bytes per number of the dtype in the field `name`."""
        return int(DTYPES[getattr(self, name)].itemsize)


GB = 10**9
SOLD_UNIT = 2**30
"""Cards are sold in units of 2^30 bytes; GB here are 1e9."""
CONTEXT = 8 * GB // 10
"""Bytes that CUDA and its libraries take outside the allocator; 0.72 to 0.80 GB were measured."""
FRAGMENTS = GB
"""Bytes that the allocator needs for fragmentation: a run on 24 GB failed with 0.7 GB and ran with 1.1."""
FLOAT32 = 4
# Most values alive in a pass, in model widths per token: in attention, and in the feed-forward without its inner
# layer and activation. ComfyUI 0.33 keeps the inner layer while it writes the output: one width more.
ATTENTION_WIDTHS = 11.01
FEED_FORWARD_WIDTHS = 6.01
# The same without a layer's visible keys and values, if they are read back from fp8.
READ_WIDTHS = 5.01
# The same if keys are rotated when read, as many frames at a time as the pass has.
TURN_WIDTHS = 10.01
# The same in a control block: the model's tokens, and the embedded control.
CONTROL_WIDTHS = 2.0
# Most bytes alive per pixel of a scored frame (15 are the previous block's and the anchors'), and in the network,
# in feed-forward widths per token.
SCORE_BYTES = 95
SCORE_WIDTHS = 4.15
# Parameters of the Wan VAE, by powers of its base width (in ComfyUI there is no diffusers to count them).
_WAN_PARAMETERS = (1363, 5719, 13709)
_TAE_PARAMETERS = 11_315_539
# Values of the decode state per pixel of a frame; of the Wan VAE per channel of its base width, plus a constant.
_WAN_STATE_PER_BASE = 24.625
_WAN_STATE_MORE = 0.5
_TAE_STATE = 84
# Most values of the VAE's dtype, and bytes of other dtypes, alive while a block is decoded, per pixel of a frame at
# a base width of 96, without the old and the new state.
DECODE: Mapping[VaeLayers, tuple[int, int]] = {"diffusers": (2330, 783), "planes": (2137, 0)}
_TAE_DECODE = 960
# The same while a frame is encoded.
ENCODE_VALUES: Mapping[VaeLayers, int] = {"diffusers": 974, "planes": 867}
SMALL_MODELS = ("vae", "scorer")
LAYERS_IN_FLIGHT = 2
"""Layers of a streamed model on the device in addition to resident ones: the running and the prefetched one."""
LAYER = "blocks.0."
"""Prefix of the weights of the first transformer block."""


def card_bytes(card: float) -> int:
    """Return the bytes that a run can use of a card sold with `card` GB."""
    return int(card * SOLD_UNIT) - CONTEXT - FRAGMENTS


def wan_bytes(config: WanConfig, itemsize: int, prefix: str = "", *, stored: Stored = "plain") -> int:
    """Return the bytes of a transformer's weights with a prefix. `stored`: how linear weights are."""
    shapes = wan_shapes(config)
    return sum(
        _stored_bytes(name, shape, itemsize, stored) for name, shape in shapes.items() if name.startswith(prefix)
    )


def _stored_bytes(name: str, shape: tuple[int, ...], itemsize: int, stored: Stored) -> int:
    if stored == "fp8" and name.endswith(".weight") and len(shape) == 2:
        return math.prod(shape)
    if stored in FORMATS and QUANTISED.fullmatch(name):
        rows, columns = shape
        parts = stored_shapes(layer_of((rows, columns), name, FORMATS[stored]))
        return sum(math.prod(part.shape) * part.dtype.itemsize for part in parts.values())
    return math.prod(shape) * itemsize


def decoder_bytes(decoder: DecoderName, base: int, itemsize: int) -> int:
    """Return the bytes of a codec's weights, encoder included. `base`: base width of a Wan VAE."""
    if decoder == "tae":
        return _TAE_PARAMETERS * itemsize
    first, second, third = _WAN_PARAMETERS
    return (first + second * base + third * base**2) * itemsize


def decode_state_bytes(decoder: DecoderName, base: int, pixels: int, itemsize: int) -> int:
    """Return the bytes of one decode state for frames of `pixels` pixels."""
    if decoder == "tae":
        return _TAE_STATE * pixels * itemsize
    return int((_WAN_STATE_PER_BASE * base + _WAN_STATE_MORE) * pixels) * itemsize


def decode_working_bytes(decoder: DecoderName, base: int, pixels: int, itemsize: int, layers: VaeLayers) -> int:
    """Return the bytes of temporary buffers while a block is decoded."""
    if decoder == "tae":
        return _TAE_DECODE * pixels * itemsize
    values, constant = DECODE[layers]
    return int((values * itemsize * base / PUBLISHED_BASE + constant) * pixels)


def kv_frames(preset: Preset) -> int:
    """Return the number of latent frames in a model's K/V cache."""
    return preset.context.cache_frames(preset.block_frames)


def frame_tokens(config: WanConfig, request: PlanRequest) -> int:
    """Return the number of tokens of one latent frame."""
    _, rows, columns = config.patch_size
    return (request.height // VAE_STRIDE // rows) * (request.width // VAE_STRIDE // columns)


def image_bytes(width: int, height: int, latent_frames: int) -> int:
    """Return the bytes of a video as ComfyUI's IMAGE, in float32."""
    return (4 * latent_frames - 3) * height * width * 3 * 4


def kv_bytes(config: WanConfig, frames: int, tokens: int, itemsize: int, *, fp8: bool = False) -> int:
    """Return the bytes of a K/V cache of `frames` frames of `tokens` tokens. `fp8`: with a scale per head."""
    of_token = config.dim + SCALE_DTYPE.itemsize * config.num_heads if fp8 else config.dim * itemsize
    return 2 * config.num_layers * frames * tokens * of_token


def pass_bytes(
    config: WanConfig, frames: int, tokens: int, itemsize: int, *, read: int = 0, turned: int = 0
) -> int:
    """Return the bytes of temporary buffers in a forward pass over `frames` latent frames.

    `read`: number of latent frames whose keys and values are read back from fp8; `turned`: whose keys are rotated
    when read.
    """
    widths = max(ATTENTION_WIDTHS * config.dim, FEED_FORWARD_WIDTHS * config.dim + 2 * config.ffn_dim)
    if read:
        widths = max(widths, (READ_WIDTHS + 2 * read / frames) * config.dim)
    if turned:
        widths = max(widths, (TURN_WIDTHS + (2 * read + turned) / frames) * config.dim)
    return math.ceil(frames * tokens * widths) * itemsize


def weight_bytes(request: PlanRequest, *, stored: Stored) -> dict[str, int]:
    """Return the bytes of weights of every model of the route. `stored`: how the target's are."""
    itemsize = request.itemsize("dtype")
    towers, head = scorer_parameters(request.reward)
    weights = {
        "target": wan_bytes(request.target.config, itemsize, stored=stored),
        "drafter": wan_bytes(request.drafter.config, itemsize, stored=request.drafter_stored),
        "vae": decoder_bytes(*request.decoder, request.itemsize("vae_dtype")),
        # The head is always float32.
        "scorer": towers * request.itemsize("reward_dtype") + head * FLOAT32,
    }
    modules = {
        f"{role} control": sum(map(math.prod, control_shapes(m.config, m.control_blocks).values())) * itemsize
        for role, m in request.models.items()
        if m.control_blocks
    }
    return {name: size for name, size in (weights | modules).items() if name.split()[0] in request.parts}


def state_bytes(request: PlanRequest) -> dict[str, int]:
    """Return the bytes of both models' keys and values, and of a decode state."""
    itemsize = request.itemsize("dtype")
    states: dict[str, int] = {}
    for name, model in request.models.items():
        config = model.config
        preset = model.preset
        frames = kv_frames(preset)
        tokens = frame_tokens(config, request)
        if name == "drafter" and isinstance(preset.context, Rolling):
            # Backups for a draft of several sub-blocks, except the first (see `RollingContext.undo`).
            frames += request.target.block_frames - preset.block_frames
        states[f"{name} keys and values"] = kv_bytes(config, frames, tokens, itemsize, fp8=request.execution.kv_fp8)
        prompts = min(request.prompts, REMEMBERED_PROMPTS)
        layers = config.num_layers + model.control_blocks
        states[f"{name} text keys and values"] = 2 * prompts * layers * config.text_len * config.dim * itemsize
    states["vae state"] = decode_state_bytes(*request.decoder, request.pixels, request.itemsize("vae_dtype"))
    return states


def unpacking_bytes(model: WanHeader, tokens: int, itemsize: int, *, stored: Stored) -> int:
    """Return the bytes of temporary buffers that a pass of stored weights takes more than one of plain weights.

    `tokens`: of a latent frame. No card has measured those of int8 and W4A8.
    """
    config = model.config
    largest = max(config.dim, config.ffn_dim) * config.dim
    if stored == "fp8":  # one weight at a time is cast up
        return largest * itemsize
    if stored not in FORMATS:
        return 0
    inputs = model.preset.block_frames * tokens * config.ffn_dim  # in int8, beside them as they are
    return inputs + (largest if stored == "w4a8" else 0)  # a weight's numbers in int8


def working_bytes(request: PlanRequest, *, stored: Stored) -> Mapping[str, int]:
    """Return the bytes of temporary buffers in each phase: draft, decode, score, target."""
    itemsize = request.itemsize("dtype")
    vae_itemsize = request.itemsize("vae_dtype")
    layers = request.execution.vae_layers
    tokens = {name: frame_tokens(model.config, request) for name, model in request.models.items()}
    passes = {}
    for name, model in request.models.items():
        preset = model.preset
        rolling = preset.context if isinstance(preset.context, Rolling) else None
        seen = kv_frames(preset)
        passes[name] = pass_bytes(
            model.config,
            seen if rolling and rolling.recache and request.prompts > 1 else preset.block_frames,
            tokens[name],
            itemsize,
            read=seen if request.execution.kv_fp8 else 0,
            turned=seen if rolling and rolling.rotates_later else 0,
        )
        if model.control_blocks:
            values = preset.block_frames * tokens[name] * CONTROL_WIDTHS * model.config.dim
            passes[name] += math.ceil(values) * itemsize
        form = stored if name == "target" else request.drafter_stored
        passes[name] += unpacking_bytes(model, tokens[name], itemsize, stored=form)
    encode = int(ENCODE_VALUES[layers] * request.vae_base / PUBLISHED_BASE * request.pixels) * vae_itemsize
    for name, model in request.models.items():
        if model.anchor_horizon:  # the anchor is encoded while the cache exists
            passes[name] = max(passes[name], encode)
    frames = 4 * request.target.block_frames
    patches = (request.reward.image_size // request.reward.patch_size) ** 2 + 1
    network = int(SCORE_WIDTHS * patches * request.reward.vision_mlp) * frames * request.itemsize("reward_dtype")
    return {
        "draft": passes["drafter"],
        "decode": decode_working_bytes(*request.decoder, request.pixels, vae_itemsize, layers),
        "score": max(SCORE_BYTES * frames * request.pixels, network),
        "target": passes["target"],
    }


def workers(request: PlanRequest) -> Mapping[str, str]:
    """Return the model that runs in each phase, on whose device the temporary buffers are."""
    phases = {"draft": "drafter", "decode": "vae", "score": "scorer", "target": "target"}
    return {phase: worker for phase, worker in phases.items() if worker in request.parts}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """Bytes of a run's parts. `layers`: of one layer, by transformer."""

    weights: Mapping[str, int]
    states: Mapping[str, int]
    working: Mapping[str, int]
    layers: Mapping[str, int]

    @classmethod
    def of(cls, request: PlanRequest, *, stored: Stored) -> Sizes:
        """Count the parts of a run. `stored`: how the target's weights are."""
        return cls(
            weights=weight_bytes(request, stored=stored),
            states=state_bytes(request),
            working=working_bytes(request, stored=stored),
            layers={
                role: wan_bytes(
                    model.config,
                    request.itemsize("dtype"),
                    LAYER,
                    stored=stored if role == "target" else request.drafter_stored,
                )
                for role, model in request.models.items()
            },
        )


Parts = dict[str, dict[str, int]]
"""Bytes by phase and part."""


def phase_parts(request: PlanRequest, sizes: Sizes) -> Parts:
    """Return the parts in every phase, on all devices, without streaming."""
    states = sizes.states
    phases = {}
    for phase, worker in workers(request).items():
        parts = {**sizes.weights, "working": sizes.working[phase]}
        # The committed state, and during decoding and scoring, the draft's too.
        parts["vae state"] = states["vae state"] * (2 if phase in ("decode", "score") else 1)
        for name, model in request.models.items():
            if name in request.parts:
                parts[f"{name} text keys and values"] = states[f"{name} text keys and values"]
                if name == worker or isinstance(model.preset.context, Rolling):
                    parts[f"{name} keys and values"] = states[f"{name} keys and values"]
        phases[phase] = parts
    return phases


def split_parts(parts: Parts, request: PlanRequest) -> tuple[Parts, Parts]:
    """Split the parts into those on the main device and those on the second one, if there is one."""
    if not request.side:
        return parts, {}
    main: Parts = {}
    side: Parts = {}
    for phase, worker in workers(request).items():
        main[phase] = {name: size for name, size in parts[phase].items() if owner(name, worker) not in SMALL_MODELS}
        side[phase] = {name: size for name, size in parts[phase].items() if owner(name, worker) in SMALL_MODELS}
    return main, side


def owner(part: str, worker: str) -> str:
    """Return the model that a part belongs to; temporary buffers belong to the phase's `worker`."""
    return worker if part == "working" else part.split()[0]


def most(parts: Mapping[str, Mapping[str, int]]) -> int:
    """Return the bytes of the phase that needs most; 0 without phases."""
    return max((sum(phase.values()) for phase in parts.values()), default=0)


def streamed_layers(
    parts: Parts, request: PlanRequest, sizes: Sizes, roles: Sequence[str], usable: int
) -> dict[str, int]:
    """Return the number of layers to stream, by transformer, so that `usable` bytes suffice.

    As few as possible, and all of a transformer before any of the next in `roles`; all if that does not suffice.
    """
    excess = most(parts) - usable
    streamed = {}
    for role in roles:
        size = sizes.layers[role]
        # Layers in flight save nothing.
        count = min(max(-(-excess // size), 1) + LAYERS_IN_FLIGHT, request.models[role].config.num_layers)
        excess -= (count - LAYERS_IN_FLIGHT) * size
        streamed[role] = count
    return streamed


def streaming(parts: Parts, sizes: Sizes, layers: Mapping[str, int]) -> Parts:
    """Return the parts with `layers` of each transformer streamed."""
    off = {role: max(count - LAYERS_IN_FLIGHT, 0) * sizes.layers[role] for role, count in layers.items()}
    return {
        phase: {name: size - off.get(name, 0) for name, size in phase_sizes.items()}
        for phase, phase_sizes in parts.items()
    }
