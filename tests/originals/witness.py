"""The test's side: runs an original in a process of its own, and makes the same with our engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.context import ModelContext, Wan
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.causal_wan.modules import ControlTree, WanTree
from sdvg_core.engine.inputs import BlockCall, ControlClip, KeyedNoise
from sdvg_core.engine.types import Block, Condition, History, Span, plan_spans
from sdvg_core.settings.context import Preset
from tests.support.tiny import generator_of, random_tree

HERE = Path(__file__).resolve().parent
CONFIG = WanConfig(dim=256, ffn_dim=512, num_layers=3, num_heads=2, text_dim=16, text_len=8)
"""Heads are 128 wide, as in every published Wan 2.1, so that positions split alike.

Three layers: keys and values of the first depend on no other frame, of the second on no other frame's context.
"""

BLOCKS = 9
SIZE = (8, 12)
SLOTS = 5
SPANS = plan_spans(BLOCKS, 3)
FRAME_TOKENS = SIZE[0] * SIZE[1] // 4
NOISE = KeyedNoise(seed=42, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])
AGREES = 1e-5
"""Largest difference of latents that counts as the same, float32 on a CPU."""


def prompt(seed: int, text: str) -> Condition:
    shape = (1, CONFIG.text_len, CONFIG.text_dim)
    return Condition(torch.randn(shape, generator=generator_of(seed)), text)


FIRST = prompt(5, "first")
SECOND = prompt(6, "second")


def tree_of(seed: int) -> WanTree:
    return random_tree(seed, CONFIG)


def request_for(
    cases: Mapping[str, Any], config: WanConfig = CONFIG, *, spans: tuple[Span, ...] = SPANS, **more: Any
) -> dict[str, Any]:
    """Return what an original needs to make the same videos: sizes, prompts, noise, cases."""
    slots = [torch.cat([NOISE.draw(span, slot) for span in spans], dim=2)[0] for slot in range(SLOTS)]
    names = ("dim", "ffn_dim", "num_layers", "num_heads", "in_dim", "out_dim", "text_dim", "freq_dim", "text_len")
    return {
        "sizes": {name: getattr(config, name) for name in names},
        "frame_tokens": FRAME_TOKENS,
        "prompts": {known.text: known.embedding for known in (FIRST, SECOND)},
        "noise": torch.stack(slots),  # slots c t h w
        "cases": dict(cases),
        **more,
    }


def ask(script: str, variable: str, request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run an original in a process of its own and return its answer; its last words are shown if it fails."""
    if not os.environ.get(variable):
        pytest.skip(f"no checkout: set {variable} (docs/parity.md says how)")
    checkout = Path(os.environ[variable]).resolve()
    question = folder / "request.pt"
    answered = folder / "answer.pt"
    torch.save(request, question)
    # -B: nothing is written into the checkout.
    command = [sys.executable, "-B", str(HERE / script), str(checkout), str(question), str(answered)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, f"{script} failed:\n{done.stderr[-3000:]}"
    answer: dict[str, Any] = torch.load(answered, weights_only=True)
    return answer


def ask_family(variable: str, cases: Mapping[str, Any], folder: Path, **options: Any) -> dict[str, Any]:
    """Ask Self-Forcing or an original built on its code; without options, as Self-Forcing itself is asked."""
    usual = {
        "models": ["causal_model"],
        "pipeline": "causal_inference.CausalInferencePipeline",
        "whole_cache": True,
    }
    request = request_for(cases, weights=tree_of(1).state_dict(), **usual | options)
    return ask("run_self_forcing.py", variable, request, folder)


def generator_over(
    tree: WanTree,
    context: ModelContext,
    schedule: str = "four-step",
    name: str = "model",
    control: ControlTree | None = None,
) -> CausalWanGenerator:
    wan = Wan(
        tree=tree,
        ops=TorchOps(torch.float32),
        preset=Preset(name=name, schedule=schedule),
        device=torch.device("cpu"),
        control=control,
    )
    return CausalWanGenerator(wan, name=name, context=context)


def video_of(
    generator: CausalWanGenerator,
    prompts: Mapping[int, Condition] | None = None,
    controls: tuple[ControlClip, ...] = (),
    spans: tuple[Span, ...] = SPANS,
) -> Tensor:
    """Return the latents of nine blocks, each made after those before it. `prompts`: from which block on."""
    history = History()
    condition = FIRST
    for span in spans:
        condition = (prompts or {}).get(span.index, condition)
        obeyed = tuple(control.at(span) for control in controls)
        generated = generator.generate(BlockCall(history, span, NOISE, condition, controls=obeyed))
        history = history.commit(Block(span, generated.latents, condition))
    return history.latents(0, history.frames)


def difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


def per_block(ours: Tensor, theirs: Tensor) -> list[float]:
    return [difference(a, b) for a, b in zip(ours.split(3, dim=2), theirs.split(3, dim=2), strict=True)]
