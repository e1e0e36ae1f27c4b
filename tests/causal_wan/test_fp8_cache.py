"""Keys and values in fp8: what is lost, what it weighs, that it is on when asked for and off when not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import CONFIG, POLICIES, PROMPT, EchoCodec, as_anchors, make_generator, make_noise, random_tree

from benchmarks.models import SCALES
from sdvg_core.causal_wan.cache import Fp8KVCache, KVCache, to_fp8
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.devices.execution import Execution
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Block, History, plan_spans
from sdvg_core.errors import BadInput
from sdvg_core.memory import sizes
from sdvg_core.models.headers import check_models
from sdvg_core.models.loading import load_models
from sdvg_core.models.options import LoadOptions, ModelOptions
from sdvg_core.report.assemble import FP8_NOTE, notes_on

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
@pytest.mark.parametrize("policy", POLICIES)
def test_a_generators_keys_and_values_take_the_bytes_that_are_planned(kv_dtype, dtype, policy):
    base = SCALES["tiny"]
    preset = replace(base.target.preset, policy=policy, window=9)
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
