"""The forecast of the next run: what the server answers, and what the run then makes."""

import random

import pytest
from comfy_page import call, write_modules
from forecasting import STARTS, events_of, run_as_forecast, starting
from running_server import GONE, POCKET, ROUTER, SAMPLER, Refused, change, node, pocket
from sdvg_pack.nodes.page.answers import refusals
from sdvg_pack.nodes.sampler import SpeculativeSampler
from sdvg_pack.sdvg_core.settings.request import TWO_STARTS

pytestmark = pytest.mark.comfyui

BLOCKS = 4
SEED = 7000
TEXTS = ("a big yellow ball runs right", "a small red ring rests on grass", "a large blue ball rests on sand")
TAUS = (-3.0, -0.9, -0.7, -0.5, 3.0)
NAMES = ("sayShot", "lengthenShot", "retakeShot", "insertShot", "moveShot", "removeShot", "cutShot")
BOARD = """({ values, edits, before }) => {
  const seen = [];
  for (const [name, ...given] of edits) {
    const board = js.readBoard(values, before);
    const i = given[0] % board.shots.length;
    const [, more] = given;
    const acts = {
      insertShot: () => js.insertShot(board, i + 1),
      moveShot: () => js.moveShot(board, i, more % board.shots.length, js.newKey(board)),
    };
    const next = acts[name]?.() ?? js[name](board, i, more);
    if (js.allowed(board, next, { before, locks: [] }, 6 + before)) values = js.writeBoard(next);
    seen.push(values);
  }
  return seen;
}"""
ROUTES = (
    {"policy": "reward", "policy.cascade": False},
    {"policy": "reward", "policy.cascade": True},
    {"policy": "hybrid"},
    {"policy": "balanced", "policy.target_at": "2, 5", "policy.handover_steps": 3},
    {"policy": "first", "policy.target_blocks": 2, "policy.handover_steps": 2},
    {"policy": "first", "policy.target_blocks": 3, "policy.handover_steps": 2, "policy.target_steps": 1},
    {"policy": "always-target", "policy.handover": 0, "policy.target_steps": 4},
    {"policy": "always-target", "policy.handover": 0, "policy.target_steps": 2},
    {"policy": "budget", "policy.budget": 0.5},
    {"policy": "budget", "policy.budget": 0.8},
)


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


def board_edits(draw, count):
    """Return random edits of the cards, each as name, shot and what else it takes."""
    edits = []
    for _ in range(count):
        name = draw.choice(NAMES)
        more = {
            "sayShot": lambda: [draw.choice(TEXTS)],
            "lengthenShot": lambda: [draw.randint(1, 4)],
            "moveShot": lambda: [draw.randrange(4)],
            "cutShot": lambda: [draw.random() < 0.5],
        }
        edits.append([name, draw.randrange(4), *more.get(name, list)()])
    return edits


def own_seed(seed, start):
    """Return a seed of its own for each start.

    A shot that begins afresh is the same after any of them, and of hundreds of runs the server remembers the last
    ones, while its store has the blocks of all.
    """
    return seed + 10_000 * list(STARTS).index(start)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", [16, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_random_edits_are_forecast_as_they_are_made(count, start, server, modules):
    """Catches: a block called one that stays and made again, and one called changed that was at hand."""
    draw = random.Random(f"{count} {start}")
    prompt = starting(
        pocket(blocks=BLOCKS, sampler__seed=own_seed(SEED + count, start), router__policy__tau=-0.7), start
    )
    info, _ = events_of(server, prompt)
    run = info["run"]
    values = {"text": TEXTS[0], "blocks": BLOCKS, "directions": "", "takes": ""}
    given = {"values": values, "edits": board_edits(draw, count), "before": info["before"]}
    boards = call(modules, BOARD, [given])[0]
    letters = set()
    for board in boards:
        inputs = prompt[SAMPLER]["inputs"]
        directions = [draw.choice("....tdar") for _ in range(board["blocks"])]
        board["directions"] = "".join(directions) if draw.random() < 0.3 else board["directions"]
        inputs |= {name: board[name] for name in ("blocks", "directions", "takes")}
        prompt[POCKET]["inputs"]["prompt"] = board["text"]
        prompt[ROUTER]["inputs"]["policy.tau"] = draw.choice(TAUS) if draw.random() < 0.3 else -0.7
        run, answers = run_as_forecast(server, prompt, run, board)
        letters |= set(answers)
    assert letters >= {"s", "c"}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_random_routes_are_forecast_as_they_are_made(count, start, server):
    """Catches: drafts or scores of one route that are said to serve another one, and are made again."""
    draw = random.Random(f"routes {count} {start}")
    prompt = starting(pocket(blocks=BLOCKS, sampler__seed=own_seed(2 * SEED + count, start)), start)
    run = events_of(server, prompt)[0]["run"]
    letters = set()
    for _ in range(count):
        route = {"policy.tau": draw.choice(TAUS), **draw.choice(ROUTES)}
        prompt[ROUTER]["inputs"] |= route
        prompt[SAMPLER]["inputs"]["blocks"] = draw.randint(2, 5)
        run, answers = run_as_forecast(server, prompt, run, route)
        letters |= set(answers)
    assert letters >= {"s", "c"}


@pytest.mark.parametrize("start", ["nothing", "clip"])
def test_budget_of_another_length_is_forecast(start, server):
    """Catches: the decisions of a shorter video, taken for those of a longer one with more blocks of the target."""
    route = {"policy": "budget", "policy.budget": 0.6}
    prompt = starting(pocket(blocks=3, sampler__seed=3 * SEED), start)
    prompt[ROUTER]["inputs"] |= route
    run = events_of(server, prompt)[0]["run"]
    for blocks in (6, 4, 8):
        prompt[SAMPLER]["inputs"]["blocks"] = blocks
        run, answers = run_as_forecast(server, prompt, run, blocks)
        assert "m" not in answers


@pytest.mark.parametrize("start", ["nothing", "clip"])
def test_budget_over_a_lock_is_forecast(start, server):
    """Catches: locked blocks counted among the first ones that a budget buys."""
    prompt = starting(pocket(blocks=6, sampler__seed=5 * SEED), start)
    prompt[ROUTER]["inputs"] |= {"policy": "budget", "policy.budget": 0.6}
    info, _ = events_of(server, prompt)
    for kept in (1, 3):
        lock = f"{kept}:{info['digests'][kept - 1]}"
        run_as_forecast(server, change(prompt, sampler__kept_blocks=lock), info["run"], lock)


def test_preset_that_hands_over_less_is_forecast(server):
    """Catches: remakes that are called new, as the preset's handover is taken for that of the run."""
    prompt = pocket(blocks=3, sampler__seed=4 * SEED, sampler__draft_steps=2, router__policy="hybrid")
    prompt[ROUTER]["inputs"]["policy.tau"] = 3.0
    run = events_of(server, prompt)[0]["run"]
    for tau in (2.9, 3.0, -3.0, 2.9):
        prompt[ROUTER]["inputs"]["policy.tau"] = tau
        run, answers = run_as_forecast(server, prompt, run, tau)
    assert answers == "sss"


# --- what is refused


REFUSED = (
    {"width": 96},
    {"height": 96},
    {"blocks": 1},
    {"kept_blocks": "2:0123456789abcdef"},
    {"kept_blocks": "two"},
    {"directions": "q"},
    {"takes": "1"},
    {"width": 72},
)
"""Inputs that a run with two locked blocks is refused for."""


@pytest.fixture(scope="module")
def locked(server):
    """The prompt of a run with two locked blocks, and the run that they are from."""
    prompt = pocket(blocks=3, sampler__seed=SEED + 40)
    info, _ = events_of(server, prompt)
    return change(prompt, sampler__kept_blocks=f"2:{info['digests'][1]}"), info["run"]


@pytest.mark.parametrize("values", REFUSED, ids=str)
def test_server_names_a_refusal_before_the_run(server, locked, values):
    """Catches: a run that is forecast, and then refused; another sentence than the refusal's own."""
    prompt = change(locked[0], **{f"sampler__{name}": value for name, value in values.items()})
    sentence = server.ask("/sdvg/runs", prompt)["refused"][SAMPLER]
    with pytest.raises(Refused) as refusal:
        server.queue(prompt)
    assert sentence in " ".join(refusal.value.errors[SAMPLER])


@pytest.mark.parametrize("line", ["0: a red ring", "2 cut:", "2 strength 7: a red ring"])
def test_server_names_a_wrong_line_before_the_run(server, locked, line):
    """Catches: a prompt with a slip of its lines that is forecast, or said nothing of, and then refused."""
    prompt = change(locked[0])
    prompt[POCKET]["inputs"]["prompt"] += f"\n{line}"
    sentence = server.ask("/sdvg/runs", prompt)["refused"][SAMPLER]
    with pytest.raises(Refused) as refusal:
        server.queue(prompt)
    assert sentence in " ".join(refusal.value.errors[POCKET])


def test_two_starts_are_named_before_the_run():
    """ComfyUI shows the sampler its own wires alone. Catches: a Start of clips alone that counts as one of two."""
    prompt = pocket(blocks=1)
    prompt["begin"] = {"class_type": "SDVGStart", "inputs": {"use_as": "first frame", "images": ["red", 0]}}
    prompt["red"] = {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64}}
    prompt[SAMPLER]["inputs"] |= {"start": ["begin", 0], "start_image": ["red", 0]}
    assert refusals(prompt, SpeculativeSampler.validate_inputs) == {SAMPLER: TWO_STARTS}
    prompt["begin"]["inputs"] = {"use_as": "first frame", "clips.clip1": ["clip", 0]}
    assert refusals(prompt, SpeculativeSampler.validate_inputs) == {}


def test_key_of_two_prompts_is_named_before_the_run():
    """Each prompt has it once. Catches: a forecast of a film that is then refused."""
    prompt = pocket(sampler__prompt_schedule=["later", 0])
    prompt[POCKET]["inputs"]["prompt"] += "\n2 fresh #a: a red ring"
    words = node("SDVGPrompt", clip=[POCKET, 4], text="a storm\n5 fresh #a: fog")
    later = node("SDVGPromptSchedule", from_block=4, conditioning=["words", 0])
    (sentence,) = refusals(prompt | {"words": words, "later": later}, SpeculativeSampler.validate_inputs).values()
    assert sentence.startswith("two shots have the key #a")


@pytest.mark.parametrize(
    "values",
    [{}, {"seed": 1}, {"takes": "1:2"}, {"blocks": 5}, {"target": GONE}],
    ids=["as it is", "seed", "takes", "blocks", "no target"],
)
def test_server_names_no_refusal_of_a_usable_run(server, locked, values):
    """What is locked stays, so another seed or take makes the others alone. Catches: a refusal of what runs."""
    prompt = change(locked[0], **{f"sampler__{name}": value for name, value in values.items()})
    assert server.ask("/sdvg/runs", prompt)["refused"] == {}
