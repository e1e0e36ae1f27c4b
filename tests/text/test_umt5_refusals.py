import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core.checkpoints.weights import TensorInfo, WeightFile
from sdvg_core.errors import BadInput
from sdvg_core.text.prompts import clean_prompt
from sdvg_core.text.tokenizer import load_tokenizer
from sdvg_core.text.umt5 import load_umt5, read_sizes

ROWS = 96
BLOCK = "encoder.block.{}."
BIAS = BLOCK + "layer.0.SelfAttention.relative_attention_bias.weight"


def make_weights(layers=2, rows=ROWS):
    """Weights with the names and shapes of a tiny UMT5 encoder."""
    weights = {"shared.weight": torch.ones(rows, 8), "encoder.final_layer_norm.weight": torch.ones(8)}
    for n in range(layers):
        block = BLOCK.format(n)
        for name in "qkvo":
            weights[f"{block}layer.0.SelfAttention.{name}.weight"] = torch.ones(8, 8)
        weights[BIAS.format(n)] = torch.ones(32, 2)
        weights |= {f"{block}layer.{i}.layer_norm.weight": torch.ones(8) for i in (0, 1)}
        weights |= {f"{block}layer.1.DenseReluDense.{w}.weight": torch.ones(16, 8) for w in ("wi_0", "wi_1")}
        weights[f"{block}layer.1.DenseReluDense.wo.weight"] = torch.ones(8, 16)
    return weights


WO = "encoder.block.1.layer.1.DenseReluDense.wo"
SPOILED = {
    "sample.safetensors is no UMT5; give models_t5": lambda w: {"blocks.0.self_attn.q.weight": torch.ones(2, 2)},
    "is a T5, with one position bias": lambda w: {n: t for n, t in w.items() if n != BIAS.format(1)},
    "it lacks encoder.block.0.layer.1.DenseReluDense.wi_0.weight": lambda w: {
        n.replace("wi_0", "wi"): t for n, t in w.items()
    },
    f"lacks {WO}.weight;": lambda w: {n: t for n, t in w.items() if n != f"{WO}.weight"},
    "has the unknown pooler.weight": lambda w: {**w, "pooler.weight": torch.ones(1)},
    f"has another shape for {WO}.weight": lambda w: {**w, f"{WO}.weight": torch.ones(8, 9)},
    "wo.weight_scale has the shape .* for 8 rows": lambda w: {
        **w,
        f"{WO}.weight": w[f"{WO}.weight"].to(torch.float8_e4m3fn),
        f"{WO}.weight_scale": torch.ones(8, 2),
    },
    "has a scale, but is float32": lambda w: {**w, f"{WO}.weight_scale": torch.ones(8)},
    "wo is nvfp4, and only": lambda w: {
        **w,
        f"{WO}.comfy_quant": torch.frombuffer(bytearray(b'{"format": "nvfp4"}'), dtype=torch.uint8),
    },
    "wi_0.weight is uint8, a quantisation": lambda w: {
        n: t.to(torch.uint8) if "1.DenseReluDense.wi_0" in n else t for n, t in w.items()
    },
}


def test_umt5_xxl_without_its_last_layer_is_no_smaller_encoder():
    shapes = {name: tuple(tensor.shape) for name, tensor in make_weights(layers=23).items()}
    info = {name: TensorInfo(shape, torch.float16) for name, shape in shapes.items()}
    info["shared.weight"] = TensorInfo((256384, 4096), torch.float16)
    file = WeightFile(Path("xxl.safetensors"), "", info, lambda name: torch.ones(1), {name: name for name in info})
    with pytest.raises(BadInput, match=r"has 23 of umt5-xxl's 24 layers"):
        read_sizes(file)


@pytest.fixture
def words(tmp_path):
    """A tokenizer of a few whole words."""
    import tokenizers

    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "boat": 3}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("words_of_error", SPOILED)
def test_a_file_that_is_not_the_whole_encoder_is_refused_by_name(tmp_path, words, words_of_error):
    save_file(make_weights(), tmp_path / "sample.safetensors")
    assert load_umt5(tmp_path / "sample.safetensors", tokenizer=words).encode("boat").shape == (1, 512, 8)
    save_file(SPOILED[words_of_error](make_weights()), tmp_path / "sample.safetensors")
    with pytest.raises(BadInput, match=words_of_error):
        load_umt5(tmp_path / "sample.safetensors", tokenizer=words)


@pytest.mark.parametrize("rows", [3, 1000])
def test_the_tokenizer_of_another_model_is_refused(tmp_path, words, rows):
    """Ids beyond the table would crash in the layers; far fewer ids would be the wrong words, silently."""
    save_file(make_weights(rows=rows), tmp_path / "sample.safetensors")
    with pytest.raises(BadInput, match=f"has 4 entries, not the {rows} of"):
        load_umt5(tmp_path / "sample.safetensors", tokenizer=words)


def test_a_missing_tokenizer_is_refused_with_where_to_get_it(tmp_path):
    save_file(make_weights(), tmp_path / "sample.safetensors")
    with pytest.raises(BadInput, match="google/umt5-xxl from the Hugging Face Hub"):
        load_umt5(tmp_path / "sample.safetensors")


def test_float16_is_refused_because_umt5_overflows_in_it(tmp_path):
    with pytest.raises(BadInput, match="bfloat16 or float32"):
        load_umt5(tmp_path, dtype=torch.float16)


@pytest.mark.parametrize(
    "name, content, words_of_error",
    [
        ("spiece.model", b"no model", "is damaged"),
        ("spiece.model", b"", "is damaged"),
        ("tokenizer.json", b"{", "is damaged"),
        ("vocab.txt", b"boat", "is no .json or .model file"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, name, content, words_of_error):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=words_of_error):
        load_tokenizer(tmp_path / name)


def test_a_tokenizer_without_end_token_is_refused(tmp_path, words):
    words.write_text(words.read_text().replace("</s>", "[SEP]"))
    with pytest.raises(BadInput, match=r"tokenizer\.json has no end token </s>;"):
        load_tokenizer(words)


@pytest.mark.parametrize(
    "prompt, cleaned",
    [
        ("  a \t boat\n\n at dawn ", "a boat at dawn"),
        ("dogs &amp;amp; kites", "dogs & kites"),
        ("caf\u00c3\u00a9 at night", "café at night"),  # UTF-8 that was once read as Latin-1
        ("the boat\u2019s sail", "the boat's sail"),
        ("a\u3000boat", "a boat"),
        ("a\x1b[31m red\x00 boat", "a red boat"),
    ],
)
def test_prompts_are_cleaned(prompt, cleaned):
    assert clean_prompt(prompt) == cleaned


@pytest.mark.parametrize("prompt", ["", " \n", "&nbsp;"])
def test_a_prompt_that_is_empty_after_cleaning_is_refused(prompt):
    with pytest.raises(BadInput, match="the prompt is empty; describe"):
        clean_prompt(prompt)


def test_without_ftfy_ascii_is_cleaned_and_anything_else_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert clean_prompt(" a &lt;red&gt;  boat ") == "a <red> boat"
    for prompt in ("café", "a\x00boat"):
        with pytest.raises(BadInput, match="pip install ftfy"):
            clean_prompt(prompt)
