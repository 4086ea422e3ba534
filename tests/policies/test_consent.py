import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.consent import MOST_EVICTORS, MOST_GANGS, SETTLE_S, ConsentBook

HOLD_S = 120.0
T0 = 1_000_000.0


@pytest.fixture
def book():
    return ConsentBook(hold_s=HOLD_S)


def test_a_gang_is_held_until_its_commit(book):
    assert book.ask("high", "gang", T0) == (False, "holding")
    assert book.due(T0) == ("gang",)
    book.saving("gang", T0)
    assert book.due(T0 + 1) == ()
    assert book.ask("high", "gang", T0 + 5) == (False, "holding")
    book.committed("gang", T0 + 6)
    assert book.ask("high", "gang", T0 + 7) == (True, "committed")


def test_asking_again_and_again_moves_no_deadline(book):
    for second in range(int(HOLD_S)):
        assert not book.ask("high", "gang", T0 + second).consent
    assert book.ask("high", "gang", T0 + HOLD_S) == (True, "deadline")
    assert book.ask("high", "gang", T0 + 3 * HOLD_S) == (True, "deadline")


def test_evictors_that_come_one_after_the_other_under_new_names_wait_no_longer_than_for_one_save(book):
    book.ask("first", "gang", T0)
    book.saving("gang", T0)
    assert not book.ask("second", "gang", T0 + HOLD_S - 1).consent
    assert book.ask("second", "gang", T0 + HOLD_S).consent
    assert book.ask("third", "gang", T0 + HOLD_S + 1).consent


def test_each_evictor_has_its_own_deadline_while_nobody_was_asked_to_save(book):
    book.ask("first", "gang", T0)
    book.ask("second", "gang", T0 + 100)
    assert book.ask("first", "gang", T0 + HOLD_S).consent
    assert not book.ask("second", "gang", T0 + HOLD_S).consent
    assert {record.evictor: record.deadline_s for record in book.records(T0)} == {
        "first": T0 + HOLD_S,
        "second": T0 + 100 + HOLD_S,
    }


def test_one_small_evictor_does_not_send_every_gang_away(book):
    for gang in ("a", "b", "c"):
        book.ask("high", gang, T0)
    assert book.due(T0) == ("a",)
    book.saving("a", T0)
    assert book.due(T0 + 1) == ()
    book.committed("a", T0 + 2)
    for gang in ("b", "c"):
        book.ask("high", gang, T0 + 3)
    assert book.due(T0 + 3) == (), "it may be enough"
    for gang in ("b", "c"):
        book.ask("high", gang, T0 + 2 + SETTLE_S)
    assert book.due(T0 + 2 + SETTLE_S) == ("b",)


def test_a_gang_that_left_gives_its_evictor_time_to_find_out(book):
    book.ask("high", "a", T0)
    book.ask("high", "b", T0)
    book.saving("a", T0)
    book.committed("a", T0 + 1)
    book.drop("a", T0 + 2)
    assert book.due(T0 + 3) == ()
    assert book.due(T0 + 2 + SETTLE_S) == ("b",)


def test_in_the_second_half_of_the_hold_everybody_saves(book):
    for gang in ("a", "b", "c"):
        book.ask("high", gang, T0)
    book.saving("a", T0)
    for gang in ("b", "c"):
        book.ask("high", gang, T0 + HOLD_S / 2)
    assert book.due(T0 + HOLD_S / 2) == ("b", "c")


def test_two_evictors_do_not_wait_for_each_other(book):
    book.ask("one", "a", T0)
    book.ask("two", "b", T0)
    assert book.due(T0) == ("a", "b")


def test_a_run_leaves_for_an_evictor_once_then_it_saves_and_stays(book):
    book.ask("too-large", "run-a1", T0)
    book.saving("run-a1", T0, run="run")
    assert book.saves()["run-a1"].then == "leave"
    book.committed("run-a1", T0 + 5)
    book.drop("run-a1", T0 + 8)

    for second in range(60, 120):
        book.ask("too-large", "run-a2", T0 + second)
        for gang in book.due(T0 + second):
            book.saving(gang, T0 + second, run="run")
    assert book.saves()["run-a2"] == (T0 + 60, "stay")
    book.committed("run-a2", T0 + 120)
    assert book.ask("too-large", "run-a2", T0 + 121).consent
    for second in range(121, 240):
        book.forget(T0 + second)
        assert book.ask("too-large", "run-a2", T0 + second).consent
    book.forget(T0 + 240)
    assert not book.ask("too-large", "run-a2", T0 + 240).consent, "the commit is old by now"
    assert book.due(T0 + 240) == ("run-a2",)
    assert book.ask("too-large", "run-a2", T0 + 240 + HOLD_S).consent


def test_another_evictor_may_send_the_run_away_again(book):
    book.ask("first", "run-a1", T0)
    book.saving("run-a1", T0, run="run")
    book.committed("run-a1", T0 + 5)
    book.drop("run-a1", T0 + 8)
    book.ask("second", "run-a2", T0 + 60)
    book.saving("run-a2", T0 + 60, run="run")
    assert book.saves()["run-a2"].then == "leave"


def test_nobody_is_sent_away_for_an_evictor_that_stopped_asking(book):
    book.ask("high", "gang", T0)
    assert book.due(T0 + 11) == ()


def test_a_restart_keeps_the_deadline(book):
    book.ask("high", "gang", T0)
    book.saving("gang", T0 + 1)
    note = json.loads(json.dumps(book.note("gang")))

    again = ConsentBook(hold_s=HOLD_S)
    again.restore("gang", note, T0 + 50)
    assert not again.ask("high", "gang", T0 + 51).consent
    assert again.due(T0 + 51) == (), "it was asked already"
    assert again.saves() == {"gang": (T0 + 1, "leave")}
    assert again.ask("high", "gang", T0 + HOLD_S).consent


def test_who_is_content_with_a_save_that_stays_is_so_after_a_restart_and_is_not_held_again(book):
    book.ask("starving", "gang", T0, then="stay")
    again = ConsentBook(hold_s=HOLD_S)
    again.restore("gang", json.loads(json.dumps(book.note("gang"))), T0 + 1)
    assert again.due(T0 + 1) == ("gang",)
    again.saving("gang", T0 + 1)
    assert again.saves()["gang"].then == "stay"
    again.committed("gang", T0 + 2)
    for second in range(2, int(3 * HOLD_S)):
        again.forget(T0 + second)
        assert again.ask("starving", "gang", T0 + second).consent
    again.ask("evictor", "other", T0)
    again.ask("starving", "other", T0, then="stay")
    again.saving("other", T0)
    assert again.saves()["other"].then == "leave", "one of them wants it away"


def test_a_question_may_be_older_than_its_first_telling(book):
    book.ask("starving", "gang", T0, since_s=T0 - 100)
    assert book.ask("starving", "gang", T0 + 20, since_s=T0 + 20).consent
    assert not book.ask("other", "gang", T0, since_s=T0 + 100).consent, "not from the future"


def test_a_note_that_comes_after_the_first_question_brings_the_deadline_forward(book):
    book.ask("high", "gang", T0 + 50)
    book.restore("gang", {"asked": {"high": T0}, "save": None}, T0 + 51)
    assert book.ask("high", "gang", T0 + HOLD_S).consent


@pytest.mark.parametrize("save_s", [None, T0 + 10_000])
def test_a_note_of_the_future_counts_from_now(book, save_s):
    book.restore("gang", {"asked": {"high": T0 + 10_000}, "save": save_s}, T0)
    assert book.ask("high", "gang", T0 + HOLD_S).consent


def test_a_save_of_long_ago_is_no_reason_to_go_without_one(book):
    book.restore("gang", {"asked": {"old": T0 - 9000}, "save": T0 - 9000}, T0)
    assert not book.ask("new", "gang", T0).consent
    assert book.due(T0) == ("gang",)
    assert book.ask("old", "gang", T0).consent


@pytest.mark.parametrize(
    "note",
    [
        None,
        3,
        "x",
        [],
        {},
        {"asked": 3},
        {"asked": {"high": "x"}},
        {"asked": {"high": float("nan")}},
        {"save": 1.0},
        {"stays": 3},
    ],
)
def test_what_is_no_note_is_ignored(book, note):
    book.restore("gang", note, T0)
    assert list(book.records(T0)) == []


def test_notes_are_written_when_something_new_is_known(book):
    book.ask("high", "gang", T0)
    assert book.take_unwritten() == ("gang",)
    book.ask("high", "gang", T0 + 1)
    assert book.take_unwritten() == ()
    book.saving("gang", T0 + 1)
    assert book.take_unwritten() == ("gang",)


def test_who_no_longer_asks_is_forgotten_and_so_is_the_note(book):
    book.ask("high", "gang", T0)
    book.take_unwritten()
    book.forget(T0 + HOLD_S)
    assert book.note("gang") is not None
    book.forget(T0 + HOLD_S + 1)
    assert book.note("gang") is None
    assert book.take_unwritten() == ("gang",)
    assert not book.ask("high", "gang", T0 + HOLD_S + 2).consent


def test_changes_are_told_once(book):
    for second in range(3):
        book.ask("high", "gang", T0 + second)
    book.committed("gang", T0 + 4)
    book.ask("high", "gang", T0 + 5)
    changes = book.take_changes()
    assert [(change.state, change.at_s - T0) for change in changes] == [("holding", 0), ("committed", 4)]
    assert book.take_changes() == ()


def test_memory_is_bounded_and_nobody_starves_for_it(book):
    for number in range(MOST_GANGS):
        book.ask("high", f"gang-{number}", T0)
    assert book.ask("high", "one-too-many", T0).consent
    for number in range(MOST_EVICTORS * 2):
        book.ask(f"evictor-{number}", "gang-0", T0 + number)
    assert len([record for record in book.records(T0) if record.gang == "gang-0"]) == MOST_EVICTORS
    assert book.ask("evictor-60", "gang-0", T0 + HOLD_S).consent


class Story:
    """What happens to a book, beside what a person would note on paper."""

    def __init__(self) -> None:
        self.book, self.now = ConsentBook(hold_s=HOLD_S), T0
        self.asked: dict[tuple[str, str], float] = {}
        self.saves: dict[str, float] = {}
        self.committed: set[str] = set()

    def ask(self, evictor: str, gang: str) -> None:
        first_s = self.asked.setdefault((gang, evictor), self.now)
        deadline_s = min(first_s, self.saves.get(gang, first_s)) + HOLD_S
        answer = self.book.ask(evictor, gang, self.now)
        assert answer.consent == (gang in self.committed or self.now >= deadline_s), (answer, deadline_s)
        assert answer.consent or self.now - first_s < HOLD_S
        assert self.book.ask(evictor, gang, self.now) == answer

    def due(self, *_: str) -> None:
        for gang in self.book.due(self.now):
            self.book.saving(gang, self.now)
            assert gang not in self.saves
            self.saves[gang] = self.now

    def commit(self, _: str, gang: str) -> None:
        self.book.committed(gang, self.now)
        if any(known == gang for known, _ in self.asked):
            self.committed.add(gang)

    def restart(self, *_: str) -> None:
        notes = {gang: json.loads(json.dumps(self.book.note(gang))) for gang in {gang for gang, _ in self.asked}}
        self.book = ConsentBook(hold_s=HOLD_S)
        for gang, note in notes.items():
            self.book.restore(gang, note, self.now)
        self.committed.clear()  # found again in the store

    def drop(self, _: str, gang: str) -> None:
        self.book.drop(gang, self.now)
        self.asked = {pair: at_s for pair, at_s in self.asked.items() if pair[0] != gang}
        self.saves.pop(gang, None)
        self.committed.discard(gang)


moves = st.lists(
    st.tuples(
        st.floats(0.0, 40.0),
        st.sampled_from([Story.ask, Story.ask, Story.ask, Story.due, Story.commit, Story.restart, Story.drop]),
        st.sampled_from(["e0", "e1", "e2"]),
        st.sampled_from(["g0", "g1", "g2"]),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(moves)
def test_never_before_a_commit_or_the_deadline_and_never_after_it(happenings):
    story = Story()
    for pause_s, move, evictor, gang in happenings:
        # Longer stories meet the rule for saves of long ago, which has a test of its own.
        story.now = min(story.now + pause_s, T0 + 2 * HOLD_S)
        move(story, evictor, gang)


def test_however_evictors_take_turns_nobody_waits_longer_than_the_hold(book):
    waits: dict[str, float] = {}
    for second in range(1000):
        evictor = f"e{second // 50}"
        now = T0 + second
        waits.setdefault(evictor, now)
        answer = book.ask(evictor, "gang", now)
        for one in book.due(now):
            book.saving(one, now)
        book.forget(now)
        assert answer.consent or now - waits[evictor] < HOLD_S
        assert answer.consent == (second >= HOLD_S)
