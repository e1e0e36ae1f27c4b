"""What is trained is what runs: the batched forward with gradients gives the blocks that the engine gives."""

import pytest
import torch

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.context import AnchorEncoder, Recompute
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.engine.history import History
from sdvg_core.engine.noise import KeyedNoise
from sdvg_core.engine.protocols import BlockCall
from sdvg_core.engine.types import Block, Condition, Span
from training.causal import SCHEDULE, Prompted, build

SIZES = WanConfig(dim=128, ffn_dim=256, num_layers=2, num_heads=1, text_dim=16)
NOISE = KeyedNoise(seed=1, channels=16, height=8, width=8)
LENGTHS = (9, 5)


@pytest.fixture(scope="module")
def tree():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tree = build(SIZES).requires_grad_(False)
        for weight in tree.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return tree


@pytest.mark.parametrize("block", [0, 1])
def test_a_batch_samples_what_the_engine_makes_of_each_prompt_with_all_its_padding(tree, block):
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
        condition = Condition(whole, "", "")
        history = History(horizon=3)
        if block:
            stills = (torch.zeros(1, 1, 3, 64, 64),) * 3
            history = history.commit(Block(Span(0, 0, 3), context[i : i + 1], condition), stills)
        policy = Recompute(encode_anchor=AnchorEncoder(lambda frame: frame))
        engine = CausalWanGenerator(tree, name="it", ops=TorchOps(torch.float32), context=policy, schedule=SCHEDULE)
        made = engine.generate(BlockCall(history, span, NOISE, condition)).latents
        torch.testing.assert_close(sampled[i : i + 1], made, atol=1e-5, rtol=0)
