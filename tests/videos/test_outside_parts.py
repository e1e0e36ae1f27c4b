"""Parts that others write in whole videos: the toys in docs/examples/, and what the protocols allow."""

import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from sdvg_core import BadInput, Custom, Route, Streamer, VideoRequest, make, pocket_options, trained_set
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Generated
from sdvg_core.loading import load as loading
from sdvg_core.settings.fields import as_json
from sdvg_core.settings.parts import PROTOCOLS
from sdvg_core.settings.route import Budget, First, Gate
from sdvg_core.videos import stream
from tests.support.outside_parts import VAE, Part

ROOT = Path(__file__).resolve().parents[2]
TOYS = {
    "router_random": [
        "made by the large model, by rule, whatever the route",
        "draft kept",
        "draft kept",
        "made by the large model, the route gives the block to the target",
        "draft kept",
        "draft kept",
    ],
    "scorer_brightness": ["made by the large model", "weakest frame 0.", "weakest frame 0.", "weakest frame 0."],
    "drafter_module": ["made by the large model", *["remade by the large model, weakest frame -1."] * 3],
}
TEXT = "a big blue ball drifts right from the left over sand"


@pytest.mark.parametrize("name", TOYS)
def test_example_of_25_lines_makes_a_video(name, capsys):
    path = ROOT / "docs" / "examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 25
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(TOYS[name])
    assert all(words in line for line, words in zip(lines, TOYS[name], strict=True)), lines


@pytest.mark.parametrize("role", PROTOCOLS)
def test_part_is_checked_before_files_are_read(role, monkeypatch):
    """Catches: weights that are read for a part that cannot be used."""
    monkeypatch.setattr(stream, "check_models", lambda *_: pytest.fail("the files are read"))
    with pytest.raises(BadInput, match=f"object is no {role}"):
        Streamer(trained_set(), pocket_options(), **{role: object()})


def test_report_names_a_custom_router():
    part = Part(needs_scorer=False, keep=lambda *_: True)
    assert as_json(Route(Custom(part)))["policy"]["router"] == "Part"


# --- what the protocols allow makes a video, or is refused in a sentence


@dataclass
class PlainRouter:
    """A dataclass that compares by value, and so has no hash."""

    needs_scorer: bool = False

    def keep(self, index: int, score: float | None) -> bool:
        return index != 1


class Blur:
    """A model whose first frames share no list of steps, as the protocol allows."""

    name = "blur"
    block_frames = 3
    latent_channels = 16
    anchor_horizon = 0
    timesteps = (1000.0, 750.0)
    first_timesteps = ()

    def generate(self, call: BlockCall) -> Generated:
        noise = call.noise.draw(call.span, 0)
        return Generated((noise / 2, noise / 4)[: call.stop])


@pytest.mark.heavy
def test_unhashable_router_makes_a_video(tmp_path):
    """By both ways in. Catches: requests or routers that are kept in a dictionary or a cache with the router."""
    _, report = make(TEXT, out=tmp_path, blocks=3, route=Route(Custom(PlainRouter())))
    assert [block.author for block in report.blocks] == ["target", "target", "drafter"]
    streamer = Streamer(trained_set(), pocket_options(), router=PlainRouter(needs_scorer=True))
    blocks = list(streamer.stream(VideoRequest(blocks=3, width=64, height=64), TEXT))
    assert [block.record.author for block in blocks] == ["target", "target", "drafter"]


@pytest.mark.heavy
@pytest.mark.parametrize("roles", [("target",), ("drafter",), ("drafter", "target")], ids=" and ".join)
def test_model_without_first_steps_makes_a_video(roles, tmp_path):
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
        blocks = list(streamer.stream(request, TEXT))
        assert blocks[0].record.author == "target"
        assert len(blocks) == request.blocks


def test_budget_excludes_a_custom_router():
    """Catches: two choices of the route, of which one has no effect."""
    streamer = object.__new__(Streamer)  # nothing is loaded for a refusal
    streamer._router = PlainRouter()
    with pytest.raises(BadInput, match="a budget chooses the route"):
        streamer.stream(VideoRequest(route=Budget(0.5)), TEXT)


def drawn_model(random: Random, role: str) -> Any:
    """Return a model as the protocol allows: one to four steps, with or without a list for first blocks."""
    steps = tuple(
        sorted(random.sample((1000.0, 937.5, 833.3, 750.0, 625.0, 250.0), random.randint(1, 4)), reverse=True)
    )
    first = random.choice((steps, steps[-1:], ()))
    frames = 3 if role == "target" else random.choice((1, 3))

    def generate(call: BlockCall) -> Generated:
        noise = call.noise.draw(call.span, 0)
        used = first if call.span.index == 0 and first else steps
        return Generated(tuple(noise / (step + 2) for step in range(len(used)))[: call.stop])

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


def drawn_route(random: Random) -> Route:
    """Return a route by a router of one's own, with or without a hash, or by a policy of ours."""
    scored = random.random() < 0.5
    forced = random.randint(0, 2)
    hashless = Part(needs_scorer=scored, keep=lambda index, score: index % 2 == 0)
    policies = (
        Custom(PlainRouter(needs_scorer=scored), forced_blocks=forced),
        Custom(hashless, forced_blocks=forced),
        First(forced),
        Gate(forced_blocks=forced),
    )
    return Route(random.choice(policies), handover=random.choice((0, 0, 0, 0, 2)))


def drawn_directions(random: Random) -> str:
    return "".join(random.choice(".adrt") for _ in range(3)) if random.random() < 0.4 else ""


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(24), marks=pytest.mark.heavy),
        pytest.param(range(24, 2000), marks=pytest.mark.exhaustive),
    ],
    ids=["some", "2,000"],
)
def test_legal_parts_make_video_or_are_refused(seeds, monkeypatch):
    """Catches: an answer that a protocol allows and no code expects, so that anything but `BadInput` is raised."""
    # Three quarters of a case were the decoder and the text encoder, read from their files again.
    files = trained_set()
    options = pocket_options()
    decoder = loading.load_decoder(files.vae, options)
    embedding = loading.load_encoder(files, options)(TEXT)
    monkeypatch.setattr(loading, "load_decoder", lambda *_: decoder)
    monkeypatch.setattr(stream, "load_encoder", lambda *_: lambda text: embedding)
    videos = 0
    for seed in seeds:
        random = Random(seed)
        roles = random.choice((("target",), ("drafter",), ("drafter", "target")))
        parts = {role: drawn_model(random, role) for role in roles}
        parts |= {"codec": drawn_codec(random)} if random.random() < 0.75 else {}
        route = drawn_route(random)
        directions = drawn_directions(random)
        request = VideoRequest(blocks=3, width=16, height=16, route=route, directions=directions, seed=seed)
        refusal = ""
        try:
            streamer = Streamer(files, options, scorer=drawn_scorer(random), **parts)
            blocks = list(streamer.stream(request, TEXT))
        except BadInput as error:
            refusal = str(error)
        if refusal:
            assert re.fullmatch(r"[^\n]+; [^\n]+", refusal), seed
            continue
        assert [block.record.span.index for block in blocks] == [0, 1, 2], seed
        assert all(block.frames.isfinite().all() for block in blocks), seed
        videos += 1
    assert videos > len(seeds) // 2, "most parts make one"
