"""Our engine against Krea's realtime-video session: its context, its steps, its decoder, and the method over it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from witness import (
    AGREES,
    FIRST,
    NOISE,
    SECOND,
    SPANS,
    ask,
    difference,
    generator_over,
    per_block,
    request_for,
    tree_of,
)

from sdvg_core.causal_wan.context import AnchorEncoder, RecomputedContext
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.engine.inputs import BlockInputs
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.speculate import speculate
from sdvg_core.settings.route import Gate, Route, TargetOnly
from tests.support.tiny import planned_blocks

CHECKOUT = "REALTIME_VIDEO_PATH"
pytestmark = pytest.mark.originals

TAU = -0.7
ROUTE = "raraarrar"
SCORES = [2.0, -0.7, -0.9, -0.1, 0.4, -0.71, -1.6, 1.1, -0.8]
"""The first block's is ignored, and the second's is exactly tau."""

SCHEDULES = {4: "krea4", 5: "reference5"}

FADE = 3
"""The block before which Krea's session begins to fade. The next one is the first with the new prompt."""

CASES = {
    "3 context frames, 5 steps": {"frames": 3, "steps": 5},
    "6 context frames, 5 steps": {"frames": 6, "steps": 5},
    "3 context frames, 4 steps": {"frames": 3, "steps": 4},
}
OTHERS = {
    "2 context frames": {"frames": 2, "steps": 5, "blocks": 3},
    "4 context frames": {"frames": 4, "steps": 5, "blocks": 3},
    "fade": {"frames": 3, "steps": 5, "blocks": 6, "fade": FADE},
    "route": {"frames": 3, "steps": 5, "scores": SCORES, "tau": TAU},
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    weights = {"target": tree_of(1).state_dict(), "drafter": tree_of(2).state_dict()}
    folder = tmp_path_factory.mktemp("krea")
    request = request_for({**CASES, **OTHERS}, weights=weights)
    return ask("run_krea.py", CHECKOUT, request, folder)


@pytest.fixture(scope="module")
def official(theirs, tmp_path_factory):
    file = tmp_path_factory.mktemp("vae") / "vae.safetensors"
    save_file(theirs["vae"], file)
    return load_vae(file)


@pytest.fixture(scope="module")
def krea(official):
    return KreaDecoder(official)


class KreaDecoder:
    """A codec that decodes as Krea's: the first temporal upsampling remembers its newest input twice.

    The official rule is to remember the newest two. The layer is the first that a clip's first latent frame marks.
    """

    def __init__(self, codec: WanCodec) -> None:
        self.latent_channels = codec.latent_channels
        self.temporal_stride = codec.temporal_stride
        self.spatial_stride = codec.spatial_stride
        self.encode = codec.encode
        self._codec = codec
        _, first = codec.decode(torch.zeros(1, 16, 1, 4, 4))
        self._upsampling = next(i for i, entry in enumerate(first) if isinstance(entry, str))

    def decode(self, latents: Tensor, state=None):
        done, inner = state or (0, None)
        pieces = []
        for frame in latents.split(1, dim=2):
            frames, inner = self._codec.decode(frame, inner)
            pieces.append(frames)
            if done >= 2:
                inner = tuple(e[:, :, [1, 1]] if i == self._upsampling else e for i, e in enumerate(inner))
            done += 1
        return torch.cat(pieces, dim=1), (done, inner)


class Scores:
    """A scorer with a script: the worst frame of a draft has the score that is next."""

    def __init__(self, scores) -> None:
        self._scores = iter(scores)

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        worst = next(self._scores)
        return torch.linspace(worst, worst + 1, frames.shape[1])

    def describe(self) -> Mapping[str, object]:
        return {"name": "script", "notes": ()}


def video(codec, *, frames=3, schedule="reference5", policy=RecomputedContext, route=None, blocks=9, prompts=None):
    """Return our latents, and the route: `a` for a draft that is kept, `r` for a block of the target's."""
    encoder = AnchorEncoder(codec.encode)
    context = policy(encode_anchor=encoder, frames=frames)
    target = generator_over(tree_of(1), context, schedule, "target")
    context = policy(encode_anchor=encoder, frames=frames)
    drafter = generator_over(tree_of(2), context, schedule, "drafter")
    engine = Engine(drafter=drafter, target=target, codec=codec, scorer=Scores(SCORES[1:]))
    route = route or Route(TargetOnly())
    inputs = BlockInputs(NOISE, prompts or (lambda block: FIRST))
    emitted = list(speculate(engine, route, planned_blocks(SPANS[:blocks]), inputs))
    latents = torch.cat([e.block.latents for e in emitted], dim=2)
    return latents, "".join("a" if e.record.decision.accepted else "r" for e in emitted)


@pytest.mark.parametrize("name", CASES)
def test_latents_are_those_of_the_original(theirs, krea, name, measured):
    case = CASES[name]
    latents, _ = video(krea, frames=case["frames"], schedule=SCHEDULES[case["steps"]])
    assert measured(difference(latents, theirs["cases"][name]["latents"])) < AGREES


def test_pixels_are_those_of_the_original(theirs, krea, measured):
    """But for the first three frames, which it leaves out."""
    case = theirs["cases"]["3 context frames, 5 steps"]
    pixels = krea.decode(case["latents"])[0] * 2 - 1
    assert pixels.shape[1] == 105
    assert case["pixels"].shape[1] == 102
    assert measured(difference(pixels[:, 3:], case["pixels"])) < AGREES


def test_route_equals_a_loop_over_two_sessions(theirs, krea, measured):
    latents, route = video(krea, route=Route(Gate(TAU)))
    assert route == ROUTE
    assert measured(difference(latents, theirs["cases"]["route"]["latents"])) < AGREES


def test_missing_fifth_pass_changes_the_latents(theirs, krea, measured):
    latents, _ = video(krea, schedule="four-step")
    assert measured(difference(latents, theirs["cases"]["3 context frames, 5 steps"]["latents"])) > 1e-2


def test_slightly_higher_tau_changes_the_latents(theirs, krea, measured):
    latents, _ = video(krea, route=Route(Gate(TAU + 1e-4)))
    assert measured(difference(latents, theirs["cases"]["route"]["latents"])) > 0.1


def test_decoder_of_krea_departs_from_the_official(theirs, official, measured):
    """From the fourth latent frame on."""
    case = theirs["cases"]["3 context frames, 5 steps"]
    pixels = official.decode(case["latents"])[0] * 2 - 1
    apart = (pixels[:, 3:] - case["pixels"]).abs().amax(dim=(0, 2, 3, 4))
    same = 1 + 4 + 4 - 3  # pixel frames of three latent frames, without the three that Krea leaves out
    assert apart[:same].max() < AGREES
    assert apart[same : same + 4].max() > AGREES, "the fourth latent frame already"
    assert measured(float(apart[same:].max())) > 0.1


def test_official_decoder_changes_its_latents(theirs, official, measured):
    """Once a frame is encoded again."""
    latents, _ = video(official)
    apart = per_block(latents, theirs["cases"]["3 context frames, 5 steps"]["latents"])
    assert max(apart[:2]) < AGREES
    assert measured(max(apart[2:])) > 1e-3


@pytest.mark.parametrize("frames, block", [(2, 1), (4, 2)])
def test_odd_numbers_of_context_frames_differ_early(theirs, krea, frames, block, measured):
    latents, _ = video(krea, frames=frames, blocks=3)
    apart = per_block(latents, theirs["cases"][f"{frames} context frames"]["latents"])
    assert max(apart[:block]) < AGREES
    assert measured(apart[block]) > 0.1


class PromptOfBefore(RecomputedContext):
    """Makes a block's context under the prompt of the block before it."""

    def prepare(self, model, history, span, condition, size):
        before = history.blocks[-1].condition if history.blocks else condition
        return super().prepare(model, history, span, before, size)


def test_krea_passes_context_under_the_old_prompt(theirs, krea, measured):
    """In the first block of a new prompt, so that ours differs there; with the prompt of before it is the same."""
    prompts = {"blocks": 6, "prompts": lambda block: SECOND if block > FADE else FIRST}
    apart = per_block(video(krea, **prompts)[0], theirs["cases"]["fade"]["latents"])
    assert max(apart[: FADE + 1]) < AGREES
    assert measured(apart[FADE + 1]) > 0.1
    latents, _ = video(krea, policy=PromptOfBefore, **prompts)
    assert measured(difference(latents, theirs["cases"]["fade"]["latents"])) < AGREES
