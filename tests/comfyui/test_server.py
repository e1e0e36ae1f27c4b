"""Headless use: what a queue of prompts makes, keeps and reports, and what the pack installs."""

import json
import re
import subprocess
import sys
from importlib.metadata import requires

import av
import pytest
import safetensors.torch
import torch
from comfy.latent_formats import Wan21
from comfy_config.config_parser import extract_node_configuration
from comfy_page import NODES, inputs_of
from packaging.requirements import Requirement
from running_server import (
    CHECKOUT,
    CNR,
    ENVIRONMENT,
    EXTRA,
    GONE,
    POCKET,
    ROOT,
    ROUTER,
    SAMPLER,
    Refused,
    change,
    node,
    pocket,
)
from sdvg_pack.sdvg_core import __version__
from sdvg_pack.sdvg_core.cli import main
from sdvg_pack.sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_pack.sdvg_core.pocket.trained_set import pocket_fast_vae

pytestmark = pytest.mark.comfyui

WAYS = ("right from the left", "left from the right", "down from the top", "up from the bottom")


def test_change_runs_only_what_it_reaches(server):
    """Catches: models that are loaded again for another tau."""
    prompt = pocket(sampler__seed=5)
    server.forget()
    assert cached(server.run(prompt)) == set()
    assert cached(server.run(prompt)) == set(prompt)
    assert cached(server.run(change(prompt, router__policy__tau=3.0))) == {POCKET}


def test_route_stays_in_the_history(server):
    """Also of a run that ComfyUI took from its cache. Catches: squares that a page opened later cannot draw."""
    prompt = pocket(sampler__seed=5)
    done = server.run(prompt)
    events = done.outputs[SAMPLER]["sdvg_route"]
    assert [event["node"] for event in events] == [SAMPLER] * 3
    assert [(event["number"], event["of"]) for event in events] == [(1, 3), (2, 3), (3, 3)]
    assert events[0]["outcome"] == "forced"
    for name in ("score", "threshold"):
        assert [event[name] for event in events] == [block[name] for block in done.record()["blocks"]]
    assert server.run(prompt).outputs[SAMPLER]["sdvg_route"] == events


def cached(done):
    """Return the nodes of a finished prompt that were not run again."""
    message = done.message("execution_cached")
    return set(message["nodes"])


def test_router_needs_no_number_its_policy_ignores(server):
    """Kind: what a page hides or fills in, a prompt in API form may leave out (another: test_inputs.py)."""
    gate = {"policy": "reward", "policy.tau": -0.7, "policy.aggregation": "min"}
    prompt = pocket(sampler__blocks=1)
    others = {name: value for name, value in prompt[ROUTER]["inputs"].items() if "policy" not in name}
    prompt[ROUTER]["inputs"] = others | gate
    policy = server.make(prompt).record()["settings"]["route"]["policy"]
    assert policy["by"] == {"kind": "WorstFrame", "margin": None}


@pytest.mark.parametrize(
    "context", [{"policy": "recompute", "context_frames": 3}, {"policy": "incremental", "window": 21, "sink": 0}]
)
def test_loader_needs_no_number_its_context_ignores(context, server):
    """The same kind. Catches: a refusal for a number that no block reads."""
    numbers = {f"preset.{name}": value for name, value in {"block_frames": 3, **context}.items()}
    file = {"file": "tiny_krea.safetensors", "weight_dtype": "default"}
    loader = node("SDVGTargetLoader", **file, preset="custom", **numbers)
    server.make({"load": loader, "see": node("PreviewAny", source=["load", 0])})


def test_run_makes_the_command_lines_latents(server, tmp_path):
    """ComfyUI's attention adds up in another order: 1.2e-5 apart, of values that spread by 1.2.

    Without that, bit for bit: test_same_latents.py.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(int(ENVIRONMENT["OMP_NUM_THREADS"]))
    prompt = pocket()[POCKET]["inputs"]["prompt"]
    asked = ["generate", "--models", "pocket", "--prompt", prompt, "--preset", "paper", "--blocks", "4"]
    assert main([*asked, "--vae", str(pocket_fast_vae()), "--seed", "11", "--output", str(tmp_path)]) == 0
    torch.set_num_threads(threads)
    [theirs] = safetensors.torch.load_file(tmp_path / "latents.safetensors").values()
    ours = server.latents(server.make(pocket(blocks=4, sampler__seed=11)))
    # A LATENT is the model's own latents times their standard deviation, plus their mean.
    torch.testing.assert_close(Wan21().process_in(ours), theirs, atol=1e-4, rtol=0)


def example(name):
    return (ROOT / "docs" / "examples" / name).read_text(encoding="utf-8")


@pytest.fixture
def run_client(server, tmp_path):
    """A function that runs a documented client in the test's folder and returns the lines it prints."""
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    address = f"127.0.0.1:{server.port}"
    return lambda name: run_python(example(name).replace("127.0.0.1:8188", address), tmp_path).splitlines()


def test_documented_client_fetches_a_video(run_client, tmp_path):
    """Catches: an example for another answer of the server's than it gives."""
    assert run_client("comfyui_fetch.py")[1].startswith("0 target by rule")
    assert (tmp_path / "clip.mp4").stat().st_size > 0


def test_documented_client_follows_a_run(run_client):
    """Catches: as above, of the server's messages."""
    assert run_client("comfyui_follow.py")[-1] == "execution_success"


class Servers:
    """The documented client of two servers, of which nobody is ever at `NOBODY`."""

    NOBODY = "http://127.0.0.1:9"
    FILES = tuple(f"out/{number:04d}.mp4" for number in range(1, len(WAYS) + 1))

    def __init__(self, folder, port):
        self.folder = folder
        self.first = "http://127.0.0.1:8188"
        self.second = f"http://127.0.0.1:{port}"

    def run(self, first, second):
        """Return what the client prints when its servers are at two addresses."""
        client = example("comfyui_servers.py").replace("http://10.0.0.5:8188", second)
        return run_python(client.replace(self.first, first), self.folder)


@pytest.fixture(scope="module")
def servers(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    workflow = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    workflow["3"]["inputs"]["blocks"] = 1
    (folder / "workflows" / "api").mkdir(parents=True)
    (folder / "workflows" / "api" / "sdvg_pocket_demo.json").write_text(json.dumps(workflow), encoding="utf-8")
    (folder / "prompts.txt").write_text("\n".join(f"a big red ball drifts {way} over sand" for way in WAYS))
    return Servers(folder, server.port)


@pytest.fixture(scope="module")
def printed(servers):
    """What the client printed whose first server was gone."""
    return servers.run(servers.NOBODY, servers.second)


def test_client_makes_every_video_without_a_server(servers, printed):
    """Catches: a video that is lost with its server, and one that is there for another's prompt."""
    assert printed.count(f"{servers.NOBODY} is gone") == 1
    assert sorted(re.findall(r"made (\S+)", printed)) == list(servers.FILES)
    for name, way in zip(servers.FILES, WAYS, strict=True):
        with av.open(str(servers.folder / name)) as container:
            assert way in container.metadata["prompt"], "which Save Video writes"
            assert len(list(container.decode(video=0))) > 1


def test_client_makes_no_video_twice(servers, printed):
    """With no server left. Catches: a video that is there and is asked for again."""
    assert servers.run(servers.NOBODY, servers.NOBODY) == ""


def test_client_names_a_video_nobody_made(servers, printed):
    """Catches: a client that ends well though a video is missing."""
    missing = servers.folder / servers.FILES[1]
    content = missing.read_bytes()
    missing.unlink()
    with pytest.raises(subprocess.CalledProcessError) as failure:
        servers.run(servers.NOBODY, servers.NOBODY)
    missing.write_bytes(content)
    assert failure.value.stderr.strip() == "out/0002.mp4 is missing"


def test_documented_client_stays_short():
    """As it is read in the documentation."""
    assert len(example("comfyui_servers.py").splitlines()) <= 70


def run_python(code, folder):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=900).stdout


def test_pack_requires_only_what_comfyui_installs():
    """Catches a dependency that would be installed into a user's environment, or missing from it."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("#") for line in lines)
    config = extract_node_configuration(str(ROOT))
    assert config.tool_comfy.publisher_id
    assert config.project.supported_comfyui_version == ">=0.27.0"
    comfyui = (CHECKOUT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    lines = [*(line for line in comfyui if line.strip() and not line.startswith("#")), *requires("torch")]
    installed = {Requirement(line).name.lower() for line in lines}
    assert {Requirement(line).name.lower() for line in config.project.dependencies} <= installed


# --- what is refused, in one sentence


LOADER = node("SDVGDrafterLoader", file="tiny_self_forcing.pt", weight_dtype="default", preset="best")
WIDE = node("SDVGTargetLoader", file="wide_a.safetensors", weight_dtype="default", preset="self-forcing-1.3b")
BALANCED = {
    "router__policy": "balanced",
    "router__policy__target_at": "2, 5",
    "router__policy__handover_steps": 3,
    "sampler__drafter": GONE,
}
# Changes of the pocket workflow, and words of what our nodes say of them.
REFUSED_BY_US = [
    ({"router__policy__tau": float("nan")}, "policy.tau is nan"),
    (
        {
            "extra": node("EmptyHunyuanLatentVideo", width=32, height=32, length=9, batch_size=1),
            "sampler__continue_from": [EXTRA, 0],
        },
        "the clip to continue is empty",
    ),
    ({"router__margin": 0.2}, "this node has no input margin"),
    ({"router__policy__margin": 0.2}, "this node has no input policy.margin"),
    ({"router__policy": "best"}, "there is no route 'best'"),
    ({"extra": LOADER, "sampler__drafter": [EXTRA, 0]}, "there is no preset 'best'"),
    ({"extra": WIDE, "sampler__target": [EXTRA, 0]}, "the drafter has 128 text channels"),
    (BALANCED | {"sampler__blocks": 2}, "a handover needs a drafter"),
    (BALANCED | {"router__policy__handover_steps": 0}, "the route at needs a drafter"),
    ({"router__policy__target_steps": 5}, "target_steps is 5, and the target makes 4 steps"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED_BY_US, ids=[words for _, words in REFUSED_BY_US])
def test_node_refuses_what_it_alone_can_see(changes, words, server):
    """What a newer version may know is refused with our version. Catches: *update*, where that would not help."""
    sentence = refusal_of(server, pocket(**changes))
    assert sentence.startswith(words)
    newer = words.startswith(("there is no", "this node has no"))
    assert (f"update SDVG, which is {__version__}" in sentence) is newer


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("alone/ImageReward.pt", "ImageReward's vocabulary is not in "),
        ("gone.pt", "there is no 'gone.pt'"),
        ("none", "this route needs a scorer"),
    ],
)
def test_missing_reward_file_is_named_with_its_source(file, words, server):
    """With its folder, before anything loads. Catches: a run that fails at its first score."""
    alone = server.folder / "models" / "image_reward" / "alone"
    alone.mkdir(exist_ok=True)
    (alone / "ImageReward.pt").touch()
    prompt = pocket(router__reward_file=file, router__scorer=GONE)
    with pytest.raises(Refused) as refusal:
        server.queue(prompt)
    [[error]] = refusal.value.errors.values()
    assert words in error
    assert "image_reward" in error
    assert "google-bert/bert-base-uncased" in error


SWITCH = {"router__policy": "always-target", "sampler__speak": {"__value__": [False, True]}}
"""An input that another extension adds below every text."""


def sent_by_a_page(*versions):
    """Return what a page sends beside a prompt: the versions that saved our nodes, and another pack's."""
    nodes = [{"type": "SaveVideo", "properties": {"cnr_id": "comfy-core", "ver": "99.0.0"}}]
    nodes += [{"type": SAMPLER, "properties": {"cnr_id": "sdvg", "ver": version}} for version in versions]
    return {"extra_pnginfo": {"workflow": {"nodes": nodes}}}


def test_input_of_another_extension_is_left_out(server):
    """A page that knows this version's inputs sent it, so it is none of ours."""
    prompt = pocket(blocks=1, **SWITCH)
    assert server.wait(server.queue(prompt, extra_data=sent_by_a_page(__version__))).status == "success"
    assert "left out the input speak" in (server.folder / "log").read_text(encoding="utf-8", errors="replace")


def test_unknown_input_of_a_newer_version_is_refused(server):
    """As pack_version.js notes on every node of ours. Catches: 9.10 taken for older than 9.9."""
    prompt = pocket(blocks=1, sampler__seed=8, **SWITCH)
    newer = sent_by_a_page(__version__, "9.10.0", "9.9.0")
    assert refusal_of(server, prompt, newer).startswith("this node has no input speak")


def test_schedule_that_one_model_uses_is_taken(server):
    models = {"sampler__schedule": "two-step", "sampler__target_schedule": "four-step"}
    server.make(pocket(blocks=1, router__policy="always-target", **models))


def test_schedule_that_no_model_uses_is_refused(server):
    """Catches: a choice on screen that is ignored without a word."""
    models = {"sampler__target_schedule": "four-step", "sampler__drafter_schedule": "four-step"}
    prompt = pocket(blocks=1, router__policy="always-target", sampler__schedule="two-step", **models)
    assert "schedule has no effect" in refusal_of(server, prompt)


def refusal_of(server, prompt, extra_data=None):
    """Return our sentence, with which a run ends as its message, whatever stack trace comes with it."""
    done = server.wait(server.queue(prompt, extra_data=extra_data))
    error = done.message("execution_error")
    assert done.status == "error"
    assert error["exception_type"] == "BadInput"
    sentence = error["exception_message"].strip()
    assert "\n" not in sentence
    return sentence


# --- the words of the nodes: names, tooltips and help pages, in two languages


LANGUAGES = ("en", "zh")


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("page_of", ["{}.md", "{}/zh.md"])
def test_help_page_shows_pictures_and_every_input(server, schemas, node, page_of):
    """Pictures lie where the help panel looks: relative to the folder of all pages, for translations too.

    Of inputs that grow, the page names the first.
    """
    folder = f"/extensions/{CNR}/docs"
    text = server.raw(f"{folder}/{page_of.format(node)}").decode()
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        assert server.raw(f"{folder}/{picture}").startswith((b"\x89PNG", b"RIFF"))  # a WebP is a film
    for name in inputs_of(schemas[node]["input"]):
        slot = re.sub("^clip[0-9]$", "clip1", name.split(".")[-1])
        assert re.search(rf"\b{slot}\b", text), f"{name} is not explained"


def english(schema):
    """Return what the English file must say of a node, all but the names; it is written in the schema."""
    inputs = inputs_of(schema["input"]).items()
    tooltips = schema["output_tooltips"]
    return {
        "display_name": schema["display_name"],
        "description": schema["description"],
        "inputs": {n.replace(".", "_"): {"tooltip": options["tooltip"]} for n, (_, options) in inputs},
        "outputs": {str(i): {"tooltip": tooltip} for i, tooltip in enumerate(tooltips)},
    }


def unnamed(words):
    """Return what a file says of a node without the names of its slots."""
    slots = ("inputs", "outputs")
    return words | {kind: {n: {"tooltip": slot["tooltip"]} for n, slot in words[kind].items()} for kind in slots}


def shape(value):
    return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else bool(value)


def test_english_says_what_the_nodes_say(server, schemas):
    """The schemas take their words from the file: fails if an input has none, or the file has words of no input."""
    served = server.ask("/i18n")["en"]["nodeDefs"]
    assert f'"{DEFAULT_PROMPT}"' in served["SDVGPocketModels"]["inputs"]["prompt"]["tooltip"]
    assert {node: unnamed(served[node]) for node in NODES} == {node: english(schemas[node]) for node in NODES}


def test_options_for_research_wait_behind_advanced(schemas):
    """Catches: an option that an artist meets before those that matter."""
    shown = {node: set(plain_inputs(schemas[node]["input"])) for node in NODES}
    assert shown["SDVGDrafterLoader"] == shown["SDVGTargetLoader"] == {"file", "preset", "control", "model"}
    assert shown["SDVGQualityRouter"] == {"reward_file", "policy", "scorer"}
    research = {"schedule", "drafter_context", "kv_dtype", "reuse_gb", "tae_kind"}
    research |= {"drafter_schedule", "target_schedule", "directions", "takes"}
    assert not research & shown["SDVGSpeculativeSampler"]
    options = schemas["SDVGQualityRouter"]["input"]["required"]["policy"][1]["options"]
    reward = next(option for option in options if option["key"] == "reward")
    assert plain_inputs(reward["inputs"]) == ["tau"]


def plain_inputs(spec):
    """Return the inputs that are not advanced."""
    every = {**spec.get("required", {}), **spec.get("optional", {})}
    return [name for name, (_, *rest) in every.items() if not (rest and rest[0].get("advanced"))]


def test_chinese_says_as_much_as_english(server):
    served = server.ask("/i18n")
    en, zh = (served[language]["nodeDefs"] for language in LANGUAGES)
    assert {node: shape(zh[node]) for node in NODES} == {node: shape(en[node]) for node in NODES}


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_hold_no_placeholders_or_links(server, language):
    """The page formats names and descriptions, and would take these for placeholders, links and plurals."""
    for kind in NODES:
        words = server.ask("/i18n")[language]["nodeDefs"][kind]
        slots = [*words["inputs"].values(), *words["outputs"].values()]
        for text in (words["display_name"], words["description"], *(slot["name"] for slot in slots)):
            assert not set(text) & set("{}@|$"), text


def test_page_loads_our_modules_and_nothing_else(server):
    """Catches: a tool or its packages below the folder of which ComfyUI loads every script into every page."""
    ours = [path for path in server.ask("/extensions") if path.startswith(f"/extensions/{CNR}/")]
    modules = [f"/extensions/{CNR}/{path.name}" for path in (ROOT / "nodes" / "web").glob("*.js")]
    assert sorted(ours) == sorted(modules)


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_of_the_page_are_served(server, language):
    """Catches: words that are in the tree and not on the page."""
    words = json.loads((ROOT / "locales" / language / "main.json").read_text(encoding="utf-8"))
    assert server.ask("/i18n")[language]["sdvg"] == words["sdvg"]
