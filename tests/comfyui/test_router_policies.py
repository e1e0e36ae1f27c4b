"""The policies that need no scorer: what the node says of them, what they cost, and the routes they make."""

import re

import folder_paths
import pytest
import torch
from comfy_page import browse
from running_server import GONE, POCKET, REPORT, SAMPLER, Refused, node, pocket
from sdvg_pack.nodes.host.sockets import router_of
from sdvg_pack.nodes.page.route_inputs import route_of
from sdvg_pack.nodes.router import QualityRouter
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.settings.route import (
    CASCADE_MARGIN,
    DEFAULT_PRESET,
    ROUTE_PRESETS,
    At,
    Gate,
    Refine,
    Route,
    WorstFrame,
)

pytestmark = pytest.mark.comfyui

NAMED = ("fast", "balanced", "careful")


def first_of(blocks, handover, **more):
    """Return the pocket workflow with two blocks by the target, the second of which the drafter begins."""
    policy = {"router__policy": "first", "router__policy__target_blocks": 2}
    return pocket(blocks, **policy, router__policy__handover_steps=handover, **more)


def placed_at(blocks_of_target, blocks, handover):
    """Return the pocket workflow with the target's blocks by their numbers."""
    policy = {"router__policy": "balanced", "router__policy__target_at": blocks_of_target}
    return pocket(blocks, **policy, router__policy__handover_steps=handover)


class WrongScorer:
    """Of another pack; its score is one number for all frames."""

    def describe(self):
        return {"name": "wrong"}

    def score(self, frames, prompt):
        return torch.zeros(1)


class WrongRouter:
    """Of another pack, with a scorer of its own."""

    needs_scorer = True
    scorer = WrongScorer()

    def keep(self, index, score):
        return True


def test_results_of_another_packs_scorer_are_checked():
    """Catches: scores that are too few, taken as they are."""
    scorer = router_of(WrongRouter()).scorer
    with pytest.raises(BadInput, match="scorer WrongScorer returned"):
        scorer.score(torch.zeros(1, 9, 3, 8, 8), "a boat")


# --- what the node says ------------------------------------------------------------------------------------------


@pytest.fixture
def policy(monkeypatch):
    """The input `policy` of the node."""
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "image_reward", ([], {".pt"}))
    [policy] = [field for field in QualityRouter.define_schema().inputs if field.id == "policy"]
    return policy


def option_of(policy, name):
    [option] = [option for option in policy.options if option.key == name]
    return option


def test_new_router_starts_with_the_command_lines_preset(policy):
    """A page takes the first choice."""
    assert policy.options[0].key == DEFAULT_PRESET


@pytest.mark.parametrize("name", [*NAMED, "hybrid"])
def test_preset_starts_with_its_own_numbers(name, policy):
    """Catches: the numbers of one preset under the name of another, a widget that is not read."""
    values = {"policy": name, **{field.id: field.default for field in option_of(policy, name).inputs}}
    assert route_of(values) == ROUTE_PRESETS[name]


@pytest.mark.parametrize("text, blocks", [("", ()), ("7", (7,)), (" 5,2 ", (2, 5)), ("2 5", (2, 5))])
def test_numbers_of_blocks_are_read(text, blocks):
    route = route_of({"policy": "at", "target_at": text, "handover_steps": 3})
    assert route == Route(At(blocks), handover=3)


@pytest.mark.parametrize("text", ["two", "2; 5", "-2", "2.5", "0", "\u0665", "9" * 5000])
def test_text_that_names_no_block_is_refused(text):
    """Catches: a route of other blocks than were meant, digits of another script, a number of many digits."""
    with pytest.raises(BadInput, match=r"target.at is"):
        route_of({"policy": "at", "target_at": text, "handover_steps": 3})


def test_refine_has_its_strength_alone(policy):
    """Catches: a handover that refining does not have, a strength that is not read."""
    assert [field.id for field in option_of(policy, "refine").inputs] == ["strength"]
    assert route_of({"policy": "refine", "strength": "light"}) == Route(Refine("light"))


def test_hybrid_is_a_gate_with_a_cascade(policy):
    """Catches: a dial that hybrid ignores, a margin of zero."""
    assert [field.id for field in option_of(policy, "hybrid").inputs] == ["tau", "forced_blocks", "bail_out"]
    hybrid = route_of({"policy": "hybrid", "tau": -1.5, "bail_out": 2})
    assert hybrid == Route(Gate(-1.5, WorstFrame(CASCADE_MARGIN), bail_out=2), handover=3)


@pytest.mark.parametrize("cascade, by", [(False, WorstFrame()), (True, WorstFrame(CASCADE_MARGIN))])
def test_cascade_switch_gives_the_gate_its_margin(cascade, by):
    """Catches: a switch that is not read."""
    gate = {"policy": "reward", "tau": -0.7, "aggregation": "min", "forced_blocks": 2, "handover": 1}
    assert route_of({**gate, "cascade": cascade}) == Route(Gate(by=by, forced_blocks=2), 1)


UNREAD = [
    (
        pocket(1, sampler__draft_steps=2, router__policy="always-target", router__forced_blocks=3),
        "forced_blocks, draft_steps",
    ),
    (pocket(1, sampler__drafter_context="own", router__policy="always-target"), "drafter_context"),
    (pocket(1, router__dtype="float16"), "dtype"),
    (
        first_of(1, 1, router__bail_out=2, router__handover=1, router__forced_blocks=1),
        "bail_out, handover, handover_steps",
    ),
    (first_of(1, 2, router__policy__target_steps=1), "handover_steps, target_steps"),
    (first_of(3, 2, router__policy__target_steps=1, sampler__directions="..d"), ""),
    (
        pocket(
            2,
            router__policy="always-target",
            router__policy__handover=2,
            router__policy__target_steps=1,
            sampler__directions=".t",
        ),
        "handover, target_steps",
    ),
    (pocket(1, router__policy__aggregation="mean", router__policy__cascade=True), "cascade"),
    (first_of(2, 2), ""),
    (placed_at("2, 5", 1, 3), ""),  # the preset's own numbers
    (placed_at("2, 5", 1, 2), "handover_steps"),
]


@pytest.mark.parametrize(("prompt", "names"), UNREAD, ids=lambda value: value if isinstance(value, str) else "")
def test_widgets_without_effect_are_noted(prompt, names, server):
    """The kind: a widget that is not at its default, and that no block reads. Catches: ignored without a word."""
    notes = [note for note in server.make(prompt).record()["notes"] if note.startswith("Without effect")]
    assert [note.endswith(f": {names}.") for note in notes] == [True] * bool(names)


GATE = {f"router__policy__{name}": GONE for name in ("forced_blocks", "bail_out", "handover")}
"""The pocket workflow's router without the inputs that older workflows had under every route."""


def test_router_inputs_of_older_prompts_still_count(server):
    """Catches: a workflow in API form, saved before, that is refused, or made without its numbers."""
    older = {"router__forced_blocks": 2, "router__bail_out": 3, "router__handover": 1}
    settings = server.make(pocket(2, **GATE, **older)).record()["settings"]["route"]
    assert settings["handover"] == 1
    assert (settings["policy"]["forced_blocks"], settings["policy"]["bail_out"]) == (2, 3)


def test_balanced_of_older_prompts_is_refused(server):
    """Then it had a number of first blocks. Catches: an API prompt that makes another route without a word."""
    older = {"router__policy": "balanced", "router__policy__target_blocks": 2, "router__policy__handover_steps": 2}
    with pytest.raises(Refused) as refusal:
        server.queue(pocket(2, **GATE, **older))
    [errors] = refusal.value.errors.values()
    assert errors == ["Required input is missing: target_at"]


# --- the routes they make ----------------------------------------------------------------------------------------


ROUTES = {
    "balanced": "thddh",
    "at": "thddh",
    "fast": "tdddd",
    "careful": "thhhd",
    "first": "tdddd",
    "budget": "t[th]*d*",
    "hybrid": r"t\?{4}",
    "reward": r"t\?{4}",
    "stride": "tdddt",
    "always-target": "ttttt",
    "refine": "ooooo",
}
"""Of five blocks, by policy: `h` the target after steps of the drafter, `o` over the draft, `?` by the score."""


def test_every_policy_makes_its_route(policy, server):
    """Catches: a policy that the node offers and cannot run."""
    assert [option.key for option in policy.options] == list(ROUTES)
    for option in policy.options:
        inputs = {f"router__policy__{field.id}": field.default for field in option.inputs}
        blocks = server.make(pocket(5, router__policy=option.key, **inputs)).record()["blocks"]
        assert re.fullmatch(ROUTES[option.key], letters_of(blocks)), option.key


def letters_of(blocks):
    target = ["o" if block["refined"] else "h" if block["handover"] else "t" for block in blocks]
    made = [letter if block["author"] == "target" else "d" for block, letter in zip(blocks, target, strict=True)]
    return "".join("?" if block["frame_scores"] else letter for block, letter in zip(blocks, made, strict=True))


@pytest.mark.parametrize("alone, other", [("drafter", "target"), ("target", "drafter")])
def test_one_model_runs_alone_under_its_policy(alone, other, server):
    """Though forced_blocks is 1, as on every new node. Catches: a first block that raises what the policy says.

    Without a reward file, and compared with nothing.
    """
    none = {"router__policy__target_blocks": 0, "router__policy__handover_steps": 0}
    policy = {"drafter": {"router__policy": "first", **none}, "target": {"router__policy": "always-target"}}[alone]
    absent = {"router__scorer": GONE, "router__reward_file": "gone.pt", f"sampler__{other}": GONE}
    done = server.make(pocket(3, **policy, **absent))
    assert letters_of(done.record()["blocks"]) == 3 * alone[0]
    assert done.outputs[SAMPLER]["sdvg_run"][0]["speed_up"] is None


@pytest.mark.parametrize("goes_on", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_budget_buys_the_route_that_is_noted(goes_on, server):
    """Catches: a start image, or blocks of another run, counted as blocks bought."""
    budget = {"router__policy": "budget", "router__policy__budget": 0.98, "router__scorer": GONE}
    prompt = pocket(4, **budget, sampler__vae=[POCKET, 3])
    report = REPORT
    inputs = prompt[SAMPLER]["inputs"]
    if goes_on:
        report = "another report"
        prompt["another"] = node("SDVGSpeculativeSampler", **inputs, continue_from=[SAMPLER, 1])
        prompt[report] = node("SDVGRouteReport", **{**prompt[REPORT]["inputs"], "report": ["another", 2]})
    prompt["picture"] = node("LoadImage", image="example.png")
    prompt[SAMPLER]["inputs"] = {**inputs, "start_image": ["picture", 0]}
    record = server.make(prompt).record(report)
    [note] = [note for note in record["notes"] if note.startswith("A budget of 0.98 ")]
    bought = r" makes the first (\d) blocks of 4(?:, with (\d) steps? of a block handed over)?, "
    counts = re.search(bought, note)
    assert counts, note
    blocks = int(counts[1])
    handover = int(counts[2] or 0)
    handed = [handover if goes_on else 0, *[handover] * (blocks - 1), *[0] * (4 - blocks)]
    assert [block["handover"] for block in record["blocks"]] == handed
    assert [block["author"] for block in record["blocks"]] == ["target"] * blocks + ["drafter"] * (4 - blocks)
    assert record["settings"]["route"]["policy"]["kind"] == "First"


# --- in the page -------------------------------------------------------------------------------------------------


AROUND = ["cpu", "float32"]
UNDER_EVERY_ROUTE = ("forced_blocks", "bail_out", "handover")
OLDEST = {
    "balanced": [3, 1, 1, 0, 0],
    "budget": [0.4, 2, 5, 1],
    "reward": [-0.9, "min", 0.1, True, 2, 3, 1],
    "hybrid": [-0.9, 2, 3, 0],
    "stride": [3, 2, 4, 1],
    "always-target": [1, 0, 2],
}
"""Widgets of routers as older versions saved them: forced blocks, bail-out and handover under every route."""
READ = {
    "balanced": {"target_blocks": 3, "handover_steps": 1},
    "budget": {"budget": 0.4},
    "reward": {
        "tau": -0.9,
        "aggregation": "min",
        "quantile": 0.1,
        "cascade": True,
        "forced_blocks": 2,
        "bail_out": 3,
        "handover": 1,
    },
    "hybrid": {"tau": -0.9, "forced_blocks": 2, "bail_out": 3},
    "stride": {"stride": 3, "forced_blocks": 2, "handover": 1},
    "always-target": {"handover": 2},
}
"""What each reads of them; in the version after, a route had only these, in this order."""
READ_NOW = {**READ, "balanced": {"target_at": "3, 7", "handover_steps": 1}}
"""The same of this version."""
FIRST_NOW = "balanced"
"""The route that was *first* by another name, until it got blocks by their numbers."""
STEPPED = ("balanced", "reward", "stride", "always-target")
"""The routes that have `target_steps` now, after these."""
LOST = {"budget": "forced_blocks, bail_out, handover", "stride": "bail_out"}


def saved_router(route, values, sockets):
    """Return widgets and sockets of a saved router. `values`, `sockets`: those of its route."""
    names = ["scorer", "reward_file", "policy", *sockets, "device", "dtype"]
    return {"widgets": ["none", route, *values, *AROUND], "sockets": names}


def routers_of(version):
    """Return saved routers of a version, by route, with what each read of its widgets."""
    for route, read in (READ_NOW if version == "this" else READ).items():
        own = {f"policy.{name}": value for name, value in read.items()}
        steps = {"policy.target_steps": 0} if route in STEPPED else {}
        if version == "oldest":
            before = [name for name in own if name.removeprefix("policy.") not in UNDER_EVERY_ROUTE]
            saved = saved_router(route, OLDEST[route], [*before, *UNDER_EVERY_ROUTE])
        elif version == "without target_steps":
            saved = saved_router(route, own.values(), own)
        else:
            steps = dict.fromkeys(steps, 3)
            saved = saved_router(route, [*own.values(), *steps.values()], [*own, *steps])
        yield f"{route}, {version}", {**saved, "read": {**own, **steps}}


VERSIONS = ("oldest", "without target_steps", "this")
SAVED = {name: saved for version in VERSIONS for name, saved in routers_of(version)}
GIVER = "99"
"""The id of a node that gives the number of a wired input."""


def wired(saved, name):
    """Return a saved router with a wire into one of its sockets."""
    return {**saved, "wired": name, "giver": GIVER, "read": {**saved["read"], name: [GIVER, 0]}}


for version in VERSIONS[1:]:
    router = f"always-target, {version}"
    SAVED[f"{router}, wired"] = wired(SAVED[router], "policy.handover")


ORDER = ("balanced", "budget", *NAMED, "first", "at", "stride", "hybrid", "reward", "balanced")
"""In which policies are chosen, and the numbers of each changed before the next."""
NUMBERS = {
    "balanced": ["2, 5", 3, 0],
    "fast": [1, 0, 0],
    "careful": [4, 2, 0],
    "first": [1, 0, 0],
    "at": ["2, 5", 3, 0],
    "stride": [4, 1, 0, 0],
    "hybrid": [-0.7, 1, 0],
    "budget": [0.5],
    "reward": [-0.7, "min", 0.1, False, 1, 0, 0, 0],
}
ADVANCED = {*UNDER_EVERY_ROUTE, "target_steps"}


@pytest.fixture(scope="module")
def chinese(server):
    """The Chinese names of the router's inputs."""
    words = server.ask("/i18n")["zh"]["nodeDefs"]["SDVGQualityRouter"]["inputs"]
    return {name.replace("_", ".", 1): entry["name"] for name, entry in words.items()}


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, marks=pytest.mark.exhaustive), True],
    ids=["canvas", "nodes 2.0"],
)
def page(request, server, chinese, tmp_path_factory):
    """What the page showed in Chinese as policies were chosen; `vue`: drawn by Nodes 2.0."""
    inputs = {"policies": ORDER, "quantile": chinese["policy.quantile"], "older": SAVED}
    folder = tmp_path_factory.mktemp("page")
    page = browse(server, folder, "policies.js", vue=request.param, locale="zh", **inputs)
    assert page["errors"] == []
    return {**page, "vue": request.param}


def test_chosen_policy_brings_its_own_numbers(page):
    """Also after the last one's were changed. Catches: numbers kept under a name for which they are wrong."""
    assert [shown["values"] for shown in page["shown"]] == [NUMBERS[name] for name in ORDER]
    assert all(shown["changed"] for shown in page["shown"])


def test_node_grows_with_its_policy(page):
    """Catches: widgets that lie below the node's edge."""
    for name, shown in zip(ORDER, page["shown"], strict=True):
        assert shown["height"] >= shown["needed"], name


def test_widgets_of_a_policy_are_in_chinese(page, chinese):
    """ComfyUI would show the English tooltip written on the widgets of a policy, before the translated one."""
    for shown in page["shown"]:
        assert shown["words"] == [[name, chinese[name], None] for name, *_ in shown["words"]]


def test_research_widgets_of_a_policy_are_hidden(page, chinese):
    """The classic canvas shows advanced widgets at all times."""
    if not page["vue"]:
        pytest.skip("only Nodes 2.0 hides widgets")
    advanced = {chinese[f"policy.{name}"] for name in ADVANCED}
    for shown in page["shown"]:
        labels = set(shown["labels"])
        assert not advanced & labels
        assert {chinese["policy"], *(label for _, label, _ in shown["words"][:1])} <= labels


def test_policy_keeps_what_was_set_under_it(page):
    assert page["kept"] == {"tau": [pytest.approx(-0.5), -1.5], "target_steps": 1}


def test_quantile_shows_with_its_aggregation_alone(page):
    """Catches: a number that acts on nothing, or one that a reopened workflow hides."""
    rows = {"min": False, "quantile": True, "mean": False, "reopened": False, "quantile, reopened": True}
    assert page["quantile"] == {"rows": rows, "sent": ["min", 0.1]}


@pytest.mark.parametrize("name", SAVED)
def test_saved_router_keeps_its_values(name, page):
    """Catches: values of an older router that move to other widgets, and a changed one that goes without a word."""
    route, version, *_ = name.split(", ")
    router = page["older"][name]
    inputs = router["inputs"]
    assert {name: value for name, value in inputs.items() if "." in name} == SAVED[name]["read"]
    renamed = route == FIRST_NOW and version != "this"
    assert [inputs[name] for name in ("policy", "device", "dtype")] == ["first" if renamed else route, *AROUND]
    lost = [LOST[route]] if route in LOST and version == "oldest" else ["first"] if renamed else []
    assert [names in message for names, message in zip(lost, router["said"], strict=True)] == [True] * len(lost)
    assert {name for name in router["sockets"] if name.startswith("policy.")} == set(SAVED[name]["read"])
    assert not set(UNDER_EVERY_ROUTE) & set(router["sockets"])


@pytest.mark.parametrize("tau, limits", [("-3", [-3, 3]), ("0.5", [-2.5, 0.5])])
def test_saved_tau_widens_its_dial(tau, limits, page):
    """Catches: a saved tau that the dial's range moves."""
    drawn = limits if page["vue"] else None
    assert page["saved"][tau] == {"sent": float(tau), "range": limits, "drawn": drawn}
