"""Plan a run of an engine that is there already, and see every call of its parts, or answer it.

The study remembers calls, and the benchmark gauges them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from sdvg_core.engine.inputs import BlockCall, BlockInputs, ControlClip, InputClip, KeyedNoise, StartClip
from sdvg_core.engine.plan import Lead, plan_blocks
from sdvg_core.engine.protocols import BlockGenerator, Engine, Scorer, VideoCodec, WrappedGenerator
from sdvg_core.engine.run import Run
from sdvg_core.engine.types import Condition, Generated
from sdvg_core.settings.request import Strength
from sdvg_core.settings.route import RouterConfig

Call = Callable[[str, tuple[Any, ...], Callable[..., Any]], Any]
"""Gets a part's name (draft, target, decode, score), the arguments and the work; returns its result."""


def plan_run(
    engine: Engine,
    router: RouterConfig,
    condition_of: Callable[[int], Condition],
    *,
    blocks: int,
    directions: str = "",
    takes: str = "",
    seed: int,
    width: int,
    height: int,
    given: Tensor | None = None,
    source: Tensor | None = None,
    strengths: Sequence[Strength] = (),
    controls: Sequence[ControlClip] = (),
    **options: Any,
) -> Run:
    """Return the run that makes `blocks` blocks with the models of `engine`.

    `directions`, `takes`: as users write them. `given`, `source`: the latents of a clip to continue, or to restyle.
    The other options are fields of `Run`.
    Raises `BadInput` for directions or takes that do not fit, or for a model that is missing.
    """
    models = {"drafter": engine.drafter, "target": engine.target}
    sizes = {role: model.block_frames for role, model in models.items() if model}
    plan = plan_blocks(
        router,
        blocks=blocks,
        block_frames=sizes,
        scorer=engine.scorer is not None,
        lead=Lead(frames=0 if given is None else given.shape[2]),
        directions=directions,
        takes=takes,
        strengths=strengths,
    )
    stride = engine.codec.spatial_stride
    channels = engine.codec.latent_channels
    noise = KeyedNoise(seed=seed, channels=channels, height=height // stride, width=width // stride)
    restyle = None if source is None else InputClip(source, plan.spans[0].start, plan.strengths)
    start = None if given is None else StartClip(given)
    inputs = BlockInputs(noise, condition_of, start, restyle, tuple(controls))
    return Run(engine=engine, plan=plan, inputs=inputs, **options)


def observed(engine: Engine, call: Call) -> Engine:
    """Return the engine with every call going through `call`."""
    return replace(
        engine,
        drafter=_Generator(engine.drafter, partial(call, "draft")) if engine.drafter else None,
        target=_Generator(engine.target, partial(call, "target")) if engine.target else None,
        codec=_Codec(engine.codec, partial(call, "decode")),
        scorer=_Scorer(engine.scorer, partial(call, "score")) if engine.scorer else None,
    )


class _Generator(WrappedGenerator):
    def __init__(self, inner: BlockGenerator, call: Callable[..., Generated]) -> None:
        super().__init__(inner)
        self._call = call

    def generate(self, call: BlockCall) -> Generated:
        return self._call((call,), self.inner.generate)


class _Codec:
    def __init__(self, inner: VideoCodec, call: Callable[..., tuple[Tensor, Any]]) -> None:
        self._inner, self._call, self.encode = inner, call, inner.encode
        self.latent_channels = inner.latent_channels
        self.temporal_stride, self.spatial_stride = inner.temporal_stride, inner.spatial_stride

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self._call((latents, state), self._inner.decode)


class _Scorer:
    def __init__(self, inner: Scorer, call: Callable[..., Tensor]) -> None:
        self._inner, self._call, self.describe = inner, call, inner.describe

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        return self._call((frames, prompt), self._inner.score)
