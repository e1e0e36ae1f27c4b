"""Say what a checkpoint is, whether it would load, and why not; or what a file of a finished video is.

Exit code 0 if a run would take the file, else 2.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from ..errors import BadInput
from .shared import file_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "file",
        type=file_path,
        help="a file of weights, an index of shards, a folder with either, or a file that generate wrote",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--values", action="store_true", help="also read all values, and look for NaN and infinity")


def run(options: argparse.Namespace) -> int:
    """Print what the file is."""
    from ..files.outputs import REPORT
    from ..pipeline.inspection import OF_REPORT, inspect_file

    found = inspect_file(options.file, values=options.values)
    if found.kind == OF_REPORT:
        path = options.file / REPORT if options.file.is_dir() else options.file
        refusal = _refusal_to_make_again(path)
        found = replace(found, would_load=not refusal, reason=refusal)
    print(json.dumps(asdict(found), indent=2) if options.json else found)
    return 0 if found.would_load else 2


def _refusal_to_make_again(path: Path) -> str:
    """Return why `generate --from` would refuse a report; empty if it would not. No model file is looked for."""
    from ..report.run_report import read_report
    from . import make_parser
    from .again import router_again, words_again
    from .options import load_options, video_request

    report = read_report(path)
    try:
        options = make_parser().parse_args(["generate", *words_again(report, None)])
        options.base_router = router_again(report)
        video_request(options)
        load_options(options)
    except BadInput as refusal:
        return str(refusal)
    return ""
