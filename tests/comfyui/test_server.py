"""Headless use: what a queue of prompts makes, keeps and reports, and what the pack installs."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import aiohttp
import av
import pytest
import safetensors.torch
import torch
from comfy.latent_formats import Wan21
from comfy_config.config_parser import extract_node_configuration
from packaging.requirements import Requirement
from running_server import CHECKOUT, ENVIRONMENT, ROOT, VERSION, Server
from sdvg_pack.sdvg_core.cli import main
from server_prompts import GONE, KEPT, POCKET, REPORT, SAMPLER, change, pocket
from torch import Tensor

pytestmark = pytest.mark.comfyui

WAYS = ("right from the left", "left from the right", "down from the top", "up from the bottom")


def latents_of(server: Server, prompt_id: str) -> Tensor:
    """Return the latents that a finished prompt saved."""
    done = server.wait(prompt_id)
    assert done.status == "success", done.message("execution_error")
    [file] = done.outputs[KEPT]["latents"]
    return safetensors.torch.load(server.view(file))["latent_tensor"]


def test_a_scorers_device_that_is_not_here_counts_as_the_default_and_is_noted(server: Server) -> None:
    """A workflow may come from a machine with more GPUs."""
    changes = {"router__reward_file": "TinyImageReward.pt", "router__scorer": GONE}
    done = server.run(pocket(blocks=2, router__device="gpu:7", **changes))
    assert done.status == "success", done.message("execution_error")
    notes = json.loads(done.outputs[REPORT]["sdvg_report"][0])["notes"]
    assert "The scorer was set to gpu:7, which this machine lacks; it ran on cpu." in notes


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
    [theirs] = safetensors.torch.load_file(tmp_path / "latents.safetensors").values()
    ours = latents_of(server, server.queue(pocket(blocks=4, sampler__seed=11)))
    # A LATENT is the model's own latents times their standard deviation, plus their mean.
    torch.testing.assert_close(Wan21().process_in(ours), theirs, atol=1e-4, rtol=0)


def test_the_clients_of_the_documentation_work(server: Server, tmp_path: Path) -> None:
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    text = (ROOT / "docs" / "headless.md").read_text(encoding="utf-8")
    fetch, _, follow = re.findall(
        r"```python\n(.*?)```", text.replace("127.0.0.1:8188", f"127.0.0.1:{server.port}"), re.S
    )
    assert run_python(fetch, tmp_path).splitlines()[1].startswith("0 target the first blocks are the target's")
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    assert run_python(follow, tmp_path).splitlines()[-1] == "execution_success"


@pytest.mark.parametrize("ends_early", [False, True], ids=["absent", "dies"])
def test_the_documented_example_makes_every_video_though_a_server_is_gone(
    server: Server, tmp_path: Path, ends_early: bool
) -> None:
    """Beside the real one: an address where nothing listens, or a server that takes a prompt and is then gone.

    Catches: a video that is lost with its server, and one that is there for another's prompt.
    """
    text = (ROOT / "docs" / "headless.md").read_text(encoding="utf-8")
    _, example, _ = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(example.splitlines()) <= 60
    workflow = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    workflow["3"]["inputs"]["blocks"] = 1
    (tmp_path / "workflows" / "api").mkdir(parents=True)
    (tmp_path / "workflows" / "api" / "sdvg_pocket_demo.json").write_text(json.dumps(workflow), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("\n".join(f"a big red ball drifts {way} over sand" for way in WAYS))
    with one_that_is_gone(ends_early) as gone:
        example = example.replace("http://10.0.0.5:8188", f"http://127.0.0.1:{server.port}")
        said = run_python(example.replace("http://127.0.0.1:8188", gone), tmp_path)
    assert said.count(f"{gone} is gone") == 1
    made = [f"out/{number:04d}.mp4" for number in range(1, len(WAYS) + 1)]
    assert sorted(re.findall(r"made (\S+)", said)) == made
    for name, way in zip(made, WAYS, strict=True):
        with av.open(str(tmp_path / name)) as container:
            assert way in container.metadata["prompt"]  # which Save Video writes
            assert len(list(container.decode(video=0))) > 1

    nobody = run_python(example.replace(f"http://127.0.0.1:{server.port}", gone), tmp_path)
    assert nobody == "", "what is there is not made again"
    (tmp_path / "out" / "0002.mp4").unlink()
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_python(re.sub(r"http://127\.0\.0\.1:\d+", gone, example), tmp_path)
    assert refused.value.stderr.strip() == "out/0002.mp4 is missing"


@contextmanager
def one_that_is_gone(takes_one: bool) -> Iterator[str]:
    """Yield the address of a server that hangs up; `takes_one`: only after it has taken a prompt."""

    class Dying(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"prompt_id": "p"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.connection.close()

    with ThreadingHTTPServer(("127.0.0.1", 0), Dying) as dying:
        if takes_one:
            threading.Thread(target=dying.serve_forever, daemon=True).start()
        else:
            dying.socket.close()
        yield f"http://127.0.0.1:{dying.server_address[1]}"
        if takes_one:
            dying.shutdown()


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
    lines = [*(line for line in comfyui if line.strip() and not line.startswith("#")), *requires("torch")]
    installed = {Requirement(line).name.lower() for line in lines}
    assert {Requirement(line).name.lower() for line in config.project.dependencies} <= installed
