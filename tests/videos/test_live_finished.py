"""A live run's recording, finished by the target from the drafts that the run left in the store."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from sdvg_core.causal_wan.cache import KVCache
from sdvg_core.engine.reuse import PartKeys, Reuse, Store
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_encoder, load_models
from sdvg_core.pocket.trained_set import pocket_options
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import Gate, Refine, Route
from sdvg_core.text.prompts import read_prompt
from sdvg_core.videos.film import resolve_film
from sdvg_core.videos.live import LiveFilm, Recording, live_film

BALL = "a big blue ball drifts right from the left over sand"
CROSS = "a small yellow cross drifts down over sea"
RING = "a green ring rises from the bottom over night"
MOST = 6
REQUEST = VideoRequest(blocks=MOST, seed=7, width=32, height=32)
OPTIONS = replace(pocket_options(), schedule="1000,625")
CONTEXTS: dict[str, dict[str, Any]] = {
    "recomputed": {},
    "framewise": {"policy": "incremental", "window": 9, "sink": 1, "block_frames": 1},
}
KEYS = PartKeys(drafter="drafter", target="target", codec="codec", scorer="scorer")


def options_of(context: str) -> LoadOptions:
    return replace(OPTIONS, drafter=ModelOptions(preset="self-forcing-1.3b", **CONTEXTS[context]))


class Loaded:
    """Loaded models, a store that keeps what they made, and counts of their calls."""

    def __init__(self, files: Any, options: LoadOptions) -> None:
        self.headers = check_models(files, options)
        self.models = load_models(files, options, self.headers)
        self.embed = load_encoder(files, options)
        self.reuse = Reuse(store=Store(), part_keys=KEYS)

    def make_live(self, film: LiveFilm) -> Recording:
        engine = self.models.build(needed=frozenset({"drafter"}), block_length=3)
        assert engine.drafter.block_frames == 3, "as the target's, though the drafter's own are of one"
        for number, _ in film.play(engine, self.embed, self.reuse, lambda: 0.0):
            if number == 2:
                film.steering.steer(CROSS)
            if number == 3:
                film.steering.steer(RING, fresh=True)
        recording = film.steering.recording()
        assert recording is not None
        return recording

    def finish(self, recording: Recording, request: VideoRequest) -> list[str]:
        """Finish a recording; return the role of each call to a model."""
        resolved = resolve_film(request, self.headers)
        engine = self.models.build(needed=resolved.models_needed, block_length=request.block_length)
        calls: list[str] = []
        for role in ("drafter", "target"):
            model = getattr(engine, role)
            generate = model.generate
            model.generate = lambda call, role=role, generate=generate: (calls.append(role), generate(call))[1]
        conditions = recording.prompt.conditions({text: self.embed(text) for text in (BALL, CROSS, RING)})
        for _ in resolved.play(resolved.prepare_runs(engine, conditions, self.reuse, lambda: 0.0)):
            pass
        return calls


@pytest.mark.parametrize("context", list(CONTEXTS))
def test_gate_with_own_context_makes_no_draft_again(files, context):
    """Catches drafts of a live run that are stored without the predictions that are handed over."""
    loaded = Loaded(files, options_of(context))
    recording = loaded.make_live(
        live_film(replace(REQUEST, drafter_context="own"), read_prompt(BALL), loaded.headers)
    )
    request = replace(recording.request, shots=_shots_of(recording), route=Route(Gate(10.0), handover=1))
    assert loaded.finish(recording, request) == ["target"] * MOST


@pytest.mark.parametrize("context", list(CONTEXTS))
def test_refining_a_recording_makes_no_draft(files, context):
    """Also of a run whose drafter was to go on from the video's blocks, which are the drafts as well.

    Catches a refined draft that goes on from the target's block, and so is another one.
    """
    loaded = Loaded(files, options_of(context))
    recording = loaded.make_live(live_film(REQUEST, read_prompt(BALL), loaded.headers))
    request = replace(recording.request, shots=_shots_of(recording), route=Route(Refine("strong")))
    assert loaded.finish(recording, request) == ["target"] * MOST


def _shots_of(recording: Recording) -> str:
    return ",".join(map(str, recording.prompt.shots))


@pytest.mark.parametrize("frames", [1, 3])
def test_only_smaller_blocks_are_backed_up(files, frames):
    """Catches: a block's keys and values held on the card once more, though a new draft overwrites them all."""
    context = {"policy": "incremental", "window": 6, "sink": 3, "block_frames": frames}
    loaded = Loaded(files, replace(OPTIONS, drafter=ModelOptions(preset="self-forcing-1.3b", **context)))
    with patch.object(KVCache, "copy", autospec=True, side_effect=KVCache.copy) as copied:
        loaded.make_live(live_film(REQUEST, read_prompt(BALL), loaded.headers))
    assert copied.called == (frames < 3)


def test_run_keeps_latents_and_predictions_alone(files):
    """Every block adds its latents and as many more as predictions are kept, and no more than a tenth of that."""
    loaded = Loaded(files, OPTIONS)
    film = live_film(replace(REQUEST, blocks=8), read_prompt(BALL), loaded.headers)
    engine = loaded.models.build(needed=frozenset({"drafter"}), block_length=3)
    sizes = [loaded.reuse.store.bytes for _ in film.play(engine, loaded.embed, loaded.reuse, lambda: 0.0)]
    handover = film.longest.plan.route.handover
    assert handover == 1
    latents = 4 * 16 * 3 * 4 * 4
    added = [after - before for before, after in pairwise(sizes)]
    assert added == [latents * (1 + handover)] * 7
