"""Who may have a locked gang's room: Volcano's rules as far as objects show them, and a bound whatever happens."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.consent import ConsentBook
from rerail.policies.starvation import (
    MOST_STARVING,
    Holder,
    Share,
    Waiting,
    hold_since_s,
    may_take,
    starving,
    to_ask,
    waits_for_room,
)

GPU = "nvidia.com/gpu"
T0 = 1_000_000.0
HOLD_S, STARVE_S = 120.0, 15.0


def gpus(count):
    return {GPU: Fraction(count), "cpu": Fraction(1)}


def waiting(key="urgent", *, priority=10, queue="q", wants=4, since_s=T0):
    return Waiting(key, queue, priority, gpus(wants) if wants else {}, since_s)


def holder(key="gang", *, priority=0, queue="q", holds=4):
    return Holder(key, queue, priority, gpus(holds))


def test_names_of_quotas_in_what_a_group_wants_are_no_devices():
    """As Volcano writes ``minResources``; seen on HEAD of August 2026."""
    counted = {"count/pods": Fraction(2), "pods": Fraction(2)}
    named = {**counted, "requests.nvidia.com/gpu": Fraction(4), GPU: Fraction(4), "limits.cpu": Fraction(1)}
    for wants in (counted, named):
        who = Waiting("urgent", "q", 10, wants, T0)
        assert to_ask(who, [holder()], {}, starved_s=1.0, hold_s=HOLD_S) == (holder(),)
    assert not may_take(Waiting("urgent", "q", 10, {**counted, "amd.com/gpu": Fraction(1)}, T0), holder(), {})


@pytest.mark.parametrize(
    ("phase", "reason", "waits"),
    [
        ("Inqueue", "NotEnoughResources", True),
        ("Unknown", "NotEnoughResources", True),
        ("Pending", "NotEnoughResources", False),  # not admitted: Volcano takes nobody's room for it
        ("Running", "NotEnoughResources", False),
        ("Inqueue", None, False),
        ("Inqueue", "NotEnoughTasks", False),  # its pods are missing
    ],
)
def test_only_a_group_that_volcano_makes_room_for_waits(phase, reason, waits):
    assert waits_for_room(phase, reason) is waits


def test_who_waits_long_enough_starves_the_most_urgent_first():
    groups = [
        waiting("late", since_s=T0 + 1),
        waiting("low", priority=1),
        waiting("old"),
        waiting("new", since_s=T0 + 9),
    ]
    found = starving(groups, T0 + STARVE_S + 1, starve_s=STARVE_S)
    assert [one.key for one in found] == ["old", "late", "low"]
    many = [waiting(str(number), priority=number) for number in range(MOST_STARVING + 9)]
    assert len(starving(many, T0 + 99, starve_s=STARVE_S)) == MOST_STARVING


@pytest.mark.parametrize(
    ("who", "gang", "may"),
    [
        (waiting(), holder(), True),
        (waiting(priority=0), holder(), False),  # in one queue only the more urgent one takes
        (waiting(), holder("urgent"), False),
        (waiting(), Holder("g", "q", 0, {"amd.com/gpu": Fraction(4)}), False),
        (waiting(), Holder("g", "q", 0, {"cpu": Fraction(4)}), True),  # nobody says what it holds
        (waiting(wants=0), holder(), True),
    ],
)
def test_in_one_queue_priority_and_devices_decide(who, gang, may):
    assert may_take(who, gang, {}) is may


@pytest.mark.parametrize(
    ("taker", "giver", "may"),
    [
        (Share(allocated={}), Share(allocated=gpus(8)), True),
        (Share(allocated=gpus(8)), Share(allocated=gpus(8)), False),
        (Share(weight=3, allocated=gpus(8)), Share(weight=1, allocated=gpus(8)), True),
        (Share(allocated={}), Share(allocated=gpus(8), reclaimable=False), False),
        (Share(deserved=gpus(8), allocated=gpus(4)), Share(deserved=gpus(4), allocated=gpus(8)), True),
        (Share(deserved=gpus(8), allocated=gpus(4)), Share(deserved=gpus(8), allocated=gpus(8)), False),
        (Share(deserved=gpus(4), allocated=gpus(4)), Share(allocated=gpus(8)), False),
        (None, Share(), True),  # nobody tells: the side of who waits
    ],
)
def test_between_queues_their_shares_decide_whatever_the_priority(taker, giver, may):
    shares = {"taker": taker, "giver": giver} if taker else {"giver": giver}
    assert may_take(waiting(queue="taker", priority=0), holder(queue="giver", priority=9), shares) is may


def ask(who, gangs, starved_s=0.0):
    return [one.key for one in to_ask(who, gangs, {}, starved_s=starved_s, hold_s=HOLD_S)]


def test_as_many_gangs_are_asked_as_hold_what_is_wanted_and_later_all():
    gangs = [holder("c", priority=5), holder("a", holds=2), holder("b", holds=2), holder("d", priority=99)]
    assert ask(waiting(), gangs) == ["a", "b"]
    assert ask(waiting(), gangs, HOLD_S / 2) == ["a", "b", "c"]
    assert ask(waiting(wants=0), gangs) == ["a", "b", "c"], "nobody says how much it wants"


def test_the_own_queue_gives_before_others_do():
    gangs = [holder("far", queue="other"), holder("near", priority=3)]
    assert ask(waiting(wants=1), gangs) == ["near"]


amounts = st.integers(0, 8)
queues = st.sampled_from(["q", "r"])
holders = st.lists(
    st.builds(Holder, st.sampled_from("abcdef"), queues, st.integers(0, 3), amounts.map(gpus)),
    unique_by=lambda h: h.key,
)


@given(who=st.builds(waiting, priority=st.integers(0, 3), queue=queues, wants=amounts), gangs=holders)
def test_after_half_of_the_hold_nobody_who_may_be_taken_is_left_out(who, gangs):
    early, late = set(ask(who, gangs)), set(ask(who, gangs, HOLD_S / 2))
    assert late == {one.key for one in gangs if may_take(who, one, {})}
    assert early <= late
    have = sum(one.holds[GPU] for one in gangs if one.key in early)
    if early != late:
        assert have >= who.wants[GPU], "fewer are asked only where they suffice"


def restarted(book, gangs, now_s):
    """What the next process knows."""
    again = ConsentBook(hold_s=HOLD_S)
    for gang in gangs:
        again.restore(gang, book.note(gang), now_s)
    return again


@settings(deadline=None, max_examples=40)
@given(
    commits=st.lists(st.one_of(st.none(), st.floats(0, 300)), min_size=4, max_size=4),
    begins=st.lists(st.floats(0, 300), min_size=4, max_size=4),
    down=st.tuples(st.floats(0, 300), st.floats(0, 60)),
)
def test_whoever_starves_waits_no_longer_than_the_hold_whatever_gangs_and_restarts_do(commits, begins, down):
    """Gangs that appear at any time and answer at any time, or never; the extender is away for a while."""
    book, who, seen_since_s = ConsentBook(hold_s=HOLD_S), waiting(wants=16), T0
    asked: dict[str, float] = {}
    opened: dict[str, float] = {}
    for second in range(600):
        now_s = T0 + second
        if down[0] <= second < down[0] + down[1]:
            seen_since_s, book = now_s + 1, restarted(book, asked, now_s)
            continue
        there = [holder(str(n)) for n, begin in enumerate(begins) if begin <= second]
        for one in starving([who], now_s, starve_s=STARVE_S):
            since_s = hold_since_s(one, now_s, starve_s=STARVE_S, hold_s=HOLD_S, seen_since_s=seen_since_s)
            for gang in to_ask(one, there, {}, starved_s=now_s - one.since_s - STARVE_S, hold_s=HOLD_S):
                asked.setdefault(gang.key, now_s)
                answer = book.ask(one.key, gang.key, now_s, since_s=since_s, then="stay")
                if answer.consent:
                    opened.setdefault(gang.key, now_s)
                    early = now_s < asked[gang.key] + HOLD_S / 2
                    assert not early or answer.state == "committed", "half of the hold is left for a save"
        book.forget(now_s)
        for gang in book.due(now_s):
            book.saving(gang, now_s)
            assert book.saves()[gang].then == "stay"
        for gang in book.saves():
            commit = commits[int(gang)]
            if commit is not None and second >= commit:
                book.committed(gang, now_s)
    for gang, at_s in asked.items():
        assert opened[gang] - at_s <= HOLD_S + down[1] + 1
