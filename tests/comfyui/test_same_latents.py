"""A node's run and a run of the command line are one and the same, where they calculate alike.

ComfyUI attends and embeds timesteps in its own ways, in its VAE too, which are rounded otherwise: test_server.py
compares those within 1e-4. Here the nodes are given the command line's, so that everything else has to be equal:
loading, conditioning, noise, schedules, contexts, scores, routing, and what of the VAE's state is kept.
"""

import json
from functools import partial

import comfy.sd
import comfy.utils
import pytest
import safetensors.torch
import torch
from comfy.latent_formats import Wan21
from sdvg_pack.nodes import film
from sdvg_pack.nodes.host import model
from sdvg_pack.nodes.host.files import load_checkpoint
from sdvg_pack.nodes.host.sockets import RouterValue, load_host_scorer, needs_scorer
from sdvg_pack.nodes.page.route_inputs import route_of
from sdvg_pack.nodes.sampler import SpeculativeSampler
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.cli import main
from sdvg_pack.sdvg_core.decoders.open import load_vae
from sdvg_pack.sdvg_core.loading.load import encode_prompts
from sdvg_pack.sdvg_core.report.assemble import FP8_NOTE
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.settings.load import LoadOptions

from tests.support.random_set import write_random_set

pytestmark = pytest.mark.comfyui

BLOCKS = 4
SEED = 11
TAU = -1.3  # a threshold that some drafts reach and some do not
PROMPT = "a small red ball moves from left to right over a blue field"
DRAFTER = "self-forcing-1.3b"
TARGET = "krea-14b"
FP8 = "float8_e4m3fn"
# Options of the command line, and the same as settings of the router and inputs of the sampler.
GATE = {"policy": "reward", "tau": TAU}
CASES = {
    "the drafter goes on from its own drafts, and a remake from the draft": (
        ["--drafter-context", "own", "--handover", "2", "--drafter-settings", f"preset={DRAFTER}", "draft-steps=3"],
        {"handover": 2},
        {"drafter_context": "own", "draft_steps": 3},
    ),
    "keys and values in fp8, no drift": (
        ["--kv-dtype", FP8, "--colour-hold", "1"],
        {},
        {"kv_dtype": FP8, "colour_hold": 1.0},
    ),
    "blocks 1, 2 and 5, of the last two three steps handed over": (
        ["--preset", "balanced"],
        {"policy": "balanced", "target_at": "2, 5", "handover_steps": 3},
        {},
    ),
    "the target's first and last steps": (
        ["--stride", "2", "--target-steps", "2"],
        {"policy": "stride", "stride": 2.0, "target_steps": 2},
        {},
    ),
    "what a budget buys": (["--budget", "0.7"], {"policy": "budget", "budget": 0.7}, {}),
    "a drafter that makes one latent frame at a time, in four steps first and then in two": (
        ["--drafter-settings", "preset=causal-forcing-2step"],
        {},
        {"drafter_preset": "causal-forcing-2step"},
    ),
}
# What ComfyUI does in its own way, or does not tell.
HOSTS_OWN = {"vae", "text_encoder", "attention", "quantisation", "bytes"}


def words_of(files, options):
    roles = {"drafter": files.drafter, "target": files.target, "vae": files.vae, "reward": files.reward}
    named = [word for role, path in roles.items() for word in (f"--{role}", str(path))]
    presets = ["--target-settings", f"preset={TARGET}"]
    presets += [] if "--drafter-settings" in options else ["--drafter-settings", f"preset={DRAFTER}"]
    text = ["--text-encoder", str(files.text_encoder), "--text-dtype", "float32", "--prompt", PROMPT]
    size = ["--size", "64x64", "--blocks", str(BLOCKS), "--seed", str(SEED)]
    size += [] if {"--preset", "--stride", "--budget"} & set(options) else ["--tau", str(TAU)]
    return ["generate", *named, *presets, *text, *size, *options]


def by_command_line(files, folder, options):
    assert main([*words_of(files, options), "--output", str(folder)]) == 0
    [latents] = safetensors.torch.load_file(folder / "latents.safetensors").values()
    return latents, json.loads((folder / "report.json").read_text(encoding="utf-8"))


def by_nodes(files, changes, *, drafter_preset=DRAFTER, **inputs):
    load = partial(load_host_scorer, files.reward, device="default", dtype="float32")
    [embedding] = encode_prompts(files, (PROMPT,), LoadOptions(text_dtype="float32")).values()
    route = route_of(changes if "policy" in changes else {**GATE, **changes})
    router = RouterValue(route, load() if needs_scorer(route) else None)
    # ComfyUI sets what is hidden on a copy of the class, made for each run.
    node = type("Sampler", (SpeculativeSampler,), {"hidden": Hidden()})
    _, latent, report, *_ = node.execute(
        drafter=load_checkpoint(str(files.drafter), "default", get_preset(drafter_preset)),
        target=load_checkpoint(str(files.target), "default", get_preset(TARGET)),
        positive=[[embedding, {}]],
        vae=comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(files.vae))),
        router=router,
        prompt=PROMPT,
        width=64,
        height=64,
        blocks=BLOCKS,
        seed=SEED,
        schedule="preset",
        **{"drafter_context": "committed", **inputs},
    ).result
    return latent["samples"], report


class Hidden:
    unique_id = extra_pnginfo = prompt = None


@pytest.mark.parametrize("options, changes, inputs", CASES.values(), ids=CASES)
def test_nodes_make_what_the_command_line_makes(options, changes, inputs, tmp_path, monkeypatch):
    """Bit for bit, with the same decisions and report. Catches: a setting that one of them reads otherwise."""
    files = write_random_set(tmp_path / "models")
    theirs, written = by_command_line(files, tmp_path / "out", options)
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(dtype))
    monkeypatch.setattr(film, "codec_of", lambda vae, kind: load_vae(files.vae, layers="planes"))
    ours, report = by_nodes(files, changes, **inputs)
    # A LATENT is the model's own latents times their standard deviation, plus their mean.
    assert torch.equal(ours, Wan21().process_out(theirs))
    assert decisions(report.as_dict()) == decisions(written)
    assert {block.author for block in report.blocks} == {"drafter", "target"}
    assert any("budget" in note for note in written["notes"]) == ("--budget" in options)
    settings = report.as_dict()["settings"]
    assert settings.pop("host_differences"), "which only ComfyUI has"
    assert shared(settings) == shared(written["settings"])
    of_host = ("cpu: ", "Checked against ComfyUI ")
    assert [note for note in report.notes if not note.startswith(of_host)] == written["notes"]
    assert (FP8_NOTE in report.notes) == ("kv_dtype" in inputs)


def decisions(report):
    """What a report says of each block's decision."""
    names = ("author", "reason", "score", "threshold", "frame_scores", "handover", "left_out")
    return [{name: block[name] for name in names} for block in report["blocks"]]


def shared(settings):
    """Every setting with its value, but only the names of those that are the host's own."""
    return {
        name: shared(value) if isinstance(value, dict) else None if name in HOSTS_OWN else value
        for name, value in settings.items()
        if name not in HOSTS_OWN or isinstance(value, dict)
    } | {
        name: sorted(settings[name]) if isinstance(settings[name], dict) else None
        for name in HOSTS_OWN & set(settings)
    }
