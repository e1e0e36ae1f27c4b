"""Our engine against Self-Forcing's own pipeline: full window, rolling window, window with a sink, and its VAE."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from witness import AGREES, BLOCKS, SPANS, ask_family, difference, generator_over, tree_of, video_of

from sdvg_core.causal_wan.context import Incremental
from sdvg_core.decoders.open import load_vae

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


def ours(window: int, sink: int, schedule="four-step") -> torch.Tensor:
    return video_of(generator_over(tree_of(1), Incremental(window=window, sink=sink), schedule))


@pytest.mark.parametrize("name", WINDOWS)
def test_nine_blocks_have_the_latents_of_the_original(theirs, name, measured):
    assert measured(difference(ours(*WINDOWS[name]), theirs["latents"][name])) < AGREES


FAULTS = {
    "no sink": (0.3, {"sink": 0}),
    "a window one block shorter": (0.1, {"window": 9}),
    "timesteps that are not warped": (0.1, {"schedule": "raw4"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(theirs, fault, measured):
    least, changed = FAULTS[fault]
    made = ours(**{"window": 12, "sink": 3, **changed})
    assert measured(difference(made, theirs["latents"]["window of 12, sink of 3"])) > least


def test_the_official_decoder_makes_the_same_pixels(theirs, tmp_path, measured):
    save_file(theirs["vae"], tmp_path / "vae.safetensors")
    latents = theirs["latents"]["full window"]
    frames, _ = load_vae(tmp_path / "vae.safetensors").decode(latents)
    assert frames.shape[1] == 1 + 4 * (3 * len(SPANS) - 1)
    assert theirs["pixels"].std() > 0.1
    assert measured(difference(frames * 2 - 1, theirs["pixels"])) < AGREES
