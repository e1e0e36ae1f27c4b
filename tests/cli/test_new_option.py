"""What is new takes one field (an option), one file (a command, a policy, a known model) or two (a decoder).

Widgets: tests/comfyui.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.cli_runs import SMALL, override, report
from tests.support.forked import fork
from tests.support.scratch_option import copy_with_option

COMMAND = '''
"""Say good day."""

def add_arguments(parser):
    parser.add_argument("name")

def run(options):
    print("good day,", options.name)
    return 0
'''
POLICY = {
    "NamedPolicy = ": """@dataclass(frozen=True, slots=True)
class Odd:
    needs_scorer: ClassVar[bool] = False

    def decide_early(self, place, past):
        return UNSCORED_DRAFT if place % 2 else UNSCORED_TARGET


NamedPolicy = Odd | """,
    '    "always-target": TargetOnly,': '    "always-target": TargetOnly,\n    "odd": Odd,',
}
"""What it changes in the router's file."""


MODEL = {
    '    "Self-Forcing DMD": {': """    "Odd": {
        "preset": "causal-forcing",
        "repository": "nobody/odd",
        "licence": "none",
        "path": "odd_small.pt",
    },
    "Self-Forcing DMD": {""",
}
"""What it changes in the file of published models."""
DECODER = '''
"""A decoder that shows the latents themselves, in grey."""

import torch

class GreyCodec:
    latent_channels = 16
    temporal_stride = 4
    spatial_stride = 8

    def decode(self, latents, state=None):
        frames = 4 * latents.shape[2] - (3 if state is None else 0)
        grey = latents.mean(dim=(1, 2), keepdim=True).sigmoid()
        pixels = grey.repeat_interleave(8, dim=3).repeat_interleave(8, dim=4).expand(-1, frames, 3, -1, -1)
        return pixels, "goes on"

    def encode(self, frames):
        return frames.new_zeros(1, 16, 1 + frames.shape[1] // 4, frames.shape[3] // 8, frames.shape[4] // 8)
'''
OPEN = {
    "from .taehv import (": "from .grey import GreyCodec\nfrom .taehv import (",
    "VaeFile = WanVaeFile | TaehvFile": """@dataclass(frozen=True, slots=True, kw_only=True)
class GreyFile(VaeHeader):
    file: WeightFile


VaeFile = WanVaeFile | TaehvFile | GreyFile""",
    "    if is_taehv(file.names):": """    if "grey.scale" in file.names:
        return GreyFile(
            latent_channels=16,
            temporal_stride=4,
            spatial_stride=8,
            decoder_base=None,
            encodes=True,
            tae_kind=None,
            file=file,
        )
    if is_taehv(file.names):""",
    "    if isinstance(header, TaehvFile):": """    if isinstance(header, GreyFile):
        return GreyCodec()
    if isinstance(header, TaehvFile):""",
}
"""What it changes where decoders are opened."""


def work(place: Path, folder: Path, options: list[str]) -> None:
    """Call the copy in `place`, with results in `folder`. `options`: of a video by tiny models."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sdvg_core"]:
        del sys.modules[name]
    sys.path.insert(0, str(place))
    os.chdir(folder)
    from sdvg_core.cli import main
    from sdvg_core.errors import BadInput
    from sdvg_core.settings.request import VideoRequest

    with suppress(SystemExit):
        main(["generate", "--help-all"])
    asked = ["--models", "pocket", "--preset", "fast", "--blocks", "1", "--prompt", "a big red ball", "--grain"]
    assert main(["greet", "Ann"]) == 0
    assert main(["generate", *asked[:2], *asked[6:8], "--policy", "odd", "--blocks", "2", "--output", "odd"]) == 0
    assert main(["generate", *asked, "0.25", "--output", "made"]) == 0
    assert main(["generate", "--from", "made", "--output", "again"]) == 0
    assert main(["generate", *asked, "2", "--output", "refused"]) == 2
    assert main([*options, "--policy", "odd", "--output", "grey"]) == 0
    with pytest.raises(BadInput, match="grain is 'much'; give a number"):
        VideoRequest(grain="much")


def change(file: Path, changes: Mapping[str, str]) -> None:
    """Replace pieces of a file, each of which it has once."""
    text = file.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, f"{file.name} changed: look for {old!r}"
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def test_new_option_command_policy_model_decoder(tmp_path: Path, base: list[str]) -> None:
    """In the help, the report, `--from` and the checks of a copy. Catches: a list of options beside the fields."""
    place = copy_with_option(tmp_path / "copy")
    core = place / "sdvg_core"
    (core / "cli" / "greet.py").write_text(COMMAND, encoding="utf-8")
    (core / "decoders" / "grey.py").write_text(DECODER, encoding="utf-8")
    change(core / "settings" / "route.py", POLICY)
    change(core / "weights" / "model_files.py", MODEL)
    change(core / "decoders" / "open.py", OPEN)
    shutil.copy(base[base.index("--drafter") + 1], tmp_path / "odd_small.pt")
    save_file({"grey.scale": torch.ones(1)}, tmp_path / "grey.safetensors")
    files = ["--drafter", str(tmp_path / "odd_small.pt"), "--vae", str(tmp_path / "grey.safetensors")]
    video = ["--drafter-settings", "preset=auto", "--prompt", "a fox", "--blocks", "2"]
    options = override([*base, *SMALL], *files, *video)
    process = fork(partial(work, place, tmp_path, options), str(tmp_path / "output"), str(tmp_path / "errors"))
    process.join(600)
    output, errors = ((tmp_path / name).read_text(encoding="utf-8") for name in ("output", "errors"))
    assert process.exitcode == 0, errors
    assert "--grain GRAIN         how much film grain (0)" in output
    assert "good day, Ann" in output
    assert [block["author"] for block in report(tmp_path / "odd")["blocks"]] == ["target", "drafter"]
    assert "sdvg: grain is 2.0; give 0 to 1" in errors
    assert "The same video as in made, bit for bit." in output
    settings = [report(tmp_path / folder)["request"]["grain"] for folder in ("made", "again")]
    assert settings == [0.25, 0.25]
    assert not (tmp_path / "refused").exists()
    assert report(tmp_path / "grey")["settings"]["drafter"]["preset"] == "causal-forcing"
