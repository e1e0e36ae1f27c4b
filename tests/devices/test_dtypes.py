"""Dtypes by their names."""

from __future__ import annotations

import pytest
import torch

from sdvg_core.devices.device import DTYPES, dtype_name, parse_dtype
from sdvg_core.errors import BadInput


def test_a_name_and_its_dtype_belong_together():
    assert {dtype_name(dtype): dtype for dtype in DTYPES.values()} == DTYPES
    assert dtype_name(torch.float8_e4m3fn) == "float8_e4m3fn"
    assert parse_dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("name", ["float8_e4m3fn", "half", ""])
def test_what_no_model_runs_in_is_refused_with_what_there_is(name):
    with pytest.raises(BadInput, match=f"among float32, float16, bfloat16, but got '{name}'; choose"):
        parse_dtype(name)
