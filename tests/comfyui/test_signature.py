"""How the server knows a run by the settings in its prompt, and what it keeps of it."""

import shutil

import pytest
from comfy_page import call, write_modules
from running_server import POCKET, SAMPLER, change, node, pocket
from sdvg_pack.nodes.page.signature import signature
from sdvg_pack.sdvg_core.pocket.trained_set import trained_set
from sdvg_pack.sdvg_core.text.prompts import read_prompt

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


def scheduled(*entries):
    """The pocket workflow with a schedule of some prompts, each from a block on."""
    prompt = pocket()
    wire = None
    for place, (block, text) in enumerate(entries):
        inputs = {"from_block": block, "conditioning": [POCKET, 2], "text": text}
        prompt[f"s{place}"] = node("SDVGPromptSchedule", **inputs, **({"schedule": wire} if wire else {}))
        wire = [f"s{place}", 0]
    return change(prompt, sampler__prompt_schedule=wire)


def renamed(prompt):
    """The same nodes under other ids, their inputs in another order."""

    def moved(value):
        return [f"7:{value[0]}", value[1]] if isinstance(value, list) else value

    return {
        f"7:{name}": node | {"inputs": {key: moved(value) for key, value in reversed(node["inputs"].items())}}
        for name, node in prompt.items()
    }


def test_the_signature_tells_the_prompt_apart():
    """By block, as its lines. Catches: another prompt on the first line taken for another seed."""
    before = signature(pocket(), SAMPLER)
    prompt = pocket()
    prompt[POCKET]["inputs"]["prompt"] = "a lake\n3: a storm"
    other = signature(prompt, SAMPLER)
    seeded = signature(pocket(sampler__seed=43), SAMPLER)
    prompt[POCKET]["inputs"]["prompt"] = "a lake\n3: a calm"
    assert before["prompts"] == seeded["prompts"] != other["prompts"]
    assert before["rest"] == other["rest"] != seeded["rest"]
    assert signature(prompt, SAMPLER)["prompts"][0] == other["prompts"][0]


def test_picture_below_a_node_is_no_setting():
    """Catches: *remakes every block* after a workflow is opened, until its pictures are there."""
    prompt = pocket(sampler__start=["s", 0])
    prompt["s"] = node("SDVGStart", video=["v", 0], use_as="restyle")
    prompt["v"] = node("LoadVideo", file="clip.mp4")
    before = signature(prompt, SAMPLER)
    prompt["v"]["inputs"]["video-preview"] = ""
    assert signature(prompt, SAMPLER) == before
    prompt["v"]["inputs"]["file"] = "other.mp4"
    assert signature(prompt, SAMPLER)["rest"] != before["rest"]
    del prompt[POCKET]["inputs"]["prompt"]
    assert signature(prompt, SAMPLER), "a prompt that is left out is empty"


def test_start_of_clips_alone_begins_nothing():
    """Catches: the first block said to be of another start, once a clip is shown between shots."""
    prompt = pocket(sampler__start=["s", 0])
    prompt["v"] = node("LoadVideo", file="clip.mp4")
    prompt["s"] = node("SDVGStart", use_as="extend", **{"clips.clip1": ["v", 0]})
    assert signature(prompt, SAMPLER)["start"] == signature(pocket(), SAMPLER)["start"] == ""
    prompt["s"]["inputs"]["video"] = ["v", 0]
    assert signature(prompt, SAMPLER)["start"] != ""


EVERY = {"all", "rest", "router", "tau", "wired", "prompts"}
# A change of the pocket workflow, and which parts of its signature differ then.
CHANGES = [
    ({}, set()),
    ({"sampler__reuse_gb": 2.0}, set()),
    ({"sampler__live": True}, set()),
    ({"sampler__live_blocks": 9}, set()),
    ({"sampler__seed": 43}, {"all", "rest"}),
    ({"sampler__width": 128}, {"all", "rest"}),
    ({"sampler__schedule": "reference5"}, {"all", "rest"}),
    ({"router__policy__tau": -0.8}, {"all", "tau"}),
    ({"router__policy__tau": [POCKET, 5]}, {"all", "router", "tau"}),
    ({"router__policy__aggregation": "mean"}, {"all", "router"}),
    ({"router__policy": "always-target"}, {"all", "router", "tau"}),
    ({"sampler__blocks": 4}, {"all"}),
    ({"sampler__directions": "..t"}, {"all"}),
    ({"sampler__takes": "2:2"}, {"all"}),
    ({"sampler__takes": ["1", 5]}, {"all", "wired"}),
]


@pytest.mark.parametrize("changes, differ", CHANGES)
def test_a_signature_tells_what_was_changed(changes, differ):
    before = signature(pocket(), SAMPLER)
    after = signature(pocket(**changes), SAMPLER)
    assert {name for name in EVERY if before[name] != after[name]} == differ


def test_signature_counts_what_lies_upstream_alone():
    before = pocket()
    model = pocket()
    elsewhere = pocket()
    whole = pocket()
    model["lora"] = node("LoraLoaderModelOnly", model=[POCKET, 1], lora_name="a.safetensors", strength_model=1.0)
    model[SAMPLER]["inputs"]["target"] = ["lora", 0]
    stronger = {**model, "lora": node("LoraLoaderModelOnly", **model["lora"]["inputs"] | {"strength_model": 2})}
    elsewhere["latents"]["inputs"]["filename_prefix"] = "elsewhere"
    whole[SAMPLER]["inputs"] = {
        key: float(v) if type(v) is int else v for key, v in whole[SAMPLER]["inputs"].items()
    }
    signatures = [signature(prompt, SAMPLER) for prompt in (before, model, stronger, elsewhere, whole)]
    assert signatures[0] == signatures[3] == signatures[4] == signature(renamed(before), f"7:{SAMPLER}")
    assert len({parts["rest"] for parts in signatures if parts}) == 3


def test_signature_tells_prompts_of_blocks_apart():
    before = signature(scheduled((2, "a"), (3, "b")), SAMPLER)
    after = signature(scheduled((2, "a"), (3, "c")), SAMPLER)
    assert (before["rest"], before["prompts"][:2]) == (after["rest"], after["prompts"][:2])
    assert [block for block, _ in before["prompts"]] == [1, 2, 3]
    assert before["prompts"][2] != after["prompts"][2]
    unknown = signature(scheduled((2, "a"), ([POCKET, 5], "b")), SAMPLER)
    assert [block for block, _ in unknown["prompts"]] == [0, 1]


def test_line_of_a_prompt_counts_by_itself():
    """Catches: a cut in a later line, which forecasts blocks before it as remade."""
    signatures = []
    for mark in ("", " cut"):
        prompt = pocket()
        prompt[POCKET]["inputs"]["prompt"] = f"a sea\n3: a storm\n6{mark}: a lake"
        signatures.append(signature(prompt, SAMPLER)["prompts"])
    flowing, cut = signatures
    assert flowing[:2] == cut[:2]
    assert flowing[2] != cut[2]


def test_signature_tells_lines_of_the_prompt_apart():
    """Catches: a run foretold as wholly new after one line changed, or as the same."""

    def signature_of(text, *, controlled=False):
        prompt = pocket()
        prompt[POCKET]["inputs"]["prompt"] = text
        if controlled:
            prompt["control"] = node("WanVaceToVideo", positive=[POCKET, 2], negative=[POCKET, 2])
            prompt[SAMPLER]["inputs"]["positive"] = ["control", 0]
        return signature(prompt, SAMPLER)

    storm = signature_of("a sea\n3: a storm")
    lighter = signature_of("a sea\n3 strength light: a storm")
    plain = signature_of("a sea")
    assert storm["rest"] == lighter["rest"] == plain["rest"] == signature_of("a lake\n3: a storm")["rest"]
    assert [block for block, _ in storm["prompts"]] == [1, 3]
    assert plain["prompts"] == storm["prompts"][:1] != signature_of("a lake")["prompts"]
    assert storm["prompts"] != lighter["prompts"]
    assert signature_of("a sea\n3: a storm", controlled=True)["prompts"] == storm["prompts"]
    assert signature_of("3: a storm") is None


CIRCLE = {SAMPLER: node("SDVGSpeculativeSampler", positive=["a", 0]), "a": node("X", x=["a", 0])}
LOOP = {
    SAMPLER: node("SDVGSpeculativeSampler", prompt_schedule=["a", 0]),
    "a": node("SDVGPromptSchedule", from_block=2, conditioning="", text="", schedule=["a", 0]),
}
WITHOUT_INPUTS = {SAMPLER: {"class_type": "SDVGSpeculativeSampler"}}
NO_PROMPTS = (None, [], 3, {}, {SAMPLER: 3}, WITHOUT_INPUTS, CIRCLE, LOOP)


def test_what_is_no_prompt_has_no_signature(server):
    for prompt in NO_PROMPTS:
        assert signature(prompt, SAMPLER) is None
    for prompt in NO_PROMPTS[1:]:
        assert server.ask("/sdvg/runs", prompt)["asked"] == {}


def test_server_knows_a_run_by_its_settings(server):
    """Asking runs nothing."""
    prompt = pocket(sampler__seed=901)
    other = pocket(sampler__seed=902)
    first, second = (server.run(one).outputs[SAMPLER]["sdvg_run"][0] for one in (prompt, other))
    answer = server.ask("/sdvg/runs", prompt)
    asked = answer["asked"][SAMPLER]
    assert asked["all"] == first["signature"]["all"] != second["signature"]["all"]
    answers = [answer["forecast"][SAMPLER][run["run"]]["blocks"] for run in (first, second)]
    assert answers == ["sss", "sss"], "they are at hand, whichever is shown"
    assert answer["loading"][second["run"]] == 0
    assert second["loading"] > 0
    assert set(answer["decoding"][second["run"]]) == {0}, "pixels and decoder states of every block are kept"
    server.run(pocket(sampler__seed=903, sampler__reuse_gb=0.0))
    answer = server.ask("/sdvg/runs", prompt)
    assert answer["loading"] == {}
    assert answer["forecast"][SAMPLER][first["run"]]["blocks"] == "ccc"


def test_less_memory_for_reuse_may_lose_blocks(server):
    """Asking drops nothing. Catches: blocks said to stay that the next run itself drops, to fit into its limit."""
    made = server.run(pocket(sampler__seed=905)).outputs[SAMPLER]["sdvg_run"][0]
    for gigabytes, blocks in ((0.00001, "mmm"), (0.0, "ccc"), (4.0, "sss")):
        answer = server.ask("/sdvg/runs", pocket(sampler__seed=905, sampler__reuse_gb=gigabytes))
        assert answer["forecast"][SAMPLER][made["run"]]["blocks"] == blocks


def test_models_that_are_gone_make_everything_again(server):
    # From a file: the embedded models stay where they are.
    shutil.copy(trained_set().target, server.folder / "models" / "diffusion_models" / "gone.safetensors")
    loader = node("SDVGTargetLoader", file="gone.safetensors", weight_dtype="default", preset="krea-14b")
    prompt = pocket(sampler__seed=904, sampler__target=["extra", 0], extra=loader)
    made = server.run(prompt).outputs[SAMPLER]["sdvg_run"][0]
    assert made["run"] in server.ask("/sdvg/runs", prompt)["loading"]
    server.forget()
    assert made["run"] not in server.ask("/sdvg/runs", prompt)["loading"]


LINES = (
    *("4: a", "4 : a", "04: a", " 4:  a", "4 cut: a", "4 cut : a", "4\tcut\t: a", "4 strength 0.6: a"),
    *(
        "4 cut strength light : a",
        "4 CUT: a",
        "4cut: a",
        "4 hard cut: a",
        "4. a",
        "4:5 a",
        "four: a",
        "4 strength: a",
    ),
)


def test_page_reads_the_lines_that_the_server_reads(modules):
    """Catches: a shot of the server's that the cards show as text, so that it cannot be moved, cut or locked."""
    source = "(line) => js.parts(`first\\n${line}`).map(({ from, cut }) => [from, cut])"
    for line, (_, *begun) in zip(LINES, call(modules, source, LINES), strict=True):
        read = read_prompt(f"first\n{line}")
        assert begun == [[start + 1, start in read.cuts] for start, _ in read.entries[1:]], line
