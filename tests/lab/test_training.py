"""What is trained is what runs, batched and with gradients; the drafter's program for a GPU."""

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from lab.training import gpu_clips, train_drafter, train_hours
from lab.training.causal import FRAMES, SCHEDULE, Prompted
from lab.training.common import seeded
from lab.training.gpu_clips import Data, World
from lab.training.many_scenes import Scenes, quality, recognise
from lab.training.measure_pair import SEAMS, HandedOver, scenes_of
from lab.training.on_gpu import Gradients, HalfPrompted
from lab.training.roll_out import moment
from lab.training.shipped import Shipped, load_model
from lab.training.train_drafter import Trainer, first_losses, later_losses, main
from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.context import AnchorEncoder, RecomputedContext, Wan
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.engine.inputs import BlockCall, KeyedNoise
from sdvg_core.engine.types import Block, Condition, History, Span
from sdvg_core.loading.load import encode_prompts
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import REACH, judge
from sdvg_core.pocket.presence import at_its_place, presence
from sdvg_core.pocket.renderer import render_scene, render_with_mask
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.pocket.world import SIZE
from sdvg_core.settings.context import get_preset
from tests.support.tiny import as_anchors, random_tree

SIZES = WanConfig(dim=128, ffn_dim=256, num_layers=2, num_heads=1, text_dim=16)
NOISE = KeyedNoise(seed=1, channels=16, height=8, width=8)
LENGTHS = (9, 5)


@pytest.mark.parametrize("block", [0, 1])
def test_batch_samples_what_the_engine_makes(block):
    """Of each prompt with all its padding. Catches: padding that is attended to, a prompt that shows in another."""
    tree = random_tree(0, SIZES)
    draw = torch.Generator().manual_seed(2)
    embedding = torch.randn(2, max(LENGTHS), 16, generator=draw)
    context = torch.randn(2, 16, 3, 8, 8, generator=draw)
    real = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    span = Span(block, 3 * block, 3)
    prompted = Prompted(tree, embedding, real)
    if block:
        prompted.see(context)
    noises = [NOISE.draw(span, slot).expand(2, -1, -1, -1, -1) for slot in range(len(SCHEDULE))]
    sampled = prompted.sample(noises)

    for i, length in enumerate(LENGTHS):
        whole = torch.zeros(1, 512, 16)
        whole[0, :length] = embedding[i, :length]
        condition = Condition(whole, "")
        history = History(horizon=3)
        if block:
            stills = as_anchors(*[torch.zeros(1, 1, 3, 64, 64)] * 3)
            history = history.commit(Block(Span(0, 0, 3), context[i : i + 1], condition), stills)
        policy = RecomputedContext(encode_anchor=AnchorEncoder(lambda frame: frame))
        wan = Wan(tree=tree, ops=TorchOps(torch.float32), preset=get_preset("custom"), device=torch.device("cpu"))
        engine = CausalWanGenerator(wan, name="engine", context=policy)
        expected = engine.generate(BlockCall(history, span, NOISE, condition)).latents
        torch.testing.assert_close(sampled[i : i + 1], expected, atol=1e-5, rtol=0)


# --- the pair

CAPTION = "a big red ball drifts right from the left behind a small yellow box at the middle over night"


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return Shipped()


def test_training_embeds_prompts_like_the_engine(shipped):
    embedding, real = shipped.embed([CAPTION])
    expected = encode_prompts(trained_set(), (CAPTION,), pocket_options())[CAPTION]
    assert torch.allclose(embedding[0], expected[0, : real.sum()], atol=1e-5)


def test_handover_begins_with_the_drafter(shipped):
    embedding, real = shipped.embed([CAPTION])
    context = torch.randn(1, 16, 3, 8, 8)
    both = HandedOver(shipped.models, embedding, real).see(context)
    x = torch.randn(1, 16, 3, 8, 8)
    with torch.no_grad():
        for step, role in zip(SCHEDULE, ("drafter", "drafter", "target", "target"), strict=True):
            alone = Prompted(shipped.models[role], embedding, real).see(context)
            assert torch.equal(both.velocity(x, step.timestep), alone.velocity(x, step.timestep))


CPU = torch.device("cpu")


def test_many_scenes_equal_single_ones():
    """Pictures, the oracle's decibels, and the moment that late, early and spoiled frames show."""
    scenes = scenes_of(seeded(3, "many"), 8)
    many = Scenes.of(scenes, CPU)
    times = torch.arange(40)
    frames, visible = many.render(times.expand(8, -1))
    spoiled = (frames + 0.1 * torch.randn(frames.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    dB = quality(many, spoiled)
    ahead, errors, on_things = recognise(many, spoiled[:, 16:24], 13, 12)
    wrong = recognise(many, frames.flip(0)[:, 16:24], 13, 12)
    for number, scene in enumerate(scenes):
        picture, mask = render_with_mask(scene, times)
        torch.testing.assert_close(frames[number], picture)
        torch.testing.assert_close(visible[number].sum(dim=1, keepdim=True), mask)
        torch.testing.assert_close(dB[number], judge(spoiled[number], scene).quality)
        assert ahead[number] == moment(scene, spoiled[number, 16:24], 13)
        recognised = moment(scene, frames.flip(0)[number, 16:24], 13)
        assert (wrong[1][number] < 0.06) == (recognised is not None)
        assert errors[number] < 0.02
        assert on_things[number].max() < 0.02


def test_lost_things_are_recognised_as_lost():
    """In pictures of the ground alone."""
    many = Scenes.of(scenes_of(seeded(3, "many"), 8), CPU)
    bare = many.ground.mean(dim=1)[:, None, :, None, None].expand(-1, 8, -1, SIZE, SIZE)
    _, _, on_things = recognise(many, bare, 13, 12)
    assert (on_things.amax(dim=1) > 0.01).float().mean() > 0.9


def test_things_of_a_rendered_scene_are_present():
    [scene] = scenes_of(seeded(3, "many"), 1)
    times = torch.arange(8)
    assert presence(render_scene(scene, times), scene, times).nan_to_num(1).min() == 1


SMALL = WanConfig(dim=128, ffn_dim=64, num_layers=3, num_heads=1, text_dim=16)


@pytest.fixture
def tree():
    return random_tree(0, SMALL).requires_grad_()


def replaying(work):
    """Record as a CUDA graph does: the result has one place, which each replay fills anew."""
    result = work()
    return result, lambda: result.copy_(work())


def batches(count: int) -> list[tuple[torch.Tensor, ...]]:
    """Return batches of three: embeddings, which of their tokens are no padding, contexts and labels."""
    draw = torch.Generator().manual_seed(4)
    drawn = []
    for _ in range(count):
        context, label = torch.randn(2, 3, 16, 3, 8, 8, generator=draw)
        embedding = torch.randn(3, 7, 16, generator=draw)
        drawn.append((embedding, torch.ones(3, 7, dtype=torch.bool), context, label))
    return drawn


def test_recorded_step_gives_the_same_gradients(tree):
    """Catches: gradients added up from step to step, those of two kinds of step apart, a batch that is not read."""
    steps = {
        "later": Gradients(tree, lambda *batch: later_losses(tree, batch)),
        "first": Gradients(tree, lambda *batch: first_losses(tree, tree, batch)),
    }
    inputs = {"later": batches(3), "first": [batch[:2] for batch in batches(3)]}
    order = [(kind, number) for number in range(3) for kind in ("later", "first")]

    def all_steps() -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        results = []
        for kind, number in order:
            torch.manual_seed(number)
            losses = steps[kind](inputs[kind][number]).clone()
            results.append((losses, [weight.grad.clone() for weight in tree.parameters()]))
        return results

    plain = all_steps()
    for kind, step in steps.items():
        step.record(inputs[kind][0], replaying)
    for (losses, gradients), (expected, wanted) in zip(all_steps(), plain, strict=True):
        assert torch.equal(losses, expected)
        assert len(losses) == 3
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, wanted, strict=True))
    assert not torch.equal(plain[0][0], plain[2][0])


@pytest.mark.heavy
def test_stopped_training_resumes_its_rate(tmp_path, monkeypatch):
    """A clock that goes on by a second a look ends it, once in training and once in measuring.

    Catches: a run that begins anew, or whose rate falls from the top again.
    """
    ticks = iter(range(10_000))
    monkeypatch.setattr(train_drafter, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    often = {"CHECKED": 1, "LOOKED": 3, "SAVED": 2, "RESERVED": 4, "MEASURED": 1, "OWN_FROM": 0.5}
    for name, value in often.items():
        monkeypatch.setattr(train_drafter, name, value)
    monkeypatch.setattr(train_drafter, "World", cache(World))
    make = cache(Data.make)
    monkeypatch.setattr(Data, "make", lambda *drawn: replace(make(*drawn), own=[]))
    routes = {"anchor": ((1, "target"), (3, "drafter"))}
    monkeypatch.setattr(train_drafter, "ROUTES", routes)
    for name, value in {"RECOGNISED": 9.0, "LOST": 9.0, "ROUTES": routes, "SEAMS": SEAMS[:2]}.items():
        monkeypatch.setattr(gpu_clips, name, value)
    sizes = "--batch 4 --clips 1 --own 1 --held-back 2 --prompts 3 --device cpu"
    command = [str(tmp_path), *sizes.split()]
    look = Trainer._look
    with monkeypatch.context() as stopping:

        def stopped(trainer: Trainer, shown: object) -> None:
            if trainer.passed > 0.4:
                raise KeyboardInterrupt
            look(trainer, shown)

        stopping.setattr(Trainer, "_look", stopped)
        with pytest.raises(KeyboardInterrupt):
            main([*command, "--seconds", "24"])
    assert load_model(tmp_path / "drafter.safetensors").dim == 128
    main([*command, "--seconds", "16"])
    main([*command, "--seconds", "16"])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    begun = [line for line in lines if line.get("stage") == "data is there"]
    assert begun[0]["step"] == 0
    assert begun[0]["passed"] == 0
    assert begun[1]["step"] > 0
    assert 0 < begun[1]["passed"] < 1
    lots = [line for line in lines if "recognised" in line]
    assert lots
    assert all(line["recognised"] == 1 for line in lots), "all contexts count here"
    shown = [line for line in lines if "error_alone" in line and "passed" in line]
    assert shown[-1]["passed"] == 1
    assert {"made", "true", "own", "first"} <= {name for line in shown for name in line}
    assert lines[-1]["prompts"] == 3
    assert {"anchor before", "anchor after", "anchor change"} <= set(lines[-1])
    after = (tmp_path / "after.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["anchor"]) for line in after] == [3, 3, 3]


@pytest.mark.heavy
@pytest.mark.parametrize("role", train_hours.ROLES)
def test_killed_training_ends_like_an_unbroken_one(tmp_path, monkeypatch, role):
    """Catches: anything that a step draws or uses and the checkpoint does not hold."""
    often = {"LOT": 1, "LOTS_KEPT": 2, "LOOKED": 2, "SAVED": 0.0, "RECOGNISED": 9.0}
    for name, value in often.items():
        monkeypatch.setattr(train_hours, name, value)
    monkeypatch.setattr(gpu_clips, "LOST", 9.0)
    monkeypatch.setattr(train_hours, "World", cache(World))
    monkeypatch.setattr(train_hours, "CompiledPrompted", HalfPrompted)
    monkeypatch.setitem(train_hours.ROLES, role, replace(train_hours.ROLES[role], lot_every=2))
    sizes = ["--steps", "5", "--batch", "3", "--bench", "1"]
    train_hours.main([role, str(tmp_path / "whole"), *sizes])
    step = train_hours.Trainer.step
    with monkeypatch.context() as killing:

        def killed(trainer: train_hours.Trainer) -> dict[str, float]:
            if trainer.number == 3:
                raise KeyboardInterrupt
            return step(trainer)

        killing.setattr(train_hours.Trainer, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            train_hours.main([role, str(tmp_path / "killed"), *sizes])
    train_hours.main([role, str(tmp_path / "killed"), *sizes])
    weights = [(tmp_path / name / f"{role}.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert weights[0] != getattr(trained_set(), role).read_bytes()


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_compiled_layers_give_the_same_losses(shipped):
    """Catches: a rotation or a stage that means something else once it is compiled."""
    embedding, real = shipped.embed([CAPTION])
    context, label = torch.randn(2, 1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    losses = []
    for prompted in (HalfPrompted, train_hours.CompiledPrompted):
        torch.manual_seed(0)
        losses.append(later_losses(shipped.models["target"], (embedding, real, context, label), prompted))
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0)


# --- where the mover is

ALONE = parse("a big red ball crawls right from the left over night")


def test_mover_on_its_path_is_at_its_place():
    """Catches: a late or early mover counted as lost, one far off or of another colour counted as present."""
    times = torch.arange(FRAMES)
    other = parse("a big green ball crawls right from the left over night")
    away = parse("a big red ball crawls left from the right over night")
    assert at_its_place(render_scene(ALONE, times), ALONE).mean() == 1
    assert at_its_place(render_scene(ALONE, times + REACH), ALONE).mean() == 1
    assert at_its_place(render_scene(other, times), ALONE).mean() == 0
    assert at_its_place(render_scene(away, times[:20]), ALONE).mean() == 0


def test_presence_is_told_frame_by_frame():
    """Catches: a thing that was lost counted as there, for the frames before."""
    times = torch.arange(8)
    frames = render_scene(ALONE, times)
    frames[5:] = frames[5:].mean(dim=(2, 3), keepdim=True)
    assert presence(frames, ALONE, times).flatten().tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


def test_presence_ignores_the_other_thing():
    """Catches: another thing taken for the mover, a hidden mover counted as absent."""
    pair = parse("a small red ball crawls right from the left behind a big green box at the left over night")
    alone = parse("a big green box crawls right from the left over night")
    answers = at_its_place(render_scene(alone, torch.zeros(FRAMES)), pair)
    assert answers[0].isnan()
    assert answers[-1] == 0
