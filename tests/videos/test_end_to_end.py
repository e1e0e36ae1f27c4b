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
from tests.support.thinned import every_pair
from tests.support.tiny import as_anchors, planned_blocks

NOISE = KeyedNoise(seed=42, channels=16, height=4, width=4)
SAMPLE = ["raarraaar", "rrrrrrrrr", "raaaaaaaa", "rraaarara"]
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
    spans = plan_spans(len(pattern), 3)
    return list(
        speculate(
            engine,
            planned_route(pattern),
            planned_blocks(spans),
            BlockInputs(NOISE, conditions),
            drafter_context=context,
        )
    )


def check(pattern: str, engines, conditions, context: str) -> None:
    engine, other = engines
    emitted = run(engine, conditions, pattern, context)
    latents = torch.cat([e.block.latents for e in emitted], 2)
    frames = torch.cat([e.frames for e in emitted], 1)
    assert torch.equal(other.codec.decode(latents)[0], frames)
    if context == "own":
        return
    history = History(horizon=3)
    for one in emitted:
        author = other.drafter if one.record.author == "drafter" else other.target
        again = author.generate(BlockCall(history, one.block.span, NOISE, one.block.condition)).latents
        assert torch.equal(again, one.block.latents)
        shown = one.frames.shape[1] - 1
        history = history.commit(
            one.block, as_anchors(*(one.frames[:, shown - 4 * back, None] for back in (2, 1, 0)))
        )


@every_pair("pattern, policy, context", SAMPLE, *SETTINGS)
def test_frames_are_the_decode_of_the_latents_and_blocks_replay(pattern, policy, context, engines, conditions):
    check(pattern, engines[policy], conditions, context)


def test_worst_frame_routing_uses_the_real_scorer_on_the_drafts_own_frames(engines, conditions):
    engine, other = engines["recompute"]
    emitted = list(
        speculate(engine, Route(Gate(-0.5)), planned_blocks(plan_spans(5, 3)), BlockInputs(NOISE, conditions))
    )
    for before, one in itertools.pairwise(emitted):
        draft = other.drafter.generate(
            BlockCall(before.history, one.block.span, NOISE, one.block.condition)
        ).latents
        frames, _ = other.codec.decode(draft, before.history.decode_state.get())
        scores = other.scorer.score(frames, one.block.condition.text)
        assert one.record.decision.frame_scores == tuple(scores.tolist())
        assert one.record.decision.accepted == (min(scores.tolist()) >= -0.5)
