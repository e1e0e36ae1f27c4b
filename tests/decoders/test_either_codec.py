"""What both decoders promise: a clip in pieces is the clip, the state is a value, each encode starts afresh."""

from __future__ import annotations

import pytest
import torch
from tae_parts import codec_of, random_tae
from vae_parts import decode_pieces, random_frames, random_latents, tensors

from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.taehv import TaehvCodec
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.errors import BadInput

Codec = WanCodec | TaehvCodec


@pytest.fixture(scope="module", params=["wan", "taehv"])
def codec(request, original_file) -> Codec:
    return load_vae(original_file) if request.param == "wan" else codec_of(random_tae())


@pytest.mark.parametrize("cut", [[3, 3, 3], [1] * 9, [2, 5, 2], [1, 8]], ids=str)
def test_decoding_in_any_pieces_is_the_same_to_the_bit(codec: Codec, cut: list[int]) -> None:
    latents = random_latents(9)
    assert torch.equal(decode_pieces(codec, latents, cut)[0], codec.decode(latents)[0])
    assert torch.equal(latents, random_latents(9)), "the latents are written to"


@pytest.mark.parametrize("before", [1, 3])
def test_a_rejected_candidate_leaves_the_given_state_bit_identical(codec: Codec, before: int) -> None:
    """Catches a cache that is written into, one that marks the first frame and is used up, and a shared list."""
    latents = random_latents(6)
    _, state = codec.decode(latents[:, :, :before])
    entries = list(state)
    values = [entry.clone() if torch.is_tensor(entry) else entry for entry in state]
    alone, _ = codec.decode(latents[:, :, before:], state)
    for seed in (7, 8):
        codec.decode(random_latents(3, seed=seed), state)
    assert all(now is then for now, then in zip(state, entries, strict=True))
    for now, then in zip(state, values, strict=True):
        assert torch.equal(now, then) if torch.is_tensor(then) else now == then
    assert torch.equal(codec.decode(latents[:, :, before:], state)[0], alone)


def test_the_state_is_a_tuple_of_tensors_that_pin_no_larger_storage(codec: Codec) -> None:
    _, state = codec.decode(random_latents(4))
    assert isinstance(state, tuple)
    assert len(tensors(state)) == (32 if isinstance(codec, WanCodec) else 9)
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors(state))


def test_every_encode_starts_afresh(codec: Codec) -> None:
    """Catches an encoder cache that survives the call, as re-anchoring encodes one frame at a time."""
    alone, frames = codec.encode(random_frames(1)), random_frames(9)
    codec.encode(frames)
    assert torch.equal(frames, random_frames(9)), "the frames are written to"
    assert torch.equal(codec.encode(random_frames(1)), alone)


@pytest.mark.parametrize(
    "shape, words",
    [
        ((1, 4, 3, 16, 24), "1 \\+ 4 \\* k RGB frames"),
        ((1, 0, 3, 16, 24), "1 \\+ 4 \\* k RGB frames"),
        ((1, 5, 4, 16, 24), "RGB"),
        ((1, 5, 3, 16, 20), "16 x 20 are no multiples of 8"),
    ],
)
def test_frames_of_another_size_are_refused(codec: Codec, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        codec.encode(torch.zeros(shape))
