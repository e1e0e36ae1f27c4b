"""Parts that others write: refused at the door, and where their results are read, in a sentence that names them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.engine.outside import outside_note, part_key
from sdvg_core.engine.types import Cost, Generated
from sdvg_core.errors import BadInput
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
def test_a_part_without_what_its_protocol_asks_for_is_refused(role):
    """Every attribute left out in turn, an object, and a class. Catches: a raw error where it is first used."""
    check_part(role, WHOLE[role])
    for name in PROTOCOLS[role][1]:
        lacking = Part(**{other: value for other, value in vars(WHOLE[role]).items() if other != name})
        with pytest.raises(BadInput, match=f"Part is no {role} without {name}; give it what sdvg_core"):
            check_part(role, lacking)
    with pytest.raises(BadInput, match=f"object is no {role} without"):
        check_part(role, object())
    with pytest.raises(BadInput, match="give an object of it"):
        check_part(role, Part)


@pytest.mark.parametrize(("role", "name", "value"), WRONG, ids=str)
def test_a_part_with_a_wrong_attribute_is_refused_by_name(role, name, value):
    """Catches: a size, a list of steps or a key that cannot be one, and fails where it is used."""
    part = Part(**{**vars(WHOLE[role]), name: value})
    with pytest.raises(BadInput, match=f"^the {role} Part has {name} .*; give it a") as refused:
        check_part(role, part)
    assert len(str(refused.value)) <= 120


def test_a_router_of_other_types_is_refused():
    with pytest.raises(
        BadInput, match=r"^Part is no router without needs_scorer; give it what sdvg_core\.Router has$"
    ):
        Route(Custom(Part(keep=max)))
    with pytest.raises(BadInput, match="has latent_channels 48; the VAE's is 16"):
        checked("drafter", model((), latent_channels=48))
    with pytest.raises(BadInput, match="the router Part answered 1 for block 4; return True or False"):
        Custom(Part(needs_scorer=False, keep=lambda *_: 1)).decide_early(3, ())


# --- at every call

LATENTS = "1 x 16 x 3 x 8 x 8"


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
    "another shape": (lambda tensor: tensor[..., :1], "returned"),
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


@every_pair("result, kind", tuple(RESULTS), tuple(NO_TENSORS))
def test_a_result_that_is_no_plain_tensor_of_numbers_is_refused(result, kind):
    """Catches: a raw error where it is used, an imaginary part that is lost, levels of 255 taken for white."""
    wrong, words = NO_TENSORS[kind]
    if (result, kind) == ("drafter's block", "None"):  # the protocol's own: the last prediction is the block
        return
    if (result, kind) == ("codec's latents", "another shape"):
        wrong = wrong_size
    role = result.partition("'")[0]
    with pytest.raises(BadInput, match=f"^the {role} Part returned .*; return ") as refused:
        RESULTS[result](wrong)
    assert words in str(refused.value)
    assert len(str(refused.value)) <= 120


def wrong_size(tensor: Tensor) -> Tensor:
    return tensor.repeat(1, 1, 1, 2, 1)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: drafted(GOOD), "returned a Tensor; return sdvg_core.Generated"),
        (lambda: drafted(None), "returned a NoneType; return sdvg_core.Generated"),
        (lambda: drafted((Generated((GOOD,)), 1)), "returned a tuple; return sdvg_core.Generated"),
        (lambda: drafted(Generated(())), "returned no prediction; return a tuple"),
        (lambda: drafted(Generated(GOOD)), "returned predictions in a Tensor; return a tuple"),
        (lambda: drafted(Generated((GOOD,), None)), "returned the cost None; return a Cost"),
        (lambda: drafted(Generated((GOOD,), Cost("1"))), "returned the cost Cost("),
        (lambda: drafted(Generated((GOOD,), Cost(context_seconds=None))), "returned the cost Cost("),
        (lambda: drafted(Generated((GOOD[:, :, :2],))), f"returned 1 x 16 x 2 x 8 x 8; return {LATENTS}"),
        (lambda: scored(torch.zeros(1)), "returned 1; return 9"),
        (lambda: scored(torch.tensor(0.5)), "returned (); return 9"),
        (lambda: decoded(FRAMES_64), "returned a Tensor; return a tuple of frames and state"),
        (lambda: decoded((FRAMES_64, 1, 2)), "returned a tuple; return a tuple of frames and state"),
        (lambda: decoded((FRAMES_64, 1), (1,)), "returned 1 x 9 x 3 x 64 x 64; return 1 x 12 x 3 x 64 x 64"),
        *((partial(describe, wrong), "returned what JSON cannot hold") for wrong in ([1], None, {"a": object()})),
        (partial(describe, {(1,): 3}), "returned what JSON cannot hold"),
        (partial(describe, {"name": math.nan}), "returned what JSON cannot hold"),
        *((partial(describe, {"notes": wrong}), "returned the notes") for wrong in (3, None, "abc", [1])),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_where_it_is_read(use, words):
    with pytest.raises(BadInput) as refused:
        use()
    assert words in str(refused.value)
    assert len(str(refused.value)) <= 130
    assert describe({"name": "mine", 1: (2,)})["1"] == [2]


@pytest.mark.parametrize("after", [None, 0, (), "state", torch.zeros(1)], ids=str)
def test_the_number_of_frames_is_the_blocks_whatever_the_state(after):
    """Catches: a codec that returns None as its state, by which every block counts as the clip's first."""
    states = []

    def decode(latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        states.append(state)
        return torch.zeros(1, 9 if len(states) == 1 else 12, 3, 64, 64), after

    codec = checked("codec", Part(**vars(VAE), decode=decode, encode=max))
    first, state = codec.decode(GOOD)
    second, _ = codec.decode(GOOD, state)
    assert (first.shape[1], second.shape[1]) == (9, 12)
    assert states[0] is None
    assert states[1] is after
    stateless = Part(**vars(VAE), decode=lambda *_: (FRAMES_64, after), encode=max)
    _, state = checked("codec", stateless).decode(GOOD)
    with pytest.raises(BadInput, match="returned 1 x 9 x 3 x 64 x 64; return 1 x 12 x 3 x 64 x 64"):
        checked("codec", stateless).decode(GOOD, state)


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
def test_an_exception_of_a_part_is_a_sentence_that_names_both_and_keeps_its_trace(name):
    """The kind: anything that others raise, in every call of every role. Catches: a trace that names no part."""
    use, luck = CALLS[name], OutOfLuck("no luck\ntoday")
    with pytest.raises(BadInput) as refused:
        use(Unlucky(luck))
    role = name.partition(" ")[0].removesuffix("'s")
    part = "Part" if role == "router" else "Unlucky"
    assert str(refused.value) == f"the {role} {part} raised OutOfLuck (no luck); mend it"
    assert refused.value.__cause__ is luck
    stops = (KeyboardInterrupt(), SystemExit(2), GeneratorExit())
    for passed in (MemoryError(), torch.OutOfMemoryError(), BadInput("a; b"), *stops):
        with pytest.raises(type(passed)) as came:
            use(Unlucky(passed))
        assert came.value is passed


def test_a_router_whose_attribute_raises_is_named():
    with pytest.raises(BadInput, match=r"the router Undecided raised OutOfLuck \(no luck\); mend it"):
        assert Custom(Undecided()).needs_scorer  # the first asks before Python 3.12, the second always


def test_what_a_scorer_writes_into_its_frames_is_not_in_the_video():
    """As one that normalises them in place does. Catches: pixels that are shown, or kept, changed by it."""
    frames = torch.ones(1, 9, 3, 8, 8)
    scorer = checked("scorer", Part(score=lambda given, _: given.zero_()[0, :, 0, 0, 0], describe=dict))
    assert torch.equal(scorer.score(frames, ""), torch.zeros(9))
    assert torch.equal(frames, torch.ones(1, 9, 3, 8, 8))


def test_a_router_of_your_own_decides_by_the_worst_frame():
    policy = Custom(Part(needs_scorer=True, keep=lambda index, score: score > index))
    assert policy.needs_scorer
    assert policy.decide_early(2, ()) is None
    kept, dropped = (policy.decide(2, (4.0, worst)) for worst in (3.0, 1.0))
    assert (kept.accepted, kept.score, kept.reason.value) == (True, 3.0, "the router keeps the draft")
    assert (dropped.accepted, dropped.reason.value) == (False, "the router rejects the draft")


def test_a_part_without_a_key_is_never_the_same_again_and_the_report_says_so():
    keyed, unkeyed = Part(key="1"), Part()
    assert part_key(keyed) == part_key(Part(key="1")) != part_key(Part(key="2"))
    assert part_key(unkeyed) != part_key(unkeyed)
    assert outside_note("scorer", keyed) == "The scorer is Part, from outside."
    assert "nothing it made is used again" in outside_note("scorer", unkeyed)
