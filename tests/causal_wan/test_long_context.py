"""Contexts against a plain reference: which frames a block of a long clip sees, and keys and values in fp8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from sdvg_core.causal_wan import cache as kv
from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.cache import CacheSlots, Fp8KVCache, KVCache
from sdvg_core.causal_wan.context import BlockContext
from sdvg_core.causal_wan.generator import model_context
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Block, History, plan_spans, scene_of
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_models
from sdvg_core.memory import sizes
from sdvg_core.report.assemble import FP8_NOTE, notes_on
from sdvg_core.settings.context import Preset, Recompute, Rolling
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.load import LoadOptions, ModelOptions
from tests.support.live_bytes import tensors_of
from tests.support.random_models import SCALES
from tests.support.tiny import (
    CONFIG,
    POLICIES,
    PROMPT,
    SIZE,
    EchoCodec,
    as_anchors,
    condition,
    generator_of,
    make_generator,
    make_noise,
    random_tree,
)

SECOND = condition(6)
CUT = replace(SECOND, cut=True)
WINDOW = 9
SINK = 2
BLOCKS = 9


class Plain:
    """Keep every frame in a slot of its own. Two functions state which frames a block sees, and where."""

    anchor_horizon = 0

    def __init__(self, seen_by, places_of) -> None:
        self.seen_by = seen_by
        self.places_of = places_of

    def prepare(self, model, history, span, condition, size):
        cache = model.new_cache(span.stop, size)
        for block in history.blocks:
            model.write_context(block.latents, block.condition, cache, self.place(block.span))
        return BlockContext(cache, self.place(span), len(history.blocks), 0)

    def place(self, span):
        seen = self.seen_by(span)
        where = self.places_of(seen, span)
        return CacheSlots(where[-span.frames], tuple(range(span.start, span.stop)), tuple(seen), tuple(where))


def video(context_or_options, frames=3, prompts=None, ops=None):
    """Return the latents of each block of a clip, by a context of the generator's or by a plain one."""
    options = context_or_options if isinstance(context_or_options, dict) else {}
    ops = ops or TorchOps(torch.float32)
    tree = random_tree(1).to(ops.dtype)
    usual = {"window": WINDOW, "sink": SINK, "block_frames": frames, "ops": ops, "tree": tree}
    model = make_generator(1, EchoCodec(), "incremental", **(usual | options))
    if not options:
        model._context = context_or_options
    history = History()
    prompt = PROMPT
    for span in plan_spans(BLOCKS, frames):
        prompt = (prompts or {}).get(span.index, prompt)
        generated = model.generate(BlockCall(history, span, make_noise(), prompt))
        history = history.commit(Block(span, generated.latents, prompt))
    return [block.latents for block in history.blocks]


def window_of(span, first=0):
    """Return sink and window, without frames before `first`; beyond the window the oldest go."""
    kept = [frame for frame in range(SINK, span.stop) if frame >= first]
    return [*range(min(SINK, span.stop)), *kept[-(WINDOW - SINK) :]]


def in_order(seen: Sequence[int], span) -> list[int]:
    return list(range(len(seen)))


def close(ours, theirs):
    return all(torch.allclose(a, b, atol=2e-5) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frames, same", [(3, 3), (1, 9)])
def test_relative_positions_change_nothing_within_the_window(dtype, frames, same):
    """Catches: a key that is rotated twice."""
    ops = TorchOps(dtype)
    absolute = video({"relative": False}, frames, ops=ops)
    relative = video({"relative": True}, frames, ops=ops)
    equal = [torch.equal(a, b) for a, b in zip(absolute, relative, strict=True)]
    assert equal == [True] * same + [False] * (BLOCKS - same)


@pytest.mark.parametrize("frames", [1, 3])
def test_relative_positions_count_from_the_first_seen_frame(frames):
    """Catches: slots in place of positions, a window that is a frame too long."""
    assert close(video({"relative": True}, frames), video(Plain(window_of, in_order), frames))


def test_positions_end_where_a_training_clip_did():
    """Catches: a sink that moves, a distance from it that goes on growing."""
    trained = 15

    def places_of(seen, span):
        beyond = max(0, span.stop - trained)
        return [frame if frame < SINK else frame - beyond for frame in seen]

    pinned = video({"relative": True, "trained": trained})
    assert close(pinned, video(Plain(window_of, places_of)))
    assert not close(pinned, video({"relative": True}))


@pytest.mark.parametrize("relative", [False, True])
def test_flush_leaves_the_sink_and_two_frames(relative):
    """Catches: the sink forgotten after a flush, a flush that is undone by the next block, or of the whole past."""
    first = 5 * 3

    def seen_by(span):
        return window_of(span, first - 2 if span.start >= first else 0)

    def places_of(seen, span):
        return in_order(seen, span) if relative else seen

    flushed = video({"relative": relative, "flush": True}, prompts={5: SECOND})
    assert close(flushed, video(Plain(seen_by, places_of), prompts={5: SECOND}))
    kept = video({"relative": relative}, prompts={5: SECOND})
    assert [torch.equal(a, b) for a, b in zip(flushed, kept, strict=True)] == [True] * 5 + [False] * 4


def test_cut_moves_only_its_own_block_away():
    """Catches: a cut that moves the keys of older frames, or that is there for every block under its prompt."""

    def places_of(seen, span):
        places = in_order(seen, span)
        return [*places[:-3], 45, 46, 47] if span.index == 5 else places

    cut = video({"relative": True}, prompts={5: CUT})
    assert close(cut, video(Plain(window_of, places_of), prompts={5: CUT}))
    assert not torch.allclose(cut[5], video({"relative": True}, prompts={5: SECOND})[5], atol=1e-3)


def test_absolute_positions_keep_the_distance_of_a_cut():
    cut = video({"relative": False}, prompts={5: CUT})
    moved = Plain(window_of, lambda seen, _: [at + 27 * (at >= 15) for at in seen])
    assert close(cut, video(moved, prompts={5: CUT}))


class Means(Plain):
    """MemRoPE's rule in plain words: frames 3 and 4 give way to two means of what left the other slots."""

    def prepare(self, model, history, span, condition, size):
        cache = model.new_cache(span.stop, size)
        keys_values = cache._layers
        self.means = None
        for block in (*history.blocks, None):
            newest = block.span if block else span
            if newest.stop > 12:
                left = [frame for frame in range(5, newest.stop - 7) if frame >= newest.start - 7]
                for layer in keys_values:
                    for buffer in layer:
                        frames = buffer.unflatten(1, (span.stop, -1))
                        new = frames[:, left].double().mean(dim=(1, 2))[:, None]
                        for slot, rate in ((3, 0.01), (4, 0.1)):
                            before = frames[:, slot].double()
                            frames[:, slot] = new if not self.means else (1 - rate) * before + rate * new
                self.means = True
            if block:
                model.write_context(block.latents, block.condition, cache, self.place(newest))
        return BlockContext(cache, self.place(span), len(history.blocks), 0)


def test_memrope_keeps_means_of_frames_that_left():
    """Catches: a mean over the wrong axis, frames that count twice, and means that a denoising step moves."""
    theirs = video(Means(lambda span: [*range(min(5, span.stop)), *range(5, span.stop)[-7:]], in_order))
    ours = video({"relative": True, "means": True, "window": 12, "sink": 5})
    assert close(ours, theirs)
    assert not torch.allclose(ours[5], video({"relative": True, "window": 12, "sink": 5})[5], atol=1e-3)


@pytest.mark.parametrize(
    "memory, window, kept", [("window", 21, 3), ("deep-sink", 21, 12), ("deep-sink", 12, 6), ("memrope", 21, 5)]
)
def test_memory_is_a_part_of_the_window(memory, window, kept):
    """Catches: four sevenths of another window than the usual one, rounded before they are taken four times."""
    settings = Rolling(sink=3, window=window, context_memory=memory)
    context = model_context(settings, None)
    assert (context.window, context.sink, context.means) == (window, kept, memory == "memrope")
    assert context.relative == (memory != "window")
    with pytest.raises(BadInput, match="no room"):
        Preset(name="narrow", context=replace(settings, window=5))


def under_a_cut(blocks: int) -> tuple[Block, ...]:
    """Return up to three blocks, all made under one prompt with a cut."""
    return tuple(Block(span, torch.zeros(1, 4, 3, *SIZE), CUT) for span in plan_spans(3, 3)[:blocks])


@pytest.mark.parametrize("before", [0, 1, 2])
def test_clip_has_no_cut_under_its_first_prompt(before):
    assert not scene_of(under_a_cut(before), CUT).cut


def test_prompt_without_a_cut_continues_the_scene():
    scene = scene_of(under_a_cut(3), SECOND)
    assert (scene.prompt, scene.cuts, scene.cut) == (9, 0, False)


def test_second_prompt_with_a_cut_begins_a_scene():
    """Of equal words. Catches: prompts compared by value, for which the second is the first that goes on."""
    scene = scene_of(under_a_cut(3), replace(CUT))
    assert (scene.prompt, scene.cuts, scene.start, scene.cut) == (9, 1, 3, True)


@pytest.mark.parametrize("cut", [False, True])
def test_recompute_can_keep_the_first_frame(cut):
    """Before the newest ones. Catches: it is encoded again, pixels are asked for, a cut is not known here, or is as
    far away as the clip is long.
    """
    codec = EchoCodec()
    prompt = CUT if cut else SECOND
    model = make_generator(1, codec, "recompute", keep_first=True, frames=3)
    assert model.anchor_horizon == 0
    latents = [torch.randn(1, 4, 3, *SIZE, generator=generator_of(i)) for i in range(8)]
    history = History()
    for span, block in zip(plan_spans(8, 3), latents, strict=True):
        history = history.commit(Block(span, block, PROMPT))
    span = plan_spans(9, 3)[8]
    ours = model.generate(BlockCall(history, span, make_noise(), prompt)).latents

    class Known:
        anchor_horizon = 0

        def prepare(self, model, history, span, condition, size):
            cache = model.new_cache(6, size)
            window = torch.cat((latents[0][:, :, :1], latents[-1][:, :, 1:]), dim=2)
            model.write_context(window, condition, cache, CacheSlots(0, (0, 1, 2), 3))
            return BlockContext(cache, CacheSlots(45 if cut else 3, (3, 4, 5), 6), 1, 0)

    plain = make_generator(1, codec, "recompute", frames=3)
    plain._context = Known()
    assert torch.equal(ours, plain.generate(BlockCall(history, span, make_noise(), prompt)).latents)
    assert not codec.encodes


CPU = torch.device("cpu")
TREE = random_tree(1)
TOKENS = 4
PRESETS = {"drafter": ModelOptions(preset="self-forcing-1.3b"), "target": ModelOptions(preset="krea-14b")}


def rows(frames: int, seed: int = 0) -> torch.Tensor:
    """Return keys `b l n d` of which each token and head has a size of its own: a millionth to a thousand."""
    g = torch.Generator().manual_seed(seed)
    shape = (1, frames * TOKENS, CONFIG.num_heads, CONFIG.dim // CONFIG.num_heads)
    return torch.randn(shape, generator=g) * 10 ** (9 * torch.rand((*shape[:3], 1), generator=g) - 6)


def cache(kind: type[KVCache] = Fp8KVCache, frames: int = 6, dtype=torch.float32) -> KVCache:
    return kind(TREE, frames, TOKENS, dtype, CPU)


def rounded_once(x: torch.Tensor) -> torch.Tensor:
    values, scale = kv.to_fp8(x)
    return values.float() * scale.float()


def test_numbers_are_read_back_to_fp8s_rounding():
    """Catches: a scale for the wrong axis, by which small rows vanish; a scale that is left out."""
    keys = rows(3, 1)
    values = rows(3, 2)
    stored = cache()
    stored.write(1, (0, 1, 2), keys, values)
    for whole, read in zip((keys, values), stored.read(1, 3), strict=True):
        largest = whole.abs().amax(-1, keepdim=True)
        # Half a step of three bits behind the first, and half of the smallest step; and the scale's own rounding.
        allowed = whole.abs() * 2**-4 + largest / 448 * 2**-10
        assert ((read - whole).abs() <= 1.01 * allowed).all()
        error = (read - whole).flatten(2).norm() / whole.flatten(2).norm()
        assert 0.001 < error < 0.04


def test_fp8_takes_the_nearest_number():
    """Catches: numbers divided by another scale than the one stored, which biases a row by up to 0.4 %."""
    x = rows(3)
    values, scale = kv.to_fp8(x)
    bits = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    numbers = bits[bits.isfinite()]
    nearest = (numbers * scale.double()[..., None] - x.double()[..., None]).abs().amin(-1)
    error = (values.double() * scale.double() - x.double()).abs()
    assert torch.equal(error, nearest)


def test_slots_are_read_as_written_rounded_once():
    """Catches: scales that are put into other slots than their values."""
    rounded = cache(Fp8KVCache)
    plain = cache(KVCache)
    for seed, slots in enumerate([(0, 1, 2), (3, 4, 5), (5, 0, 1), (2, 3, 4), (5, 0, 1)]):
        keys = rows(3, seed)
        values = rows(3, seed + 10)
        rounded.write(0, slots, keys, values)
        plain.write(0, slots, rounded_once(keys), rounded_once(values))
    for visible in (6, 4, 1):
        for ours, expected in zip(rounded.read(0, visible), plain.read(0, visible), strict=True):
            assert torch.equal(ours, expected)


def test_row_of_zeros_stays_zero():
    """Catches: a division by a scale of zero."""
    x = torch.ones(1, 2, 1, 8)
    x[0, 1] = 0
    read = rounded_once(x)
    assert read[0, 0].isfinite().all()
    assert not read[0, 1].any()


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_fp8_hides_no_value_that_is_not_finite(bad):
    x = torch.ones(1, 2, 1, 8)
    x[0, 1, 0, 3] = bad
    read = rounded_once(x)
    assert read[0, 0].isfinite().all()
    assert not read[0, 1].isfinite().any()


@pytest.mark.parametrize("largest", [1.0, 3.0e-30, 7.0, 447.9, 65504.0, 3.0e38])
def test_largest_number_of_a_row_never_overflows(largest):
    """Catches: a scale too small for the largest number, of which one torch makes NaN, and another cuts it off."""
    x = torch.linspace(0.9, 1, 1000)[None, :, None, None] * largest * torch.tensor([1.0, -1.0])
    assert ((rounded_once(x) - x).abs() <= 2**-4 * x.abs()).all()


def test_copied_slots_are_restored_whole():
    """Catches: values put back and not their scales."""
    stored = cache()
    for layer in (0, 1):
        stored.write(layer, range(6), rows(6, 2 * layer), rows(6, 2 * layer + 1))
    before = [[part.clone() for part in stored.read(layer, 6)] for layer in (0, 1)]
    copy = stored.copy((4, 5, 0))
    for layer in (0, 1):
        stored.write(layer, (4, 5, 0), rows(3, 5), rows(3, 6))
    assert not torch.equal(stored.read(0, 6)[0], before[0][0])
    stored.restore(copy)
    for layer in (0, 1):
        assert all(torch.equal(now, then) for now, then in zip(stored.read(layer, 6), before[layer], strict=True))


@pytest.mark.parametrize("kv_dtype, dtype", [("auto", "float32"), ("float8_e4m3fn", "bfloat16")])
@pytest.mark.parametrize("context", [Recompute(), Rolling(window=9)], ids=["recompute", "rolling"])
def test_cache_takes_the_bytes_that_are_planned(kv_dtype, dtype, context):
    base = SCALES["tiny"]
    preset = replace(base.target.preset, context=context)
    models = {role: replace(model, preset=preset) for role, model in base.models.items()}
    request = replace(base, dtype=dtype, execution=Execution(kv_dtype=kv_dtype), **models)
    with torch.device("meta"):
        tree = WanTree(request.target.config)
    kind = Fp8KVCache if request.execution.kv_fp8 else KVCache
    tokens = sizes.frame_tokens(request.target.config, request)
    stored = kind(tree, sizes.kv_frames(preset), tokens, getattr(torch, dtype), torch.device("meta"))
    planned = sizes.state_bytes(request)
    assert sum(tensor.nbytes for tensor in tensors_of(stored)) == planned["target keys and values"]
    whole = sizes.state_bytes(replace(request, execution=Execution()))
    text = "target text keys and values"
    assert planned[text] == whole[text], "a prompt's are never in fp8"


# --- in a generator


def generator_with(policy: str, fp8: bool):
    generator = make_generator(1, EchoCodec(), policy)
    model = generator._model
    generator._model = replace(model, wan=replace(model.wan, kv_fp8=fp8))
    return generator


def make_blocks(generator, count: int = 4) -> list[torch.Tensor]:
    history = History(horizon=3)
    anchors = as_anchors(*[torch.zeros(1, 1, 3, 8, 8)] * 3)
    for span in plan_spans(count, 3):
        latents = generator.generate(BlockCall(history, span, make_noise(), PROMPT)).latents
        history = history.commit(Block(span, latents, PROMPT), anchors)
    return [block.latents for block in history.blocks]


@pytest.mark.parametrize("policy", POLICIES)
def test_fp8_cache_changes_latents_a_little(policy):
    """Catches: an option that is silently off."""
    rounded = make_blocks(generator_with(policy, fp8=True))
    plain = make_blocks(generator_with(policy, fp8=False))
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(rounded, plain, strict=True)]
    assert all(1e-4 < error < 0.3 for error in errors), errors


@pytest.mark.parametrize(
    ("kv_dtype", "stored", "fp8"), [("auto", "bfloat16", False), ("float8_e4m3fn", "float8_e4m3fn", True)]
)
def test_fp8_cache_is_made_and_reported_if_asked(files, kv_dtype, stored, fp8):
    """Catches: fp8 that nobody asked for; an option that one of the models never hears of."""
    options = LoadOptions(**PRESETS, dtype="bfloat16", execution=Execution(kv_dtype=kv_dtype))
    models = load_models(files, options, check_models(files, options))
    assert (FP8_NOTE in notes_on(options.execution, None, ())) == fp8
    engine = models.build()
    for role in ("drafter", "target"):
        settings = models.settings[role]
        assert (settings["dtype"], settings["kv_dtype"]) == ("bfloat16", stored)
        assert isinstance(getattr(engine, role)._model.new_cache(3, (4, 4)), Fp8KVCache) == fp8


@pytest.mark.parametrize(
    ("option", "word", "words"),
    [
        ("kv_dtype", "int4", "auto, float8_e4m3fn"),
        ("attention", "int4", "auto, sdpa, cudnn, flash, sage"),
        ("vae_layers", "int4", "diffusers, planes"),
        ("compile", "int4", "off, default"),
    ],
)
def test_unknown_word_for_execution_is_refused(option, word, words):
    """Catches: `int4` for the cache, which would be fp8, as all words but `auto` are."""
    with pytest.raises(BadInput, match=f"there is no {option} '{word}'; choose one of {words}$"):
        Execution(**{option: word})
