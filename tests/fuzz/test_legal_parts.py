"""Parts as the protocols allow: they make a video, or are refused in a sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sdvg_core import Custom, Route, Streamer, VideoRequest, pocket_options, trained_set
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Generated
from sdvg_core.errors import BadInput
from sdvg_core.loading import load as loading
from sdvg_core.settings.request import MOST_SEED
from sdvg_core.settings.route import First, Gate
from sdvg_core.videos import stream
from tests.support.outside_parts import VAE, Part, PlainRouter

from .answers import answer, spoken_badly

TEXT = "a big blue ball drifts right from the left over sand"
CASES = settings(max_examples=24) if settings().derandomize else settings()
"""Fewer than of texts, as each is a video; by command as many."""
TIMESTEPS = (1000.0, 937.5, 833.3, 750.0, 625.0, 250.0)


@st.composite
def models(draw: st.DrawFn, role: str) -> Part:
    """Draw a model of one to four steps, with or without a list of them for first blocks."""
    chosen = draw(st.lists(st.sampled_from(TIMESTEPS), min_size=1, max_size=4, unique=True))
    steps = tuple(sorted(chosen, reverse=True))
    first = draw(st.sampled_from((steps, steps[-1:], ())))

    def generate(call: BlockCall) -> Generated:
        noise = call.noise.draw(call.span, 0)
        used = first if call.span.index == 0 and first else steps
        return Generated(tuple(noise / (step + 2) for step in range(len(used)))[: call.stop])

    return Part(
        name="drawn",
        block_frames=3 if role == "target" else draw(st.sampled_from((1, 3))),
        latent_channels=16,
        anchor_horizon=draw(st.sampled_from((0, 3))),
        timesteps=steps,
        first_timesteps=first,
        generate=generate,
    )


@st.composite
def scorers(draw: st.DrawFn) -> Part:
    """Draw a scorer whose scores may be anything, also no number."""
    scores = st.sampled_from((-3.0, -0.7, 0.5, math.nan, math.inf))
    values = draw(st.tuples(scores, scores)) * 8
    return Part(
        describe=lambda: {"name": "drawn"}, score=lambda frames, prompt: torch.tensor(values)[: frames.shape[1]]
    )


@st.composite
def codecs(draw: st.DrawFn) -> Part:
    """Draw a codec that shows latents as squares of colour, with a state of any kind and frames of any dtype."""
    dtype = draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
    after = draw(st.sampled_from((0, False, (), "state", torch.zeros(1))))

    def decode(latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        squares = latents[:, :3].sigmoid().repeat_interleave(8, 3).repeat_interleave(8, 4)
        frames = squares.movedim(2, 1).repeat_interleave(4, 1).to(dtype)
        return (frames[:, 3:] if state is None else frames), after

    def encode(frames: Tensor) -> Tensor:
        squares = frames[:, ::4, :1, ::8, ::8].movedim(1, 2).float()
        return squares.expand(-1, 16, -1, -1, -1)

    return Part(**vars(VAE), decode=decode, encode=encode)


@st.composite
def parts_of_a_streamer(draw: st.DrawFn) -> dict[str, Part]:
    roles = draw(st.sampled_from((("target",), ("drafter",), ("drafter", "target"))))
    parts = {role: draw(models(role)) for role in roles}
    parts["scorer"] = draw(scorers())
    return parts | ({"codec": draw(codecs())} if draw(st.booleans()) else {})


@st.composite
def routes(draw: st.DrawFn) -> Route:
    """Draw a route by a router of one's own, with or without a hash, or by a policy of ours."""
    scored = draw(st.booleans())
    forced = draw(st.integers(0, 2))
    hashless = Part(needs_scorer=scored, keep=lambda index, score: index % 2 == 0)
    policies = (
        First(forced),
        Gate(forced_blocks=forced),
        Custom(PlainRouter(needs_scorer=scored), forced_blocks=forced),
        Custom(hashless, forced_blocks=forced),
    )
    return Route(draw(st.sampled_from(policies)), handover=draw(st.sampled_from((0, 0, 0, 2))))


@pytest.mark.heavy
def test_legal_parts_make_video_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: an answer that a protocol allows and no code expects, so that anything but `BadInput` is raised."""
    # Three quarters of a case were the decoder and the text encoder, read from their files again.
    files = trained_set()
    options = pocket_options()
    decoder = loading.load_decoder(files.vae, options)
    embedding = loading.load_encoder(files, options)(TEXT)
    monkeypatch.setattr(loading, "load_decoder", lambda *_: decoder)
    monkeypatch.setattr(stream, "load_encoder", lambda *_: lambda text: embedding)
    made = []

    @CASES
    @given(
        parts=parts_of_a_streamer(),
        route=routes(),
        directions=st.just("") | st.text(".adrt", min_size=3, max_size=3),
        seed=st.integers(0, MOST_SEED),
    )
    def check(parts: dict[str, Part], route: Route, directions: str, seed: int) -> None:
        request = VideoRequest(blocks=3, width=16, height=16, route=route, directions=directions, seed=seed)
        blocks = answer(lambda: list(Streamer(files, options, **parts).stream(request, TEXT)))
        made.append(not isinstance(blocks, BadInput))
        if isinstance(blocks, BadInput):
            assert spoken_badly(str(blocks)) == ""
            return
        assert [block.record.span.index for block in blocks] == [0, 1, 2]
        assert all(block.frames.isfinite().all() for block in blocks)

    check()
    assert sum(made) > len(made) // 2, "most parts make one"
