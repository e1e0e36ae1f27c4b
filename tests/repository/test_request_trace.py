"""A request reads downward: through few files, none of which is called back by one that it called."""

from __future__ import annotations

from request_trace import from_the_command_line, trace


def test_a_command_reaches_the_first_denoising_pass_through_fifteen_files() -> None:
    files, returns = trace(from_the_command_line)
    assert files[-1] == "sdvg_core/causal_wan/forward.py"
    assert len(files) <= 15, files
    assert not returns
