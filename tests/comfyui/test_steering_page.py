"""What a live session does with the messages of pages: pace, hold, refuse."""

import pytest
from sdvg_pack.nodes.page.live import LiveRun
from sdvg_pack.nodes.page.steering import ACTS_A_SECOND, LiveSession, TooMany
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.settings.request import VideoRequest
from sdvg_pack.sdvg_core.text.prompts import one_prompt
from sdvg_pack.sdvg_core.videos.live import Steering

pytestmark = pytest.mark.comfyui


class Clock:
    """Seconds, as the test says."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Page:
    """A session whose clock stands still. `told`: the states that pages were told."""

    def __init__(self):
        self.clock = Clock()
        self.told = []
        self.steering = Steering(VideoRequest(blocks=80), one_prompt("a red ball"), given=0)
        run = LiveRun({"run": "0a", "node": "5", "workflow": None})
        self.session = LiveSession(self.steering, run, str, self.told.append, self.clock)
        self.run = run

    def make(self, blocks):
        """Make more blocks, without a wait."""
        shot = self.steering.shot()
        for block in range(self.steering.upcoming - 1, self.steering.upcoming - 1 + blocks):
            assert self.steering.decide(block, shot, bool)
            assert self.steering.count(block + 1, shot)

    def play(self, at, page="one", **more):
        return self.session.act({"act": "play", "page": page, "at": at, **more})

    def after(self, seconds):
        """Return whether the run waits, so many seconds later."""
        self.clock.now += seconds
        return self.session.waits()


@pytest.fixture
def page():
    return Page()


def test_no_more_is_made_than_a_page_plays(page):
    """Two blocks ahead of where it plays. Catches: a word that acts a minute later."""
    page.play(0)
    waited = []
    for _ in range(3):
        waited.append(page.after(0.1))
        page.make(1)
    assert waited == [False, False, True]
    page.play(1.9)
    assert page.after(0.1)
    page.play(10**400)
    assert not page.after(0.1)
    page.play(2)
    assert not page.after(0.1)
    page.play(2, ahead=1)
    assert page.after(0.1)


def test_run_without_a_page_is_not_paced(page):
    page.make(9)
    assert not page.after(10_000)
    assert page.session.why == ""


def test_newest_page_sets_the_pace(page):
    page.make(4)
    page.play(4, "old")
    page.clock.now += 1
    page.play(0, "new")
    page.play(4, "old")
    assert page.after(1)
    page.clock.now += 9.5
    page.play(4, "old")
    assert not page.after(0), "the new page said nothing for ten seconds"


def test_session_that_nobody_watches_holds_and_ends(page):
    """Catches: a queue that is blocked for ever."""
    page.make(3)
    page.play(3, patience=2)
    assert not page.after(59)
    assert page.after(2)
    assert page.told[-1]["held"]
    assert page.told[-1]["why"] == "unseen"
    assert page.after(119)
    assert not page.steering.ended
    assert not page.after(2)
    assert page.steering.ended
    assert page.session.why == "The session was held for 2 minutes, so it ended; what was made is kept."


def test_session_that_its_page_holds_ends(page):
    """After the same minutes, with the page there. Catches: a queue that a forgotten *hold* blocks for ever."""

    def watch(seconds):
        for _ in range(seconds):
            page.clock.now += 1
            page.play(0, patience=2)
            page.session.waits()

    page.make(1)
    page.session.act({"act": "hold"})
    watch(110)
    page.session.act({"act": "resume"})
    watch(5)
    page.session.act({"act": "hold"})
    watch(120)
    assert not page.steering.ended
    watch(2)
    assert page.steering.ended
    assert page.session.why == "The session was held for 2 minutes, so it ended; what was made is kept."


def test_page_that_goes_still_sets_the_pace(page):
    """Catches: a minute that is made, and nobody sees."""
    page.play(1)
    page.make(3)
    assert page.after(11)
    page.play(2)
    assert not page.after(0)


def test_session_goes_on_when_a_page_comes_back(page):
    page.make(3)
    page.play(3)
    assert page.after(61)
    page.play(3, "another")
    assert not page.after(0.2)
    assert page.told[-1]["why"] == ""


def test_stop_of_the_strip_ends_a_session(page):
    page.make(1)
    page.run.stop_asked = True
    assert not page.after(0)
    assert page.steering.ended


def test_twenty_acts_a_second_are_taken(page):
    """Of all pages together; an end is taken all the same."""
    page.make(1)
    for _ in range(ACTS_A_SECOND):
        page.session.act({"act": "hold"})
    with pytest.raises(TooMany, match="in a second"):
        page.session.act({"act": "resume"})
    page.play(0)
    page.clock.now += 1
    page.session.act({"act": "resume"})
    for _ in range(ACTS_A_SECOND - 1):
        page.session.act({"act": "resume"})
    page.session.act({"act": "end"})


def test_page_that_floods_is_refused_alone(page):
    """Catches: tabs that report how far they play, and so refuse the words of whoever types."""
    page.play(0)
    with pytest.raises(TooMany, match="in a second"):
        page.play(0)
    page.play(0, "two")
    page.session.act({"act": "prompt", "text": "a blue ring"})


def test_film_that_stands_still_is_not_seen(page):
    """Catches: a queue that a paused film blocks for ever."""
    page.make(3)
    page.play(0, patience=1)
    for _ in range(61):
        page.clock.now += 1
        page.play(0, patience=1)
    assert page.session.waits()
    assert page.told[-1]["why"] == "unseen"
    page.play(1, "two", patience=1)
    assert page.session.waits(), "two blocks ahead"
    assert not page.told[-1]["held"]
    for _ in range(125):
        page.clock.now += 1
        page.play(1, "two", patience=1)
        page.session.waits()
    assert page.steering.ended


@pytest.mark.parametrize(
    "text, word",
    [
        ("a // b", "'//'"),
        ("a /* b", "'/\\*'"),
        ("a \\ b", "takes"),
        ("a\nb", "one line"),
        ("5: a red ball", "number"),
        ("5 cut: a red ball", "number"),
        ("[first 3] a ball", "number"),
        ("  ", "empty"),
        ("x" * 20_001, "20001 characters"),
        (7, "empty"),
    ],
)
def test_prompt_is_refused(text, word, page):
    with pytest.raises(BadInput, match=word):
        page.session.act({"act": "prompt", "text": text})


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"act": "jump"},
        {"act": "prompt"},
        {"act": "again", "block": "2"},
        {"act": "again", "block": True},
        {"act": "again", "block": 4},
        {"act": "play", "at": "soon"},
        {"act": "play", "at": float("nan")},
        {"act": "play", "at": True},
        {"act": "play", "at": 1, "ahead": []},
    ],
)
def test_junk_is_refused(asked, page):
    page.make(2)
    with pytest.raises(BadInput):
        page.session.act(asked)
    assert page.steering.upcoming == 3


def test_word_is_answered_with_its_block(page):
    page.make(2)
    assert page.session.act({"act": "prompt", "text": " a blue ring "}) == {"block": 3, "text": "a blue ring"}
    assert page.told[-1]["words"] == "a blue ring"
    assert page.session.act({"act": "prompt", "fresh": True})["block"] == 3
    assert [shot.start for shot in page.steering.recording().prompt.shots] == [0]
    assert page.session.act({"act": "hold"})["block"] == 3
    assert page.told[-1]["why"] == "asked"
    page.session.act({"act": "resume"})
    assert not page.told[-1]["held"]


def test_newest_state_is_told_last(page, monkeypatch):
    """Catches: the state of a thread that looked earlier and speaks later."""
    looks = []

    def held(steering):
        looks.append(1)
        if len(looks) == 1:  # another thread tells the state while this one finds it
            page.session.encoded(2.0)
        return False

    monkeypatch.setattr(Steering, "held", property(held, lambda steering, value: None), raising=False)
    page.session.show()
    assert [state["encoding"] for state in page.told] == [2.0]
    page.session.show()
    assert [state["turn"] for state in page.told] == sorted(state["turn"] for state in page.told)
    assert len(page.told) == 2
