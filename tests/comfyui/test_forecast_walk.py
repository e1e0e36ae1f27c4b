"""The forecast of the next run by itself, walked block by block from what earlier runs left."""

from dataclasses import replace

import pytest
import torch
from sdvg_pack.nodes.page.asked import Asked, Trace
from sdvg_pack.nodes.page.forecast import (
    ABSENT,
    AT_HAND,
    PERHAPS,
    EarlierRuns,
    Forecast,
    forecast_film,
    seconds_of,
)
from sdvg_pack.sdvg_core.settings.decision import Decision, Reason
from sdvg_pack.sdvg_core.settings.request import Strength, read_takes
from sdvg_pack.sdvg_core.settings.route import Gate, Refine, Route, WorstFrame

pytestmark = pytest.mark.comfyui


OUTCOMES = ("forced", "kept", "remade", "kept", "target_unseen", "drafted_unseen")
ROUTE = "....td"
REASONS = {
    "forced": (False, Reason.FORCED),
    "kept": (True, Reason.REACHED),
    "remade": (False, Reason.FELL_SHORT),
    "target_unseen": (False, Reason.DIRECTED_TARGET),
    "drafted_unseen": (True, Reason.DIRECTED_DRAFT),
    "bailed_out": (False, Reason.BAILED_OUT),
    "refined": (False, Reason.REFINED),
}
SCORES = (None, -0.3, -0.9, -0.6, None, None)
SIGNATURE = {"rest": "rest", "router": "router", "tau": -0.7, "scorer": "s", "positive": "p", "prompts": ()}
FRAMES = 12
STEPS = 4
SCORED_FIRST = (0, 4, 7, 11)


def asked(**changes):
    """Return what a run is asked for."""
    signature = SIGNATURE | {name: changes.pop(name) for name in SIGNATURE if name in changes}
    policy = Gate(signature["tau"], WorstFrame(changes.pop("cascade", None)))
    route = Route(policy, *(changes.pop(name, 0) for name in ("handover", "target_steps")))
    route = Route(Refine(changes.pop("refine"))) if "refine" in changes else route
    takes = {index + 1: take for index, take in read_takes(changes.pop("takes", ""), 6).items()}
    kept, _, lock = changes.pop("lock", "").partition(":")
    values = {"blocks": 6, "known": True, "directions": ROUTE, "first": int(kept or 0) + 1, **changes}
    values["target_steps"] = STEPS
    signature |= {"strengths": (), "start": "", "clips": {}}  # of lines; of what the film begins with
    return Asked(signature=signature, route=route, takes=takes, lock=lock, **values)


def restyled(start, place):
    """Return what a shot of a restyled film is asked for, after so many blocks (`start`) and shots (`place`)."""
    prompts = ((1, "sand"), (start + 1, "grass"))
    values = {"key": "#a", "start": start, "before": start, "place": place, "blocks": 1}
    return asked(strengths=(Strength(0.5),), prompts=prompts, **values)


def test_restyled_shot_is_known_by_its_frames():
    """A block more and four shots more are the same frame. Catches: a shot that is said to change, and stays."""
    assert restyled(6, 2).shown(1) == restyled(7, 6).shown(1)
    assert restyled(6, 2).shown(1) != restyled(6, 3).shown(1)
    assert restyled(6, 2).shown(1) != restyled(7, 2).shown(1)


def decision(outcome, score, scored_frames):
    """Return the decision on a block, whose frames all have one score."""
    accepted, reason = REASONS[outcome]
    frames = tuple(score if frame in scored_frames else None for frame in range(FRAMES))
    return Decision(accepted=accepted, reason=reason, score=score, frame_scores=() if score is None else frames)


def made(run="a", outcomes=OUTCOMES, scores=SCORES, scored_frames=range(FRAMES), digests=(), **changes):
    """Return what a run left."""
    of_run = asked(**changes)
    numbers = range(of_run.first, of_run.first + len(outcomes))
    decisions = {
        number: decision(outcome, score, scored_frames)
        for number, outcome, score in zip(numbers, outcomes, scores, strict=False)
    }
    return Trace(run, (of_run,), decisions, digests=list(digests))


def forecast(trace, *others, at_hand=AT_HAND, **changes):
    """Return the answers and the first old block of a run after one that was made."""
    memory = EarlierRuns()
    for other in (*others, trace):
        memory.learn(other, at_hand)
    answer = forecast_film((asked(**changes),), trace, memory)
    old = answer.old
    assert not old or list(old) == list(range(old[0], old[-1] + 1)), "what follows from an old block is old"
    return answer.answers, old[0] if old else None


AGAIN = [
    ({}, "ssssss", None),
    ({"takes": "4:2"}, "sssccc", 4),
    ({"directions": "t...td"}, "ssssss", None),  # the target made it unasked
    ({"directions": "..r.td"}, "ssssss", None),  # the target after a draft, as it was
    ({"directions": "...ttd"}, "sssccc", 4),
    ({"directions": "..d.td"}, "sssccc", 3),  # the rejected draft is at hand, and what follows is new
    ({"directions": "....dd"}, "sssscc", 5),
    ({"directions": "......"}, "sssscc", None),  # both are drafted, or scored, for the first time
    ({"directions": ".....d"}, "sssscm", None),  # if the draft before it is rejected, it is at hand
    ({"blocks": 8}, "sssssscc", None),
    ({"blocks": 4}, "ssss", None),
    ({"prompts": ((5, "q"),)}, "sssscc", 5),
    ({"prompts": ((9, "q"),)}, "ssssss", None),  # beyond the last block
    ({"positive": "another"}, "cccccc", 1),
    ({"rest": "another seed"}, "cccccc", None),  # other noise alone
    ({"rest": "another seed", "prompts": ((3, "q"),)}, "cccccc", 3),
    ({"tau": -0.65}, "ssssss", None),  # no decision changes
    ({"tau": -0.6}, "ssssss", None),  # in float32, as the gate compares
    ({"tau": -0.5}, "sssccc", 4),
    ({"tau": -0.2}, "sccccc", 2),
    ({"tau": -1.0}, "sssccc", 3),
    ({"tau": -0.2, "directions": ".d..td"}, "sssccc", 4),
    ({"target_steps": STEPS}, "ssssss", None),  # it made no more
    ({"target_steps": 2}, "sscccc", 3),
    ({"handover": 1}, "sccccc", 3),  # drafts are made again, to keep what is handed over
]


@pytest.mark.parametrize("changes, answers, old", AGAIN)
def test_each_block_stays_changes_or_may(changes, answers, old):
    """Catches: a block called one that stays after another prompt, take, letter or decision."""
    scores = tuple(None if score is None else torch.tensor(score).item() for score in SCORES)
    assert forecast(made(scores=scores), **changes) == (answers, old)


def test_unknown_router_may_decide_as_before():
    answer = forecast(made(), router="another", known=False)
    assert answer == ("mmmmmm", None)


def test_a_result_of_another_run_is_at_hand():
    """Catches: a take that was made before called one that changes."""
    other = made("b", takes="4:2")
    assert forecast(made(), other, takes="4:2") == ("ssssss", 4)
    assert forecast(made(), other, takes="4:2, 6:2") == ("sssssc", 4)


def test_what_the_store_may_have_lost_may_change():
    assert forecast(made(), at_hand=PERHAPS) == ("mmmmmm", None)
    assert forecast(made(), at_hand=ABSENT) == ("cccccc", None)


def test_every_course_that_was_made_counts():
    """Block 2 may be either author's, and block 3 is at hand after both, block 4 after the draft alone.

    Catches: one course forgotten for the other.
    """
    unscored = (None,) * 4
    drafted = made("a", ("forced", "drafted_unseen", *["target_unseen"] * 2), unscored, directions=".dtt")
    remade = made("b", ("forced", *["target_unseen"] * 2, "drafted_unseen"), unscored, directions=".ttd")
    for shown, other in ((drafted, remade), (remade, drafted)):
        assert forecast(shown, other, blocks=4, directions="..tt")[0] == "scsm"


def test_frames_that_were_not_scored_decide():
    """Catches: a block called certain whose other frames are only scored then."""
    trace = made(scores=(None, -0.45, -0.9, 2.0, None, None), scored_frames=SCORED_FIRST, cascade=0.2)
    assert forecast(trace, cascade=0.2, tau=-0.7) == ("ssssss", None)
    assert forecast(trace, tau=-0.7)[0] == "scccmm"  # all are scored at once
    assert forecast(trace, cascade=0.2, tau=-0.85)[0] == "ssssss"
    assert forecast(trace, cascade=0.2, tau=-0.92)[0][:4] == "sscm"
    assert forecast(trace, cascade=0.2, tau=-1.2)[0] == "sssccc"


def test_scores_of_all_frames_replace_no_few():
    """Catches: nothing to remake where a cascade is switched on, and every draft is scored anew."""
    assert forecast(made(), cascade=0.2)[0] == "scccmm"


def test_draft_kept_without_predictions_is_made_again():
    """Catches: a draft called one that stays, of which no prediction was kept that could be handed over."""
    run = {"outcomes": ("forced", *["kept"] * 5), "scores": (None, *[-0.3] * 5)}
    routed = {"directions": "......"}
    assert forecast(made(**run, **routed), **routed, handover=1)[0] == "sccccc"
    assert forecast(made(**run, **routed, handover=2), **routed, handover=1)[0] == "ssssss"
    assert forecast(made(**run, **routed, handover=2), **routed)[0] == "ssssss"


def test_last_block_of_a_restyled_clip_may_change():
    """Catches: a block that is said to stay, where a fast decoder encodes the clip's last frames in another way."""
    restyled = {"strengths": (Strength(skip=1),) * 6}
    assert forecast(made(**restyled), **restyled)[0] == "ssssss"
    assert forecast(made(**restyled), **restyled, blocks=8)[0] == "sssssmcc"
    assert forecast(made(**restyled), **restyled, blocks=4)[0] == "sssm"


def test_a_lock_begins_with_blocks_of_its_run():
    """Catches: nothing to remake where a lock was given up, and all after a lock where only kept blocks changed."""
    whole = made(digests="abcdef")
    assert forecast(whole, lock="3:c") == ("ssssss", None)
    assert forecast(whole, lock="3:c", takes="2:2") == ("ssssss", None)
    assert forecast(whole, lock="3:c", takes="5:2") == ("sssscc", 5)
    assert forecast(whole, lock="3:x") == ("sssccc", 1)
    locked = made("b", outcomes=OUTCOMES[2:], scores=SCORES[2:], lock="2:b", digests="abcdef"[1:])
    assert forecast(locked, whole, lock="1:a") == ("ssssss", None)
    assert forecast(locked, whole) == ("ssssss", None)


def test_own_drafts_outlive_a_change():
    """Catches: a draft that does not follow from the block before, called one that changes with it."""
    trace = made(drafter_context="own", outcomes=("forced", *["drafted_unseen"] * 5), directions=".ddddd")
    told = forecast(trace, drafter_context="own", directions=".tdddd")
    assert told == ("scmmmm", 2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ("ssssss", None)),
        ({"refine": "light"}, ("cccccc", 1)),
        ({"directions": "...t.."}, ("sssccc", 4)),
        ({"directions": "...d.."}, ("sssscc", 4)),
        ({"takes": "3:2"}, ("sscccc", 3)),
    ],
)
def test_refined_blocks_follow_from_their_drafts(changes, told):
    """Catches: a refined block named without its draft or strength, a kept draft that is said to be made again."""
    refined = {"refine": "medium", "directions": "......"}
    trace = made(outcomes=["refined"] * 6, scores=[None] * 6, **refined)
    assert forecast(trace, **{**refined, **changes}) == told


# By those who made them, or are wanted; added ones take the mean of all; None where the author made none.
SECONDS = [
    ({}, 6 / 4),  # all are decoded
    ({"takes": "4:2"}, 3 / 4 + 1 + 4 + 1),
    ({"directions": "...ttd"}, 3 / 4 + 4 + 4 + 1),
    ({"blocks": 8}, 6 / 4 + 2 * 15 / 6),
]


@pytest.mark.parametrize("changes, seconds", SECONDS)
def test_run_takes_as_long_as_its_blocks(changes, seconds):
    trace = made()
    memory = EarlierRuns()
    memory.learn(trace, AT_HAND)
    wanted = asked(**changes)
    events = [
        {"outcome": outcome, "seconds": 1 if REASONS[outcome][0] else 4, "decode": 0.25, "reused": False}
        for outcome in OUTCOMES
    ]
    guess = forecast_film((wanted,), trace, memory)
    assert seconds_of(guess, (wanted,), trace.asked, events, 0.0, []) == pytest.approx(seconds)
    assert seconds_of(guess, (wanted,), trace.asked, events, None, []) is None


def test_pictures_after_another_start_are_old():
    """Those of the first shot, as the others begin afresh. Catches: a new picture that stands over older blocks."""
    film = (asked(blocks=2, directions="dd"), asked(key="#b", blocks=2, directions="dd", start=2, place=1))
    trace = Trace("a", film, dict.fromkeys(range(1, 5), decision("drafted_unseen", None, ())))
    memory = EarlierRuns()
    memory.learn(trace, AT_HAND)
    begun = {**SIGNATURE, "rest": "with a picture", "start": "a picture"}
    other = tuple(replace(shot, signature={**shot.signature, **begun}) for shot in film)
    assert forecast_film(other, trace, memory) == Forecast(answers="cccc", old=(1, 2))


def test_directions_of_a_later_shot_take_their_seconds():
    """Catches: a direction looked for in the first shot, so that the block made there tells the seconds."""
    film = (asked(blocks=2, directions="dd"), asked(key="#b", blocks=2, directions="tt", start=2, place=1))
    draft = {"outcome": "drafted_unseen", "seconds": 1, "decode": 0.0, "reused": False}
    events = [draft, draft, draft, {**draft, "outcome": "target_unseen", "seconds": 4}]
    assert seconds_of(Forecast(answers="sscc"), film, film, events, 0.0, []) == 4 + 4


def test_kept_pixels_take_no_seconds():
    """Of a film, as many blocks as are decoded at the end of a run that changes none. Catches: all that stay."""
    events = [{"outcome": "forced", "seconds": 4, "decode": 0.25, "reused": False}] * 6
    unchanged = Forecast(answers="ssssss")
    one_shot = (asked(),)
    two_shots = (asked(blocks=3), asked(key="#b", blocks=3, start=3, place=1))
    for film in (one_shot, two_shots):
        for decoded in (0, 2):
            decoding = [0, 1, 1, 2, 2, 3, decoded]
            assert seconds_of(unchanged, film, film, events, 0.0, decoding) == pytest.approx(decoded / 4)
    assert seconds_of(unchanged, two_shots, two_shots, events, 0.0, [9]) == pytest.approx(6 / 4)


@pytest.mark.parametrize(
    "strengths, answers", [((), "ss"), ((Strength(share=0.6),), "cc")], ids=["plain", "restyled"]
)
def test_shot_that_moves_in_its_clip_is_made_again(strengths, answers):
    """A shot afresh has three frames less, so another one before it moves it. Catches: a place by blocks alone."""

    def film(*starts):
        stops = [*starts[1:], 6]
        keys = ["#0", *(f"#{number}" for number in starts[1:])]
        return tuple(
            asked(
                key=key,
                place=place,
                start=start,
                before=start,
                route_start=start,
                blocks=stop - start,
                directions="d" * (stop - start),
                strengths=strengths * (stop - start),
            )
            for place, (key, start, stop) in enumerate(zip(keys, starts, stops, strict=True))
        )

    decisions = {number: decision("drafted_unseen", None, ()) for number in range(1, 7)}
    trace = Trace("a", film(0, 4), decisions)
    memory = EarlierRuns()
    memory.learn(trace, AT_HAND)
    assert forecast_film(film(0, 4), trace, memory).answers == "ssssss"
    assert forecast_film(film(0, 2, 4), trace, memory).answers[4:] == answers
