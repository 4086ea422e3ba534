"""What another healer is told about its node, and when a drain begins."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.drains import (
    LEAST_SAVE_S,
    RETRY_S,
    Ask,
    DrainNote,
    LastDrain,
    NodeLook,
    PodThere,
    Telling,
    begin,
    next_step,
)

NOTE = begin(100.0, 600.0, boot_id="boot")
SAVE_S = 300.0
GANG = PodThere(name="team/a-0", training=True)
WEB = PodThere(name="web/x", training=False)


def ask(id_="one", **changes):
    return Ask(**{"id": id_, "node": "n1", "note": NOTE, **changes})


def step(*asks, **look):
    return next_step(asks, NodeLook(**{"now_s": 110.0, "pods": (GANG, WEB), **look}), save_within_s=SAVE_S)


def last(**changes):
    return LastDrain(**{"pods": (GANG.name,), "deadline_at_s": 700.0, "ended_at_s": 150.0, **changes})


def test_a_note_is_read_back_and_what_is_none_is_none():
    told = Telling(done=False, reason="Draining", message="x")
    note = NOTE.model_copy(update={"told": told})
    assert DrainNote.of(note.text()) == note
    for garbage in (None, "", "x", "[]", '{"begun_at_s": 1}', '{"begun_at_s":1,"deadline_at_s":2,"more":3}', 7):
        assert DrainNote.of(garbage) is None


def test_training_gangs_leave_and_others_only_where_they_are_named():
    found = step(ask())
    assert found.drain.pods == (GANG.name,)
    assert found.drain.within_s == SAVE_S
    assert found.tell["one"] == Telling(
        done=False, reason="Draining", message="node n1: gangs save and leave, until 1970-01-01T00:11:40Z at most"
    )
    assert step(ask(pods=(WEB.name,))).drain.pods == (GANG.name, WEB.name)
    assert step(ask(pods=(WEB.name,), gangs=False)).drain.pods == (WEB.name,)
    assert step(ask(gangs=False)).tell["one"].done, "nothing is asked for"


def test_what_was_told_is_not_told_again():
    told = step(ask()).tell["one"]
    assert step(ask(told=told)).tell == {}
    done = Telling(done=True, reason="Drained", message="")
    assert step(ask(told=done)) == next_step((), NodeLook(now_s=0.0), save_within_s=1.0), "over and done"
    assert step(ask(note=None)).drain is None, "not before the deadline is kept"


def test_the_deadline_bounds_the_save_and_a_late_one_still_gets_a_little():
    assert step(ask(), now_s=500.0).drain.within_s == 200.0 - 20.0
    late = step(ask(), now_s=5000.0).drain
    assert late.within_s == LEAST_SAVE_S
    assert late.regardless
    assert not step(ask()).drain.regardless
    sooner = ask("two", note=begin(100.0, 60.0))
    assert step(ask(), sooner).drain.within_s == 30.0, "one drain, for the healer that waits less long"


def test_a_node_that_takes_new_work_is_not_emptied():
    found = step(ask(), fenced=False)
    assert found.drain is None
    assert (found.tell["one"].done, found.tell["one"].reason) == (False, "NodeOpen")
    assert "cordon it" in found.tell["one"].message


def test_it_is_done_once_the_drain_knows_what_became_of_the_gangs():
    running = last(ended_at_s=None)
    assert step(ask(), pods=(WEB,), last=running).tell["one"].reason == "Draining"
    words = ("gang team/a saved step 7 and left",)
    found = step(ask(), pods=(WEB,), last=last(words=words)).tell["one"]
    assert found == Telling(done=True, reason="GangsSaved", message=words[0])
    assert step(ask(), pods=(), last=last(words=words, saved=False)).tell["one"].reason == "LeftUnsaved"
    assert step(ask(), pods=()).tell["one"] == Telling(
        done=True, reason="Drained", message="nothing that had to leave is on node n1"
    )
    assert step(ask(), exists=False, pods=()).tell["one"].reason == "NodeGone"


def test_pods_that_only_a_reboot_ends_do_not_keep_the_healer_from_it():
    leaving = GANG.model_copy(update={"deleted_at_s": 200.0})
    assert step(ask(), pods=(leaving,), now_s=205.0, last=last()).tell["one"].reason == "Blocked"
    found = step(ask(), pods=(leaving,), now_s=211.0, last=last(words=("gang team/a goes on from step 3",)))
    assert found.drain is None
    assert (found.tell["one"].done, found.tell["one"].reason) == (True, "PodsStuck")
    assert "team/a-0" in found.tell["one"].message
    assert "goes on from step 3" in found.tell["one"].message
    both = step(ask(), pods=(leaving, GANG.model_copy(update={"name": "team/a-1"})), now_s=211.0)
    assert not both.tell["one"].done


def test_what_is_left_is_tried_again_and_named():
    words = ("team/a-0: The disruption budget keep",)
    found = step(ask(), now_s=160.0, last=last(words=words))
    assert found.drain is None
    assert found.tell["one"].reason == "Blocked"
    assert "still there: team/a-0; team/a-0: The disruption budget keep; trying again" in found.tell["one"].message
    assert step(ask(), now_s=150.0 + RETRY_S, last=last(words=words)).drain is not None
    assert step(ask(), now_s=800.0, last=last(words=words)).tell["one"].reason == "DeadlineExceeded"
    new = GANG.model_copy(update={"name": "team/b-0"})
    assert step(ask(), pods=(GANG, new), now_s=151.0, last=last()).drain.pods == (GANG.name, new.name), "at once"


def test_a_second_request_begins_a_drain_of_its_own_only_where_it_waits_less_long():
    running = last(ended_at_s=None, deadline_at_s=420.0)
    assert step(ask(), ask("two"), last=running).drain is None
    sooner = step(ask(), ask("two", note=begin(100.0, 120.0)), last=running).drain
    assert sooner.deadline_at_s == 220.0
    assert step(ask(), ask("two", note=begin(0.0, 1.0)), last=last(ended_at_s=None, deadline_at_s=140.0)).drain is None


pods = st.lists(
    st.builds(
        PodThere,
        name=st.sampled_from(["team/a", "team/b", "web/x"]),
        training=st.booleans(),
        deleted_at_s=st.none() | st.floats(0, 2000),
    ),
    max_size=3,
    unique_by=lambda pod: pod.name,
).map(tuple)
asks = st.lists(
    st.builds(
        Ask,
        id=st.sampled_from(["one", "two", "three"]),
        node=st.just("n1"),
        pods=st.sets(st.sampled_from(["team/a", "web/x", "web/y"])).map(tuple),
        gangs=st.booleans(),
        note=st.none() | st.builds(begin, st.floats(0, 1000), st.floats(1, 2000)),
        told=st.none() | st.builds(Telling, done=st.booleans(), reason=st.just("X"), message=st.just("y")),
    ),
    max_size=3,
    unique_by=lambda one: one.id,
)
looks = st.builds(
    NodeLook,
    now_s=st.floats(0, 5000),
    exists=st.booleans(),
    fenced=st.booleans(),
    pods=pods,
    last=st.none()
    | st.builds(
        LastDrain,
        pods=st.just(("team/a",)),
        deadline_at_s=st.floats(0, 5000),
        ended_at_s=st.none() | st.floats(0, 5000),
        words=st.lists(st.text(max_size=2000), max_size=3).map(tuple),
        saved=st.booleans(),
    ),
)


@settings(max_examples=300, deadline=None)
@given(asks, looks)
def test_nobody_is_told_to_go_on_while_a_gang_can_still_save(asked, look):
    found = next_step(asked, look, save_within_s=SAVE_S)
    wanted = {
        one.name: pod_asks
        for one in look.pods
        if (pod_asks := [each for each in asked if one.name in each.pods or (each.gangs and one.training)])
    }
    for each in asked:
        telling = found.tell.get(each.id)
        if telling is None:
            continue
        assert each.note is not None
        assert not (each.told and each.told.done), "what was said stays said"
        assert len(telling.message) <= 1000
        if telling.done and look.exists:
            mine = [one for one in look.pods if one.name in each.pods or (each.gangs and one.training)]
            assert all(one.deleted_at_s is not None and one.deleted_at_s < look.now_s for one in mine)
    if found.drain is not None:
        assert look.exists
        assert look.fenced
        assert set(found.drain.pods) <= set(wanted)
        assert found.drain.within_s >= LEAST_SAVE_S
        assert found.drain.within_s <= SAVE_S
