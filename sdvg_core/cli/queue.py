"""Carry out `queue`: have running ComfyUI servers make many videos, and show how."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing

from ..engine.noise import check_seed
from ..errors import BadInput
from ..files.outputs import check_writable
from ..pipeline.stopping import Stopping
from ..pipeline.table import FAILED, FINISHED, Row
from ..report.crowd import ServersBar
from ..servers.client import Address, parse_address
from ..servers.lane import Failed, Gone, News, Retired, Seen
from ..servers.orders import plan_orders
from ..servers.spread import make_on_servers
from ..servers.workflow import read_workflow
from ..text.prompts import read_prompt_list
from .crew import print_rows
from .generate import FAILURES, INTERRUPTED

THEN = "queues nothing more, takes what waits out of the queues and fetches what is running"


def run(options: argparse.Namespace) -> int:
    """Have the videos made that were asked for."""
    addresses = read_addresses(options.server)
    workflow = read_workflow(options.workflow, options.prompt_node)
    prompts = [schedule.texts[0] for schedule in read_prompt_list(options.prompt_file)]
    seeds = tuple(dict.fromkeys(options.seeds or [workflow.own_seed]))
    for seed in seeds:
        check_seed(seed)
    check_writable(options.output)
    orders = plan_orders(workflow, prompts, seeds, options.output, resume=options.resume)
    stopping = Stopping(THEN)
    with ExitStack() as stack:

        def show(videos: int) -> Shown:
            names = [str(address) for address in addresses]
            return Shown(stack.enter_context(closing(ServersBar(names, videos))))

        rows = make_on_servers(workflow, orders, options.output, addresses, show, stopping=stopping)
    print_rows(rows, options.output, json_lines=options.json)
    if stopping.asked and any(row.state not in (FINISHED, FAILED) for row in rows):
        sys.stderr.write("sdvg: stopped as asked; the same command with --resume makes the rest\n")
        return INTERRUPTED
    return FAILURES if any(row.state == FAILED for row in rows) else 0


def read_addresses(urls: Sequence[str]) -> tuple[Address, ...]:
    """Return the addresses of the servers. Raises `BadInput` if one is none, or there twice."""
    addresses = tuple(map(parse_address, urls))
    if len(set(addresses)) < len(addresses):
        raise BadInput("every --server should be another one, but one is there twice; give each once")
    return addresses


class Shown:
    """Tells a `ServersBar` what the servers do."""

    def __init__(self, bar: ServersBar) -> None:
        self._bar = bar
        self._gone: set[int] = set()

    def news(self, news: News, row: Row | None) -> None:
        """Show one of the news. `row`: of a video that was made or given up."""
        if row:
            failed = row.state == FAILED
            said = f"failed: {row.error}" if failed else f"{row.state}: {row.route}, {row.seconds:.1f} s"
            self._bar.ended(news.server, row.number, said, failed=failed)
        elif isinstance(news, Failed):
            self._bar.again(news.server, news.order.number, news.reason)
        elif isinstance(news, Gone):
            self._bar.at(news.server, f"away ({news.reason}), asked again in {news.pause:.0f} s")
            if news.server not in self._gone:
                self._bar.say(news.server, f"is away ({news.reason}); its videos wait, or go to other servers")
            self._gone.add(news.server)
        elif isinstance(news, Retired):
            self._bar.say(news.server, f"gets no more videos, for it refuses all: {news.reason}")
            self._bar.at(news.server, "refuses all")
        elif isinstance(news, Seen):
            if news.server in self._gone:
                self._bar.say(news.server, "is there again")
            self._gone.discard(news.server)
            self._bar.at(news.server, _at(news))


def _at(seen: Seen) -> str:
    numbers = {
        "running": [f"{number:04d}" for number in seen.running],
        "waiting": [f"{number:04d}" for number in seen.waiting],
    }
    return "; ".join(f"{word} {', '.join(there)}" for word, there in numbers.items() if there) or "idle"
