"""What is asked of one call: videos of one size and length, and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from ..settings.load import LoadOptions
from ..settings.request import VideoRequest
from ..text.prompts import PromptSchedule
from ..weights.model_files import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The videos of one call: their prompts and shared settings. Holds plain values, so that it can be pickled.

    `output`: folder of the video or of the numbered ones; if it is not `named` by the user, the folder in which
    calls are numbered. `overwrite`: make the videos again, and replace others in their place. `reuse`: folder of an
    earlier call whose blocks are re-used where their cache keys agree. `private`: hashes instead of prompts in
    report and table. `seeds`: one video per prompt and seed; empty for the request's seed. `listed`: of a list, so
    that even a single video has a numbered folder. `stated`: options that the user gave, to note those without
    effect.
    """

    files: ModelFiles
    load: LoadOptions
    request: VideoRequest
    prompts: tuple[PromptSchedule, ...]
    output: Path
    named: bool = True
    overwrite: bool = False
    reuse: Path | None = None
    private: bool = False
    seeds: tuple[int, ...] = ()
    listed: bool = False
    stated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if twice := [seed for seed in self.seeds if self.seeds.count(seed) > 1]:
            raise BadInput(f"seed {twice[0]} is given twice and makes one video twice; leave one out")
        if self.seeds and any(prompt.seed is not None for prompt in self.prompts):
            raise BadInput("the prompts state seeds, and so do the options; leave one of them out")

    @property
    def numbered(self) -> bool:
        """True if every video has a numbered folder of its own."""
        return self.listed or len(self.prompts) * max(len(self.seeds), 1) > 1

    def seeds_of(self, prompt: PromptSchedule) -> tuple[int, ...]:
        """Return the seeds of a prompt's videos."""
        return self.seeds or (self.request.seed if prompt.seed is None else prompt.seed,)
