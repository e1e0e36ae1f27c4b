"""Prompts whose words are those of an earlier report, and whose embeddings are not."""

from collections.abc import Mapping

import pytest

from sdvg_core.report.embeddings import embedding_digests, encoded_otherwise, other_embedding
from sdvg_core.report.run_report import RunReport, hide_prompt
from sdvg_core.settings.decision import Decision, Reason
from tests.support.sample_reports import record, report
from tests.support.tiny import condition

KEPT = Decision(accepted=True, reason=Reason.DIRECTED_DRAFT)
BALL = "a red ball"
CUBE = "a blue cube"


def with_prompts(texts: list[str], digests: Mapping[str, str], **settings: object) -> RunReport:
    """A report of blocks with these prompts. `digests`: of the prompts' embeddings, by text."""
    blocks = tuple(record(KEPT, index, text) for index, text in enumerate(texts))
    embeddings = {hide_prompt(text): digest for text, digest in digests.items()}
    return report([], blocks=blocks, settings={"embeddings": embeddings, **settings})


def test_digests_are_of_the_first_embedding():
    """By the prompt's hash, so that a private report has no words. Catches: the hash of another one's bits."""
    ball = condition(1, BALL)
    cube = condition(2, CUBE)
    digests = embedding_digests([ball, ball, cube, condition(3, BALL)])
    assert digests == {hide_prompt(BALL): ball.digest[:16], hide_prompt(CUBE): cube.digest[:16]}
    assert ball.digest[:16] != cube.digest[:16]


def test_first_block_of_each_such_prompt_is_named():
    """Once, in a private report too. Catches: a prompt that is new, or one that is as it was."""
    then = with_prompts([BALL, CUBE, "a fox"], {BALL: "1", CUBE: "2", "a fox": "3"})
    texts = ["a whale", "a fox", BALL, BALL, CUBE, BALL]
    now = with_prompts(texts, {"a whale": "4", "a fox": "3", BALL: "5", CUBE: "6"})
    assert encoded_otherwise(then, now) == (3, 5)
    assert encoded_otherwise(then.without_prompts(), now.without_prompts()) == (3, 5)
    assert encoded_otherwise(now, now) == ()


def test_blocks_after_locked_ones_keep_their_numbers():
    then = with_prompts([BALL], {BALL: "1"})
    now = with_prompts([CUBE, BALL], {CUBE: "2", BALL: "3"}, block_numbers=[4, 7])
    assert encoded_otherwise(then, now) == (7,)


@pytest.mark.parametrize("unread", [{}, {"embeddings": None}, {"embeddings": ["1"]}, {"embeddings": "1"}])
def test_report_without_digests_says_nothing(unread):
    """Of an earlier version, or of somebody else."""
    now = with_prompts([BALL], {BALL: "1"})
    other = report([], blocks=now.blocks, settings=unread)
    assert encoded_otherwise(other, now) == ()
    assert encoded_otherwise(now, other) == ()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((3,), "The prompt from block 3 on has another embedding than then"),
        ((3, 5), "The prompts from blocks 3 and 5 on have another embedding than then"),
        ((1, 3, 5), "The prompts from blocks 1, 3 and 5 on have another embedding than then"),
    ],
)
def test_note_names_the_blocks(numbers, words):
    assert other_embedding(numbers, "then") == words
