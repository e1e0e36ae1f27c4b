"""Make a short video with the embedded models, on any machine, in a race with each of them alone.

They are a complete miniature of the real system, with the same classes, file formats and loaders, trained on a
small world of moving shapes (sdvg_core/pocket).
"""

from __future__ import annotations

import argparse

from ..errors import BadInput
from ..pocket import DEFAULT_PROMPT, EXAMPLE_PROMPTS
from ..settings.request import VideoRequest
from .shared import add_output, add_overwrite, add_router_options, add_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--prompt",
        default=DEFAULT_PROMPT,
        help="what to show; of the small world, or the nearest is taken; or a number of --list (%(default)r)",
    )
    parser.add_argument("--list", action="store_true", help="print six prompts to try, and make nothing")
    add_output(parser, "out/demo")
    video = parser.add_argument_group("video")
    add_settings(video, VideoRequest, only=("blocks", "seed"))
    add_overwrite(video)
    add_router_options(parser, demo=True)


def run(options: argparse.Namespace) -> int:
    """Make a video with the embedded models and the comparison; print route, seconds and folder."""
    numbered = {str(number): prompt for number, prompt in enumerate(EXAMPLE_PROMPTS, 1)}
    if options.list:
        print(*(f"{number}  {prompt}" for number, prompt in numbered.items()), sep="\n")
        return 0
    prompt = options.prompt.strip()
    if not prompt:
        raise BadInput("the prompt is empty; write one, or give the number of one of --list")
    if prompt.lstrip("+-").isdecimal() and prompt not in numbered:
        raise BadInput(f"there is no prompt {prompt:.20}; choose 1 to {len(numbered)}, as --list has them")
    from .racing import demo

    return demo(options, numbered.get(prompt, prompt))
