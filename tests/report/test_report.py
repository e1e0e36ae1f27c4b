"""The report: its arithmetic, its JSON, and the sentences it refuses with."""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import sdvg_core.report.run_report
from sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.types import Cost, Span
from sdvg_core.errors import BadInput
from sdvg_core.report.assemble import FP8_NOTE, assemble_report, notes_on
from sdvg_core.report.run_report import Tally, hide_prompt, read_report, report_from_dict
from sdvg_core.report.summary import summarise
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.fields import as_json
from sdvg_core.settings.route import Route, Stride, TargetOnly
from tests.support.routers import planned_route
from tests.support.sample_reports import SECONDS, of_every_reason, record, report, route
from tests.support.tiny import PROMPT, condition, make_engine, planned

SCHEMA = json.loads(
    Path(sdvg_core.report.run_report.__file__).with_name("report.schema.json").read_text(encoding="utf-8")
)

VIDEOS = 1003
# SDVG, Table 1: acceptance as printed, in per cent of nine blocks; and over blocks 1 to 8, derived.
PUBLISHED = [("tau -0.7", 73.1, 82), ("tau -2.0", 87.5, 98), ("mean-frame, tau -0.2", 70.2, 79)]


@cache
def tally_of(rejected: int) -> Tally:
    """Of nine blocks the first is forced, `rejected` of the other eight fall by a plan."""
    router = planned_route("r" * (1 + rejected) + "a" * (8 - rejected))
    return report(route(router, [[0.0]] * 9)).tally


@pytest.mark.parametrize("row, printed, derived", PUBLISHED)
def test_published_rejections_give_published_rates(row, printed, derived):
    """Catches a forced block that counts as scored, or a share taken over the wrong blocks."""
    fewer, more = divmod(round((1 - printed / 100) * 9 * VIDEOS) - VIDEOS, VIDEOS)
    tallies = [tally_of(fewer + (video < more)) for video in range(VIDEOS)]
    total = Tally(**{name: sum(getattr(tally, name) for tally in tallies) for name in Tally.__slots__})
    assert f"{100 * total.draft_share:.1f}" == f"{printed:.1f}"
    assert f"{100 * total.acceptance_rate:.0f}" == str(derived)
    assert (total.blocks, total.forced, total.scored) == (9 * VIDEOS, VIDEOS, 8 * VIDEOS)


def test_each_block_is_counted_by_its_reason():
    run = report(of_every_reason())
    tally = run.tally
    assert sum(run.reasons.values()) == tally.blocks == 16
    assert run.reasons[Reason.FELL_SHORT] == 2
    assert list(run.reasons) == list(Reason)
    assert (tally.accepted, tally.by_target, tally.rejected, tally.forced) == (6, 10, 5, 1)
    assert (tally.scored, tally.accepted_scored) == (9, 4)
    totals = run.as_dict()["totals"]
    rates = (totals["acceptance_rate"], totals["draft_share"], totals["acceptance_rate_unforced"])
    assert rates == pytest.approx((4 / 9, 6 / 16, 6 / 15))


def test_seconds_and_passes_include_rejected_drafts():
    run = report(of_every_reason())
    assert run.seconds.total == pytest.approx(16 * SECONDS.total)
    assert run.seconds.target == pytest.approx(128.0)
    models = {
        "drafter_denoising": 4 * 12,
        "drafter_context": 12,
        "target_denoising": 4 * 9 + 2,
        "target_context": 20,
    }
    assert run.passes == {**models, "decodes": 16 + 5, "encodes": 12}


def by_target(index: int, target: float, context: float, decode: float, decodes: int) -> BlockRecord:
    reason = Reason.FELL_SHORT if index else Reason.FORCED
    decision = Decision(accepted=False, reason=reason, frame_scores=(-1.0,) if index else ())
    seconds = Seconds(target=target, decode=decode, context=context)
    cost = Cost(denoising_passes=4, context_seconds=context)
    return replace(record(decision, index, seconds=seconds), target=cost, decodes=decodes)


def test_targets_blocks_predict_target_only_seconds():
    """Block 0 has no context and is left out where there are others; of two decodes one was the draft's."""
    blocks = (by_target(0, 9.0, 0.0, 1.0, 1), *(by_target(index, 4.0, 0.5, 3.0, 2) for index in (1, 2, 3)))
    seconds = report((), blocks=blocks).target_only_seconds
    assert seconds == pytest.approx(4 * (4.0 + 0.5 + 1.5))


@pytest.mark.parametrize("fewer", [{"handover": 4}, {"refined": 4}, {"handover": 1, "left_out": 3}])
def test_target_only_makes_every_step(fewer):
    """Catches: steps that were handed over, left out, or replaced by a draft, missing in the prediction."""
    blocks = (by_target(0, 9.0, 0.0, 1.0, 1), *(by_target(index, 4.0, 0.5, 3.0, 2) for index in (1, 2, 3)))
    seconds = report((), blocks=blocks).target_only_seconds
    half = replace(blocks[1], **fewer)
    more = report((), blocks=(blocks[0], half, *blocks[2:])).target_only_seconds
    assert more == pytest.approx(seconds + 4 * 4.0 / 3)


def test_block_after_a_start_image_counts_as_typical():
    """Catches: block 0 left out of the prediction for its number, though an image before it gives it context."""
    first = replace(by_target(0, 9.0, 0.5, 1.0, 1), span=Span(0, 3, 3))
    blocks = (first, *(by_target(index, 4.0, 0.5, 3.0, 2) for index in (1, 2, 3)))
    seconds = report((), blocks=blocks).target_only_seconds
    assert seconds == pytest.approx((9.0 + 0.5 + 1.0) + 3 * (4.0 + 0.5 + 1.5))


@pytest.mark.parametrize("changes", [{"reused": True}, {"decodes": 0}, {"target": Cost()}, {"draft": Cost()}])
def test_earlier_work_prevents_predicting_target_only_seconds(changes):
    """Catches: a prediction from seconds of a block of which an earlier run made some."""
    blocks = (by_target(0, 9.0, 0.0, 1.0, 1), *(by_target(index, 4.0, 0.5, 3.0, 2) for index in (1, 2, 3)))
    resumed = report((), blocks=(*blocks[:3], replace(blocks[3], **changes)))
    assert resumed.target_only_seconds is None


def put(data: Any, where: tuple[Any, ...], field: str, value: object) -> None:
    for step in where:
        data = data[step]
    data[field] = value


@pytest.mark.parametrize(
    "where, field, value",
    [
        ((), "surprise", 1),
        (("blocks", 0), "accepted", True),
        (("blocks", 1), "author", "target"),
        (("blocks", 1), "draft", None),
        (("blocks", 1, "draft"), "encodes", -1),
        (("totals",), "draft_share", 1.5),
    ],
)
def test_schema_refuses_an_impossible_run(where, field, value):
    data = report(of_every_reason()).as_dict()
    jsonschema.validate(data, SCHEMA)
    assert SCHEMA["$defs"]["reason"]["enum"] == [reason.name.lower() for reason in Reason]
    put(data, where, field, value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_infinite_numbers_are_null_in_json():
    blocks = json.loads(report(of_every_reason()).to_json())["blocks"]
    nan = blocks[5]
    assert (nan["frame_scores"], nan["score"], nan["worst_frame"]) == ([0.25, None, -0.5], None, 1)
    assert (nan["reason"], nan["reason_text"]) == ("not_finite", "a frame's score is not a finite number")
    assert blocks[2]["threshold"] is None


def test_unscored_frames_differ_from_infinite_scores():
    """Catches: a frame that nobody looked at read back as NaN, or counted as the best or the worst one."""
    nan = math.nan
    first = {0: 0.5, 4: -0.2, 7: 0.9, 11: 0.4}
    kept = tuple(first.get(frame) for frame in range(12))
    broken = tuple({**first, 7: nan}.get(frame) for frame in range(12))
    whole = (nan, 0.1) * 6
    decisions = [
        Decision(accepted=True, reason=Reason.REACHED, score=-0.2, threshold=-0.7, frame_scores=kept),
        Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=broken),
        Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=whole),
    ]
    run = report(decisions)
    written = run.as_dict()
    jsonschema.validate(written, SCHEMA)
    assert written["blocks"][0]["frame_scores"] == list(kept)
    assert [block["worst_frame"] for block in written["blocks"]] == [4, 7, 0]
    again = report_from_dict(json.loads(run.to_json())).blocks
    assert again[0].decision == decisions[0]
    for block, scores in zip(again[1:], (broken, whole), strict=True):
        assert [score is None for score in block.decision.frame_scores] == [score is None for score in scores]
        assert block.decision.known_scores == pytest.approx([s for s in scores if s is not None], nan_ok=True)
    assert "weakest frame -0.20: pixel frame 5 of block 1" in summarise(run)


FORCED = Decision(accepted=False, reason=Reason.FORCED)


def notes_of(records: Sequence[BlockRecord], blocks: int, **locked: Any) -> tuple[str, ...]:
    """Return the notes of a run of so many blocks, which has these records."""
    run = planned(make_engine(), Route(TargetOnly()), blocks=blocks)
    asked = {"notes": (), "request": {}, "load": {}}
    return assemble_report((run,), records, {}, fps=16, versions={}, **locked, **asked).notes


@pytest.mark.parametrize(("clip_frames", "cuts"), [(0, [3]), (6, [3]), (9, None)])
def test_cut_in_new_blocks_is_reported(clip_frames, cuts):
    """Catches: a cut right after a clip that is left out; one within the clip, or a plain change, that is not."""
    plain = condition(5)
    scene = replace(condition(6), cut=True)
    engine = make_engine()
    given = torch.zeros(1, engine.codec.latent_channels, clip_frames, 4, 4) if clip_frames else None
    run = planned(
        engine,
        Route(TargetOnly()),
        blocks=4,
        given=given,
        condition_of=lambda index: (PROMPT, plain)[index] if index < 2 else scene,
    )
    asked = {"notes": (), "request": {}, "load": {}}
    settings = assemble_report((run,), [record(FORCED)] * 4, {}, fps=16, versions={}, **asked).settings
    assert settings.get("cuts") == cuts


def test_report_states_what_its_run_was():
    """After a clip of two blocks. Catches: a setting of another run, or a take numbered from the clip's start."""
    scene = replace(condition(6), cut=True)
    engine = make_engine()
    codec = engine.codec
    height, width = 6, 4
    run = plan_run(
        engine,
        Route(Stride(2.0), target_steps=1),
        lambda index: PROMPT if index < 4 else scene,
        blocks=3,
        takes="2:3",
        seed=7,
        width=width * codec.spatial_stride,
        height=height * codec.spatial_stride,
        given=torch.zeros(1, codec.latent_channels, 6, height, width),
        drafter_context="own",
    )
    asked = {"notes": (), "request": {"blocks": 3}, "load": {"device": "cpu"}}
    parts = {"vae": {"file": "vae.pth"}}
    assembled = assemble_report((run,), [record(FORCED)] * 3, parts, fps=16, versions={"sdvg": "0"}, **asked)
    assert assembled.settings == {
        **parts,
        "scorer": {"name": "brightness"},
        "route": as_json(run.plan.route),
        "seed": 7,
        "blocks": 3,
        "width": 8,
        "height": 12,
        "embeddings": {hide_prompt(PROMPT.text): PROMPT.digest[:16]},
        "takes": {"2": 3},
        "cuts": [5],
        "drafter_context": "own",
        "latent_frames_given": 6,
    }
    assert (assembled.request, assembled.load) == ({"blocks": 3}, {"device": "cpu"})
    assert assembled.versions == {"sdvg": "0"}


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([3], "Block 3 was"), ([1, 2, 3], "Blocks 1 to 3 were"), ([1, 2, 4, 6, 7], "Blocks 1 to 2, 4, 6 to 7 were")],
)
def test_note_names_only_its_blocks(numbers, words):
    """Catches: a block that was made now among those said to be made earlier."""
    records = [replace(record(FORCED), reused=number in numbers) for number in range(1, 9)]
    (note,) = notes_of(records, blocks=8)
    assert note.startswith(f"{words} made before and used again; ")


@pytest.mark.parametrize(("kv_dtype", "notes"), [("auto", ()), ("float8_e4m3fn", (FP8_NOTE,))])
def test_rounded_keys_are_noted(kv_dtype, notes):
    """Catches: the note in every report, or in none."""
    assert notes_on(Execution(kv_dtype=kv_dtype), None, ["a boat"]) == notes


def test_report_read_back_is_unchanged(tmp_path):
    """Every reason, both infinite thresholds, scores that are not finite, and a handover included."""
    first, reached, *others = (record(decision, index) for index, decision in enumerate(of_every_reason()))
    written = report((), blocks=(first, replace(reached, handover=3), *others), notes=("Ünïcode 狐",))
    jsonschema.validate(written.as_dict(), SCHEMA)
    assert "handed over: 2" in summarise(written)
    (tmp_path / "report.json").write_text(written.to_json(), encoding="utf-8")
    read = read_report(tmp_path / "report.json")
    assert read.as_dict() == written.as_dict()
    for old, new in zip(written.blocks, read.blocks, strict=True):
        if old.decision.reason is not Reason.NOT_FINITE:  # NaN differs from itself
            assert new == old
    assert math.isnan(read.blocks[5].decision.frame_scores[1])
    assert read.blocks[5].decision.worst_frame == 1


@pytest.mark.parametrize(
    "where, field, value, keyword",
    [
        ((), "schema_version", 2, "version 2, not 1"),
        ((), "schema_version", True, "schema_version in the run report is bool"),
        ((), "blocks", [], "has no block"),
        ((), "blocks", [7], "entry 0 of blocks has no field index"),
        ((), "fps", math.nan, "fps in the run report is nan"),
        ((), "fps", 0, "fps is 0"),
        (("blocks", 1), "index", -1, "index in entry 1 of blocks is -1"),
        (("blocks", 1), "reason", "tired", "reason in entry 1 of blocks is 'tired'"),
        (("blocks", 1), "frame_scores", [0.5, "high"], "frame_scores in entry 1 of blocks is str"),
        (("blocks", 1), "frame_scores", 0.5, "frame_scores in entry 1 of blocks is float"),
        ((), "versions", {"sdvg": 1}, "versions in the run report is int"),
        (("blocks", 1, "draft"), "encodes", 1.5, "encodes in entry 1 of blocks, draft is float"),
    ],
)
def test_broken_report_is_refused_by_its_field(where, field, value, keyword):
    data = report(of_every_reason()).as_dict()
    put(data, where, field, value)
    with pytest.raises(BadInput, match=keyword):
        report_from_dict(data)


COUNTS = {
    name: of["minimum"]
    for name, of in SCHEMA["$defs"]["block"]["properties"].items()
    if of.get("type") == "integer"
}


@pytest.mark.parametrize("name", COUNTS)
def test_reader_and_schema_allow_the_same_counts(name):
    """Catches: a report of ours that we refuse, such as one with a block that was shown before (0 decodes)."""
    data = report(of_every_reason()).as_dict()
    for count, allowed in ((COUNTS[name], True), (COUNTS[name] - 1, False)):
        put(data, ("blocks", 1), name, count)
        with nullcontext() if allowed else pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, SCHEMA)
        with nullcontext() if allowed else pytest.raises(BadInput, match=f"{name} in entry 1"):
            assert report_from_dict(data).as_dict()["totals"]


@pytest.mark.parametrize("text", ["", '{"schema_version": NaN}', "\udcff"], ids=["empty", "nan", "bytes"])
def test_report_that_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "report.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=r"give the report\.json of a run"):
        read_report(tmp_path / "report.json")


def test_settings_hold_json_values_alone():
    """Catches a path, and with it the names of somebody's folders, on its way into a file that is passed on."""
    run = report(of_every_reason(), settings={"size": (832, 480), "tau": -math.inf, "router": {"rate": math.nan}})
    assert run.as_dict()["settings"] == {"size": [832, 480], "tau": None, "router": {"rate": None}}
    with pytest.raises(TypeError, match=r"got (Posix|Windows)Path"):
        report(of_every_reason(), settings={"drafter": Path("small.pt")}).as_dict()


def test_notes_number_blocks_after_kept_ones():
    """As the strip does. Catches: of five blocks, three of them kept, "Block 1 was made before"."""
    records = [replace(record(FORCED), reused=True), record(FORCED)]
    assert notes_of(records, 3, kept={"blocks": 3, "digest": "d"}) == (
        "Blocks 1 to 3 were locked: taken from an earlier run, latents d.",
        "Stopped after block 5 of 6, as asked.",
        "Block 4 was made before and used again; its seconds do not count.",
    )
    assert notes_of(records, 3)[0] == "Stopped after block 2 of 3, as asked."
    assert notes_of([], 3, kept={"blocks": 3, "digest": "d"})[1] == "Stopped after block 3 of 6, as asked."


def test_stop_between_locked_blocks_is_numbered():
    """Blocks 4, 5 and 7 are to be made. Catches a count of the locked ones, of which one comes later."""
    notes = notes_of([], 3, kept={"blocks": 4, "digest": "d"}, numbers=[4, 5, 7])
    assert notes[:2] == (
        "Blocks 1 to 3, 6 were locked: taken from an earlier run, latents d.",
        "Stopped after block 3 of 7, as asked.",
    )
