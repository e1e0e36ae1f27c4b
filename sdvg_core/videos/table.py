"""The table of many videos, `videos.csv`: state, route and figures of each.

It is written from what the videos' folders hold, and after every video; only failures are not stored elsewhere.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import BadInput
from ..files.outputs import REPORT, VIDEOS_TABLE, unfinished_blocks, whole_file
from ..report.run_report import RunReport, hide_prompt, read_report, worst_score
from ..report.summary import OUTCOME_LETTERS, outcome_of
from .batch import BatchPlan
from .folders import State, shows

FINISHED = "finished"
FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One video. `prompt`: text or hash. `route`: a letter per block. `error`: why it was not made."""

    number: int
    folder: str
    prompt: str
    seed: int
    state: str = "waiting"
    blocks: int = 0
    route: str = ""
    draft_share: float | None = None
    worst_score: float | None = None
    seconds: float | None = None
    error: str = ""


class VideoTable:
    """Writes the table into the output folder."""

    def __init__(self, planned: BatchPlan) -> None:
        """Write the table of planned videos."""
        self._folder = planned.folder
        self._blocks = planned.batch.request.blocks
        shown: Callable[[str], str] = hide_prompt if planned.batch.private else str
        self._rows = {
            video.number: Row(
                number=video.number,
                folder=video.folder.name,
                prompt=shown("\n".join(video.prompt.texts)),
                seed=video.request.seed,
            )
            for video in planned.videos
        }
        for video in planned.videos:
            kept = not planned.batch.overwrite and shows(video.folder, video.fingerprint)
            if kept and (video.folder / REPORT).exists():
                self._rows[video.number] = self._done(video.number, read_report(video.folder / REPORT))
            elif video.state is State.UNFINISHED:
                blocks = len(unfinished_blocks(video.folder))
                self._rows[video.number] = replace(self._rows[video.number], blocks=blocks)
        if planned.to_make or _count_rows(self._folder / VIDEOS_TABLE) <= len(self._rows):
            self._write()  # else keep the table of a longer list

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows in order."""
        return tuple(self._rows.values())

    def made(self, number: int, report: RunReport | BadInput) -> Row:
        """Record a finished video or its error, and write the table; return the row."""
        if isinstance(report, BadInput):
            self._rows[number] = replace(self._rows[number], state=FAILED, error=str(report))
        else:
            self._rows[number] = self._done(number, report)
        self._write()
        return self._rows[number]

    def _done(self, number: int, report: RunReport) -> Row:
        worst = report.worst_block
        return replace(
            self._rows[number],
            state=FINISHED if len(report.blocks) == self._blocks else "stopped",
            blocks=len(report.blocks),
            route="".join(OUTCOME_LETTERS[outcome_of(record)] for record in report.blocks),
            draft_share=report.tally.draft_share,
            worst_score=None if worst is None else worst_score(worst),
            seconds=round(report.seconds.total, 3),
            error="",
        )

    def _write(self) -> None:
        rows = [asdict(row) for row in self.rows]
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path = self._folder / VIDEOS_TABLE
        with suppress(OSError, ValueError):
            if path.read_text(encoding="utf-8") == text.getvalue():
                return  # a finished call needs no folder that can be written into
        with whole_file(path) as part:
            part.write_text(text.getvalue(), encoding="utf-8")


def _count_rows(table: Path) -> int:
    """Return the number of videos in a table; 0 if there is none."""
    if not table.exists():
        return 0
    with table.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.DictReader(file))
