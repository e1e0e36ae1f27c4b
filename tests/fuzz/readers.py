"""The table of everything that reads bytes a stranger could supply."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.decoders.open import load_vae
from sdvg_core.engine.reuse import Store
from sdvg_core.files.footage import read_footage
from sdvg_core.files.pictures import read_image
from sdvg_core.loading.inspection import inspect_file
from sdvg_core.report.picture import route_picture
from sdvg_core.report.run_report import read_report
from sdvg_core.report.summary import summarise
from sdvg_core.scorers.image_reward import load_image_reward
from sdvg_core.scorers.image_reward import load_prompt_tokenizer as load_vocabulary
from sdvg_core.text.prompt_files import read_prompt_list
from sdvg_core.text.prompts import PromptSchedule, clean_prompt
from sdvg_core.text.umt5 import load_tokenizer, load_umt5
from sdvg_core.videos.blocks import BlockFiles, read_block
from sdvg_core.weights.latents import load_latents
from sdvg_core.weights.weight_file import open_weights

from . import models, pickles, pictures, texts
from .files import Files, safetensors

PROMPT = "a red ball: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One way into the project for bytes.

    `make`: returns the files of a case, the first of which is read; every choice comes from the `Random`. `read`:
    takes its path, and returns or raises `BadInput`.
    """

    name: str
    make: Callable[[Random], Files]
    read: Callable[[Path], object]


def read_weights(path: Path) -> None:
    """Open a file of weights, read every tensor, and say what it is, on one printable line a finding."""
    file = open_weights(path)
    for name in file:
        assert file[name].shape == file.info[name].shape
    printed = "".join(inspect_file(path).values())
    assert all(c.isprintable() or c == "\n" for c in printed), "doctor prints characters that are no text"


def read_model(load: Callable[[Path], object]) -> Callable[[Path], None]:

    def read(path: Path) -> None:
        if path.stat().st_size % SPARED == 0:
            inspect_file(path)
        load(path)

    return read


def read_shards(path: Path) -> None:
    """Read every tensor of an index; those of the files outside its folder have another shape."""
    file = open_weights(path)
    assert all(file[name].shape != OUTSIDE for name in file), "read a file outside the folder"


OUTSIDE = (7,)
# A picture takes as long as everything else of many reports, so one report in so many is drawn. To say what a file
# is takes as long as to load it, so one model in so many is asked; the reader of safetensors asks every file.
SPARED = 6


def outside_file() -> bytes:
    """Return what lies beside the folder of every case, for those who go and look there."""
    return safetensors([(name, "F32", OUTSIDE) for name in ("a", "b", "c")])


def read_prompts(read: Callable[[Path], Any]) -> Callable[[Path], None]:

    def read_and_clean(path: Path) -> None:
        prompts = read(path)
        for schedule in [prompts] if isinstance(prompts, PromptSchedule) else prompts:
            for text in schedule.texts:
                json.dumps(clean_prompt(text), ensure_ascii=False).encode()

    return read_and_clean


def read_run_report(path: Path) -> None:
    report = read_report(path)
    report.to_json()
    summarise(report)
    if path.stat().st_size % SPARED == 0:
        route_picture(report)


def read_picture(path: Path) -> None:
    read_image(path, 32, 16)
    read_footage(path, 16, 32)


def read_words(path: Path) -> None:
    load_tokenizer(path).ids(PROMPT, 512)


def read_vocabulary(path: Path) -> None:
    """Load a vocabulary and split a prompt; every id must be a row of the embedding."""
    words = load_vocabulary(path)
    ids, _ = words.encode(PROMPT)
    words.reads(PROMPT)
    assert int(ids.max()) < words.size, "an id beyond the embedding"


def read_earlier(path: Path) -> None:
    BlockFiles(path.parent).recall(Store())
    read_block(path)


def one_file(name: str, make: Callable[[Random], bytes]) -> Callable[[Random], Files]:
    return lambda random: {name: make(random)}


READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader(name="safetensors", make=models.anything, read=read_weights),
        Reader(name="pickle", make=one_file("model.pt", pickles.checkpoint), read=read_weights),
        Reader(name="shards", make=models.shards, read=read_shards),
        Reader(name="transformer", make=models.transformer, read=read_model(load_wan)),
        Reader(name="vae", make=models.vae, read=read_model(load_vae)),
        Reader(name="taehv", make=models.taehv, read=read_model(load_vae)),
        Reader(name="text-encoder", make=models.text_encoder, read=read_model(load_umt5)),
        Reader(name="reward", make=models.reward, read=read_model(load_image_reward)),
        Reader(name="latents", make=models.latents, read=load_latents),
        Reader(name="results", make=texts.results, read=read_earlier),
        Reader(name="picture", make=pictures.picture, read=read_picture),
        Reader(name="prompt-list", make=texts.prompt_list, read=read_prompts(read_prompt_list)),
        Reader(name="report", make=texts.report, read=read_run_report),
        Reader(name="pieces", make=texts.pieces, read=read_words),
        Reader(name="vocabulary", make=texts.vocabulary, read=read_vocabulary),
    )
}


def case_of(reader: Reader, seed: int, number: int) -> Files:
    return reader.make(Random(f"{seed}/{reader.name}/{number}"))
