"""Make a short video with the embedded models, on any machine, in a race with each of them alone.

They are a complete miniature of the real system, with the same classes, file formats and loaders, trained on a
small world of moving shapes (sdvg_core/pocket).
"""

from __future__ import annotations

import argparse
from itertools import count

from ..errors import BadInput
from ..pocket import CHOSEN, DEFAULT_PROMPT, EXAMPLE_PROMPTS, HELPED_PROMPTS, UNHELPED_PROMPTS
from ..settings.request import VideoRequest
from .shared import add_output, add_overwrite, add_preset, add_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--prompt",
        default=DEFAULT_PROMPT,
        help="what to show; of the small world, or the nearest is taken; or a number of --list (%(default)r)",
    )
    parser.add_argument(
        "--list", action="store_true", help="print prompts to try, and for how many two models help; make nothing"
    )
    add_output(parser, "out/demo")
    video = parser.add_argument_group("video")
    add_settings(video, VideoRequest, only=("blocks", "seed"))
    add_overwrite(video)
    add_preset(parser)


def run(options: argparse.Namespace) -> int:
    """Make a video with the embedded models and the comparison; print route, seconds and folder."""
    numbered = {str(number): prompt for number, prompt in enumerate(EXAMPLE_PROMPTS, 1)}
    if options.list:
        _print_list()
        return 0
    prompt = options.prompt.strip()
    if not prompt:
        raise BadInput("the prompt is empty; write one, or give the number of one of --list")
    if prompt.lstrip("+-").isdecimal() and prompt not in numbered:
        raise BadInput(f"there is no prompt {prompt:.20}; choose 1 to {len(numbered)}, as --list has them")
    from .racing import demo

    return demo(options, numbered.get(prompt, prompt))


def _print_list() -> None:
    """Print the prompts by number, those for which both models help first, and of how many they were chosen."""
    counts = CHOSEN["counts"]
    lost = f"The small model alone loses the moving thing, both models keep it (so with {counts['helps']}"
    kept = f"The small model alone keeps it as well (so with {counts['does not help']}"
    numbers = count(1)
    for words, prompts in ((lost, HELPED_PROMPTS), (kept, UNHELPED_PROMPTS)):
        print(f"{words} of {counts['prompts']} prompts):")
        for prompt in prompts:
            print(f"  {next(numbers)}  {prompt}")
    print(f"With {counts['lost by both']}, both lose it too.")
