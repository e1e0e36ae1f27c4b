"""Our engine against Self-Forcing's own pipeline: full window, rolling window, window with a sink, and its VAE."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from witness import AGREES, BLOCKS, SPANS, ask_family, difference, generator_over, tree_of, video_of

from sdvg_core.causal_wan.cache import CacheSlots
from sdvg_core.causal_wan.incremental import Incremental
from sdvg_core.decoders.wan_vae import load_wan_vae

CHECKOUT = "SELF_FORCING_PATH"
pytestmark = pytest.mark.originals

EVERYTHING = 3 * BLOCKS
WINDOWS = {"full window": (EVERYTHING, 0), "window of 21": (21, 0), "window of 12, sink of 3": (12, 3)}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    cases = {}
    for name, (window, sink) in WINDOWS.items():
        model = {"local_attn_size": -1 if window == EVERYTHING else window, "sink_size": sink}
        cases[name] = {"model": model, "asked": {"text_prompts": ["first"]}}
    return ask_family(CHECKOUT, cases, tmp_path_factory.mktemp("self_forcing"), pixels=True)


def ours(window: int, sink: int, schedule="four-step", policy=Incremental) -> torch.Tensor:
    return video_of(generator_over(tree_of(1), policy(window=window, sink=sink), schedule))


@pytest.mark.parametrize("name", WINDOWS)
def test_nine_blocks_have_the_latents_of_the_original(theirs, name, measured):
    assert measured(difference(ours(*WINDOWS[name]), theirs["latents"][name])) < AGREES


class RelativePositions(Incremental):
    """Counts positions from the window's first frame."""

    def _pass_slots(self, span, scene) -> CacheSlots:
        slots = super()._pass_slots(span, scene)
        return CacheSlots(min(span.start, self.window - span.frames), slots.written, slots.visible)


class NoCleanPass(Incremental):
    """Keeps what a block's last denoising pass wrote, in place of a pass over the finished block."""

    def prepare(self, model, history, *rest):
        if self._cache:
            self._blocks = history.blocks
        return super().prepare(model, history, *rest)


FAULTS = {
    "no sink": (0.3, lambda: ours(12, 0)),
    "a window one block shorter": (0.1, lambda: ours(9, 3)),
    "relative positions": (0.1, lambda: ours(12, 3, policy=RelativePositions)),
    "no clean pass": (0.1, lambda: ours(12, 3, policy=NoCleanPass)),
    "timesteps that are not warped": (0.1, lambda: ours(12, 3, "raw4")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(theirs, fault, measured):
    least, make = FAULTS[fault]
    assert measured(difference(make(), theirs["latents"]["window of 12, sink of 3"])) > least


def test_the_official_decoder_makes_the_same_pixels(theirs, tmp_path, measured):
    save_file(theirs["vae"], tmp_path / "vae.safetensors")
    latents = theirs["latents"]["full window"]
    frames, _ = load_wan_vae(tmp_path / "vae.safetensors").decode(latents)
    assert frames.shape[1] == 1 + 4 * (3 * len(SPANS) - 1)
    assert theirs["pixels"].std() > 0.1
    assert measured(difference(frames * 2 - 1, theirs["pixels"])) < AGREES
