"""Parts that others write in whole videos: the toys in docs/examples/, and what the protocols allow."""

import runpy
from pathlib import Path

import pytest
from PIL import Image

from sdvg_core import BadInput, Custom, Route, Streamer, VideoRequest, make, pocket_options, trained_set
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Generated
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.fields import as_json
from sdvg_core.settings.parts import PROTOCOLS
from sdvg_core.settings.route import Budget, Gate
from sdvg_core.videos import stream
from tests.support.outside_parts import Part, PlainRouter

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
    streamer = Streamer(trained_set(), pocket_options(), router=PlainRouter())
    with pytest.raises(BadInput, match="a budget chooses the route"):
        streamer.stream(VideoRequest(route=Budget(0.5)), TEXT)


def test_custom_router_keeps_what_is_around_it():
    """Catches: blocks by rule, or an end after rejections, that were asked for and dropped with the policy."""
    streamer = Streamer(trained_set(), pocket_options(), router=PlainRouter(needs_scorer=True))
    route = Route(Gate(forced_blocks=0, bail_out=1), handover=1)
    blocks = list(streamer.stream(VideoRequest(blocks=3, width=64, height=64, route=route), TEXT))
    records = [block.record for block in blocks]
    reasons = [Reason.ROUTER_KEPT, Reason.ROUTER_REMADE, Reason.BAILED_OUT]
    assert [record.decision.reason for record in records] == reasons
    assert [record.handover for record in records] == [0, 1, 1]
