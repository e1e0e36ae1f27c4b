"""The shipped weights can be trained on: as checkpoints they are what the engine loads."""

from pathlib import Path

import pytest
import torch
from transformers import UMT5EncoderModel

from sdvg_core.pipeline.loading import encode_prompts
from sdvg_core.pocket import DEFAULT_PROMPT
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from training import restore
from training.causal import build, embed
from training.train_judge import build as build_judge
from training.train_text import CONFIG, Tokens
from training.train_transformer import MODELS, go_on_from
from training.train_vae import build as build_vae


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("restored")
    restore.main(folder)
    return folder


def test_what_is_there_already_is_kept(folder):
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    restore.main(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    models = {"drafter.pt", "target.pt", "vae.pt", "judge.pt", "text.pt"}
    assert set(before) == {*models, "reward.safetensors", "vocab.txt"}


@pytest.mark.parametrize("role", MODELS)
def test_a_transformer_goes_on_with_every_weight(folder, role):
    weights = torch.load(folder / f"{role}.pt", weights_only=True)["weights"]
    tree = build(MODELS[role])
    go_on_from(tree, weights)
    state = tree.state_dict()
    assert all(torch.equal(state[name], w) for name, w in weights.items())


def test_vae_and_judge_go_on_with_every_weight(folder):
    for name, build_it in {"vae": build_vae, "judge": build_judge}.items():
        build_it().load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True)["weights"])


def test_the_text_encoder_says_what_the_engine_hears(folder):
    saved = torch.load(folder / "text.pt", weights_only=True)
    encoder = UMT5EncoderModel(CONFIG).eval()
    encoder.load_state_dict(saved["weights"])
    found, real = embed(encoder, Tokens(saved["pieces"].numpy().tobytes()), [DEFAULT_PROMPT])
    expected = encode_prompts(trained_set(), (DEFAULT_PROMPT,), pocket_options())[DEFAULT_PROMPT]
    assert torch.allclose(found[0], expected[0, : real.sum()], atol=1e-5)
