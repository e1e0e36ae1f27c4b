"""The real loaders, the real VAE and the real scorer on tiny files: exact from end to end."""

import itertools

import pytest
import torch

from sdvg_core.engine.inputs import BlockCall, BlockInputs, KeyedNoise
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.speculate import speculate
from sdvg_core.engine.types import History, plan_spans
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import encode_prompts, load_models
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.route import Gate, Route
from sdvg_core.text.prompts import one_prompt
from tests.support.routers import planned_route
from tests.support.thinned import in_turn
from tests.support.tiny import as_anchors, planned_blocks

NOISE = KeyedNoise(seed=42, channels=16, height=4, width=4)
SAMPLE = ["raarar", "rrrrrr", "raaaaa", "rraara"]
SETTINGS = (["recompute", "incremental"], ["committed", "own"])  # context policy, the drafter's context


def load(files, policy: str) -> Engine:
    window = {"window": 9, "sink": 3} if policy == "incremental" else {}
    models = {
        name: ModelOptions(preset=preset, policy=policy, **window)
        for name, preset in (("drafter", "self-forcing-1.3b"), ("target", "krea-14b"))
    }
    options = LoadOptions(**models, text_dtype="float32", schedule="1000,625")
    return load_models(files, options, check_models(files, options)).build()


@pytest.fixture(scope="module")
def engines(files):
    """Two loads of the same files, for each policy: one runs, the other checks."""
    return {policy: (load(files, policy), load(files, policy)) for policy in ("recompute", "incremental")}


@pytest.fixture(scope="module")
def conditions(files):
    prompts = one_prompt("a red ball moves to the right")
    options = LoadOptions(text_dtype="float32")
    return prompts.conditions(encode_prompts(files, prompts.texts, options))


def run(engine, conditions, pattern: str, context: str = "committed"):
    blocks = planned_blocks(plan_spans(len(pattern), 3))
    inputs = BlockInputs(NOISE, conditions)
    return list(speculate(engine, planned_route(pattern), blocks, inputs, drafter_context=context))


def check(pattern: str, engines, conditions, context: str) -> None:
    engine, other = engines
    emitted = run(engine, conditions, pattern, context)
    latents = torch.cat([e.block.latents for e in emitted], 2)
    frames = torch.cat([e.frames for e in emitted], 1)
    assert torch.equal(other.codec.decode(latents)[0], frames)
    if context == "own":
        return
    history = History(horizon=3)
    for result in emitted:
        block = result.block
        author = other.drafter if result.record.author == "drafter" else other.target
        replayed = author.generate(BlockCall(history, block.span, NOISE, block.condition))
        assert torch.equal(replayed.latents, block.latents)
        last = result.frames.shape[1] - 1
        anchors = as_anchors(*(result.frames[:, last - 4 * back, None] for back in (2, 1, 0)))
        history = history.commit(block, anchors)


@in_turn("pattern, policy, context", SAMPLE, *SETTINGS)
def test_real_models_replay_frames_and_blocks(pattern, policy, context, engines, conditions):
    check(pattern, engines[policy], conditions, context)


def test_gate_scores_the_frames_of_each_draft(engines, conditions):
    engine, other = engines["recompute"]
    blocks = planned_blocks(plan_spans(5, 3))
    emitted = list(speculate(engine, Route(Gate(-0.5)), blocks, BlockInputs(NOISE, conditions)))
    for before, result in itertools.pairwise(emitted):
        block = result.block
        draft = other.drafter.generate(BlockCall(before.history, block.span, NOISE, block.condition))
        frames, _ = other.codec.decode(draft.latents, before.history.decode_state.get())
        scores = other.scorer.score(frames, block.condition.text).tolist()
        assert result.record.decision.frame_scores == tuple(scores)
        assert result.record.decision.accepted == (min(scores) >= -0.5)
