"""Headless use: what a queue of prompts gets from the nodes, for good values and bad ones."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import safetensors.torch
import torch
from comfy.latent_formats import Wan21
from comfy_config.config_parser import extract_node_configuration
from packaging.requirements import Requirement
from running_server import CHECKOUT, ENVIRONMENT, ROOT, VERSION, Refused, Server, running_server, write_models
from safetensors.torch import save_file
from sdvg_pack.sdvg_core import __version__
from sdvg_pack.sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_pack.sdvg_core.cli import main
from sdvg_pack.sdvg_core.described import FP8_NOTE
from torch import Tensor

pytestmark = pytest.mark.comfyui

POCKET, ROUTER, SAMPLER, REPORT, KEPT = "1", "2", "3", "6", "latents"
EXTRA, GONE = "extra", object()
# Real text width, tiny otherwise: its conditioning must be 4096 wide.
WIDE = WanConfig(dim=128, ffn_dim=64, num_layers=1, num_heads=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("comfyui")
    write_models(folder / "models")
    for name in ("wide_a", "wide_b"):
        weights = {key: torch.zeros(shape) for key, shape in wan_shapes(WIDE).items()}
        save_file(weights, folder / "models" / "diffusion_models" / f"{name}.safetensors")
    with running_server(folder) as running:
        yield running


def pocket(blocks: int = 3, **changes: Any) -> dict[str, Any]:
    """Return the pocket workflow in API form, its latents saved in the place of its video."""
    prompt = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    prompt = {key: prompt[key] for key in (POCKET, ROUTER, SAMPLER, REPORT)}
    assert prompt[SAMPLER]["class_type"] == "SDVGSpeculativeSampler"
    prompt[SAMPLER]["inputs"]["blocks"] = blocks
    prompt[KEPT] = node("SaveLatent", samples=[SAMPLER, 1], filename_prefix="sdvg/latents")
    return change(prompt, **changes)


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def change(prompt: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a prompt with inputs set, as node__input=value, or taken out, and perhaps a node added."""
    prompt = copy.deepcopy(prompt)
    for name, value in changes.items():
        if name == EXTRA:
            prompt[EXTRA] = value
        else:
            role, _, key = name.partition("__")
            inputs = prompt[{"router": ROUTER, "sampler": SAMPLER}[role]]["inputs"]
            inputs[key.replace("__", ".")] = value
            if value is GONE:
                del inputs[key]
    return prompt


def latents_of(server: Server, prompt_id: str) -> Tensor:
    """Return the latents that a finished prompt saved."""
    done = server.wait(prompt_id)
    assert done.status == "success", done.message("execution_error")
    [file] = done.outputs[KEPT]["latents"]
    return safetensors.torch.load(server.view(file))["latent_tensor"]


def loader(kind: str, file: str, preset: str = "self-forcing-1.3b") -> dict[str, Any]:
    return node(kind, file=file, weight_dtype="default", preset=preset)


def empty_clip(width: int, height: int) -> dict[str, Any]:
    return node("EmptyHunyuanLatentVideo", width=width, height=height, length=9, batch_size=1)


PICTURE = node("EmptyLatentImage", width=64, height=64, batch_size=1)
BOTH = node("ConditioningCombine", conditioning_1=[POCKET, 2], conditioning_2=[POCKET, 2])

REFUSED_BEFORE = [
    ("tau above the slider", {"router__policy__tau": 5.0}, "Value 5.0 bigger than max of 3.0: policy.tau"),
    ("no blocks", {"sampler__blocks": 0}, "Value 0 smaller than min of 1: blocks"),
    ("a seed below zero", {"sampler__seed": -1}, "Value -1 smaller than min of 0: seed"),
    ("a schedule there is not", {"sampler__schedule": "fast"}, "Value not in list: schedule: 'fast' not in"),
    (
        "keys and values in what there is not",
        {"sampler__kv_dtype": "int4"},
        "Value not in list: kv_dtype: 'int4' not in",
    ),
    (
        "a file there is not",
        {"extra": loader("SDVGDrafterLoader", "gone.pt"), "sampler__drafter": [EXTRA, 0]},
        "Value not in list: file: 'gone.pt' not in",
    ),
]
REFUSED_BY_US = [
    (
        "tau is NaN",
        {"router__policy__tau": float("nan")},
        "expected policy.tau as a number from -3.0 to 3.0, but got nan",
    ),
    ("width 833", {"sampler__width": 833}, "expected width as a multiple of 16, but got 833; use 832 or 848"),
    ("one model twice", {"sampler__target": [POCKET, 0]}, "expected two models, but drafter and target are one"),
    (
        "nothing to score with",
        {"router__scorer": None},
        "expected a reward model for this policy, but none is chosen",
    ),
    (
        "a script of other letters",
        {"router__policy": "scripted", "router__policy__script": "rax"},
        "expected a script of the letters a and r, but got 'rax'",
    ),
    (
        "no text to score by",
        {"sampler__prompt": " "},
        "expected the prompt as text for the scorer, but it is empty",
    ),
    (
        "another family's VAE",
        {"extra": node("VAELoader", vae_name="pixel_space"), "sampler__vae": [EXTRA, 0]},
        "expected the VAE of Wan 2.1, but got a VAE of another family",
    ),
    (
        "a clip of another size",
        {"extra": empty_clip(32, 32), "sampler__continue_from": [EXTRA, 0]},
        "expected a video LATENT of one clip, 1 x 16 x frames x 8 x 8, to go on from, but got 1 x 16 x 3 x 4 x 4",
    ),
    (
        "a picture's latent",
        {"extra": PICTURE, "sampler__continue_from": [EXTRA, 0]},
        "expected a video LATENT of one clip, 1 x 16 x frames x 8 x 8, to go on from, but got 1 x 4 x 8 x 8",
    ),
    (
        "an input that only a newer version has",
        {"router__margin": 0.2},
        "expected inputs that this node has, but got margin; remove them, or update SDVG, "
        f"which is {__version__}, if the workflow is from a newer version",
    ),
    (
        "an input of an option that only a newer version has",
        {"router__policy__margin": 0.2},
        "expected inputs that this node has, but got policy.margin;",
    ),
    (
        "a socket that only a newer version has",
        {"sampler__negative": [POCKET, 2]},
        "expected inputs that this node has, but got negative;",
    ),
    (
        "two prompts combined",
        {"extra": BOTH, "sampler__positive": [EXTRA, 0]},
        "expected the conditioning of one prompt, but got 2 entries",
    ),
    (
        "models of two text widths",
        {"extra": loader("SDVGTargetLoader", "wide_a.safetensors"), "sampler__target": [EXTRA, 0]},
        "expected two models with the same text channels, but the drafter has 128 and the target 4096",
    ),
]


@pytest.mark.parametrize(("changes", "says"), [c[1:] for c in REFUSED_BEFORE], ids=[c[0] for c in REFUSED_BEFORE])
def test_a_value_that_a_widget_would_not_take_is_refused_before_anything_runs(
    changes: dict[str, Any], says: str, server: Server
) -> None:
    with pytest.raises(Refused) as refused:
        server.queue(pocket(**changes))
    [errors] = refused.value.errors.values()
    assert any(error.startswith(says) for error in errors)


@pytest.mark.parametrize(("changes", "says"), [c[1:] for c in REFUSED_BY_US], ids=[c[0] for c in REFUSED_BY_US])
def test_what_only_a_node_can_see_is_refused_in_its_own_sentence(
    changes: dict[str, Any], says: str, server: Server
) -> None:
    assert_refused(server, pocket(**changes), says)


def test_conditioning_of_another_width_is_refused(server: Server) -> None:
    prompt = pocket(sampler__drafter=["a", 0], sampler__target=["b", 0])
    prompt |= {"a": loader("SDVGDrafterLoader", "wide_a.safetensors")}
    prompt |= {"b": loader("SDVGTargetLoader", "wide_b.safetensors")}
    assert_refused(server, prompt, "expected text embeddings of 4096 channels, but got 128")


@pytest.mark.parametrize(
    "changes",
    [
        {"router__policy": "best"},
        {"extra": loader("SDVGDrafterLoader", "tiny_self_forcing.pt", "best"), "sampler__drafter": [EXTRA, 0]},
    ],
    ids=["policy", "preset"],
)
def test_an_option_that_a_dynamic_combo_lacks_is_refused_in_a_sentence(
    changes: dict[str, Any], server: Server
) -> None:
    error = assert_refused(server, pocket(**changes), "expected")
    assert ", but got 'best'; choose one of them, or update SDVG, which is" in error


def test_a_refusal_names_the_newer_version_that_saved_the_workflow(server: Server) -> None:
    """The browser sends the workflow along, in which pack_version.js noted the version on every node of ours."""
    nodes = [{"type": "SaveVideo", "properties": {"cnr_id": "comfy-core", "ver": "99.0.0"}}]
    nodes += [
        {"type": SAMPLER, "properties": {"cnr_id": "sdvg", "ver": ver}} for ver in ("0.1.0", "9.10.0", "9.9.0")
    ]
    known = {"extra_pnginfo": {"workflow": {"nodes": nodes}}}
    error = assert_refused(server, pocket(router__margin=0.2), "expected inputs", known)
    assert error.endswith(f"or update SDVG: the workflow was saved by version 9.10.0, and this is {__version__}")


def test_inputs_of_a_policy_that_is_not_chosen_have_no_effect(server: Server) -> None:
    """A client that changes the policy may leave the old one's inputs where they are."""
    done = server.run(pocket(blocks=1, router__policy="anchor-only"))
    assert done.status == "success", done.message("execution_error")


def assert_refused(
    server: Server, prompt: dict[str, Any], says: str, extra_data: dict[str, Any] | None = None
) -> str:
    """The run ends with our sentence as the message, whatever stack trace comes with it. Returns the sentence."""
    done = server.wait(server.queue(prompt, extra_data=extra_data))
    error = done.message("execution_error")
    assert done.status == "error"
    assert error is not None
    assert error["exception_type"].endswith("BadInput")
    assert error["exception_message"].startswith(says)
    sentence = error["exception_message"].strip()
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("chosen", [{"kv_dtype": "float8_e4m3fn"}, {}], ids=["fp8", "an older version's inputs"])
def test_the_record_says_what_keys_and_values_were_kept_in(chosen: dict[str, str], server: Server) -> None:
    """Of a prompt that lacks the inputs of now, too, which runs as it always did."""
    inputs = {"overlap": GONE, "kv_dtype": GONE, **chosen}
    done = server.run(pocket(blocks=1, **{f"sampler__{name}": value for name, value in inputs.items()}))
    assert done.status == "success", done.message("execution_error")
    record = json.loads(done.outputs[REPORT]["sdvg_report"][0])
    kept = chosen.get("kv_dtype", "float32")
    assert [record["settings"][role]["kv_dtype"] for role in ("drafter", "target")] == [kept, kept]
    assert (FP8_NOTE in record["notes"]) == bool(chosen)


def test_a_scorers_device_that_is_not_here_counts_as_the_default_and_is_noted(server: Server) -> None:
    """A workflow may come from a machine with more GPUs."""
    changes = {"router__reward_file": "TinyImageReward.pt", "router__scorer": GONE}
    done = server.run(pocket(blocks=1, router__device="gpu:7", **changes))
    assert done.status == "success", done.message("execution_error")
    notes = json.loads(done.outputs[REPORT]["sdvg_report"][0])["notes"]
    assert "The scorer was to run on gpu:7, which is not here; it ran on cpu." in notes


def test_the_route_stays_in_the_history_and_comes_with_a_cached_run(server: Server) -> None:
    prompt = pocket(sampler__seed=5)
    first, again = server.run(prompt), server.run(prompt)
    events = first.outputs[SAMPLER]["sdvg_route"]
    assert [(event["node"], event["number"], event["of"]) for event in events] == [
        (SAMPLER, i, 3) for i in (1, 2, 3)
    ]
    assert events[0]["fate"] == "forced"
    record = json.loads(first.outputs[REPORT]["sdvg_report"][0])
    assert [event["score"] for event in events] == [block["score"] for block in record["blocks"]]
    if VERSION < (0, 18, 1):
        pytest.skip("before 0.18.1 ComfyUI says nothing of a node that it took from its cache")
    assert again.outputs[SAMPLER]["sdvg_route"] == events


def test_the_same_prompt_after_an_interrupt_makes_the_same_latents(server: Server) -> None:
    prompt = pocket(blocks=6)
    server.forget()
    undisturbed = latents_of(server, server.queue(prompt))
    server.forget()
    stopped, blocks = asyncio.run(asyncio.wait_for(stop_after_first_block(server, prompt), 120))
    assert stopped.message("execution_interrupted") is not None
    assert stopped.message("execution_success") is None
    assert blocks < 6
    again = server.queue(prompt)
    assert torch.equal(latents_of(server, again), undisturbed)
    assert SAMPLER not in cached(server, again)


async def stop_after_first_block(server: Server, prompt: dict[str, Any]) -> tuple[Any, int]:
    """Queue a prompt, interrupt it when its first block is shown, and count the blocks that were."""
    blocks, prompt_id = 0, ""
    address = f"ws://127.0.0.1:{server.port}/ws?clientId=stopper"
    async with aiohttp.ClientSession() as session, session.ws_connect(address) as socket:
        prompt_id = server.queue(prompt, client="stopper")
        async for message in socket:
            event = json.loads(message.data) if message.type == aiohttp.WSMsgType.TEXT else {}
            if event.get("type") == "sdvg.block":
                blocks += 1
                if blocks == 1:
                    server.raw("/interrupt", {"prompt_id": prompt_id})
            if event.get("type") in ("execution_interrupted", "execution_success", "execution_error"):
                break
    return server.wait(prompt_id), blocks


def test_two_queued_prompts_do_not_touch_each_other(server: Server) -> None:
    prompts = [pocket(sampler__seed=seed) for seed in (1, 2)]
    server.forget()
    queued = [server.queue(prompt) for prompt in prompts]
    together = [latents_of(server, prompt_id) for prompt_id in queued]
    assert not torch.equal(*together)
    for prompt, made in zip(prompts, together, strict=True):
        server.forget()
        alone = server.queue(prompt)
        assert torch.equal(latents_of(server, alone), made)
        assert cached(server, alone) == set()


def cached(server: Server, prompt_id: str) -> set[str]:
    """Return the nodes of a finished prompt that were not run again."""
    message = server.wait(prompt_id).message("execution_cached")
    assert message is not None
    return set(message["nodes"])


def test_queued_again_nothing_runs_and_another_tau_reruns_only_what_it_reaches(server: Server) -> None:
    prompt = pocket(sampler__seed=7)
    server.forget()
    assert cached(server, server.queue(prompt)) == set()
    assert cached(server, server.queue(prompt)) == set(prompt)
    another = change(prompt, router__policy__tau=3.0)
    assert cached(server, server.queue(another)) == {POCKET}


def test_a_run_makes_the_latents_of_the_command_line(server: Server, tmp_path: Path) -> None:
    """ComfyUI's attention adds up in another order: 1.2e-5 apart, of values that spread by 1.2."""
    threads = torch.get_num_threads()
    torch.set_num_threads(int(ENVIRONMENT["OMP_NUM_THREADS"]))
    assert main(["demo", "--blocks", "4", "--seed", "11", "--output", str(tmp_path)]) == 0
    torch.set_num_threads(threads)
    [file] = tmp_path.rglob("latents.safetensors")
    [theirs] = safetensors.torch.load_file(file).values()
    ours = latents_of(server, server.queue(pocket(blocks=4, sampler__seed=11)))
    # A LATENT is the model's own latents times their standard deviation, plus their mean.
    torch.testing.assert_close(Wan21().process_in(ours), theirs, atol=1e-4, rtol=0)


def test_the_clients_of_the_documentation_work(server: Server, tmp_path: Path) -> None:
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    text = (ROOT / "docs" / "headless.md").read_text(encoding="utf-8")
    fetch, follow = re.findall(
        r"```python\n(.*?)```", text.replace("127.0.0.1:8188", f"127.0.0.1:{server.port}"), re.S
    )
    assert run_python(fetch, tmp_path).splitlines()[1].startswith("0 target the first block is always the target's")
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    assert run_python(follow, tmp_path).splitlines()[-1] == "execution_success"


def run_python(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_pack_asks_for_nothing_that_comfyui_does_not_install() -> None:
    """Catches a dependency that would be installed into a user's environment, or missing from it."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("#") for line in lines)
    config = extract_node_configuration(str(ROOT))
    assert config.tool_comfy.publisher_id
    assert config.project.supported_comfyui_version == ">=0.17.0"
    comfyui = (CHECKOUT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    installed = {Requirement(line).name.lower() for line in comfyui if line.strip() and not line.startswith("#")}
    assert {Requirement(line).name.lower() for line in config.project.dependencies} <= installed
