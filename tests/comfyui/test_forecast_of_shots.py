"""The forecast of films of shots: what it says that stays has the same bits, and no model is called for it."""

import random
from dataclasses import dataclass, replace

import pytest
from forecasting import LOADED, STARTS, events_of, forecast_of, run_as_forecast, starting
from running_server import POCKET, change, node, pocket

pytestmark = pytest.mark.comfyui

SEED = 9000
WORDS = ("a big yellow ball runs right", "a small red ring rests on grass", "a large blue ball rests on sand")
MOST_BLOCKS = 9
"""As many as the clip to restyle has frames for."""


@dataclass(frozen=True)
class Card:
    """A shot. `origin`: key of the shot that it begins from, or empty. `takes`: of its blocks."""

    key: str
    words: str
    takes: tuple[int, ...]
    origin: str = ""


def prompt_of(prompt, cards, before):
    """Return the prompt of a film of these shots. `before`: number of blocks of the clip that it continues."""
    lines = []
    takes = []
    for place, card in enumerate(cards):
        origin = f" from {card.origin}" if card.origin in [before.key for before in cards[:place]] else ""
        plain = place == 0 and card.key == "#0"
        number = before + len(takes) + 1 if place else 1
        lines.append(card.words if plain else f"{number} fresh {card.key}{origin}: {card.words}")
        takes += card.takes
    text = ",".join(f"{at}:{take}" for at, take in enumerate(takes, 1) if take > 1)
    film = change(prompt, sampler__blocks=len(takes), sampler__takes=text)
    film[POCKET]["inputs"]["prompt"] = "\n".join(lines)
    return film


def edited(draw, cards, key):
    """Return the shots after a random act. `key`: for a new shot."""
    cards = list(cards)
    at = draw.randrange(len(cards))
    new = Card(key, draw.choice(WORDS), (1,) * draw.randint(1, 2))
    act = draw.choice(["move", "clone", "delete", "insert", "re-roll", "say", "lengthen", "begin from"])
    if act == "move":
        cards.insert(draw.randrange(len(cards)), cards.pop(at))
    elif act == "clone":
        cards.insert(at + 1, replace(cards[at], key=key))
    elif act == "delete" and len(cards) > 2:
        del cards[at]
    elif act == "insert":
        cards.insert(at, new)
    elif act == "re-roll":
        block = draw.randrange(len(cards[at].takes))
        takes = [take + (place == block) for place, take in enumerate(cards[at].takes)]
        cards[at] = replace(cards[at], takes=tuple(takes))
    elif act == "say":
        cards[at] = replace(cards[at], words=draw.choice(WORDS))
    elif act == "lengthen":
        cards[at] = replace(cards[at], takes=(*cards[at].takes, 1) if draw.random() < 0.5 else cards[at].takes[:1])
    elif act == "begin from":
        cards[at] = replace(cards[at], origin=draw.choice(["", *(card.key for card in cards)]))
    while len(cards) > 1 and sum(len(card.takes) for card in cards) > MOST_BLOCKS:
        cards.pop()
    return [replace(card, takes=card.takes[:MOST_BLOCKS]) for card in cards]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_random_films_are_forecast_as_they_are_made(count, start, server):
    """Catches: a shot made again where it was only moved; one said to stay that follows from another."""
    draw = random.Random(f"{count} {start}")
    prompt = starting(pocket(blocks=5, sampler__seed=SEED + count, router__policy__tau=-0.7), start)
    cards = [Card("#0", WORDS[0], (1,)), *(Card(f"#k{at}", WORDS[at % 3], (1,)) for at in range(4))]
    before = events_of(server, prompt)[0]["before"]
    run = events_of(server, prompt_of(prompt, cards, before))[0]["run"]
    letters = set()
    made = []
    for step in range(count):
        cards = edited(draw, cards, f"#n{step}")
        if start == "restyled clip":
            cards = [replace(card, origin="") for card in cards]
        film = prompt_of(prompt, cards, before)
        run, answers = run_as_forecast(server, film, run, cards)
        letters |= set(answers)
        if step % 5 == 0:
            made.append((film, events_of(server, film)[0]["digests"]))
    assert letters >= {"s", "c"}
    for film, digests in made:
        assert events_of(server, change(film, sampler__reuse_gb=0.0))[0]["digests"] == digests


def test_pictures_of_shots_that_changed_places_are_old(server):
    """And no others. Catches: every picture after a moved shot that is called one of something else."""
    prompt = pocket(sampler__seed=SEED, router__policy__tau=-0.7)
    cards = [Card("#0", WORDS[0], (1,)), Card("#a", WORDS[1], (1,)), Card("#b", WORDS[2], (1, 1))]
    run = events_of(server, prompt_of(prompt, cards, 0))[0]["run"]
    moved = prompt_of(prompt, [cards[1], cards[0], cards[2]], 0)
    answer = forecast_of(server, moved, run)
    assert (answer["blocks"], answer["old"]) == ("ssss", [1, 2])


def test_direction_counts_the_blocks_of_the_film(server):
    """`t` makes a block with all steps, and the route with half of them, but for a shot's first block.

    Catches: a later shot that is taken for one made by the directions of the first, or in the middle of a route.
    """
    route = {"router__policy": "always-target", "router__policy__handover": 0, "router__policy__target_steps": 2}
    cards = [Card("#0", WORDS[0], (1,)), Card("#a", WORDS[1], (1, 1))]
    film = change(prompt_of(pocket(sampler__seed=SEED), cards, 0), **route)
    directed = change(film, sampler__directions="..t")
    run = events_of(server, directed)[0]["run"]
    assert forecast_of(server, directed, run)["blocks"] == "sss"
    assert forecast_of(server, film, run)["blocks"] == "ssc"


def test_other_part_of_a_clip_changes_the_shot_after(server):
    """It begins with another frame. Catches: a clip known by its file alone."""

    def film(part):
        prompt = pocket(blocks=2, sampler__seed=SEED, sampler__start=["5", 0])
        lines = (WORDS[0], f"2 clip #clip1 {part}:", f"2 fresh #b from #clip1: {WORDS[1]}")
        prompt[POCKET]["inputs"]["prompt"] = "\n".join(lines)
        start = node("SDVGStart", use_as="first frame", **{"clips.clip1": [LOADED, 0]})
        return prompt | {LOADED: node("LoadVideo", file="clip.mp4"), "5": start}

    run = events_of(server, film("0-0.5"))[0]["run"]
    assert forecast_of(server, film("0-0.5"), run)["blocks"] == "ss"
    assert forecast_of(server, film("0-0.25"), run)["blocks"] == "sc"


def test_first_clip_that_is_wired_changes_no_block(server):
    """Catches: all said to be made again, as the sampler has a Start now, which begins nothing."""
    plain = pocket(blocks=2, sampler__seed=SEED)
    run = events_of(server, plain)[0]["run"]
    clips = node("SDVGStart", use_as="first frame", **{"clips.clip1": [LOADED, 0]})
    wired = change(plain, sampler__start=["5", 0]) | {LOADED: node("LoadVideo", file="clip.mp4"), "5": clips}
    assert forecast_of(server, wired, run)["old"] == []
    _, answers = run_as_forecast(server, wired, run, "a clip")
    assert answers == "ss"
