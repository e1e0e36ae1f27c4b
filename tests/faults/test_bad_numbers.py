"""NaN and infinities, wherever they come from: a run ends, and never with a video of them passed off as fine."""

import math
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from faulty import REQUEST, make_loaded, make_video, quick
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sdvg_core.engine.outside import checked_parts
from sdvg_core.engine.types import Condition
from sdvg_core.errors import BadInput
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.route import First, Gate, Mean, Quantile, Route, TargetOnly, WorstFrame
from sdvg_core.text.prompts import Conditions
from tests.support.cli_runs import override, refused
from tests.support.reuse_folders import PROMPT as ASKED
from tests.support.reuse_folders import five
from tests.support.thinned import in_turn
from tests.support.tiny import PROMPT, SIZE, BrightScorer, EchoCodec, generator_of, make_engine, planned, run

SECURITY = Path(__file__).resolve().parents[2] / "SECURITY.md"
BAD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
BLOCKS = (0, 4, 8)


NO_FRAMES = (
    lambda frames: frames * 255,
    lambda frames: frames * 2 - 1,
    lambda frames: frames + 5,
    lambda frames: frames - 1,
)
STILL_FRAMES = (
    lambda frames: frames.round() * 1.001,
    lambda frames: frames.round() - 0.001,
    lambda frames: frames.bfloat16(),
    lambda frames: frames.double(),
)


def spoiled(values: torch.Tensor, bad: float) -> torch.Tensor:
    """The same with one bad number in the middle."""
    values = values.clone()
    values.view(-1)[values.numel() // 2] = bad
    return values


def spoil_model(engine: Any, model: str, at: int, bad: float) -> None:
    generator = getattr(engine, model)
    honest = generator.generate

    def generate(call: Any) -> Any:
        made = honest(call)
        return replace(made, predictions=(spoiled(made.latents, bad),)) if call.span.index == at else made

    generator.generate = generate


def fails(engine: Any, router: Route, sentence: str, condition_of: Any = lambda _: PROMPT) -> None:
    with pytest.raises(BadInput, match=sentence):
        run(engine, router, condition_of=condition_of)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_bad_latents_of_any_block_stop_the_run_and_name_block_and_model(policy, bad):
    target, drafter = Route(TargetOnly()), Route(First(0))
    for at, (model, router) in product(BLOCKS, (("target", target), ("drafter", drafter))):
        engine = make_engine(policy)
        spoil_model(engine, model, at, BAD[bad])
        fails(engine, router, f"block {at + 1} has NaN or infinity in its {model} latents")


@pytest.mark.parametrize("bad", BAD)
def test_bad_frames_of_any_block_stop_the_run_or_are_thrown_away_with_the_draft(bad):
    """A draft with bad frames scores NaN and is remade; a block that is emitted with them stops the run."""
    honest = EchoCodec.decode
    for at in BLOCKS:
        calls = []

        def decode(self: EchoCodec, latents: torch.Tensor, state: Any = None, at: int = at) -> Any:
            frames, after = honest(self, latents, state)
            calls.append(latents)  # noqa: B023
            return (spoiled(frames, BAD[bad]), after) if len(calls) == at + 1 else (frames, after)  # noqa: B023

        with patch.object(EchoCodec, "decode", decode):
            always = Route(TargetOnly())
            fails(make_engine(), always, f"block {at + 1} has NaN or infinity in its decoded frames")
            calls.clear()
            emitted = run(make_engine(), Route(Gate(-1e9))) if at else []
        assert [e.record.decision.reason for e in emitted[at : at + 1]] == [Reason.NOT_FINITE] * bool(at)
        assert all(bool(torch.isfinite(e.frames).all()) for e in emitted)


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


@pytest.mark.parametrize("change", NO_FRAMES)
def test_frames_outside_0_to_1_stop_the_run(change):
    """From a custom codec. Catches: levels of 255, or of -1 to 1, shown as white and black."""
    sentence = "the codec ChangedCodec returned frames outside 0 to 1 for block 1; return them"
    fails(engine_with(change), Route(TargetOnly()), sentence)
    given = 4 * torch.randn(1, 4, 6, *SIZE, generator=generator_of(1))
    with pytest.raises(BadInput, match=sentence):
        list(planned(engine_with(change), Route(TargetOnly()), given=given, blocks=1).play())


@pytest.mark.parametrize("change", STILL_FRAMES)
def test_frames_that_are_rounded_make_a_video(change):
    """By less than half a level of 255, or in another dtype."""
    assert len(run(engine_with(change), Route(TargetOnly()), blocks=2)) == 2


@pytest.mark.parametrize("bad", BAD)
def test_bad_scores_of_any_block_reject_it_and_the_record_says_so(bad):
    honest = BrightScorer.score
    for at in (1, 4, 8):

        def score(self: BrightScorer, frames: torch.Tensor, prompt: str, at: int = at) -> torch.Tensor:
            scores = honest(self, frames, prompt)
            return spoiled(scores, BAD[bad]) if self.calls == at else scores

        with patch.object(BrightScorer, "score", score):
            emitted = run(make_engine(), Route(Gate(-1e9)))
        reasons = [e.record.decision.reason for e in emitted]
        assert reasons == [Reason.FORCED, *[Reason.NOT_FINITE if n == at else Reason.REACHED for n in range(1, 9)]]


def test_scores_that_are_all_bad_end_in_a_video_of_the_targets(tmp_path):
    """The kind: a verdict without a number. It remakes the block under every gate, as SECURITY.md promises."""
    routes = [Route(Gate(by=by)) for by in (WorstFrame(), Mean(), Quantile())]
    with quick(), patch.object(BrightScorer, "score", lambda *_: torch.full((12,), math.nan)):
        for route in routes:
            report = make_video(make_loaded(), tmp_path, replace(REQUEST, route=route))
            assert report.reasons == {Reason.FORCED: 1, Reason.NOT_FINITE: 8}
            assert report.tally.by_target == 9
    assert "in a draft's frames or scores, the target makes the block again" in SECURITY.read_text(encoding="utf-8")


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_prompt_of_any_block_stops_the_run_and_names_the_block(bad):
    wrong = Condition(spoiled(PROMPT.embedding, BAD[bad]), "a bad ball")
    for at in BLOCKS:
        conditions = Conditions(((0, wrong),)) if at == 0 else Conditions(((0, PROMPT), (at, wrong)))
        fails(make_engine(), Route(), f"block {at + 1} has NaN or infinity in its (drafter|target)", conditions)


@pytest.mark.parametrize("model, bad", [("drafter", "inf"), ("target", "nan")])
def test_bad_weights_stop_the_run_at_the_first_block_they_make(model, bad):
    """In every tensor that reaches the latents."""
    tree: Any = getattr(make_engine(), model)._model.wan.tree
    hidden = (".q.", ".k.", "norm_q", "norm_k", "norm3")
    for name in [name for name, _ in tree.named_parameters() if not any(part in name for part in hidden)]:
        engine = make_engine()
        parameter = getattr(engine, model)._model.wan.tree.get_parameter(name)
        with torch.no_grad():
            parameter.copy_(spoiled(parameter, BAD[bad]))
        first = 0 if model == "target" else 1
        fails(engine, Route(), f"block {first + 1} has NaN or infinity in its {model} latents")


BAD_FILES = {
    "target": ("model.blocks.1.cross_attn.norm_k.weight", "norm_k.weight in tiny_krea.safetensors holds NaN"),
    "vae": ("decoder.head.2.bias", "in tiny_wan_2.1_vae.safetensors holds NaN or infinity"),
    "reward": ("mlp.layers.4.bias", "in TinyImageReward.pt holds NaN or infinity"),
    "text_encoder": ("encoder.final_layer_norm.weight", "tiny_umt5.safetensors made NaN or infinity of 'a red"),
}


@in_turn("role, bad", BAD_FILES, BAD)
def test_a_bad_number_in_a_file_is_named_before_a_block_is_made(files, tmp_path, capsys, role, bad):
    name, said = BAD_FILES[role]
    path = getattr(files, role)
    weights = torch.load(path, weights_only=True) if role == "reward" else load_file(path)
    weights[name] = spoiled(weights[name], BAD[bad])
    if role == "reward":
        torch.save(weights, tmp_path / path.name)
        shutil.copy(path.with_name("vocab.txt"), tmp_path)
    else:
        with safe_open(path, "pt") as file:
            save_file(weights, tmp_path / path.name, file.metadata())
    wrong = [f"--{role.replace('_', '-')}", str(tmp_path / path.name), "--output", str(tmp_path / "out")]
    assert said in refused(capsys, override([*five(files), *ASKED], *wrong))
    assert not (tmp_path / "out").exists()
