"""`compile` on the loaders: the same video by compiled layers, and a sentence where they cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from host_run import Parts, make_job, same_video, video_of
from sdvg_pack.nodes.host import compiled
from sdvg_pack.nodes.host.model import attach_origin, origin_of
from sdvg_pack.nodes.host.reuse import part_fingerprints
from sdvg_pack.sdvg_core.devices import execution
from sdvg_pack.sdvg_core.errors import BadInput

pytestmark = pytest.mark.comfyui
SENTENCE = "The layers of the target are compiled, and round otherwise than uncompiled ones."


@pytest.fixture
def compiling(parts: Parts) -> Iterator[Parts]:
    """Parts whose target's loader was asked to compile."""
    attach_origin(parts.target, compile="default")
    yield parts
    attach_origin(parts.target, compile="off")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run what the compiler reads without making code of it; return what was compiled."""
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "INDUCTOR", backend)
    monkeypatch.setattr(compiled, "check_compile", lambda *_: None)
    monkeypatch.setattr(compiled, "_KEPT", type(compiled._KEPT)())
    return graphs


def notes_of(parts: Parts) -> list[str]:
    return [note for note in video_of(make_job(parts))[2].notes if "compiled" in note]


def test_compiled_layers_make_the_same_video_and_are_compiled_once(
    compiling: Parts, compilations: list[Any], empty_store: None
) -> None:
    """To the bit, as nothing is rounded anew. Catches stages that are compiled for each run, or not used at all."""
    attach_origin(compiling.target, compile="off")
    plain = video_of(make_job(compiling))
    assert compilations == []
    attach_origin(compiling.target, compile="default")
    made = video_of(make_job(compiling))
    assert same_video(made, plain)
    assert SENTENCE in made[2].notes
    count = len(compilations)
    assert count >= 3
    assert same_video(video_of(make_job(compiling)), plain)
    assert len(compilations) == count


def test_compiled_layers_have_other_keys(compiling: Parts) -> None:
    job = make_job(compiling)
    plain, made = part_fingerprints(job), part_fingerprints(job, {"target"})
    assert plain.target != made.target
    assert plain.drafter == made.drafter


def test_a_target_whose_weights_are_not_all_there_runs_uncompiled_and_says_so(
    compiling: Parts, compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling.target, "loaded_size", lambda: compiling.target.model_size() - 1)
    assert notes_of(compiling) == [
        "The target runs uncompiled: part of its weights is copied to the card in every pass."
    ]
    assert compilations == []


def test_dynamic_vram_runs_uncompiled_and_says_so(
    compiling: Parts, compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling.target, "is_dynamic", lambda: True)
    fault = "dynamic VRAM fetches weights inside its layers; start ComfyUI with --disable-dynamic-vram"
    assert compiled._placed(compiling.target) == fault


def test_layers_that_the_compiler_cannot_follow_run_uncompiled_and_say_so(
    compiling: Parts, compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a host's layer that calls a library outside torch."""
    layer = compiling.target.model.diffusion_model.blocks[1].ffn[0]
    inner = layer.forward

    @torch.compiler.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    monkeypatch.setattr(layer, "forward", outside)
    (note,) = notes_of(compiling)
    assert note.startswith("The target runs uncompiled: the compiler cannot follow ComfyUI's layers (")
    assert compilations == []


def test_without_a_compiler_the_run_is_refused(compiling: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(execution, "compiled", missing)
    with pytest.raises(BadInput, match=r"compiling failed .*no compiler here.*set compile to off on the loader"):
        video_of(make_job(compiling))


def test_only_what_was_asked_is_compiled(parts: Parts, compilations: list[Any], empty_store: None) -> None:
    assert origin_of(parts.drafter).compile == "off"
    assert notes_of(parts) == []
    assert compilations == []
