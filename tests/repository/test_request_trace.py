"""A request reads downward: through few files, none of which is called back by one that it called."""

from __future__ import annotations

from request_trace import from_the_command_line, trace

from sdvg_core.pipeline.request import VideoRequest


def test_a_command_reaches_the_first_denoising_pass_through_fifteen_files() -> None:
    files, returns = trace(from_the_command_line)
    assert files[-1] == "sdvg_core/causal_wan/forward.py"
    assert len(files) <= 15, files
    assert not returns


def test_files_that_call_each_other_are_found() -> None:
    """Catches: a trace that sees nothing."""

    def one(request: VideoRequest, again: bool) -> None:
        if again:
            other(request)

    def other(request: VideoRequest) -> None:
        one(request, again=False)

    for function in (one, other):
        function.__code__ = function.__code__.replace(co_filename=f"/x/sdvg_core/{function.__name__}.py")
    asked = VideoRequest()
    files, returns = trace(lambda: one(asked, again=True))
    assert files == ["sdvg_core/one.py", "sdvg_core/other.py"]
    assert returns == [("sdvg_core/one.py", "sdvg_core/other.py")]
