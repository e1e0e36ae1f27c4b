"""NaN and infinities, wherever they come from: a run ends, and never with a video of them passed off as fine."""

import math
import shutil
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from faulty import REQUEST, make_loaded, make_video, quick
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.engine.outside import checked_parts
from sdvg_core.engine.protocols import WrappedGenerator
from sdvg_core.engine.types import Condition
from sdvg_core.errors import BadInput
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.route import First, Gate, Mean, Quantile, Route, TargetOnly, WorstFrame
from sdvg_core.text.prompts import Conditions
from tests.support.cli_runs import override, refused
from tests.support.reuse_folders import PROMPT as PROMPT_WORDS
from tests.support.reuse_folders import five
from tests.support.thinned import every_pair, in_turn
from tests.support.tiny import (
    CONFIG,
    POLICIES,
    PROMPT,
    SIZE,
    BrightScorer,
    EchoCodec,
    frames_of,
    generator_of,
    make_engine,
    planned,
    random_tree,
    run,
)

BAD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
BLOCKS = (0, 4, 8)


# No frames of 0 to 1; and what still are, by less than half a level of 255, or in another dtype.
NO_FRAMES = (
    lambda frames: frames * 255,
    lambda frames: frames * 2 - 1,
    lambda frames: frames + 5,
    lambda frames: frames - 1,
    lambda frames: frames.round() + 0.01,
    lambda frames: frames.round() - 0.01,
)
STILL_FRAMES = (
    lambda frames: frames.round() * 1.001,
    lambda frames: frames.round() - 0.001,
    lambda frames: frames.bfloat16(),
    lambda frames: frames.double(),
)


def spoiled(values: torch.Tensor, bad: float) -> torch.Tensor:
    """Return a copy with one bad number in the middle."""
    values = values.clone()
    values.view(-1)[values.numel() // 2] = bad
    return values


class SpoiledModel(WrappedGenerator):
    """Returns one bad number in the latents of a block."""

    def __init__(self, inner: Any, index: int, bad: float) -> None:
        super().__init__(inner)
        self._index = index
        self._bad = bad

    def generate(self, call: Any) -> Any:
        generated = self.inner.generate(call)
        if call.span.index != self._index:
            return generated
        return replace(generated, predictions=(spoiled(generated.latents, self._bad),))


class SpoiledCodec(EchoCodec):
    """Returns one bad number in the frames of one of its calls, counted from 0."""

    def __init__(self, index: int, bad: float) -> None:
        super().__init__()
        self._index = index
        self._bad = bad

    def decode(self, latents: torch.Tensor, state: Any = None) -> Any:
        frames, state = super().decode(latents, state)
        return (spoiled(frames, self._bad) if self.decodes == self._index + 1 else frames), state


class SpoiledScorer(BrightScorer):
    """Returns one bad number in one of its calls, counted from 1, which is that for block 1."""

    def __init__(self, index: int, bad: float) -> None:
        super().__init__()
        self._index = index
        self._bad = bad

    def score(self, frames: torch.Tensor, prompt: str) -> torch.Tensor:
        scores = super().score(frames, prompt)
        return spoiled(scores, self._bad) if self.calls == self._index else scores


def fails(engine: Any, router: Route, fault: str, condition_of: Any = lambda _: PROMPT) -> None:
    with pytest.raises(BadInput, match=fault):
        run(engine, router, condition_of=condition_of)


KEEP_ALL = Route(Gate(-1e9))


@every_pair("index, role, bad, policy", BLOCKS, ("target", "drafter"), tuple(BAD), POLICIES)
def test_bad_latents_stop_the_run(index, role, bad, policy):
    """And name block and model. Catches: a check of the first block alone, or of the target's."""

    engine = make_engine(policy)
    engine = replace(engine, **{role: SpoiledModel(getattr(engine, role), index, BAD[bad])})
    route = Route(TargetOnly() if role == "target" else First(0))
    fails(engine, route, f"block {index + 1} has NaN or infinity in its {role} latents")


@every_pair("index, bad", BLOCKS, tuple(BAD))
def test_bad_frames_shown_stop_the_run(index, bad):
    engine = replace(make_engine(), codec=SpoiledCodec(index, BAD[bad]))
    fails(engine, Route(TargetOnly()), f"block {index + 1} has NaN or infinity in its decoded frames")


@every_pair("index, bad", BLOCKS[1:], tuple(BAD))
def test_bad_frames_of_a_draft_reject_it(index, bad):
    """It scores NaN and is made again. Catches: its frames, shown."""
    engine = replace(make_engine(), codec=SpoiledCodec(index, BAD[bad]))
    emitted = run(engine, KEEP_ALL)
    assert emitted[index].record.decision.reason is Reason.NOT_FINITE
    assert torch.isfinite(frames_of(emitted)).all()


class ChangedCodec(EchoCodec):
    """A codec whose frames are changed by a function."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def decode(self, latents: torch.Tensor, state: Any = None) -> Any:
        frames, after = super().decode(latents, state)
        return self.change(frames), after


def engine_with(change: Any) -> Any:
    """Return an engine with a custom codec whose frames are changed."""
    codec = checked_parts({"codec": ChangedCodec(change)}, EchoCodec())["codec"]
    return replace(make_engine(), codec=codec)


OUTSIDE = "codec ChangedCodec returned frames outside 0 to 1 for block 1"


@pytest.mark.parametrize("change", NO_FRAMES)
def test_frames_outside_0_to_1_stop_the_run(change):
    """From a custom codec. Catches: levels of 255, or of -1 to 1, shown as white and black."""
    fails(engine_with(change), Route(TargetOnly()), OUTSIDE)


@pytest.mark.parametrize("change", NO_FRAMES)
def test_clip_outside_0_to_1_stops_the_run(change):
    clip = 4 * torch.randn(1, 4, 6, *SIZE, generator=generator_of(1))
    with pytest.raises(BadInput, match=OUTSIDE):
        list(planned(engine_with(change), Route(TargetOnly()), given=clip, blocks=1).play())


@pytest.mark.parametrize("change", STILL_FRAMES)
def test_frames_that_are_rounded_make_a_video(change):
    """By less than half a level of 255, or in another dtype."""
    assert len(run(engine_with(change), Route(TargetOnly()), blocks=2)) == 2


@every_pair("index, bad", (1, 4, 8), tuple(BAD))
def test_bad_scores_reject_the_draft(index, bad):
    """Of any block, and of that block alone; its record states it."""
    emitted = run(replace(make_engine(), scorer=SpoiledScorer(index, BAD[bad])), KEEP_ALL)
    expected = [Reason.FORCED, *[Reason.REACHED] * 8]
    expected[index] = Reason.NOT_FINITE
    assert [shown.record.decision.reason for shown in emitted] == expected


@pytest.mark.parametrize("by", [WorstFrame(), Mean(), Quantile()], ids=str)
def test_nan_scores_make_a_video_of_the_target(tmp_path, by):
    """The kind: a verdict without a number. It remakes the block under every gate, as SECURITY.md promises."""
    with quick(), patch.object(BrightScorer, "score", lambda *_: torch.full((12,), math.nan)):
        report = make_video(make_loaded(), tmp_path, replace(REQUEST, route=Route(Gate(by=by))))
    assert report.reasons == {Reason.FORCED: 1, Reason.NOT_FINITE: 8}
    assert report.tally.by_target == 9


@every_pair("index, bad", BLOCKS, tuple(BAD))
def test_bad_prompt_stops_the_run(index, bad):
    wrong = Condition(spoiled(PROMPT.embedding, BAD[bad]), "a bad ball")
    conditions = Conditions(((0, wrong),) if index == 0 else ((0, PROMPT), (index, wrong)))
    fails(make_engine(), Route(), f"block {index + 1} has NaN or infinity", conditions)


# Of these a bad number shows in no latents: a norm or a softmax takes it in.
HIDDEN = (".q.", ".k.", "norm_q", "norm_k", "norm3")
TENSORS = [name for name, _ in WanTree(CONFIG).named_parameters() if not any(part in name for part in HIDDEN)]


@pytest.mark.parametrize(("role", "bad", "block"), [("drafter", math.inf, 2), ("target", math.nan, 1)])
def test_bad_weights_stop_the_run_at_once(role, bad, block):
    """At the first block they make, in every tensor that reaches the latents."""
    for name in TENSORS:
        engine = make_engine(tree_of=random_tree)
        parameter = getattr(engine, role)._model.wan.tree.get_parameter(name)
        with torch.no_grad():
            parameter.copy_(spoiled(parameter, bad))
        fails(engine, Route(), f"block {block} has NaN or infinity in its {role} latents")


BAD_FILES = {
    "target": ("model.blocks.1.cross_attn.norm_k.weight", "tiny_krea.safetensors holds NaN"),
    "vae": ("decoder.head.2.bias", "tiny_wan_2.1_vae.safetensors holds NaN"),
    "reward": ("mlp.layers.4.bias", "TinyImageReward.pt holds NaN"),
    "text_encoder": ("encoder.final_layer_norm.weight", "tiny_umt5.safetensors made NaN"),
}


@in_turn("role, bad", BAD_FILES, BAD)
def test_bad_number_in_a_file_is_refused(files, tmp_path, capsys, role, bad):
    """Before a block is made."""
    name, fault = BAD_FILES[role]
    path = getattr(files, role)
    weights = torch.load(path, weights_only=True) if role == "reward" else load_file(path)
    weights[name] = spoiled(weights[name], BAD[bad])
    if role == "reward":
        torch.save(weights, tmp_path / path.name)
        shutil.copy(path.with_name("vocab.txt"), tmp_path)
    else:
        with safe_open(path, "pt") as file:
            save_file(weights, tmp_path / path.name, file.metadata())
    words = [f"--{role.replace('_', '-')}", str(tmp_path / path.name), "--output", str(tmp_path / "out")]
    assert fault in refused(capsys, override([*five(files), *PROMPT_WORDS], *words))
    assert not (tmp_path / "out").exists()
