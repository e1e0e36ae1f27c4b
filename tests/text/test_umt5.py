"""The text encoder: embeddings bit for bit those of transformers, from every layout of the weights."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from sdvg_core.errors import BadInput
from sdvg_core.loading.inspection import inspect_file
from sdvg_core.text.prompts import clean_prompt
from sdvg_core.text.umt5 import load_tokenizer, load_umt5, read_umt5_sizes
from sdvg_core.weights.model_files import TEXT_ENCODER
from sdvg_core.weights.weight_file import TensorInfo, WeightFile
from tests.support.random_set import umt5_to_comfy

LINES = [
    "a small boat crosses the calm lake at dawn",
    "the red kite climbs over the harbour wall",
    "rain falls on the empty street while lamps glow",
    "two dogs run along the beach and chase a ball",
    "she reads a letter by the window, snow falls outside",
    "quick steps, slow waves, bright light",
]
LONG = " ".join(LINES * 20)
PROMPTS = {
    "short": "a red boat",
    "long": LONG,
    "unknown pieces": "a boat named Ωmega 7",
    "spaces": "  the  calm\tlake\n at dawn ",
    "entities": "dogs &amp;amp; a kite",
}
ROWS = 96


# --- the reference: transformers, used the ordinary way


def tokenizer_json(spiece):
    """The same vocabulary as `tokenizer.json`, with the template that appends the end token."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=spiece)
    vocabulary = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(pieces.get_piece_size())]
    fast = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=2))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", fast.token_to_id("</s>"))]
    )
    return fast.to_str()


@pytest.fixture(scope="module")
def spiece():
    return trained_pieces(eos_id=1, unk_id=2)


def trained_pieces(**ids):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=64,
        normalization_rule_name="identity",
        pad_id=0,
        bos_id=-1,
        **ids,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def words(spiece, tmp_path_factory):
    """A folder with the tokenizer, and with the same for transformers."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "spiece.model").write_bytes(spiece)
    (folder / "tokenizer.json").write_text(tokenizer_json(spiece), encoding="utf-8")
    return folder


def make_model(**sizes):
    usual = {"vocab_size": ROWS, "d_model": 24, "d_kv": 4, "d_ff": 40, "num_layers": 3, "num_heads": 2}
    config = UMT5Config(**usual | sizes)
    model = UMT5EncoderModel(config).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def released(model, words, tmp_path_factory):
    """A diffusers folder, weights in shards."""
    folder = tmp_path_factory.mktemp("released")
    model.save_pretrained(folder / "text_encoder", max_shard_size="20KB")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "spiece.model").write_bytes((words / "spiece.model").read_bytes())
    return folder


def reference_ids(words, prompt):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(words / "tokenizer.json"), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    cleaned = re.sub(r"\s+", " ", prompt.replace("&amp;amp;", "&")).strip()
    return tokenizer(cleaned, padding="max_length", max_length=512, truncation=True, return_tensors="pt")


@torch.inference_mode()
def reference_embedding(model, words, prompt):
    tokens = reference_ids(words, prompt)
    hidden = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
    length = int(tokens.attention_mask.sum())
    hidden[:, length:] = 0
    return hidden


# --- parity


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_ids_are_those_of_transformers(words, prompt):
    ids = load_tokenizer(words).ids(clean_prompt(prompt), 512)
    expected = reference_ids(words, prompt)
    assert ids == expected.input_ids[expected.attention_mask.bool()].tolist()


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_embedding_is_transformers_with_zeros_after_end(model, words, released, prompt):
    embedding = load_umt5(released, dtype=torch.float32).encode(prompt)
    assert embedding.shape == (1, 512, 24)
    assert torch.equal(embedding, reference_embedding(model, words, prompt))


def test_bfloat16_embedding_is_transformers(model, words, released):
    halved = UMT5EncoderModel.from_pretrained(released / "text_encoder").to(torch.bfloat16).eval()
    embedding = load_umt5(released).encode("the calm lake")
    assert embedding.dtype == torch.bfloat16
    assert torch.equal(embedding, reference_embedding(halved, words, "the calm lake"))


def test_overlong_prompt_keeps_its_end_token(words, released, logged):
    """Catches a cut that takes the end token with it."""
    tokenizer = load_tokenizer(words)
    whole = tokenizer.pieces.encode(LONG)
    assert len(whole) > 600
    ids = tokenizer.ids(LONG, 512)
    assert ids == [*whole[:511], tokenizer.pieces.eos_id()]
    assert f"has {len(whole) + 1} tokens; the last {len(whole) - 511} are ignored" in logged.getvalue()
    assert load_umt5(released).encode(LONG)[0, 511].any()


# --- weights as published


def to_original(weights):
    """Return the weights under the names of the original release."""
    moves = [
        (r"^shared", "token_embedding"),
        (r"^encoder\.final_layer_norm", "norm"),
        (r"^encoder\.block\.(\d+)\.", r"blocks.\1."),
        (r"layer\.0\.layer_norm", "norm1"),
        (r"layer\.1\.layer_norm", "norm2"),
        (r"layer\.0\.SelfAttention\.relative_attention_bias", "pos_embedding.embedding"),
        (r"layer\.0\.SelfAttention\.", "attn."),
        (r"layer\.1\.DenseReluDense\.wi_0", "ffn.gate.0"),
        (r"layer\.1\.DenseReluDense\.wi_1", "ffn.fc1"),
        (r"layer\.1\.DenseReluDense\.wo", "ffn.fc2"),
    ]
    renamed = {}
    for name, tensor in weights.items():
        for old, new in moves:
            name = re.sub(old, new, name)
        renamed[name] = tensor
    return renamed


def weights_of(model):
    return {name: t.clone() for name, t in model.state_dict().items() if name != "encoder.embed_tokens.weight"}


def as_comfy(model, folder, spiece):
    path = folder / "umt5_xxl.safetensors"
    save_file(umt5_to_comfy(model.state_dict(), spiece), path)
    return path


def as_original(model, folder, spiece):
    path = folder / "models_t5_umt5-xxl-enc.pth"
    torch.save(to_original(weights_of(model)), path)
    (folder / "google" / "umt5-xxl").mkdir(parents=True)
    (folder / "google" / "umt5-xxl" / "spiece.model").write_bytes(spiece)
    return path


def as_whole_umt5(model, folder, spiece):
    """A checkpoint of encoder and decoder, which names the token table as the encoder's."""
    path = folder / "model.safetensors"
    weights = weights_of(model)
    weights["encoder.embed_tokens.weight"] = weights.pop("shared.weight")
    save_file({**weights, "decoder.final_layer_norm.weight": torch.ones(24), "lm_head.weight": torch.ones(2)}, path)
    (folder / "spiece.model").write_bytes(spiece)
    return path


def as_both_tables(model, folder, spiece):
    """What transformers has in memory: the token table under two names."""
    path = folder / "pytorch_model.bin"
    table = model.state_dict()["shared.weight"].clone()
    torch.save({**weights_of(model), "encoder.embed_tokens.weight": table}, path)
    (folder / "spiece.model").write_bytes(spiece)
    return path


def as_part(model, folder, spiece):
    """A saved pipeline, or a file with all models, as ComfyUI writes it."""
    path = folder / "all.safetensors"
    encoder = umt5_to_comfy(model.state_dict(), spiece)
    part = {f"text_encoders.umt5xxl.transformer.{name}": tensor for name, tensor in encoder.items()}
    part["text_encoders.spiece_model"] = part.pop("text_encoders.umt5xxl.transformer.spiece_model")
    save_file({**part, "vae.conv1.weight": torch.ones(1), "logit_scale": torch.ones(1)}, path)
    return path


def as_original_part(model, folder, spiece):
    """The original release's names in a saved pipeline."""
    path = as_original(model, folder, spiece)
    weights = torch.load(path, weights_only=True)
    torch.save({f"text_encoder.{name}": tensor for name, tensor in weights.items()}, path)
    return path


LAYOUTS = [as_comfy, as_original, as_whole_umt5, as_both_tables, as_part, as_original_part]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_published_layouts_hold_the_same_encoder(model, words, spiece, tmp_path, layout):
    encoder = load_umt5(layout(model, tmp_path, spiece), dtype=torch.float32)
    assert torch.equal(encoder.encode("a red boat"), reference_embedding(model, words, "a red boat"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_stated_tokenizer_goes_before_any_other(model, words, tmp_path, layout):
    """Catches: `--tokenizer` without effect, as another one is in the file or beside it."""
    path = layout(model, tmp_path, trained_pieces(eos_id=2, unk_id=1))
    meant = reference_embedding(model, words, "a red boat")
    assert not torch.equal(load_umt5(path, dtype=torch.float32).encode("a red boat"), meant)
    for stated in (words, words / "spiece.model"):
        encoder = load_umt5(path, tokenizer=stated, dtype=torch.float32)
        assert torch.equal(encoder.encode("a red boat"), meant)


def test_doctor_recognises_an_encoder_under_a_prefix(model, spiece, tmp_path):
    facts = inspect_file(as_part(model, tmp_path, spiece))
    assert (facts["kind"], facts["would load"]) == (TEXT_ENCODER, "yes")


def test_two_encoders_in_a_file_are_refused(model, tmp_path):
    """Catches: the first of two, which may be another model's."""
    weights = weights_of(model)
    both = {f"{prefix}.{name}": tensor.clone() for prefix in ("t5", "umt5") for name, tensor in weights.items()}
    save_file(both, tmp_path / "all.safetensors")
    with pytest.raises(BadInput, match=r"several text encoders \(t5\., umt5\.\)"):
        load_umt5(tmp_path / "all.safetensors")


MARK = torch.frombuffer(bytearray(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)


def quantise(weights, scale_name):
    """Return tensors as ComfyUI quantises them, and the weights that they stand for."""
    stored = {}
    meant = {}
    for name, tensor in weights.items():
        layer = name.rpartition(".")[0]
        if layer.endswith((".q", ".k", ".v", ".o", "wi_0", "wi_1", "wo")):
            scale = tensor.abs().max() / 448
            stored[name] = (tensor / scale).to(torch.float8_e4m3fn)
            meant[name] = stored[name].float() * scale
            stored[f"{layer}.{scale_name}"] = scale
        else:
            stored[name] = tensor
            meant[name] = tensor
    return stored, meant


Q = "encoder.block.0.layer.0.SelfAttention.q"


@pytest.mark.parametrize(
    "scale_name, extras",
    [
        ("scale_weight", {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}),
        ("weight_scale", {f"{Q}.input_scale": torch.ones(()), f"{Q}.comfy_quant": MARK}),
    ],
)
def test_scaled_fp8_is_multiplied_by_its_scale(model, words, tmp_path, scale_name, extras):
    stored, meant = quantise(weights_of(model), scale_name)
    save_file({**stored, **extras}, tmp_path / "fp8.safetensors")
    twin = make_model()
    twin.load_state_dict(meant, strict=False)
    encoder = load_umt5(tmp_path / "fp8.safetensors", tokenizer=words, dtype=torch.float32)
    embedding = encoder.encode("a red boat")
    assert torch.equal(embedding, reference_embedding(twin, words, "a red boat"))
    assert not torch.equal(embedding, reference_embedding(model, words, "a red boat"))


def test_sizes_come_from_the_shapes(words, spiece, tmp_path):
    """More heads times head width than channels, one layer, fewer buckets."""
    model = make_model(d_model=8, d_kv=6, d_ff=12, num_layers=1, num_heads=4, relative_attention_num_buckets=8)
    encoder = load_umt5(as_comfy(model, tmp_path, spiece), dtype=torch.float32)
    assert torch.equal(encoder.encode("a red boat"), reference_embedding(model, words, "a red boat"))


# --- refusals

BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
WO = "encoder.block.1.layer.1.DenseReluDense.wo"
SPOILED = {
    "is no UMT5, with .*; give umt5_xxl": lambda w: {"blocks.0.self_attn.q.weight": torch.ones(2, 2)},
    "is no UMT5, with a position bias in every layer": lambda w: {
        n: t for n, t in w.items() if n == BIAS or "attention_bias" not in n
    },
    "it lacks encoder.block.0.layer.1.DenseReluDense.wi_0.weight": lambda w: {
        n.replace("wi_0", "wi"): t for n, t in w.items()
    },
    f"lacks {WO}.weight;": lambda w: {n: t for n, t in w.items() if n != f"{WO}.weight"},
    "has the unknown pooler.weight": lambda w: {**w, "pooler.weight": torch.ones(1)},
    f"has another shape for {WO}.weight": lambda w: {**w, f"{WO}.weight": torch.ones(24, 9)},
    "for float32 .*, not one number": lambda w: {**w, f"{WO}.weight_scale": torch.ones(24)},
}


def test_umt5_xxl_without_its_last_layer_is_refused():
    shapes = {name: tuple(tensor.shape) for name, tensor in weights_of(make_model(num_layers=23)).items()}
    info = {name: TensorInfo(shape, torch.float16) for name, shape in shapes.items()}
    info["shared.weight"] = TensorInfo((256384, 4096), torch.float16)
    file = WeightFile(Path("xxl.safetensors"), "", info, lambda name: torch.ones(1), {name: name for name in info})
    with pytest.raises(BadInput, match=r"has 23 of umt5-xxl's 24 layers"):
        read_umt5_sizes(file)


@pytest.mark.parametrize("fault", SPOILED)
def test_incomplete_or_foreign_encoder_is_refused(tmp_path, words, fault):
    save_file(SPOILED[fault](weights_of(make_model())), tmp_path / "sample.safetensors")
    with pytest.raises(BadInput, match=fault):
        load_umt5(tmp_path / "sample.safetensors", tokenizer=words)


@pytest.mark.parametrize("rows", [3, 1000])
def test_tokenizer_of_another_model_is_refused(tmp_path, words, rows):
    """Catches: ids beyond the table, which crash in the layers, and too few ids, which are other words."""
    save_file(weights_of(make_model(vocab_size=rows)), tmp_path / "sample.safetensors")
    with pytest.raises(BadInput, match=rf"has \d+ entries, not the {rows} of"):
        load_umt5(tmp_path / "sample.safetensors", tokenizer=words)


def test_missing_tokenizer_is_refused_with_its_source(tmp_path):
    save_file(weights_of(make_model()), tmp_path / "sample.safetensors")
    with pytest.raises(BadInput, match="google/umt5-xxl from Hugging Face"):
        load_umt5(tmp_path / "sample.safetensors")


@pytest.mark.parametrize(
    "name, content", [("spiece.model", b"no model"), ("spiece.model", b""), ("vocab.txt", b"boat")]
)
def test_file_that_is_no_tokenizer_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match="is damaged"):
        load_tokenizer(tmp_path / name)


def test_tokenizer_without_end_token_is_refused(tmp_path):
    (tmp_path / "spiece.model").write_bytes(trained_pieces(eos_id=-1, unk_id=1))
    with pytest.raises(BadInput, match=r"spiece\.model has no end token;"):
        load_tokenizer(tmp_path)
