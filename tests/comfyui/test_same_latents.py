"""A node's run, a run of the command line and a `Streamer`'s are one and the same, where they calculate alike.

ComfyUI attends and embeds timesteps in its own ways, in its VAE too, which are rounded otherwise: test_server.py
compares those within 1e-4. Here the nodes are given the command line's, so that everything else has to be equal:
loading, conditioning, noise, schedules, contexts, scores, routing, and what of the VAE's state is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import comfy.sd
import comfy.utils
import pytest
import safetensors.torch
import torch
from comfy.latent_formats import Wan21
from random_set import write_random_set
from sdvg_pack.nodes.host import model, run
from sdvg_pack.nodes.host.files import load_checkpoint
from sdvg_pack.nodes.router import BUDGET, FIRST, router_value
from sdvg_pack.nodes.sampler import SpeculativeSampler
from sdvg_pack.nodes.sockets import RouterValue, load_host_scorer
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_pack.sdvg_core.cli import main, make_parser
from sdvg_pack.sdvg_core.cli.options import load_options, model_files, video_request
from sdvg_pack.sdvg_core.decoders.open import load_vae
from sdvg_pack.sdvg_core.engine.protocols import Engine
from sdvg_pack.sdvg_core.engine.run import Run
from sdvg_pack.sdvg_core.engine.speculate import EmittedBlock
from sdvg_pack.sdvg_core.models.loading import encode_prompts
from sdvg_pack.sdvg_core.models.options import LoadOptions
from sdvg_pack.sdvg_core.report.assemble import FP8_NOTE
from sdvg_pack.sdvg_core.report.run_report import RunReport
from sdvg_pack.sdvg_core.request.resolve import ResolvedRequest
from sdvg_pack.sdvg_core.text.prompts import Conditions
from sdvg_pack.sdvg_core.videos import rendering
from sdvg_pack.sdvg_core.videos.stream import Streamer
from torch import Tensor

pytestmark = pytest.mark.comfyui

BLOCKS, SEED, TAU = 4, 11, -1.3  # a threshold that some drafts reach and some do not
PROMPT = "a small red ball moves from left to right over a blue field"
DRAFTER, TARGET = "self-forcing-1.3b", "krea-14b"
FP8 = "float8_e4m3fn"
# Options of the command line, and the same as settings of the router and inputs of the sampler.
CASES = {
    "as it comes": ([], {}, {}),
    "the drafter goes on from its own drafts, and a remake from the draft": (
        ["--drafter-context", "own", "--handover", "2"],
        {"handover": 2},
        {"drafter_context": "own"},
    ),
    "keys and values in fp8": (["--kv-dtype", FP8], {}, {"kv_dtype": FP8}),
}
CASES |= {
    "the first two blocks, half of the second handed over": (
        ["--preset", "balanced"],
        {"policy": "balanced", "target_blocks": 2, "handover_steps": 2},
        {},
    ),
    "what a budget buys": (["--budget", "0.7"], {"policy": "budget", "budget": 0.7}, {}),
    "a drafter that makes one latent frame at a time, in four steps first and then in two": (
        ["--drafter-settings", "preset=causal-forcing-2step"],
        {},
        {"drafter_preset": "causal-forcing-2step"},
    ),
}
OFTEN = {name for name in CASES if name.startswith(("the drafter", "keys", "the first", "what", "a drafter"))}
# What ComfyUI does in its own way, or does not tell.
HOSTS_OWN = {"vae", "text_encoder", "attention", "quantisation", "bytes"}


def words_of(files: ModelFiles, options: list[str]) -> list[str]:
    roles = {"drafter": files.drafter, "target": files.target, "vae": files.vae, "reward": files.reward}
    named = [word for role, path in roles.items() for word in (f"--{role}", str(path))]
    presets = ["--target-settings", f"preset={TARGET}"]
    presets += [] if "--drafter-settings" in options else ["--drafter-settings", f"preset={DRAFTER}"]
    text = ["--text-encoder", str(files.text_encoder), "--text-dtype", "float32", "--prompt", PROMPT]
    size = ["--size", "64x64", "--blocks", str(BLOCKS), "--seed", str(SEED)]
    size += [] if {"--preset", "--budget"} & set(options) else ["--tau", str(TAU)]
    return ["generate", *named, *presets, *text, *size, *options]


def by_command_line(files: ModelFiles, folder: Path, options: list[str]) -> tuple[Tensor, dict[str, Any]]:
    assert main([*words_of(files, options), "--output", str(folder)]) == 0
    [latents] = safetensors.torch.load_file(folder / "latents.safetensors").values()
    return latents, json.loads((folder / "report.json").read_text(encoding="utf-8"))


def by_streamer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, dict[str, Any]]:
    """Latents, and the report of what the streamer resolved and made, with its own notes; it writes none."""
    options = make_parser().parse_args(words)
    options.seed = options.seeds[0]
    request = video_request(options, {})
    files = model_files(options, Path("models"), request)
    streamer = Streamer(files, load_options(options, LoadOptions(), embedded=False))
    emitted: list[EmittedBlock] = []
    resolved: list[tuple[Run, ResolvedRequest, Conditions]] = []
    run_of, blocks_of = ResolvedRequest.run, Run.blocks

    def noted_run(one: ResolvedRequest, engine: Engine, conditions: Conditions, *given: Any) -> Run:
        made = run_of(one, engine, conditions, *given)
        resolved.append((made, one, conditions))
        return made

    def noted_blocks(run: Run) -> Iterator[EmittedBlock]:
        with closing(blocks_of(run)) as blocks:
            for block in blocks:
                emitted.append(block)
                yield block

    monkeypatch.setattr(ResolvedRequest, "run", noted_run)
    monkeypatch.setattr(Run, "blocks", noted_blocks)
    stream = streamer.stream(request, PROMPT)
    shown = [block.record for block in stream]
    report = rendering._report(streamer._loaded, *resolved[0], shown, ()).as_dict()
    return torch.cat([block.block.latents for block in emitted], dim=2), report | {"notes": list(stream.notes)}


def by_nodes(
    files: ModelFiles, changes: dict[str, Any], *, drafter_preset: str = DRAFTER, **inputs: Any
) -> tuple[Tensor, RunReport]:
    load = partial(load_host_scorer, files.reward, device="default", dtype="float32")
    [embedding] = encode_prompts(files, (PROMPT,), LoadOptions(text_dtype="float32")).values()
    router = router_of({"policy": "reward", "tau": TAU, **changes})
    if router.config.needs_scorer:
        router = replace(router, scorer=load())
    # ComfyUI sets what is hidden on a copy of the class, made for each run.
    node = type("Sampler", (SpeculativeSampler,), {"hidden": Hidden()})
    _, latent, report, _ = node.execute(
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


MODIFIERS = ("forced_blocks", "bail_out", "handover")


def router_of(settings: dict[str, Any]) -> RouterValue:
    """What the router's node makes of its widgets."""
    modifiers = {"forced_blocks": 1, "bail_out": 0, "handover": 0} | {
        name: settings[name] for name in MODIFIERS if name in settings
    }
    policy = {name: value for name, value in settings.items() if name not in MODIFIERS}
    if policy["policy"] in (*FIRST, BUDGET):
        del policy["tau"]
    return router_value(policy, **modifiers)


class Hidden:
    unique_id = extra_pnginfo = prompt = None


@pytest.mark.parametrize(
    ("options", "changes", "inputs"),
    [
        pytest.param(*case, id=name, marks=() if name in OFTEN else pytest.mark.exhaustive)
        for name, case in CASES.items()
    ],
)
def test_nodes_command_line_and_streamer_make_decide_and_say_the_same(
    options: list[str],
    changes: dict[str, Any],
    inputs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = write_random_set(tmp_path / "models")
    theirs, written = by_command_line(files, tmp_path / "out", options)
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(dtype))
    monkeypatch.setattr(run, "codec_of", lambda vae, kind: load_vae(files.vae, layers="planes"))
    ours, report = by_nodes(files, changes, **inputs)
    # A LATENT is the model's own latents times their standard deviation, plus their mean.
    assert torch.equal(ours, Wan21().process_out(theirs))
    streamed, told = by_streamer(words_of(files, options), monkeypatch)
    assert torch.equal(streamed, theirs)
    assert decisions(report.as_dict()) == decisions(written) == decisions(told)
    assert {block.author for block in report.blocks} == {"drafter", "target"}
    assert told["settings"] == written["settings"]
    assert told["notes"] == written["notes"]
    assert any("budget" in note for note in told["notes"]) == ("--budget" in options)
    assert shared(report.as_dict()["settings"]) == shared(written["settings"])
    of_host = ("cpu: ", "Checked against ComfyUI ")
    assert [note for note in report.notes if not note.startswith(of_host)] == written["notes"]
    assert (FP8_NOTE in report.notes) == ("kv_dtype" in inputs)


def decisions(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What a report says of each block's decision."""
    names = ("author", "reason", "score", "threshold", "frame_scores")
    return [{name: block[name] for name in names} for block in report["blocks"]]


def shared(settings: dict[str, Any]) -> dict[str, Any]:
    """Every setting with its value, but only the names of those that are the host's own."""
    return {
        name: shared(value) if isinstance(value, dict) else None if name in HOSTS_OWN else value
        for name, value in settings.items()
        if name not in HOSTS_OWN or isinstance(value, dict)
    } | {
        name: sorted(settings[name]) if isinstance(settings[name], dict) else None
        for name in HOSTS_OWN & set(settings)
    }
