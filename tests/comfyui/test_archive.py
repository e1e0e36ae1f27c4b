"""The registry's archive installed alone into a clean ComfyUI, and what a prompt or a page can reach there."""

import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile

import pytest
from aiohttp import web
from comfy_page import NODES, inputs_of
from running_server import KEPT, ROOT, ROUTER, change, node, pocket, running_server
from sdvg_pack.nodes.page import routes
from sdvg_pack.nodes.sampler import SpeculativeSampler

pytestmark = pytest.mark.comfyui

# Nothing else can be typed into a node: a prompt, letters per block, takes.
TEXTS = {
    "SDVGPocketModels.prompt",
    "SDVGPrompt.text",
    "SDVGPromptSchedule.text",
    "SDVGQualityRouter.policy.target_at",
    *(f"SDVGSpeculativeSampler.{name}" for name in ("directions", "kept_blocks", "prompt", "takes")),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A server whose only packs are the archive and the example."""
    folder = tmp_path_factory.mktemp("archive")
    subprocess.run([sys.executable, ROOT / "tools" / "release" / "archive.py", folder / "sdvg.zip"], check=True)
    with zipfile.ZipFile(folder / "sdvg.zip") as archive:
        archive.extractall(folder / "sdvg")
    shutil.copytree(
        ROOT / "docs" / "examples" / "comfyui_router", folder / "base" / "custom_nodes" / "comfyui_router"
    )
    with running_server(folder / "base", pack=folder / "sdvg") as server:
        yield server


def test_archive_alone_makes_the_pocket_video(packed):
    """Catches a file that the nodes need and .comfyignore leaves out."""
    done = packed.make(pocket())
    assert len(done.record()["blocks"]) == 3
    assert done.outputs[KEPT]["latents"]


def test_widgets_take_only_prompts_numbers_and_letters(packed):
    """Catches: a text that a prompt of anybody's fills with a path, an address, a module or a command."""
    every = packed.ask("/object_info")
    kinds = {node: inputs_of(every[node]["input"]) for node in NODES}
    texts = {f"{node}.{name}" for node in NODES for name, (kind, *_) in kinds[node].items() if kind == "STRING"}
    assert texts == TEXTS, sorted(texts)


@pytest.fixture
def our_routes(monkeypatch):
    """Method and path of every route that the pack adds to a server."""

    class Host:
        routes = web.RouteTableDef()

    monkeypatch.setattr(routes.PromptServer, "instance", Host(), raising=False)
    routes.register_routes(SpeculativeSampler.validate_inputs)
    return {(route.method, route.path) for route in Host.routes if isinstance(route, web.RouteDef)}


def test_security_md_lists_every_route(our_routes):
    """Catches: a route that a page can reach and nobody was told of."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(GET|POST) (/sdvg/[^`]+)`", text)) == our_routes


def test_routes_refuse_a_page_of_another_origin(packed, our_routes):
    """Catches: a page of anybody's that reads or stops a run."""
    assert our_routes
    for method, path in our_routes:
        address = f"http://127.0.0.1:{packed.port}" + path.replace("{run}", "1").replace("{number}", "1")
        request = urllib.request.Request(address, method=method, headers={"Origin": "http://elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=300)
        with refusal.value as answer:
            assert answer.code == 403


def test_example_pack_routes_a_video(packed):
    """Another pack's router decides with another pack's scorer; neither imports anything of ours."""
    prompt = change(pocket(blocks=4), sampler__router=["own", 0])
    prompt["brightness"] = node("ExampleBrightness")
    prompt["own"] = node("ExampleEveryNth", every=3, least=0.0, scorer=["brightness", 0])
    del prompt[ROUTER]
    record = packed.make(prompt).record()
    reasons = [block["reason"] for block in record["blocks"]]
    assert reasons == ["forced", "router_kept", "router_kept", "router_remade"]
    assert "The router is EveryNth, from outside." in record["notes"]
    assert "The scorer is Brightness, from outside." in record["notes"]
    assert all(0 < block["score"] < 1 for block in record["blocks"][1:])
