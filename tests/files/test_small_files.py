"""Files of text or JSON are read up to one size, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core.causal_wan.config import flat_name
from sdvg_core.errors import BadInput
from sdvg_core.files.small_files import LARGEST_FILE
from sdvg_core.report.run_report import read_report
from sdvg_core.scorers.image_reward import read_vocabulary
from sdvg_core.text.prompt_files import read_prompt_list
from sdvg_core.text.umt5 import load_tokenizer
from sdvg_core.weights.lora import open_lora
from sdvg_core.weights.weight_file import open_weights

QUERY = "blocks.0.self_attn.q"


def read_beside_a_lora(config: Path) -> object:
    halves = {f"{QUERY}.lora_A.weight": torch.ones(1, 4), f"{QUERY}.lora_B.weight": torch.ones(4, 1)}
    path = config.with_name("adapter_model.safetensors")
    save_file(halves, path)
    return open_lora(str(path), {f"{QUERY}.weight": (4, 4)}, flat_name)


READERS: dict[str, Callable[[Path], object]] = {
    "model.safetensors.index.json": open_weights,
    "adapter_config.json": read_beside_a_lora,
    "report.json": read_report,
    "vocab.txt": read_vocabulary,
    "prompts.txt": read_prompt_list,
    "spiece.model": load_tokenizer,
}


@pytest.mark.parametrize("name", READERS)
def test_reader_refuses_file_over_the_bound(name, tmp_path):
    """Catches a reader that takes in a file of any size; parsing one of 300 MB takes 18 s and 7 GB."""
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)  # takes no room on the disk
    with pytest.raises(BadInput, match="more than 16 MB"):
        READERS[name](path)
