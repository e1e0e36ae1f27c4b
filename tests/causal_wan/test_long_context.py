"""Contexts against a plain reference: which frames a block of a long clip sees, and keys and values in fp8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.cache import CacheSlots, Fp8KVCache, KVCache, to_fp8
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

SECOND, CUT = condition(6), replace(condition(6), cut=True)
WINDOW, SINK, BLOCKS = 9, 2, 9


class Plain:
    """Keeps every frame in a slot of its own, and is told of each block which frames it sees, and where."""

    anchor_horizon = 0

    def __init__(self, seen_by, places_of) -> None:
        self.seen_by, self.places_of = seen_by, places_of

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
    options = context_or_options if isinstance(context_or_options, dict) else {}
    ops = ops or TorchOps(torch.float32)
    tree = random_tree(1).to(ops.dtype)
    usual = {"window": WINDOW, "sink": SINK, "block_frames": frames, "ops": ops, "tree": tree}
    model = make_generator(1, EchoCodec(), "incremental", **(usual | options))
    if not options:
        model._context = context_or_options
    history, wanted = History(), PROMPT
    for span in plan_spans(BLOCKS, frames):
        wanted = (prompts or {}).get(span.index, wanted)
        made = model.generate(BlockCall(history, span, make_noise(), wanted))
        history = history.commit(Block(span, made.latents, wanted))
    return [block.latents for block in history.blocks]


def window_of(span, first=0):
    """Sink and window, after frames before `first` are forgotten; beyond the window the oldest go."""
    kept = [frame for frame in range(SINK, span.stop) if frame >= first]
    return [*range(min(SINK, span.stop)), *kept[-(WINDOW - SINK) :]]


def in_order(seen: Sequence[int], span) -> list[int]:
    return list(range(len(seen)))


def close(ours, theirs):
    return all(torch.allclose(a, b, atol=2e-5) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frames, same", [(3, 3), (1, 9)])
def test_until_a_frame_leaves_the_window_relative_positions_change_no_bit(dtype, frames, same):
    """Catches: a key that is rotated twice."""
    ops = TorchOps(dtype)
    absolute, relative = (video({"relative": relative}, frames, ops=ops) for relative in (False, True))
    found = [torch.equal(a, b) for a, b in zip(absolute, relative, strict=True)]
    assert found == [True] * same + [False] * (BLOCKS - same)


@pytest.mark.parametrize("frames", [1, 3])
def test_relative_positions_count_from_the_first_frame_that_is_seen(frames):
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
def test_a_flush_leaves_the_sink_and_two_frames_of_what_came_before(relative):
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


def test_the_first_block_of_a_new_scene_alone_stands_far_behind_the_others():
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
            here = block.span if block else span
            if here.stop > 12:
                gone = [frame for frame in range(5, here.stop - 7) if frame >= here.start - 7]
                for layer in keys_values:
                    for buffer in layer:
                        frames = buffer.unflatten(1, (span.stop, -1))
                        new = frames[:, gone].double().mean(dim=(1, 2))[:, None]
                        for slot, rate in ((3, 0.01), (4, 0.1)):
                            before = frames[:, slot].double()
                            frames[:, slot] = new if not self.means else (1 - rate) * before + rate * new
                self.means = True
            if block:
                model.write_context(block.latents, block.condition, cache, self.place(here))
        return BlockContext(cache, self.place(span), len(history.blocks), 0)


def test_means_of_what_left_the_window_stand_behind_the_sink():
    """Catches: a mean over the wrong axis, frames that count twice, and means that a denoising step moves."""
    theirs = video(Means(lambda span: [*range(min(5, span.stop)), *range(5, span.stop)[-7:]], in_order))
    ours = video({"relative": True, "means": True, "window": 12, "sink": 5})
    assert close(ours, theirs)
    assert not torch.allclose(ours[5], video({"relative": True, "window": 12, "sink": 5})[5], atol=1e-3)


@pytest.mark.parametrize("memory, kept", [("window", 3), ("deep-sink", 12), ("memrope", 5)])
def test_a_memory_is_a_part_of_the_window(memory, kept):
    settings = Rolling(sink=3, context_memory=memory)
    context = model_context(settings, None)
    assert (context.window, context.sink, context.means) == (21, kept, memory == "memrope")
    assert context.relative == (memory != "window")
    with pytest.raises(BadInput, match="no room"):
        Preset(name="narrow", context=replace(settings, window=5))


def test_a_clip_does_not_begin_with_a_cut_and_a_prompt_that_goes_on_is_none():
    history = History()
    for span in plan_spans(3, 3):
        assert not scene_of(history.blocks, CUT).cut
        history = history.commit(Block(span, torch.zeros(1, 4, 3, *SIZE), CUT))
    changed = scene_of(history.blocks, SECOND)
    assert (changed.prompt, changed.cuts, changed.cut) == (9, 0, False)
    again = scene_of(history.blocks, replace(CUT))
    assert (again.prompt, again.cuts, again.start, again.cut) == (9, 1, 3, True)


@pytest.mark.parametrize("cut", [False, True])
def test_recompute_that_keeps_the_first_frame_passes_it_before_the_newest_ones(cut):
    """Catches: the first frame encoded again, pixels asked for, and a cut that this policy does not know."""
    codec, prompt = EchoCodec(), CUT if cut else SECOND
    model = make_generator(1, codec, "recompute", keep_first=True, frames=3)
    assert model.anchor_horizon == 0
    latents = [torch.randn(1, 4, 3, *SIZE, generator=generator_of(i)) for i in range(4)]
    history = History()
    for span, made in zip(plan_spans(4, 3), latents, strict=True):
        history = history.commit(Block(span, made, PROMPT))
    span = plan_spans(5, 3)[4]
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
    """Keys of so many frames, `b l n d`, in which each token and head has a size of its own: a millionth to a
    thousand."""
    g = torch.Generator().manual_seed(seed)
    shape = (1, frames * TOKENS, CONFIG.num_heads, CONFIG.dim // CONFIG.num_heads)
    return torch.randn(shape, generator=g) * 10 ** (9 * torch.rand((*shape[:3], 1), generator=g) - 6)


def cache(kind=Fp8KVCache, frames: int = 6, dtype=torch.float32) -> KVCache:
    return kind(TREE, frames, TOKENS, dtype, CPU)


def test_every_number_is_read_back_within_the_rounding_of_fp8():
    """Catches: a scale for the wrong axis, by which small rows vanish; a scale that is left out."""
    k, v = rows(3, 1), rows(3, 2)
    kept = cache()
    kept.write(1, (0, 1, 2), k, v)
    for whole, read in zip((k, v), kept.read(1, 3), strict=True):
        largest = whole.abs().amax(-1, keepdim=True)
        # Half a step of three bits behind the first, and half of the smallest step; and the scale's own rounding.
        allowed = whole.abs() * 2**-4 + largest / 448 * 2**-10
        assert ((read - whole).abs() <= 1.01 * allowed).all()
        error = (read - whole).flatten(2).norm() / whole.flatten(2).norm()
        assert 0.001 < error < 0.04


def test_fp8_takes_the_nearest_number_under_the_stored_scale():
    """Catches: numbers divided by another scale than the one stored, which biases a row by up to 0.4 %."""
    x = rows(3)
    values, scale = to_fp8(x)
    bits = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    numbers = bits[bits.isfinite()]
    nearest = (numbers * scale.double()[..., None] - x.double()[..., None]).abs().amin(-1)
    error = (values.double() * scale.double() - x.double()).abs()
    assert torch.equal(error, nearest)


def test_what_is_read_is_what_was_written_in_those_slots_rounded_once():
    """Catches: scales that are put into other slots than their values."""
    kept, whole = cache(), cache(KVCache)
    for seed, slots in enumerate([(0, 1, 2), (3, 4, 5), (5, 0, 1), (2, 3, 4), (5, 0, 1)]):
        k, v = rows(3, seed), rows(3, seed + 10)
        kept.write(0, slots, k, v)
        whole.write(0, slots, *((values.float() * scale.float()) for values, scale in map(to_fp8, (k, v))))
    for visible in (6, 4, 1):
        for ours, theirs in zip(kept.read(0, visible), whole.read(0, visible), strict=True):
            assert torch.equal(ours, theirs)


def test_a_row_of_zeros_stays_one_and_what_is_not_finite_is_not_hidden():
    x = torch.ones(1, 4, 1, 8)
    x[0, 1], x[0, 2, 0, 3], x[0, 3, 0, 5] = 0, torch.inf, torch.nan
    values, scale = to_fp8(x)
    read = values.float() * scale.float()
    assert read[0, 0].isfinite().all()
    assert not read[0, 1].any()
    assert not read[0, 2:].isfinite().any()


@pytest.mark.parametrize("largest", [1.0, 3.0e-30, 7.0, 447.9, 65504.0, 3.0e38])
def test_the_largest_number_of_a_row_never_overflows(largest):
    """Catches: a scale too small for the largest number, of which one torch makes NaN, and another cuts it off."""
    x = torch.linspace(0.9, 1, 1000)[None, :, None, None] * largest * torch.tensor([1.0, -1.0])
    values, scale = to_fp8(x)
    assert ((values.float() * scale.float() - x).abs() <= 2**-4 * x.abs()).all()


def test_a_copy_of_some_slots_is_put_back_whole():
    """Catches: values put back and not their scales."""
    kept, everywhere = cache(), tuple(range(6))
    for layer in (0, 1):
        kept.write(layer, everywhere, rows(6, 2 * layer), rows(6, 2 * layer + 1))
    before = [[part.clone() for part in kept.read(layer, 6)] for layer in (0, 1)]
    copied = kept.copy((4, 5, 0))
    for layer in (0, 1):
        kept.write(layer, (4, 5, 0), rows(3, 5), rows(3, 6))
    assert not torch.equal(kept.read(0, 6)[0], before[0][0])
    kept.restore(copied)
    for layer in (0, 1):
        assert all(torch.equal(now, then) for now, then in zip(kept.read(layer, 6), before[layer], strict=True))


@pytest.mark.parametrize("kv_dtype, dtype", [("auto", "float32"), ("float8_e4m3fn", "bfloat16")])
@pytest.mark.parametrize("context", [Recompute(), Rolling(window=9)], ids=str)
def test_a_generators_keys_and_values_take_the_bytes_that_are_planned(kv_dtype, dtype, context):
    base = SCALES["tiny"]
    preset = replace(base.target.preset, context=context)
    models = {role: replace(model, preset=preset) for role, model in base.models.items()}
    request = replace(base, dtype=dtype, execution=Execution(kv_dtype=kv_dtype), **models)
    with torch.device("meta"):
        tree = WanTree(request.target.config)
    kind = Fp8KVCache if request.execution.kv_fp8 else KVCache
    made = kind(
        tree,
        sizes.kv_frames(preset),
        sizes.frame_tokens(request.target.config, request),
        getattr(torch, dtype),
        torch.device("meta"),
    )
    planned, whole = (sizes.state_bytes(one) for one in (request, replace(request, execution=Execution())))
    assert sum(buffer.nbytes for buffer in made._buffers()) == planned["target keys and values"]
    assert planned["target text keys and values"] == whole["target text keys and values"], (
        "a prompt's stay as they are"
    )


# --- in a generator


def make(policy: str, fp8: bool):
    generator = make_generator(1, EchoCodec(), policy)
    model = generator._model
    generator._model = replace(model, wan=replace(model.wan, kv_fp8=fp8))
    return generator


def make_blocks(generator, count: int = 4) -> list[torch.Tensor]:
    history, made = History(horizon=3), []
    for span in plan_spans(count, 3):
        made.append(generator.generate(BlockCall(history, span, make_noise(), PROMPT)).latents)
        history = history.commit(Block(span, made[-1], PROMPT), as_anchors(*[torch.zeros(1, 1, 3, 8, 8)] * 3))
    return made


@pytest.mark.parametrize("policy", POLICIES)
def test_latents_are_near_those_of_whole_keys_and_values_and_not_equal(policy):
    """Catches: an option that is silently off."""
    near, whole = make_blocks(make(policy, True)), make_blocks(make(policy, False))
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(near, whole, strict=True)]
    assert all(1e-4 < error < 0.3 for error in errors), errors


def test_it_is_off_unless_asked_for_and_in_the_report_when_on(files):
    for kv_dtype, kept in (("auto", "bfloat16"), ("float8_e4m3fn", "float8_e4m3fn")):
        load = LoadOptions(**PRESETS, dtype="bfloat16", execution=Execution(kv_dtype=kv_dtype))
        loaded = load_models(files, load, check_models(files, load))
        for role in ("drafter", "target"):
            told = loaded.settings[role]
            assert (told["dtype"], told["kv_dtype"]) == ("bfloat16", kept)
        assert (FP8_NOTE in notes_on(load.execution, None, ())) == (kv_dtype != "auto")
        engine = loaded.build()
        for generator in (engine.drafter, engine.target):
            made = generator._model.new_cache(3, (4, 4))
            assert isinstance(made, Fp8KVCache) == (kv_dtype != "auto")


@pytest.mark.parametrize(
    ("option", "word", "words"),
    [
        ("kv_dtype", "int4", "auto, float8_e4m3fn"),
        ("attention", "int4", "auto, sdpa, cudnn, flash, sage"),
        ("vae_layers", "int4", "diffusers, planes"),
    ],
)
def test_another_word_for_a_way_to_run_is_refused(option, word, words):
    """Catches: a word that would pass for another."""
    with pytest.raises(BadInput, match=f"there is no {option} '{word}'; choose one of {words}$"):
        Execution(**{option: word})
