"""The policy `learned`: its file, the blocks that the target gets, and what is said of models it cannot know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import folder_paths
import pytest
import torch
from host_run import TEXT, load_parts, make_job, same_video, video_of
from safetensors.torch import save_file
from sdvg_pack.nodes.host.model import attach_origin, digest_of
from sdvg_pack.nodes.router import QualityRouter, router_value
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.pipeline.learned import prompt_hash

pytestmark = pytest.mark.comfyui

WIDTH, BLOCKS = 32, 5
RICH, POOR = (f"{TEXT} {number}" for number in (1, 2))  # as make_job calls its prompts
MODIFIERS = {"forced_blocks": 1, "bail_out": 0, "handover": 0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "sdvg_routes", ([str(tmp_path)], {".safetensors"}))
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "image_reward", ([], {".pt"}))
    folder_paths.filename_list_cache.clear()
    return tmp_path


def write_route(folder: Path, models: dict[str, str] | None = None) -> None:
    """Write a route with two prompts that were measured; any other gains what the mean of its embedding says."""
    tensors = {
        "mean": torch.zeros(WIDTH),
        "deviation": torch.ones(WIDTH),
        "weights": torch.full((WIDTH,), 1 / WIDTH),
        "shape": torch.tensor([0, 0.4, 0.7, 0.9, 1]),
        "prices": torch.tensor([[0, 0.4], [4, 0.0]]),
    }
    told = {
        "bias": 1.0,
        "measured": {prompt_hash(RICH): 9.0, prompt_hash(POOR): 0.0},
        "models": models or {},
        "metric": "quality",
        "gain": [0.1, -0.1, 0.3],
    }
    save_file(tensors, folder / "route.safetensors", {"sdvg": json.dumps(told)})


def chosen(**changes: Any) -> Any:
    widgets = {"policy": "learned", "learned_file": "route.safetensors", "target_blocks": 3, "handover_steps": 1}
    return router_value({**widgets, **changes}, **MODIFIERS)


def test_the_node_offers_the_files_of_the_folder_last_and_needs_no_scorer(folder: Path) -> None:
    write_route(folder)
    [policy] = [one for one in QualityRouter.define_schema().inputs if one.id == "policy"]
    assert policy.options[-1].key == "learned"
    assert policy.options[-1].inputs[0].options == ["route.safetensors", "none"]
    router = chosen()
    assert not router.config.needs_scorer
    assert (router.config.policy, router.config.forced_blocks, router.config.handover) == ("first", 3, 1)
    assert router.learned is not None
    with pytest.raises(BadInput, match="put one into models/sdvg_routes"):
        chosen(learned_file="none")


def test_a_prompt_that_gains_more_gets_more_blocks_and_the_video_is_that_of_as_many_first_blocks(
    folder: Path,
) -> None:
    write_route(folder)
    parts = load_parts(folder)
    rich, poor, another = (
        video_of(make_job(parts, prompt=number, script="d" * BLOCKS, router=chosen())) for number in (1, 2, 3)
    )
    blocks = [video[2].settings["router"]["forced_blocks"] for video in (poor, another, rich)]
    assert blocks[0] == 1 < blocks[1] < blocks[2] == BLOCKS
    notes = rich[2].notes
    assert "By route.safetensors, the target makes the first 5 of 5 blocks." in notes
    assert any("learned with this target, drafter, text encoder is not known" in note for note in notes)
    assert any("is not recommended" in note for note in notes)
    first = router_value({"policy": "first", "target_blocks": blocks[1], "handover_steps": 1}, **MODIFIERS)
    assert same_video(another, video_of(make_job(parts, prompt=3, script="d" * BLOCKS, router=first)))


def test_a_route_of_other_models_is_refused_where_their_files_are_known(folder: Path) -> None:
    parts = load_parts(folder)
    assert digest_of(parts.drafter) is None
    attach_origin(parts.drafter, file=folder / "drafter" / "model.safetensors")
    write_route(folder, {"drafter": "0" * 64})
    with pytest.raises(BadInput, match="learned with another drafter"):
        video_of(make_job(parts, script="d" * BLOCKS, router=chosen()))
    digest = digest_of(parts.drafter)
    write_route(folder, {"drafter": str(digest)})
    assert video_of(make_job(parts, script="d" * BLOCKS, router=chosen()))
