"""The causal Wan 2.1 forward pass, for any module tree with the checkpoint's names.

It calls modules and never reads their weights, so the tree may be ours or a host's, with LoRA, quantised or
offloaded layers; a model class of our own per host would repeat the forward. Nothing here waits for the device.
Letters: b batch, t latent frames, s tokens per frame, l = t s tokens, d width. Linear layers get `b l d`, as
ComfyUI's fp8 arithmetic takes no fourth axis. Source: Wan 2.1; block-causal with one timestep per frame as in
Self-Forcing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..devices.compiling import Backend, _Result, compiled, copy_function, float64_device
from ..engine.inputs import Control
from .attention import TorchOps
from .cache import CacheSlots
from .modules import WanBlock

TextKV = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of cross-attention, `b m n d`, for every layer."""


def token_grid(tree: Any, latents: Sequence[int]) -> tuple[int, int, int]:
    """Return the number of tokens along each axis for latents of (t, h, w)."""
    t, h, w = (n // p for n, p in zip(latents, tree.patch_size, strict=True))
    return t, h, w


def project_text(tree: Any, embedding: Tensor, ops: TorchOps, more: Iterable[Any] = ()) -> TextKV:
    """Return each layer's cross-attention keys and values for an embedding `b m c`; call it once per prompt.

    `more`: further layers after the tree's.
    """
    text = tree.text_embedding(embedding.to(ops.dtype))
    return tuple(call_block(block, _text_kv, text, (tree.num_heads, -1)) for block in (*tree.blocks, *more))


def _text_kv(block: Any, text: Tensor, heads: tuple[int, int]) -> tuple[Tensor, Tensor]:
    attn = block.cross_attn
    return attn.norm_k(attn.k(text)).unflatten(-1, heads), attn.v(text).unflatten(-1, heads)


def call_block(block: Any, fn: Callable[..., _Result], *inputs: Any) -> _Result:
    """Call our blocks via `forward` so that offload hooks fire; ComfyUI's cast their weights themselves."""
    result: _Result = block(fn, *inputs) if isinstance(block, WanBlock) else fn(block, *inputs)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The parts of a layer before, between and after its two attentions, compiled or not.

    Attention and cache stay outside, so that the stages see the same shapes in every pass of a video, and work with
    any attention backend.
    """

    before: Callable[..., tuple[Tensor, Tensor, Tensor]]
    between: Callable[..., tuple[Tensor, Tensor]]
    after: Callable[..., Tensor]


def denoise_pass(tree: Any, x: Tensor, timestep: float, inputs: Pass) -> Tensor:
    """Predict the velocity of latents `x` (`b c t h w`) at a timestep (0 to 1000), and write the block's K/V."""
    h, e, e6 = _embed(tree, x, timestep, inputs.ops)  # b t s d, b t d, b t 6 d
    hinted = inputs.control.begin(h, e6, inputs) if inputs.control else None
    for layer, block in enumerate(tree.blocks):
        h = call_block(block, _layer, layer, h, e6, inputs)
        h = hinted(layer, h) if hinted else h
    head = tree.head
    shift, scale = (inputs.ops.cast(head.modulation, h)[:, None] + e[:, :, None]).chunk(2, dim=2)  # b t 1 d
    h = head.head(_modulated(head.norm, h, shift, scale))
    return _unpatchify(tree, h, token_grid(tree, x.shape[2:]))


def context_pass(tree: Any, x: Tensor, inputs: Pass) -> None:
    """Write the K/V of clean latents `x` (`b c t h w`) at timestep 0. Stop at the last layer's K/V."""
    h, _, e6 = _embed(tree, x, 0.0, inputs.ops)
    last = len(tree.blocks) - 1
    for layer, block in enumerate(tree.blocks[:-1]):
        h = call_block(block, _layer, layer, h, e6, inputs)
    call_block(tree.blocks[last], _write, last, h, e6, inputs)


def _write(block: Any, layer: int, h: Tensor, e6: Tensor, inputs: Pass) -> None:
    """Write a layer's K/V of tokens `h` (`b t s d`) under the time embedding `e6` (`b t 6 d`)."""
    shift, scale, *_ = _modulation(block, e6, h, inputs.ops)
    seen = _modulated(block.norm1, h, shift, scale)
    k, v = _kv(block.self_attn, seen, inputs.rope, inputs.ops, unrotated=bool(inputs.key_ropes))
    inputs.cache.write(layer, inputs.slots.written, k, v)


def _embed(tree: Any, x: Tensor, timestep: float, ops: TorchOps) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens `b t s d` and the time embedding `b t d`, and its projection `b t 6 d`."""
    h = _tokens(tree.patch_embedding, x, ops)
    times = torch.full(h.shape[:2], timestep, dtype=torch.float64, device=float64_device(x.device))
    e = tree.time_embedding(ops.sinusoid(times, tree.freq_dim).to(ops.dtype).to(x.device))
    return h, e, tree.time_projection(e).unflatten(-1, (6, -1))


def _tokens(embedding: Any, x: Tensor, ops: TorchOps) -> Tensor:
    """Embed `x`, `b c t h w`, by a convolution into tokens `b t s d`."""
    tokens: Tensor = embedding(x.float()).to(ops.dtype)  # b d t h w
    return tokens.flatten(3).permute(0, 2, 3, 1).contiguous()


def _layer(block: Any, layer: int, h: Tensor, e6: Tensor, inputs: Pass) -> Tensor:
    """Run one layer over tokens `h` (`b t s d`) under the time embedding `e6` (`b t 6 d`)."""
    ops = inputs.ops
    stages = inputs.stages
    # The name is reused so that each tensor is freed after the next stage: b l n d.
    seen = _look_back(*stages.before(block, h, e6, inputs.rope, ops, bool(inputs.key_ropes)), block, layer, inputs)
    h, seen = stages.between(block, h, seen, e6, ops)
    # Attend to padding tokens too: the models were trained without a mask.
    seen = ops.attend(block.cross_attn, seen, *inputs.text[layer])
    return stages.after(block, h, seen, e6, ops)


def _look_back(q: Tensor, k: Tensor, v: Tensor, block: Any, layer: int, inputs: Pass) -> Tensor:
    """Write keys and values (`b l n d`) into the cache, then attend to the visible slots."""
    inputs.cache.write(layer, inputs.slots.written, k, v)
    k, v = inputs.cache.read(layer, inputs.slots.visible)
    if inputs.key_ropes:
        turned = torch.empty_like(k)
        for tokens, rope in inputs.key_ropes:  # in pieces, as a rotation takes several times its tokens' memory
            turned[:, tokens] = inputs.ops.rotate(k[:, tokens], rope)
        k = turned
    return inputs.ops.attend(block.self_attn, q, k, v)


def _before(
    block: Any, h: Tensor, e6: Tensor, rope: Any, ops: TorchOps, unrotated: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys (`unrotated` or not) and values of self-attention, `b l n d`."""
    shift, scale, *_ = _modulation(block, e6, h, ops)
    seen = _modulated(block.norm1, h, shift, scale)
    keys_values = _kv(block.self_attn, seen, rope, ops, unrotated=unrotated)
    return ops.rotate(_queries(block.self_attn, seen), rope), *keys_values


def _between(block: Any, h: Tensor, seen: Tensor, e6: Tensor, ops: TorchOps) -> tuple[Tensor, Tensor]:
    """Add the result of self-attention, `b l (n d)`; return the tokens and the queries of cross-attention."""
    _, _, gate, *_ = _modulation(block, e6, h, ops)
    h = torch.addcmul(h, block.self_attn.o(seen).view(h.shape), gate)
    return h, _queries(block.cross_attn, block.norm3(h).flatten(1, 2))


def _after(block: Any, h: Tensor, seen: Tensor, e6: Tensor, ops: TorchOps) -> Tensor:
    """Add the result of cross-attention, `b l (n d)`, then apply the feed-forward."""
    *_, shift, scale, gate = _modulation(block, e6, h, ops)
    h = h + block.cross_attn.o(seen).view(h.shape)
    return torch.addcmul(h, block.ffn(_modulated(block.norm2, h, shift, scale)).view(h.shape), gate)


PLAIN_STAGES = Stages(before=_before, between=_between, after=_after)


def compiled_stages(compiler: Backend | None) -> Stages:
    """Return stages compiled once for all layers and passes of a model, or plain ones without a compiler."""
    if compiler is None:
        return PLAIN_STAGES
    return Stages(
        before=compiled(copy_function(_before), compiler),
        between=compiled(copy_function(_between), compiler),
        after=compiled(copy_function(_after), compiler),
    )


class KeysAndValues(Protocol):
    """What a pass writes its keys and values into, `b l n d`, and reads those of its context from, by layer."""

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Keep those of consecutive frames."""

    def read(self, layer: int, visible: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return those in the visible slots; a number stands for the first ones."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The inputs of a forward pass except latents. `text`: the prompt's K/V.

    `key_ropes`: rotary tables for ranges of the keys it reads; empty if the cache holds rotated keys. `control`:
    the control blocks; None in a context pass, so that the cache does not depend on the control.
    """

    text: TextKV
    cache: KeysAndValues
    slots: CacheSlots
    rope: Any
    ops: TorchOps
    stages: Stages = PLAIN_STAGES
    key_ropes: tuple[tuple[slice, Any], ...] = ()
    control: ControlBranch | None = None


class _OwnTokens:
    """The cache of a control block, whose tokens attend only to each other."""

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Hold the keys and values, `b l n d`, until they are read."""
        self._kv = k, v

    def read(self, layer: int, visible: object) -> tuple[Tensor, Tensor]:
        """Return the keys and values, and release them."""
        k, v = self._kv
        del self._kv
        return k, v


class ControlBranch:
    """The VACE control blocks over one block's controls. They see only its frames, and use no cache.

    Every hint is computed right after the layer to which it is added, in each pass. `module`: has `vace_blocks` and
    `vace_patch_embedding`. `layers`: number of the model's layers. `text`: K/V of the control blocks.
    Source: ali-vilab/VACE, and its causal form in daydreamlive/scope.
    """

    def __init__(self, module: Any, layers: int, text: TextKV, controls: Sequence[Control], ops: TorchOps) -> None:
        self._blocks = module.vace_blocks
        self._text = text
        self._number = {layer: number for number, layer in enumerate(range(0, layers, layers // len(self._blocks)))}
        self._controls = [
            (_tokens(module.vace_patch_embedding, control.context, ops), control.strength) for control in controls
        ]

    def begin(self, h: Tensor, e6: Tensor, inputs: Pass) -> Callable[[int, Tensor], Tensor]:
        """Return a function that adds the hints after a layer. `h`: the pass's first tokens, `b t s d`."""
        first = self._blocks[0]
        states = [call_block(first, _first, tokens, h) for tokens, _ in self._controls]
        inputs = replace(inputs, cache=_OwnTokens(), text=self._text, key_ropes=())

        def hinted(layer: int, h: Tensor) -> Tensor:
            if layer in self._number:
                number = self._number[layer]
                block = self._blocks[number]
                for i, (_, strength) in enumerate(self._controls):
                    states[i] = call_block(block, _layer, number, states[i], e6, inputs)
                    h = h + strength * call_block(block, _hint, states[i])
            return h

        return hinted


def _first(block: Any, tokens: Tensor, h: Tensor) -> Tensor:
    projected: Tensor = block.before_proj(tokens.flatten(1, 2))
    return projected.view(h.shape) + h


def _hint(block: Any, state: Tensor) -> Tensor:
    hint: Tensor = block.after_proj(state.flatten(1, 2))
    return hint.view(state.shape)


def _modulation(block: Any, e6: Tensor, h: Tensor, ops: TorchOps) -> tuple[Tensor, ...]:
    """Return the six shifts, scales and gates of a layer, `b t 1 d`."""
    return (ops.cast(block.modulation, h)[:, None] + e6).chunk(6, dim=2)


def _modulated(norm: Any, h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalise, scale and shift tokens `b t s d`; return `b l d`."""
    return torch.addcmul(shift, norm(h), 1 + scale).flatten(1, 2)


def _queries(attn: Any, h: Tensor) -> Tensor:
    """Return the queries `b l n d` of tokens `b l d`."""
    q: Tensor = attn.norm_q(attn.q(h)).unflatten(-1, (attn.num_heads, -1))
    return q


def _kv(attn: Any, h: Tensor, rope: Any, ops: TorchOps, *, unrotated: bool) -> tuple[Tensor, Tensor]:
    """Return the keys, rotated or not, and the values of tokens `b l d`."""
    k = attn.norm_k(attn.k(h)).unflatten(-1, (attn.num_heads, -1))
    v = attn.v(h).unflatten(-1, (attn.num_heads, -1))
    return (k if unrotated else ops.rotate(k, rope)), v


def _unpatchify(tree: Any, h: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """Rearrange `b l (patch c)` to latents `b c t h w`; in a token, the channel varies fastest."""
    t, height, width = grid
    pt, ph, pw = tree.patch_size
    h = h.view(h.shape[0], t, height, width, pt, ph, pw, -1)
    return h.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(h.shape[0], -1, t * pt, height * ph, width * pw)
