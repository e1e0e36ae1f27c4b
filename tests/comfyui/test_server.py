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


def test_the_route_stays_in_the_history_and_only_what_a_change_reaches_runs_again(server):
    prompt = pocket(sampler__seed=5)
    server.forget()
    first, again = server.run(prompt), server.run(prompt)
    assert (cached(first), cached(again)) == (set(), set(prompt))
    assert cached(server.run(change(prompt, router__policy__tau=3.0))) == {POCKET}
    events = first.outputs[SAMPLER]["sdvg_route"]
    assert [(event["node"], event["number"], event["of"]) for event in events] == [
        (SAMPLER, i, 3) for i in (1, 2, 3)
    ]
    assert events[0]["outcome"] == "forced"
    for shown in ("score", "threshold"):
        assert [event[shown] for event in events] == [block[shown] for block in first.record()["blocks"]]
    assert again.outputs[SAMPLER]["sdvg_route"] == events


def cached(done):
    """Return the nodes of a finished prompt that were not run again."""
    message = done.message("execution_cached")
    return set(message["nodes"])


CUSTOM = {"preset": "custom", "preset.block_frames": 3, "preset.policy": "recompute", "preset.context_frames": 3}


def test_a_number_that_a_choice_ignores_is_not_needed(server):
    """Kind: what a page hides or fills in, a prompt in API form may leave out (another: test_inputs.py)."""
    gate = {"policy": "reward", "policy.tau": -0.7, "policy.aggregation": "min"}
    loader = node("SDVGTargetLoader", file="tiny_krea.safetensors", weight_dtype="default", **CUSTOM)
    prompt = pocket(sampler__blocks=1, extra=loader)
    prompt[ROUTER]["inputs"] = {k: v for k, v in prompt[ROUTER]["inputs"].items() if "policy" not in k} | gate
    prompt["see"] = node("PreviewAny", source=[EXTRA, 0])
    record = server.make(prompt).record()
    assert record["settings"]["route"]["policy"]["by"] == {"kind": "WorstFrame", "margin": None}
    loader["inputs"] |= {"preset.policy": "incremental", "preset.window": 21, "preset.sink": 0}
    del loader["inputs"]["preset.context_frames"]
    assert server.make({EXTRA: loader, "see": prompt["see"]}).status == "success"


def test_run_makes_the_command_lines_latents(server, tmp_path):
    """ComfyUI's attention adds up in another order: 1.2e-5 apart, of values that spread by 1.2."""
    threads = torch.get_num_threads()
    torch.set_num_threads(int(ENVIRONMENT["OMP_NUM_THREADS"]))
    asked = ["generate", "--models", "pocket", "--prompt", DEFAULT_PROMPT, "--preset", "paper", "--blocks", "4"]
    assert main([*asked, "--vae", str(pocket_fast_vae()), "--seed", "11", "--output", str(tmp_path)]) == 0
    torch.set_num_threads(threads)
    [theirs] = safetensors.torch.load_file(tmp_path / "latents.safetensors").values()
    ours = server.latents(server.make(pocket(blocks=4, sampler__seed=11)))
    # A LATENT is the model's own latents times their standard deviation, plus their mean.
    torch.testing.assert_close(Wan21().process_in(ours), theirs, atol=1e-4, rtol=0)


def test_the_clients_of_the_documentation_work(server, tmp_path):
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    fetch, follow = (
        (ROOT / "docs" / "examples" / name)
        .read_text(encoding="utf-8")
        .replace("127.0.0.1:8188", f"127.0.0.1:{server.port}")
        for name in ("comfyui_fetch.py", "comfyui_follow.py")
    )
    assert run_python(fetch, tmp_path).splitlines()[1].startswith("0 target by rule")
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    assert run_python(follow, tmp_path).splitlines()[-1] == "execution_success"


def test_the_documented_example_makes_every_video_though_a_server_is_gone(server, tmp_path):
    """Catches: a video that is lost with its server, and one that is there for another's prompt."""
    example = (ROOT / "docs" / "examples" / "comfyui_servers.py").read_text(encoding="utf-8")
    assert len(example.splitlines()) <= 70
    workflow = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    workflow["3"]["inputs"]["blocks"] = 1
    (tmp_path / "workflows" / "api").mkdir(parents=True)
    (tmp_path / "workflows" / "api" / "sdvg_pocket_demo.json").write_text(json.dumps(workflow), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("\n".join(f"a big red ball drifts {way} over sand" for way in WAYS))
    gone = "http://127.0.0.1:9"  # nobody listens there
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
    "router__policy__target_blocks": 2,
    "router__policy__handover_steps": 2,
    "sampler__drafter": GONE,
}
# Changes of the pocket workflow, and what our nodes say of them.
REFUSED_BY_US = [
    ({"router__policy__tau": float("nan")}, "policy.tau is nan, not a number from -3.0 to 3.0"),
    (
        {
            "extra": node("EmptyHunyuanLatentVideo", width=32, height=32, length=9, batch_size=1),
            "sampler__continue_from": [EXTRA, 0],
        },
        "the clip to continue is empty: all its latents are 0; leave it out",
    ),
    (
        {"router__margin": 0.2},
        f"this node has no input margin; remove it, or update SDVG, which is {__version__}, if the workflow is "
        "from a newer version (troubleshooting: A node is missing or red after an update)",
    ),
    ({"router__policy__margin": 0.2}, "this node has no input policy.margin; "),
    ({"router__policy": "best"}, "there is no route 'best'; choose "),
    ({"extra": LOADER, "sampler__drafter": [EXTRA, 0]}, "there is no preset 'best'; choose "),
    ({"extra": WIDE, "sampler__target": [EXTRA, 0]}, "the drafter has 128 text channels and the target 4096"),
    (BALANCED | {"sampler__blocks": 2}, "a handover needs a drafter"),
    (BALANCED | {"router__policy__handover_steps": 0}, "the route first needs a drafter"),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED_BY_US, ids=[says for _, says in REFUSED_BY_US])
def test_node_refuses_what_it_alone_can_see(changes, says, server):
    error = assert_refused(server, pocket(**changes), says)
    assert (", or update SDVG, which is" in error) is says.startswith(("there is no", "this node has no"))


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("alone/ImageReward.pt", "ImageReward's vocabulary is not in "),
        ("gone.pt", "there is no 'gone.pt'; choose the route"),
        ("none", "this route needs a scorer; "),
    ],
)
def test_missing_reward_file_is_named_with_its_source(file, says, server):
    alone = server.folder / "models" / "image_reward" / "alone"
    alone.mkdir(exist_ok=True)
    (alone / "ImageReward.pt").touch()
    prompt = pocket(router__reward_file=file, router__scorer=GONE)
    with pytest.raises(Refused) as refused:
        server.queue(prompt)
    [[error]] = refused.value.errors.values()
    assert error.startswith(f"Exception when validating inner node: {says}")
    assert "image_reward" in error
    assert "google-bert/bert-base-uncased" in error


def test_what_another_extension_of_the_page_adds_is_left_out(server):
    """Such as a switch below every text. A page that knows this version's inputs sent it, so it is none of ours.

    Unless a newer version saved the workflow, as pack_version.js notes on every node of ours.
    """
    prompt = pocket(blocks=1, router__policy="always-target", sampler__speak={"__value__": [False, True]})
    nodes = [{"type": "SaveVideo", "properties": {"cnr_id": "comfy-core", "ver": "99.0.0"}}]
    nodes += [{"type": SAMPLER, "properties": {"cnr_id": "sdvg", "ver": __version__}}]
    known = {"extra_pnginfo": {"workflow": {"nodes": nodes}}}
    assert server.wait(server.queue(prompt, extra_data=known)).status == "success"
    nodes += [{"type": SAMPLER, "properties": {"cnr_id": "sdvg", "ver": ver}} for ver in ("9.10.0", "9.9.0")]
    # With another seed, or ComfyUI takes it from its cache.
    assert_refused(server, change(prompt, sampler__seed=8), "this node has no input speak", known)
    assert "left out the input speak" in (server.folder / "log").read_text(encoding="utf-8", errors="replace")


def test_a_schedule_of_both_models_that_neither_takes_is_refused(server):
    """Catches: a choice on screen that is ignored without a word, and one of use that is refused."""
    models = {"sampler__schedule": "two-step", "sampler__target_schedule": "four-step"}
    prompt = pocket(blocks=1, router__policy="always-target", **models)
    assert server.run(prompt).status == "success"
    both = change(prompt, sampler__drafter_schedule="four-step")
    assert_refused(server, both, "schedule has no effect, as each model has its own; set it to preset")


def assert_refused(server, prompt, says, extra_data=None):
    """The run ends with our sentence as the message, whatever stack trace comes with it. Returns the sentence."""
    done = server.wait(server.queue(prompt, extra_data=extra_data))
    error = done.message("execution_error")
    assert done.status == "error"
    assert error["exception_type"] == "BadInput"
    assert error["exception_message"].startswith(says)
    sentence = error["exception_message"].strip()
    assert "\n" not in sentence
    return sentence


# --- the words of the nodes: names, tooltips and help pages, in two languages


LANGUAGES = ("en", "zh")


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("page_of", ["{}.md", "{}/zh.md"])
def test_help_page_shows_pictures_and_every_input(server, schemas, node, page_of):
    """Pictures lie where the help panel looks: relative to the folder of all pages, for translations too."""
    folder = f"/extensions/{CNR}/docs"
    text = server.raw(f"{folder}/{page_of.format(node)}").decode()
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        assert server.raw(f"{folder}/{picture}").startswith(b"\x89PNG")
    for name in inputs_of(schemas[node]["input"]):
        assert re.search(rf"\b{name.split('.')[-1]}\b", text), f"{name} is not explained"


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


def test_the_page_loads_our_modules_and_nothing_else(server):
    """Catches: a tool or its packages below the folder of which ComfyUI loads every script into every page."""
    ours = [path for path in server.ask("/extensions") if path.startswith(f"/extensions/{CNR}/")]
    modules = [f"/extensions/{CNR}/{path.name}" for path in (ROOT / "nodes" / "web").glob("*.js")]
    assert sorted(ours) == sorted(modules)


def test_the_words_of_the_page_are_served(server):
    """Catches: words that are in the tree and not on the page."""
    told = server.ask("/i18n")
    for language in ("en", "zh"):
        words = json.loads((ROOT / "locales" / language / "main.json").read_text(encoding="utf-8"))["sdvg"]
        assert told[language]["sdvg"] == words
