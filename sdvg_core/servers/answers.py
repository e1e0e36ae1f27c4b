"""What a server's answers say, as far as they say what a ComfyUI server would. Anyone may have written them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, printable
from ..report.run_report import RunReport, parse_report

LONGEST_NAME, MOST_BLOCKS = 500, 4096


class Refused(Exception):
    """A server did not take a prompt, or did not make its video. The message says why, safe to print."""

    def __init__(self, reason: str) -> None:
        # On one line, for it is told among our own: a server must not be able to write a line of its own.
        super().__init__(printable(" ".join(reason.split())))


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFile:
    """A video as a server names it. None of this is ever a path of ours."""

    name: str
    subfolder: str
    type: str


def queue_in(answer: dict[str, Any]) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the ids that are running, and those that wait; None if the answer is not a queue."""
    found = [_ids(answer.get(key)) for key in ("queue_running", "queue_pending")]
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _ids(entries: Any) -> frozenset[str] | None:
    """Return the ids of a queue's entries, which are lists: number, id, nodes, and more."""
    if not isinstance(entries, list):
        return None
    return frozenset(
        entry[1] for entry in entries if isinstance(entry, list) and len(entry) > 1 and isinstance(entry[1], str)
    )


def refusal_in(answer: dict[str, Any], *, refused: bool) -> str:
    """Return why a prompt was not taken, or not whole; an empty text if it was."""
    nodes = answer.get("node_errors")
    if isinstance(nodes, dict) and nodes:
        node, found = next(iter(nodes.items()))
        kind = _text(found, "class_type")
        errors = found.get("errors") if isinstance(found, dict) else None
        first = errors[0] if isinstance(errors, list) and errors else None
        return f"the server refused node {node[:40]} ({kind}): {_message(first)}"
    return f"the server refused the workflow: {_message(answer.get('error'))}" if refused else ""


def _message(error: Any) -> str:
    if not isinstance(error, dict):
        return error[:300] if isinstance(error, str) and error else "it did not say why"
    parts = [_text(error, key, 200) for key in ("message", "details")]
    return ": ".join(part for part in parts if part) or "it did not say why"


def _text(value: Any, key: str, longest: int = 60) -> str:
    """Return the first line of a text; more of it may follow, such as a help."""
    found = value.get(key) if isinstance(value, dict) else None
    return (found.strip().splitlines() or [""])[0][:longest] if isinstance(found, str) else ""


def check_success(entry: dict[str, Any]) -> None:
    """Raise `Refused` if a prompt of the history did not end well."""
    status = entry.get("status")
    if isinstance(status, dict) and status.get("status_str") == "success":
        return
    messages = status.get("messages") if isinstance(status, dict) else None
    told = [m for m in messages if isinstance(m, list) and len(m) == 2] if isinstance(messages, list) else []
    for kind, details in told:
        if kind == "execution_interrupted":
            raise Refused("someone interrupted it on the server")
        if kind == "execution_error":
            where = f"node {_text(details, 'node_id')} ({_text(details, 'node_type')})"
            said = _text(details, "exception_message", 300) or _text(details, "exception_type")
            raise Refused(f"{where} failed: {said}")
    raise Refused("the server says neither that it is done nor why not")


def video_in(entry: dict[str, Any]) -> VideoFile:
    """Return the one video that a prompt of the history saved. Raises `Refused` if there is not one."""
    found = [
        file
        for output in _outputs(entry)
        for files in output.values()
        for file in (files if isinstance(files, list) else ())
        if isinstance(file, dict) and _text(file, "filename", LONGEST_NAME + 1).lower().endswith(".mp4")
    ]
    if len(found) != 1:
        raise Refused(f"a workflow saves one mp4, but this one saved {len(found)}; leave one Save Video in it")
    names = [found[0].get(key, usual) for key, usual in (("filename", ""), ("subfolder", ""), ("type", "output"))]
    if not all(isinstance(name, str) and len(name) <= LONGEST_NAME and _can_be_sent(name) for name in names):
        raise Refused("the name of the video is not a name")
    name, subfolder, kind = names
    return VideoFile(name=name, subfolder=subfolder, type=kind)


def _can_be_sent(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def report_in(entry: dict[str, Any], seed: int) -> RunReport:
    """Return the report of a prompt of the history. Raises `Refused` if there is none, or that of another video."""
    texts = [text for output in _outputs(entry) for text in _list(output.get("sdvg_report"))]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise Refused("the Route Report of the workflow left no report; queue it with one Route Report")
    try:
        report = parse_report(texts[0])
        report.to_json()  # whatever can be read must also be a report that can be written
    except (BadInput, ValueError, TypeError) as error:
        raise Refused(f"its report cannot be read: {error}") from error
    if len(report.blocks) > MOST_BLOCKS:
        raise Refused(
            f"a sampler makes at most {MOST_BLOCKS} blocks, but its report has {len(report.blocks)} blocks"
        )
    if report.settings.get("seed") != seed:
        raise Refused(f"its report is of another seed than {seed}")
    return report


def _outputs(entry: dict[str, Any]) -> list[dict[str, Any]]:
    outputs = entry.get("outputs")
    found = list(outputs.values()) if isinstance(outputs, dict) else []
    return [output for output in found if isinstance(output, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
