"""The decoder compiled: three times whatever the clip, to the same pixels and the same kind of state."""

from __future__ import annotations

import pytest
import torch
from tiny import can_compile
from torch._dynamo.testing import CompileCounterWithBackend
from vae_parts import SMALL, assert_still_a_value, codec_of, random_latents, random_vae


@pytest.mark.heavy
@pytest.mark.parametrize("layers", [pytest.param("diffusers", marks=pytest.mark.exhaustive), "planes"])
def test_the_decoder_is_compiled_for_the_first_frame_the_second_and_all_later_ones(layers, fresh_compiler):
    vae, counter, clip = random_vae(SMALL), CompileCounterWithBackend("eager"), random_latents(6)
    codec = codec_of(vae, layers=layers, compiler=counter)
    state, pieces, counts = None, [], []
    for frame in clip.split(1, dim=2):
        frames, state = codec.decode(frame, state)
        pieces.append(frames)
        counts.append(counter.frame_count)
    assert counts == [1, 2, 3, 3, 3, 3]
    made = torch.cat(pieces, dim=1)
    assert (made - codec_of(vae).decode(clip)[0]).abs().max() < 5e-7
    assert torch.equal(codec.decode(clip)[0], made)
    assert counter.frame_count == 3


@pytest.mark.exhaustive  # over a minute of the compiler's
@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
@pytest.mark.parametrize("layers", ["planes", "diffusers"])
def test_compiled_to_machine_code_the_pixels_are_the_same_and_the_state_is_still_a_value(layers, fresh_compiler):
    """Catches state entries that are views into a whole input, as the compiler drops the copy that frees it."""
    vae, clip = random_vae(SMALL), random_latents(5)
    assert_still_a_value(codec_of(vae, layers=layers, compiler="inductor"), clip, codec_of(vae).decode(clip)[0])
