"""Passes with compiled stages, and passes recorded once and played: the same video, and few shapes."""

from __future__ import annotations

import pytest
import torch
from recorded import STEPS, Recorder, engine_with
from tiny import (
    POLICIES,
    PROMPT,
    can_compile,
    condition,
    latents_of,
    make_engine,
    run,
    scripted,
)
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from sdvg_core.bench.check import collect, differences
from sdvg_core.causal_wan.passes import Passes, RecordedPasses, compiled_stages, passes_for
from sdvg_core.engine.speculate import Emitted

ROUTE = scripted("rarraaararaa")


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain(policy: str) -> list[Emitted]:
    return run(make_engine(policy, schedule=STEPS), ROUTE, blocks=12)


# --- compiled


@pytest.mark.parametrize("policy", POLICIES)
def test_a_layer_is_compiled_in_three_pieces_and_never_again(policy, fresh_compiler):
    """Catches a position, a slot, a layer's number or a timestep that is a constant of the compiled code."""
    counter = CompileCounterWithBackend("eager")
    stages = compiled_stages(counter)
    engine = engine_with(policy, lambda: Passes(stages))
    seen: list[int] = []

    def note(index: int):
        seen.append(counter.frame_count)
        return PROMPT

    made = run(engine, ROUTE, blocks=12, condition_of=note)
    assert counter.frame_count == 3
    assert set(seen[4:]) == {3}  # asked before every block
    assert torch.equal(latents_of(made), latents_of(plain(policy)))


@pytest.mark.heavy
@pytest.mark.parametrize("policy", POLICIES)
def test_traced_and_rewritten_stages_make_the_same_video_to_rounding(policy, fresh_compiler):
    stages = compiled_stages("aot_eager")
    made = run(engine_with(policy, lambda: Passes(stages)), ROUTE, blocks=12)
    found = differences(collect(plain(policy)), collect(made))
    assert found["latents"] < 1e-4 * found["latents_rms"]
    assert found["decided_otherwise"] == []


@pytest.mark.heavy
@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
@pytest.mark.parametrize("policy", POLICIES)
def test_stages_compiled_to_machine_code_make_the_same_video_to_rounding(policy, fresh_compiler):
    """Fused sums are taken in another order; float32 has 24 bits, and 12 blocks follow from one another."""
    stages = compiled_stages()
    made = run(engine_with(policy, lambda: Passes(stages)), ROUTE, blocks=12)
    found = differences(collect(plain(policy)), collect(made))
    assert found["latents"] < 1e-3 * found["latents_rms"]
    assert found["scores"] < 1e-2
    assert found["decided_otherwise"] == []


def test_what_cannot_be_compiled_whole_is_an_error_and_not_half_compiled(fresh_compiler):
    stages = compiled_stages("eager")
    engine = engine_with("recompute", lambda: Passes(stages))

    class Asking(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    engine.target._model.tree.blocks[0].ffn = Asking()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        run(engine, ROUTE, blocks=12)


# --- recorded


@pytest.mark.parametrize("policy, recordings", [("recompute", 3 + 2), ("incremental", 8 + 7)])
def test_recorded_passes_make_the_same_bits_from_a_known_number_of_recordings(policy, recordings):
    """However long the video is. Recompute: without context, with it, and the context itself. Incremental with a
    window of three blocks: four places to stand in, to denoise and for context. The drafter makes no first block.
    """
    recorder, counts = Recorder(), []

    def note(index: int):
        counts.append(recorder.recorded)
        return PROMPT

    all_remade = scripted("r" * 12)
    made = run(engine_with(policy, lambda: RecordedPasses(recorder)), all_remade, blocks=12, condition_of=note)
    expected = run(make_engine(policy, schedule=STEPS), all_remade, blocks=12)
    assert torch.equal(latents_of(made), latents_of(expected))
    works = [work for one in made for work in (one.record.draft, one.record.target) if work]
    assert recorder.played == sum(work.denoising_passes + work.context_passes for work in works)
    assert recorder.recorded == recordings
    assert set(counts[5:]) == {recordings}


@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_passes_take_up_a_new_prompt(policy):
    """Catches a recording that keeps the keys and values of the prompt it was made with."""
    prompts = (condition(5), condition(6, "a blue box"))

    def prompt_of(index: int):
        return prompts[index % 5 > 2]

    made = run(engine_with(policy, lambda: RecordedPasses(Recorder())), ROUTE, blocks=12, condition_of=prompt_of)
    expected = run(make_engine(policy, schedule=STEPS), ROUTE, blocks=12, condition_of=prompt_of)
    assert torch.equal(latents_of(made), latents_of(expected))


def test_what_a_recording_made_is_left_alone_by_the_next_play():
    passes = RecordedPasses(Recorder())

    def work(tree, x, timestep, text, cache, place, rope, ops, stages):
        return x * timestep + rope[0]

    place = make_place()
    text = ((torch.zeros(1), torch.zeros(1)),)
    first = passes.run(work, None, (torch.ones(2), 2.0), text, None, place, (torch.ones(1),), None)
    second = passes.run(work, None, (torch.ones(2), 5.0), text, None, place, (torch.zeros(1),), None)
    assert first.tolist() == [3, 3]
    assert second.tolist() == [5, 5]


def make_place():
    from sdvg_core.causal_wan.cache import Place

    return Place(0, (0,), 1)


def test_a_cache_of_one_size_is_kept_where_passes_are_recorded_and_made_anew_where_not():
    def make():
        return object()

    kept, plain_passes = RecordedPasses(Recorder()), Passes()
    assert kept.cache((3, 4, 4), make) is kept.cache((3, 4, 4), make)
    assert kept.cache((6, 4, 4), make) is not kept.cache((3, 4, 4), make)
    assert plain_passes.cache((3, 4, 4), make) is not plain_passes.cache((3, 4, 4), make)


def test_nothing_is_compiled_or_recorded_unless_it_is_asked_for():
    passes = passes_for("off", torch.device("cpu"))
    assert type(passes) is Passes
    assert passes._stages is None
    assert passes_for("default", torch.device("cpu"))._stages is not None
