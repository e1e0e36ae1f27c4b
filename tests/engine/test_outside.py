"""Parts that others write: refused at the door, and where their results are read, in a sentence that names them."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.engine.outside import outside_note, part_key
from sdvg_core.engine.types import Cost, Generated
from sdvg_core.errors import BadInput
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.parts import A_TEXT, FROM_0, FROM_1, METHOD, PROTOCOLS, check_part
from sdvg_core.settings.route import Custom, Route
from tests.support.outside_parts import FRAMES, FRAMES_64, GOOD, VAE, Part, call, checked, describe, model
from tests.support.thinned import every_pair

# --- at the door

WHOLE = {
    "drafter": model((GOOD,)),
    "target": model((GOOD,)),
    "codec": Part(**vars(VAE), decode=max, encode=max),
    "scorer": Part(score=max, describe=dict),
    "router": Part(keep=max, needs_scorer=False),
}
NO_VALUES = {
    A_TEXT: (None, 1, b"name", ["name"]),
    METHOD: (None, 1, "generate", ()),
    FROM_0: (None, -1, "0", 0.0, True, math.nan, (0,)),
    FROM_1: (None, 0, -3, "3", 3.0, True, math.inf, (3,)),
}
NO_STEPS = (None, 1000.0, [1000.0], ("1000",), (None,), (math.nan,), (math.inf,), (True,), torch.ones(2))
WRONG = [
    *(
        (role, name, value)
        for role, (_, needed) in PROTOCOLS.items()
        for name, fits in needed.items()
        for value in NO_VALUES.get(fits, ())
    ),
    *(("drafter", "first_timesteps", value) for value in NO_STEPS),
    *(("target", "timesteps", value) for value in (*NO_STEPS, ())),
    *(("drafter", "draft_steps", value) for value in ("x", 0, -1, 1.5, True)),
    *((role, "key", value) for role in PROTOCOLS for value in (1, None, b"1")),
]


@pytest.mark.parametrize("role", PROTOCOLS)
def test_incomplete_part_is_refused(role):
    """Each attribute left out in turn, an object, and a class. Catches: a raw error where it is first used."""
    check_part(role, WHOLE[role])
    for name in PROTOCOLS[role][1]:
        incomplete = Part(**{other: value for other, value in vars(WHOLE[role]).items() if other != name})
        with pytest.raises(BadInput, match=f"Part is no {role} without {name}"):
            check_part(role, incomplete)
    with pytest.raises(BadInput, match=f"object is no {role}"):
        check_part(role, object())
    with pytest.raises(BadInput, match="give an object of it"):
        check_part(role, Part)


@pytest.mark.parametrize(("role", "name", "value"), WRONG, ids=str)
def test_wrong_attribute_is_refused_by_name(role, name, value):
    """Catches: a size, a list of steps or a key that cannot be one, and fails where it is used."""
    part = Part(**{**vars(WHOLE[role]), name: value})
    with pytest.raises(BadInput, match=f"the {role} Part has {name}"):
        check_part(role, part)


HUGE = 10**5000
"""A number that Python does not write out."""
ABSURD = {
    "attribute": lambda: check_part("drafter", model((GOOD,), block_frames=HUGE)),
    "size": lambda: checked("codec", Part(**{**vars(VAE), "spatial_stride": HUGE})),
    "cost": lambda: checked("drafter", model((), generate=lambda call: Generated((GOOD,), HUGE))).generate(call()),
    "answer": lambda: Custom(Part(needs_scorer=False, keep=lambda *_: HUGE)).decide(1, (0.5,)),
}


@pytest.mark.parametrize("use", ABSURD.values(), ids=ABSURD)
def test_absurd_number_of_a_part_is_refused(use):
    """Catches: a refusal that ends in Python's own error, as it writes the number out."""
    with pytest.raises(BadInput, match="a number of many digits"):
        use()


def test_incomplete_router_is_refused_by_the_route():
    with pytest.raises(BadInput, match="Part is no router without needs_scorer"):
        Route(Custom(Part(keep=max)))


def test_channels_other_than_the_vaes_are_refused():
    with pytest.raises(BadInput, match="latent_channels 48; the VAE's is 16"):
        checked("drafter", model((), latent_channels=48))


def test_router_that_answers_no_boolean_is_refused():
    with pytest.raises(BadInput, match="the router Part answered 1 for block 4"):
        Custom(Part(needs_scorer=False, keep=lambda *_: 1)).decide_early(3, ())


# --- at every call


def scored(scores: Any) -> Any:
    return checked("scorer", Part(score=lambda *_: scores, describe=dict)).score(FRAMES, "")


def drafted(result: Any, role: str = "drafter") -> Any:
    return checked(role, model((), generate=lambda call: result)).generate(call())


def decoded(result: Any, state: Any = None) -> Any:
    return checked("codec", Part(**vars(VAE), decode=lambda *_: result, encode=max)).decode(GOOD, state)


def encoded(result: Any) -> Any:
    return checked("codec", Part(**vars(VAE), decode=max, encode=lambda frames: result)).encode(FRAMES)


NO_TENSORS = {
    "numpy": (lambda tensor: tensor.numpy(), "no tensor but a ndarray"),
    "None": (lambda tensor: None, "no tensor but a NoneType"),
    "a list": (lambda tensor: tensor.tolist(), "no tensor but a list"),
    "complex": (lambda tensor: tensor + 1j, "numbers in complex64"),
    "bytes": (lambda tensor: tensor.byte(), "numbers in uint8"),
    "8 bits": (lambda tensor: tensor.to(torch.float8_e4m3fn), "numbers in float8_e4m3fn"),
    "truth values": (lambda tensor: tensor.bool(), "numbers in bool"),
    "meta": (lambda tensor: tensor.to("meta"), "a tensor without plain memory"),
    "sparse": (lambda tensor: tensor.to_sparse(), "a tensor without plain memory"),
    "another shape": (lambda tensor: tensor.repeat_interleave(2, 0), ""),
}
RESULTS = {
    "drafter": lambda wrong: drafted(Generated((wrong(GOOD),))),
    "drafter's first step": lambda wrong: drafted(Generated((wrong(GOOD), GOOD))),
    "drafter's block": lambda wrong: drafted(Generated((GOOD,), block=wrong(GOOD))),
    "target": lambda wrong: drafted(Generated((wrong(GOOD),)), "target"),
    "scorer": lambda wrong: scored(wrong(torch.zeros(9))),
    "codec": lambda wrong: decoded((wrong(FRAMES_64), 1)),
    "codec's latents": lambda wrong: encoded(wrong(GOOD[:, :, :, :1, :1])),
}


WRONG_RESULTS = set(product(RESULTS, NO_TENSORS)) - {("drafter's block", "None")}


@pytest.mark.parametrize(("result", "kind"), sorted(WRONG_RESULTS))
def test_result_other_than_plain_numbers_is_refused(result, kind):
    """Catches: a raw error where it is used, an imaginary part that is lost, levels of 255 taken for white."""
    wrong, fault = NO_TENSORS[kind]
    role = result.partition("'")[0]
    with pytest.raises(BadInput, match=f"the {role} Part returned .*{fault}"):
        RESULTS[result](wrong)


def test_drafter_may_leave_the_block_to_its_prediction():
    assert drafted(Generated((GOOD,), block=None)).latents is GOOD


@pytest.mark.parametrize(
    ("use", "fault"),
    [
        (lambda: drafted(GOOD), "a Tensor; return sdvg_core.Generated"),
        (lambda: drafted(None), "a NoneType; return sdvg_core.Generated"),
        (lambda: drafted((Generated((GOOD,)), 1)), "a tuple; return sdvg_core.Generated"),
        (lambda: drafted(Generated(())), "no prediction"),
        (lambda: drafted(Generated(GOOD)), "predictions in a Tensor"),
        (lambda: drafted(Generated((GOOD,), None)), "the cost None"),
        (lambda: drafted(Generated((GOOD,), Cost("1"))), "the cost Cost"),
        (lambda: drafted(Generated((GOOD,), Cost(context_seconds=None))), "the cost Cost"),
        (lambda: drafted(Generated((GOOD[:, :, :2],))), "1 x 16 x 2 x 8 x 8; return 1 x 16 x 3 x 8 x 8"),
        (lambda: scored(torch.zeros(1)), "returned 1; return 9"),
        (lambda: scored(torch.tensor(0.5)), r"returned \(\); return 9"),
        (lambda: decoded(FRAMES_64), "a Tensor; return a tuple"),
        (lambda: decoded((FRAMES_64, 1, 2)), "a tuple; return a tuple of frames and state"),
        (lambda: decoded((FRAMES_64, 1), (1,)), "1 x 9 x 3 x 64 x 64; return 1 x 12"),
        (partial(describe, [1]), "JSON"),
        (partial(describe, None), "JSON"),
        (partial(describe, {"a": object()}), "JSON"),
        (partial(describe, {(1,): 3}), "JSON"),
        (partial(describe, {"name": math.nan}), "JSON"),
        (partial(describe, {"notes": 3}), "notes"),
        (partial(describe, {"notes": None}), "notes"),
        (partial(describe, {"notes": "abc"}), "notes"),
        (partial(describe, {"notes": [1]}), "notes"),
    ],
)
def test_result_that_does_not_fit_is_refused(use, fault):
    """Where it is read. Catches: a raw error of what reads it, which names no part."""
    with pytest.raises(BadInput, match=fault):
        use()


def test_description_is_read_as_json():
    assert describe({"name": "brightness", 1: (2,)})["1"] == [2]


@pytest.mark.parametrize("after", [None, 0, (), "state", torch.zeros(1)], ids=str)
def test_frames_follow_from_block_and_not_from_state(after):
    """Catches: a codec that returns None as its state, by which every block counts as the clip's first."""
    states = []

    def decode(latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        states.append(state)
        return torch.zeros(1, 9 if len(states) == 1 else 12, 3, 64, 64), after

    codec = checked("codec", Part(**vars(VAE), decode=decode, encode=max))
    first, state = codec.decode(GOOD)
    second, _ = codec.decode(GOOD, state)
    assert first.shape[1] == 9
    assert second.shape[1] == 12
    assert states[0] is None
    assert states[1] is after


@pytest.mark.parametrize("after", [None, 0, (), "state", torch.zeros(1)], ids=str)
def test_second_block_of_nine_frames_is_refused(after):
    codec = checked("codec", Part(**vars(VAE), decode=lambda *_: (FRAMES_64, after), encode=max))
    _, state = codec.decode(GOOD)
    with pytest.raises(BadInput, match="1 x 9 x 3 x 64 x 64; return 1 x 12"):
        codec.decode(GOOD, state)


class OutOfLuck(Exception):
    """As others define it."""


class Unlucky(Part):
    """A part of which every call raises."""

    def __init__(self, error: BaseException) -> None:
        def fail(*_: Any) -> Any:
            raise error

        calls = dict.fromkeys(("generate", "keep", "score", "describe", "decode", "encode"), fail)
        super().__init__(**{**vars(model(())), **vars(VAE), **calls})


class Undecided:
    """A router whose attribute raises."""

    def keep(self, index: int, score: float | None) -> bool:
        return True

    @property
    def needs_scorer(self) -> bool:
        raise OutOfLuck("no luck")


CALLS = {
    "target": lambda part: checked("target", part).generate(call()),
    "drafter": lambda part: checked("drafter", part).generate(call()),
    "scorer": lambda part: checked("scorer", part).score(FRAMES, ""),
    "scorer's description": lambda part: checked("scorer", part).describe(),
    "codec": lambda part: checked("codec", part).decode(GOOD),
    "codec's encoder": lambda part: checked("codec", part).encode(FRAMES),
    "router": lambda part: Custom(Part(needs_scorer=True, keep=part.keep)).decide(1, (1.0,)),
    "router without scores": lambda part: Custom(Part(needs_scorer=False, keep=part.keep)).decide_early(3, ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_exception_of_a_part_names_part_and_error(name):
    """Whatever others raise, in every call of every role. Catches: a trace that names no part, or gets lost."""
    luck = OutOfLuck("no luck\ntoday")
    with pytest.raises(BadInput, match=r"raised OutOfLuck \(no luck\)") as problem:
        CALLS[name](Unlucky(luck))
    role = name.partition(" ")[0].removesuffix("'s")
    part = "Part" if role == "router" else "Unlucky"
    assert f"the {role} {part}" in str(problem.value)
    assert problem.value.__cause__ is luck


STOPS = (
    MemoryError(),
    torch.OutOfMemoryError(),
    BadInput("a; b"),
    KeyboardInterrupt(),
    SystemExit(2),
    GeneratorExit(),
)


@every_pair("name, stop", tuple(CALLS), STOPS)
def test_interrupts_and_lack_of_memory_pass_through(name, stop):
    """Catches: a run that cannot be stopped, or does not make room, while a part of others is at work."""
    with pytest.raises(type(stop)) as problem:
        CALLS[name](Unlucky(stop))
    assert problem.value is stop


def test_router_whose_attribute_raises_is_named():
    with pytest.raises(BadInput, match="the router Undecided raised OutOfLuck"):
        assert Custom(Undecided()).needs_scorer  # the first asks before Python 3.12, the second always


def test_scorer_cannot_write_into_the_video():
    """As one does that normalises frames in place. Catches: pixels that are shown, or kept, changed by it."""
    frames = torch.ones(1, 9, 3, 8, 8)
    scorer = checked("scorer", Part(score=lambda frames, _: frames.zero_()[0, :, 0, 0, 0], describe=dict))
    assert torch.equal(scorer.score(frames, ""), torch.zeros(9))
    assert torch.equal(frames, torch.ones(1, 9, 3, 8, 8))


def test_custom_router_decides_by_the_worst_frame():
    policy = Custom(Part(needs_scorer=True, keep=lambda index, score: score > index))
    assert policy.needs_scorer
    assert policy.decide_early(2, ()) is None
    kept = policy.decide(2, (4.0, 3.0))
    rejected = policy.decide(2, (4.0, 1.0))
    assert kept.accepted
    assert kept.score == 3.0
    assert kept.reason is Reason.ROUTER_KEPT
    assert not rejected.accepted
    assert rejected.reason is Reason.ROUTER_REMADE


def test_part_without_a_key_is_never_reused():
    """Catches: results of a part taken for those of another object, or class, without a key."""
    unkeyed = Part()
    assert part_key(unkeyed) != part_key(unkeyed)
    assert part_key(Part(key="1")) == part_key(Part(key="1"))
    assert part_key(Part(key="1")) != part_key(Part(key="2"))


def test_keys_of_two_kinds_of_parts_differ():
    """Catches: a part's results taken for another one's, as both count their versions from 1."""

    class Another(Part):
        pass

    assert part_key(Part(key="1")) != part_key(Another(key="1"))


def test_report_notes_a_part_without_a_key():
    assert "used again" in outside_note("scorer", Part())
    assert "used again" not in outside_note("scorer", Part(key="1"))
