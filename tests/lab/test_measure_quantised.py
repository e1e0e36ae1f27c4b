"""What smaller files cost: the files that are measured, and the table."""

import pytest
import torch

from lab.training.measure_quantised import PAIRS, PLAIN, ROUTES, converted, engine_of, table
from sdvg_core.pocket.trained_set import trained_set
from sdvg_core.weights.weight_file import open_weights

Q = "blocks.0.self_attn.q.weight"


def test_each_model_is_loaded_in_its_own_format(tmp_path):
    """Catches a pair that is measured in another format than its name says, and a file that is made twice."""
    pytest.importorskip("comfy_kitchen")
    files = trained_set()
    assert converted(files.target, PLAIN, tmp_path) == files.target
    engine_of(files, PAIRS["w4a8, drafter int8"], tmp_path)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == ["pocket_krea_w4a8.safetensors", "pocket_self_forcing_int8.safetensors"]
    target, drafter = (open_weights(tmp_path / name).info[Q] for name in names)
    assert target.shape[1] * 2 == target.shape[0], "two weights a byte"
    assert (drafter.dtype, drafter.shape[0]) == (torch.int8, drafter.shape[1])
    before = (tmp_path / names[0]).stat().st_mtime_ns
    assert converted(files.target, "w4a8", tmp_path) == tmp_path / names[0]
    assert (tmp_path / names[0]).stat().st_mtime_ns == before


def test_formats_are_compared_by_prompt():
    """Catches the interval of two separate means, far wider than that of their difference."""
    rows = []
    for prompt in range(12):
        dB = {
            route: {pair: [10.0 * prompt - 0.5 * (pair != PLAIN)] * 2 for pair in pairs}
            for route, (_, pairs) in ROUTES.items()
        }
        rows.append({"prompt": str(prompt), "dB": dB})
    figures = table(rows)
    assert figures["prompts"] == 12
    for route, (_, pairs) in ROUTES.items():
        assert list(figures[route]) == list(pairs)
        assert figures[route]["w4a8"]["above bf16"] == "-0.50 [-0.50, -0.50]"
        assert figures[route][PLAIN]["dB"].startswith("55.00 [")
