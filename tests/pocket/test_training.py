"""What is trained is what runs, batched and with gradients."""

import pytest
import torch
from tiny import as_anchors, random_tree

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.context import AnchorEncoder, Recompute
from sdvg_core.causal_wan.generator import CausalWanGenerator, Wan
from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.engine.inputs import BlockCall, KeyedNoise
from sdvg_core.engine.types import Block, Condition, History, Span
from sdvg_core.models.loading import encode_prompts
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from training.causal import SCHEDULE, Prompted
from training.measure_pair import HandedOver
from training.shipped import Shipped

SIZES = WanConfig(dim=128, ffn_dim=256, num_layers=2, num_heads=1, text_dim=16)
NOISE = KeyedNoise(seed=1, channels=16, height=8, width=8)
LENGTHS = (9, 5)


@pytest.mark.parametrize("block", [0, 1])
def test_a_batch_samples_what_the_engine_makes_of_each_prompt_with_all_its_padding(block):
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
        policy = Recompute(encode_anchor=AnchorEncoder(lambda frame: frame))
        wan = Wan(tree=tree, ops=TorchOps(torch.float32), preset=get_preset("custom"), device=torch.device("cpu"))
        engine = CausalWanGenerator(wan, name="it", context=policy)
        made = engine.generate(BlockCall(history, span, NOISE, condition)).latents
        torch.testing.assert_close(sampled[i : i + 1], made, atol=1e-5, rtol=0)


# --- the pair

CALLED = "a big red ball drifts right from the left behind a small yellow box at the middle over night"


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return Shipped()


def test_the_text_encoder_says_what_the_engine_hears(shipped):
    embedding, real = shipped.embed([CALLED])
    expected = encode_prompts(trained_set(), (CALLED,), pocket_options())[CALLED]
    assert torch.allclose(embedding[0], expected[0, : real.sum()], atol=1e-5)


def test_handed_over_the_drafter_begins_and_the_target_ends(shipped):
    heard, context = shipped.embed([CALLED]), torch.randn(1, 16, 3, 8, 8)
    both = HandedOver(shipped.models, *heard).see(context)
    x = torch.randn(1, 16, 3, 8, 8)
    with torch.no_grad():
        for step, role in zip(SCHEDULE, ("drafter", "drafter", "target", "target"), strict=True):
            alone = Prompted(shipped.models[role], *heard).see(context)
            assert torch.equal(both.velocity(x, step.timestep), alone.velocity(x, step.timestep))
