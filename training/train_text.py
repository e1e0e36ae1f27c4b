"""Train the pocket text encoder: the UMT5 architecture, on what the prompts of the small world say.

    python -m training.train_text [--steps 1500] [--seed 0] [--start out/training/text.pt]

A query for every slot of the grammar looks at the tokens and must name the word in the slot, or that it is left
open. So each token comes to know which thing it belongs to; the transformers' cross-attention then finds it. The
queries are thrown away.

With `--start` an earlier encoder learns more, and the embeddings of prompts that leave nothing open stay what they
were, so that transformers trained on them need not learn them anew.
"""

from __future__ import annotations

import argparse
import copy
import io
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import UMT5Config, UMT5EncoderModel

from research.world import draw_scene
from sdvg_core.pocket import world
from sdvg_core.pocket.world import Scene, Thing

from .common import WORK, Log, falling_rate, save_checkpoint, seeded, set_rate
from .open_prompts import draw_open_scene, left_open

WIDTH = 128
CONFIG = UMT5Config(
    vocab_size=256,
    d_model=WIDTH,
    d_kv=32,
    d_ff=256,
    num_layers=3,
    num_heads=4,
    feed_forward_proj="gated-gelu",
    dropout_rate=0.0,
)
SLOTS: tuple[tuple[str, ...], ...] = (
    *(
        2
        * (
            ("", *world.RADII),
            tuple(world.COLOURS),
            world.SHAPES,
            ("", *world.PLACES),
            ("", *world.PACES),
            ("", *world.DIRECTIONS),
        )
    ),
    ("", "in front of", "behind", "beside"),
    ("", *world.GROUNDS),
)
"""What each slot may hold; the second thing's slots are not asked for if there is none."""


def grammar_words() -> tuple[str, ...]:
    """Return every word of the grammar, once, in a fixed order."""
    options = (world.RADII, world.COLOURS, world.SHAPES, world.PACES, world.DIRECTIONS, world.PLACES, world.GROUNDS)
    phrases = (
        "a",
        "from the",
        "at the",
        "in front of",
        "behind",
        "beside",
        "over",
        *(o for part in options for o in part),
    )
    return tuple(dict.fromkeys(word for phrase in phrases for word in phrase.split()))


def sentencepiece_model() -> bytes:
    """Train a tokenizer in which every word of the grammar is a token of its own; the same bytes every time."""
    import sentencepiece

    words = grammar_words()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*words] * 50),
        model_writer=model,
        model_type="bpe",
        vocab_size=CONFIG.vocab_size,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


class Tokens:
    """Prompts as token ids, padded to the longest of a batch."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)

    def __call__(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        """Return ids `b m` and which of them are real."""
        ids = [[*self._model.encode(prompt), 1] for prompt in prompts]
        longest = max(map(len, ids))
        real = torch.tensor([[i < len(row) for i in range(longest)] for row in ids])
        return torch.tensor([row + [0] * (longest - len(row)) for row in ids]), real


class SlotReader(nn.Module):
    """A query per slot over the encoder's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, len(SLOTS), WIDTH))
        self.look = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.names = nn.ModuleList(nn.Linear(WIDTH, len(options)) for options in SLOTS)

    def forward(self, hidden: Tensor, real: Tensor) -> list[Tensor]:
        """Return the logits of every slot."""
        found, _ = self.look(self.queries.expand(len(hidden), -1, -1), hidden, hidden, key_padding_mask=~real)
        return [name(found[:, i]) for i, name in enumerate(self.names)]


def slots_of(scene: Scene) -> list[int]:
    """Return the right answer for every slot; -100 where there is nothing to ask."""

    def of_thing(thing: Thing | None) -> list[str | None]:
        if thing is None:
            return [None] * 6
        return [thing.size, thing.colour, thing.shape, thing.place, thing.pace, thing.direction]

    words = [*of_thing(scene.mover), *of_thing(scene.other), scene.relation, scene.ground]
    return [-100 if word is None else options.index(word) for word, options in zip(words, SLOTS, strict=True)]


KEEP_WEIGHT = 20.0
"""Of the squared difference from the embeddings of an earlier encoder, whose values are of the order of one."""


def any_scene(generator: random.Random, held_out: bool) -> Scene:
    """Draw a scene; every second one leaves something open."""
    draw = generator.choice((draw_scene, draw_open_scene))
    return draw(generator, held_out=held_out)


def main() -> None:
    """Train, measure on held-out prompts, save."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--start", type=Path, help="an earlier encoder to go on from")
    args = options.parse_args()

    torch.manual_seed(args.seed)
    pieces = sentencepiece_model()
    tokens, encoder, reader = Tokens(pieces), UMT5EncoderModel(CONFIG), SlotReader()
    before = None
    if args.start:
        saved = torch.load(args.start, weights_only=True)
        pieces = saved["pieces"].numpy().tobytes()
        tokens = Tokens(pieces)
        encoder.load_state_dict(saved["weights"])
        before = copy.deepcopy(encoder).requires_grad_(False)
    parameters = [*encoder.parameters(), *reader.parameters()]
    optimiser, log = torch.optim.AdamW(parameters, lr=2e-3), Log(WORK / "text.jsonl")

    def answers(step: int, held_out: bool, count: int) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return what is named, what is right, and how far off determined prompts' embeddings are."""
        generator = seeded(args.seed, "text", step, held_out)
        scenes = [any_scene(generator, held_out) for _ in range(count)]
        ids, real = tokens([scene.text for scene in scenes])
        hidden = encoder(input_ids=ids, attention_mask=real.long()).last_hidden_state
        off = torch.zeros(())
        if before is not None:
            known = real & torch.tensor([not left_open(scene) for scene in scenes])[:, None]
            earlier = before(input_ids=ids, attention_mask=real.long()).last_hidden_state
            off = (hidden - earlier)[known].square().mean()
        return reader(hidden, real), torch.tensor([slots_of(scene) for scene in scenes]), off

    for step in range(args.steps):
        set_rate(optimiser, falling_rate(step, args.steps, 2e-3))
        logits, right, off = answers(step, False, 128)
        loss = sum(nn.functional.cross_entropy(logit, right[:, i]) for i, logit in enumerate(logits)) / len(SLOTS)
        loss = loss + KEEP_WEIGHT * off
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if (step + 1) % 100 == 0:
            log(step=step + 1, loss=loss.item(), off=off.item())
    with torch.no_grad():
        logits, right, off = answers(0, True, 1000)
    asked = right != -100
    correct = torch.stack([logit.argmax(dim=1) for logit in logits], dim=1) == right
    log(
        held_out_slots=(correct & asked).sum().item() / asked.sum().item(),
        worst_slot=((correct | ~asked).float().mean(dim=0)).min().item(),
        off=off.item(),
    )
    save_checkpoint(
        WORK / "text.pt",
        weights=encoder.state_dict(),
        pieces=torch.frombuffer(bytearray(pieces), dtype=torch.uint8),
    )


if __name__ == "__main__":
    main()
