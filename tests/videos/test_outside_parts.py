"""Parts that others write: the toys in docs/examples/, and what is refused of a part."""

import math
import re
import runpy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from thinned import every_pair
from torch import Tensor

from sdvg_core import BadInput, RouterConfig, Streamer, VideoRequest, make, pocket_options, trained_set
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.outside import cache_key, checked_parts, note_on
from sdvg_core.engine.types import Cost, Generated, Span
from sdvg_core.models import loading
from sdvg_core.settings.parts import FROM_0, FROM_1, METHOD, PROTOCOLS, TEXT, check_part
from sdvg_core.settings.route import decide, decide_early
from sdvg_core.videos import stream

ROOT = Path(__file__).resolve().parents[2]
TOYS = {
    "router_random": [
        f"made by the large model, {why}" if why else "draft kept"
        for why in (
            "by rule",
            "",
            "",
            "the route",
            "",
            "",
        )
    ],
    "scorer_brightness": ["made by the large model", "weakest frame 0.", "weakest frame 0.", "weakest frame 0."],
    "drafter_module": ["made by the large model", *["remade by the large model, weakest frame -1."] * 3],
}
SAID = "a big blue ball drifts right from the left over sand"
VAE = SimpleNamespace(latent_channels=16, temporal_stride=4, spatial_stride=8)


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_of_at_most_25_lines_makes_a_video(name, capsys):
    path = ROOT / "docs" / "examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 25
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(TOYS[name])
    assert all(words in line for line, words in zip(lines, TOYS[name], strict=True)), lines


class Part(SimpleNamespace):
    """A part with whatever attributes a test gives it."""


def model(predictions: Any, **other: Any) -> Part:
    shape = {"name": "m", "block_frames": 3, "latent_channels": 16, "anchor_horizon": 0}
    steps = {"timesteps": (1000.0, 500.0), "first_timesteps": (1000.0, 500.0)}
    return Part(**{**shape, **steps, "generate": lambda call: Generated(predictions), **other})


def call() -> BlockCall:
    noise: Any = SimpleNamespace(draw=lambda span, slot: torch.zeros(1, 16, 3, 8, 8))
    nothing: Any = None
    return BlockCall(nothing, Span(0, 0, 3), noise, nothing)


GOOD = torch.zeros(1, 16, 3, 8, 8)
FRAMES = torch.zeros(1, 9, 3, 8, 8)
FRAMES_64 = torch.zeros(1, 9, 3, 64, 64)


def checked(role: str, part: Part) -> Any:
    return checked_parts({role: part}, VAE)[role]


def describe(wrong: Any) -> Any:
    return checked("scorer", Part(score=1, describe=lambda: wrong)).describe()


# --- at the door

WHOLE = {
    "drafter": model((GOOD,)),
    "target": model((GOOD,)),
    "codec": Part(**vars(VAE), decode=max, encode=max),
    "scorer": Part(score=max, describe=dict),
    "router": Part(keep=max, needs_scorer=False),
}
NO_VALUES = {
    TEXT: (None, 1, b"name", ["name"]),
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
    *((role, "key", value) for role in PROTOCOLS for value in (1, None, object())),
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


@pytest.mark.parametrize("role", PROTOCOLS)
def test_every_part_is_checked_before_anything_is_read(role, monkeypatch):
    """Catches: weights that are read for a part that cannot be used."""
    monkeypatch.setattr(stream, "check_models", lambda *_: pytest.fail("the files are read"))
    with pytest.raises(BadInput, match=f"object is no {role}"):
        Streamer(trained_set(), pocket_options(), **{role: object()})


def test_a_router_of_other_types_is_refused():
    with pytest.raises(
        BadInput, match=r"^Part is no router without needs_scorer; give it what sdvg_core\.Router has$"
    ):
        RouterConfig(part=Part(keep=max))
    with pytest.raises(BadInput, match="has latent_channels 48; the VAE's is 16"):
        checked("drafter", model((), latent_channels=48))
    with pytest.raises(BadInput, match="the router Part answered 1 for block 4; return True or False"):
        decide_early(RouterConfig(part=Part(needs_scorer=False, keep=lambda *_: 1)), 3, ())


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
    "router": lambda part: decide(RouterConfig(part=Part(needs_scorer=True, keep=part.keep)), 1, (1.0,)),
    "router without scores": lambda part: decide_early(
        RouterConfig(part=Part(needs_scorer=False, keep=part.keep)), 3, ()
    ),
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
        assert RouterConfig(part=Undecided()).needs_scorer  # the first asks before Python 3.12, the second always


def test_what_a_scorer_writes_into_its_frames_is_not_in_the_video():
    """As one that normalises them in place does. Catches: pixels that are shown, or kept, changed by it."""
    frames = torch.ones(1, 9, 3, 8, 8)
    scorer = checked("scorer", Part(score=lambda given, _: given.zero_()[0, :, 0, 0, 0], describe=dict))
    assert torch.equal(scorer.score(frames, ""), torch.zeros(9))
    assert torch.equal(frames, torch.ones(1, 9, 3, 8, 8))


def test_a_router_of_your_own_decides_by_the_worst_frame():
    config = RouterConfig(part=Part(needs_scorer=True, keep=lambda index, score: score > index))
    assert config.needs_scorer
    assert decide_early(config, 2, ()) is None
    kept, dropped = (decide(config, 2, (4.0, worst)) for worst in (3.0, 1.0))
    assert (kept.accepted, kept.score, kept.reason.value) == (True, 3.0, "the router keeps the draft")
    assert (dropped.accepted, dropped.reason.value) == (False, "the router rejects the draft")
    assert decide(replace(config, directions="..r"), 2, (9.0,)).reason.value == "a direction rejects the draft"


def test_a_part_without_a_key_is_never_the_same_again_and_the_report_says_so():
    keyed, unkeyed = Part(key="1"), Part()
    assert cache_key(keyed) == cache_key(Part(key="1")) != cache_key(Part(key="2"))
    assert cache_key(unkeyed) != cache_key(unkeyed)
    assert note_on("scorer", keyed) == "The scorer is Part, from outside."
    assert "nothing it made is used again" in note_on("scorer", unkeyed)


def test_settings_name_a_router_of_your_own_and_are_as_before_without_one():
    assert "part" not in RouterConfig().settings
    part = Part(needs_scorer=False, keep=lambda *_: True)
    assert VideoRequest(router=RouterConfig(part=part)).router.settings["part"] == "Part"


# --- what the protocols allow makes a video, or is refused in a sentence


@dataclass
class PlainRouter:
    """A dataclass that compares by value, and so has no hash."""

    needs_scorer: bool = False

    def keep(self, index: int, score: float | None) -> bool:
        return index != 1


class Blur:
    """A model whose first frames share no list of steps, as the protocol allows."""

    name, block_frames, latent_channels, anchor_horizon = "blur", 3, 16, 0
    timesteps, first_timesteps = (1000.0, 750.0), ()

    def generate(self, call: BlockCall) -> Generated:
        noise = call.noise.draw(call.span, 0)
        return Generated((noise / 2, noise / 4)[: call.stop])


@pytest.mark.heavy
def test_a_router_without_a_hash_makes_a_video(tmp_path):
    """By both ways in. Catches: requests or routers that are kept in a dictionary or a cache with the router."""
    router = RouterConfig(part=PlainRouter())
    _, told = make(SAID, out=tmp_path, blocks=3, router=router)
    assert [block.author for block in told.blocks] == ["target", "target", "drafter"]
    streamer = Streamer(trained_set(), pocket_options(), router=PlainRouter(needs_scorer=True))
    blocks = list(streamer.stream(VideoRequest(blocks=3, width=64, height=64), SAID))
    assert [block.record.author for block in blocks] == ["target", "target", "drafter"]


@pytest.mark.heavy
@pytest.mark.parametrize("roles", [("target",), ("drafter",), ("drafter", "target")], ids=" and ".join)
def test_a_model_whose_first_block_has_no_list_of_steps_makes_a_video(roles, tmp_path):
    """From nothing, after a picture, and over a clip. Catches: a check of schedules that takes none as no step."""
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "picture.png")
    for number in range(9):
        (tmp_path / "clip").mkdir(exist_ok=True)
        Image.new("RGB", (64, 64), (20 * number, 90, 90)).save(tmp_path / "clip" / f"{number}.png")
    streamer = Streamer(trained_set(), pocket_options(), **{role: Blur() for role in roles})
    restyled = {"restyle": tmp_path / "clip", "blocks": 1, "strength": "0.5"}
    begins = [{}, {"start_image": tmp_path / "picture.png"}, restyled]
    for begin in begins:
        request = VideoRequest(**{"blocks": 2, "width": 64, "height": 64, **begin})
        made = list(streamer.stream(request, SAID))
        assert [block.record.author for block in made][:1] == ["target"]
        assert len(made) == request.blocks


def test_a_budget_and_a_router_of_your_own_are_refused_together():
    """Both choose the route. The kind: an option that the other one's note says has an effect."""
    with pytest.raises(BadInput) as refused:
        VideoRequest(budget=0.5, router=RouterConfig(part=PlainRouter()))
    assert str(refused.value) == "a budget chooses the route, and so does a router of your own; give one of them"
    streamer = object.__new__(Streamer)  # nothing is loaded for a refusal
    streamer._router = PlainRouter()
    with pytest.raises(BadInput, match="a budget chooses the route"):
        streamer.stream(VideoRequest(budget=0.5), SAID)
    assert VideoRequest(router=RouterConfig(part=PlainRouter())).budget is None


def drawn_model(random: Random, role: str) -> Any:
    """Return a model as the protocol allows: one to four steps, with or without a list for first blocks."""
    steps = tuple(
        sorted(random.sample((1000.0, 937.5, 833.3, 750.0, 625.0, 250.0), random.randint(1, 4)), reverse=True)
    )
    first = random.choice((steps, steps[-1:], ()))
    frames = 3 if role == "target" else random.choice((1, 3))

    def generate(call: BlockCall) -> Generated:
        noise = call.noise.draw(call.span, 0)
        own = first if call.span.index == 0 and first else steps
        return Generated(tuple(noise / (step + 2) for step in range(len(own)))[: call.stop])

    shape = {"name": "drawn", "block_frames": frames, "latent_channels": 16, "generate": generate}
    return Part(**shape, timesteps=steps, first_timesteps=first, anchor_horizon=random.choice((0, 3)))


def drawn_scorer(random: Random) -> Any:
    """Return a scorer whose scores may be anything, also no number."""
    values = [
        random.choice((random.gauss(0, 1), random.gauss(0, 1), float("nan"), float("inf"))) for _ in range(16)
    ]
    return Part(
        describe=lambda: {"name": "drawn"}, score=lambda frames, prompt: torch.tensor(values)[: frames.shape[1]]
    )


def drawn_codec(random: Random) -> Any:
    """Return a codec that shows latents as squares of colour, with a state of any kind and frames of any dtype."""
    dtype = random.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    after = random.choice((0, False, (), "state", torch.zeros(1)))

    def decode(latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        squares = latents[:, :3].sigmoid().repeat_interleave(8, 3).repeat_interleave(8, 4)
        frames = squares.movedim(2, 1).repeat_interleave(4, 1).to(dtype)
        return (frames[:, 3:] if state is None else frames), after

    def encode(frames: Tensor) -> Tensor:
        squares = frames[:, ::4, :1, ::8, ::8].movedim(1, 2).float()
        return squares.expand(-1, 16, -1, -1, -1)

    return Part(**vars(VAE), decode=decode, encode=encode)


def drawn_router(random: Random) -> Any:
    """Return a router of one's own, with or without a hash, or the settings of ours."""
    scored = random.random() < 0.5
    settings = {"forced_blocks": random.randint(0, 2), "handover": random.choice((0, 0, 0, 0, 2))}
    letters = "".join(random.choice(".adrt") for _ in range(3)) if random.random() < 0.4 else ""
    return random.choice(
        (
            RouterConfig(part=PlainRouter(needs_scorer=scored), directions=letters, **settings),
            RouterConfig(part=Part(needs_scorer=scored, keep=lambda index, score: index % 2 == 0), **settings),
            RouterConfig(policy=random.choice(("first", "reward")), directions=letters, **settings),
        )
    )


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(24), marks=pytest.mark.heavy),
        pytest.param(range(24, 2000), marks=pytest.mark.exhaustive),
    ],
    ids=["some", "2,000"],
)
def test_legal_parts_make_a_video_or_are_refused_in_a_sentence(seeds, monkeypatch):
    """The kind: an answer that a protocol allows and no code expects. Catches: anything raised but `BadInput`."""
    # Three quarters of a case were the decoder and the text encoder, read from their files again.
    files, options = trained_set(), pocket_options()
    decoder = loading.load_decoder(files.vae, options)
    embedding = loading.load_encoder(files, options)(SAID)
    monkeypatch.setattr(loading, "load_decoder", lambda *_: decoder)
    monkeypatch.setattr(stream, "load_encoder", lambda *_: lambda text: embedding)
    made = 0
    for seed in seeds:
        random = Random(seed)
        roles = random.choice((("target",), ("drafter",), ("drafter", "target")))
        parts = {role: drawn_model(random, role) for role in roles}
        parts |= {"codec": drawn_codec(random)} if random.random() < 0.75 else {}
        request = VideoRequest(blocks=3, width=16, height=16, router=drawn_router(random), seed=seed)
        refusal = ""
        try:
            streamer = Streamer(files, options, scorer=drawn_scorer(random), **parts)
            blocks = list(streamer.stream(request, SAID))
        except BadInput as error:
            refusal = str(error)
        if refusal:
            assert re.fullmatch(r"[^\n]+; [^\n]+", refusal), seed
            continue
        assert [block.record.span.index for block in blocks] == [0, 1, 2], seed
        assert all(block.frames.isfinite().all() for block in blocks), seed
        made += 1
    assert made > len(seeds) // 2, "most parts make one"
