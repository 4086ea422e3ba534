"""A supervisor over a cluster's backends: what is not accepted, an API server that goes away and comes back."""

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rerail.plugins.checkpoint.attempts import create_run
from rerail.plugins.checkpoint.notes import beat, read_requests
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ports import Clock
from rerail.policies.documents import Heartbeat, RunDoc
from rerail.policies.errors import ClusterUnreachableError, ForbiddenError
from rerail.policies.recovery import RecoveryPolicy

POLICY = RecoveryPolicy(capacity_wait_s=10.0, poll_s=1.0, settle_s=0.0, backoff_s=0.0)
CLOSED = 'admission webhook "validatejob.volcano.sh" denied the request: queue `training` status is `Closed`'
QUOTA = 'x "run-a1" is forbidden: exceeded quota: small, requested: count=1, used: count=1, limited: count=1'


class NoNodes:
    """Nobody may look at nodes."""

    def views(self) -> None:
        return None

    def signals(self) -> tuple[()]:
        return ()


@dataclass
class Blinking:
    """A backend that cannot see for a while."""

    backend: Any
    blind: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def view(self, gang: str) -> Any:
        if self.blind:
            raise ClusterUnreachableError("the API server did not answer")
        return self.backend.view(gang)


@dataclass
class Driven:
    rig: Any
    backend: Blinking
    supervisor: Any = None
    said: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    at_s: float = 0.0

    def clock(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        """Time goes on by itself here, and the watches get some of the real one."""
        self.at_s += seconds
        self.rig.clock.at_s += seconds
        time.sleep(0.01)

    def until(self, condition: Any, *, within_s: float = 25.0) -> Any:
        """Pass after pass."""
        end = self.at_s + within_s
        while True:
            self.rig.level()  # this clock is fast: no watch may be behind
            if condition(state := self.supervisor.step()):
                return state
            assert self.at_s < end, (state.phase, state.reason, self.said, self.notes)
            self.sleep(POLICY.poll_s)


@pytest.fixture
def driven(rig, tmp_path) -> Driven:
    run = open_run("run", store=(tmp_path / "store").as_uri(), create=True)
    doc = RunDoc(
        writer=secrets.token_hex(8), run="run", owner="test", created_at_s=1.0, world_size=2,
        policy=POLICY.model_dump(mode="json"),
    )  # fmt: skip
    create_run(run, doc)
    one = Driven(rig, Blinking(rig.backend))
    one.supervisor = Supervisor(
        run,
        2,
        one.backend,
        NoNodes(),
        POLICY,
        layout=rig.backend.shape,
        clock=Clock(monotonic_s=one.clock, sleep=one.sleep),
        on_event=lambda entry: one.notes.append(entry.note),
        log=one.said.append,
    )
    return one


def made(driven: Driven) -> list[dict[str, Any]]:
    return driven.rig.api.find(driven.rig.plural)


@pytest.mark.parametrize(("code", "text"), [(400, CLOSED), (403, QUOTA)])
def test_a_gang_that_is_not_accepted_waits_with_the_reason_and_not_for_ever(driven, code, text):
    body = driven.rig.refusal(code, text, "Forbidden" if code == 403 else None)
    driven.rig.api.fail("POST", f"/{driven.rig.plural}", code, times=10_000, body=body)
    words = "Closed" if code == 400 else "exceeded quota"
    driven.until(lambda state: words in state.reason and state.phase == "running")
    assert any("waits for its scheduler" in note and words in note for note in driven.notes)
    assert sum("trying again" in line for line in driven.said) == 1, "said once, and tried in every pass"
    last = driven.until(lambda state: state.phase == "stopped", within_s=60.0)
    assert words in last.reason
    assert "capacity_wait_s" in last.reason
    assert not made(driven)


def test_a_gang_is_created_as_soon_as_it_is_accepted(driven):
    body = driven.rig.refusal(403, QUOTA, "Forbidden")
    driven.rig.api.fail("POST", f"/{driven.rig.plural}", 403, times=3, body=body)
    driven.until(lambda _state: made(driven))
    driven.rig.run_pods()
    state = driven.until(lambda state: state.gang is not None and state.gang.nodes)
    assert state.gang.nodes == ("n1", "n2")
    assert state.attempt == 1
    assert not state.incidents


@pytest.mark.parametrize("code", [500, 429])
def test_an_api_server_that_answers_with_errors_is_asked_again_in_each_pass(driven, code):
    driven.rig.api.fail("POST", f"/{driven.rig.plural}", code, times=20)
    driven.until(lambda _state: any(f"answered {code}" in line for line in driven.said) or made(driven))
    driven.until(lambda _state: made(driven))


def test_what_cannot_be_seen_is_told_once_left_alone_and_seen_again(driven):
    driven.until(lambda _state: made(driven))
    driven.backend.blind = True
    before = driven.at_s
    driven.until(
        lambda state: state.phase != "running" or driven.at_s > before + 2 * POLICY.capacity_wait_s, within_s=99
    )
    assert driven.supervisor.step().phase == "running", "nothing is concluded from silence"
    assert sum("cannot be seen now" in line for line in driven.said) == 1
    assert len(made(driven)) == 1
    driven.backend.blind = False
    driven.until(lambda _state: any("is seen again" in line for line in driven.said))
    assert driven.supervisor.step().phase == "running", "it may have been placed meanwhile, and waits anew"
    assert sum("is seen again" in line for line in driven.said) == 1
    driven.backend.blind = True
    driven.supervisor.step()
    assert sum("cannot be seen now" in line for line in driven.said) == 2, "another outage is told as well"


@pytest.mark.parametrize("how", ["hangs up", "answers 503"])
def test_an_api_server_that_is_gone_is_told_and_the_supervisor_goes_on_when_it_is_back(driven, monkeypatch, how):
    fake, later_s = driven.rig.api, [0.0]
    monkeypatch.setattr(driven.rig.backend.watch.api, "clock", lambda: time.monotonic() + later_s[0])
    driven.until(lambda _state: made(driven))
    fake.fail("GET", "/", 503 if how == "answers 503" else 0, times=1_000_000)
    fake.end_streams()

    def grown_old(_state) -> bool:
        later_s[0] += 5.0  # what the watches know grows old
        return any("cannot be seen now" in line for line in driven.said)

    state = driven.until(grown_old, within_s=100.0)
    assert state.phase == "running"
    assert len(made(driven)) == 1
    fake.faults.clear()
    driven.rig.run_pods()
    state = driven.until(lambda state: state.gang.nodes == ("n1", "n2"), within_s=100.0)
    assert any("is seen again" in line for line in driven.said)
    assert not state.incidents


def test_a_missing_right_ends_the_command_and_not_the_gang(driven):
    driven.rig.api.deny("create", driven.rig.plural)
    with pytest.raises(ForbiddenError, match=r'verbs: \["create"\]'):
        driven.until(lambda _state: False)
    driven.rig.api.denied.clear()
    driven.until(lambda _state: made(driven))


@pytest.mark.parametrize("how", ["DisruptionTarget", "deletion"])
def test_one_member_that_is_taken_away_has_all_ranks_asked_once_and_no_pod_is_ended_before(driven, how):
    driven.until(lambda _state: made(driven))
    driven.rig.run_pods()
    driven.until(lambda state: state.gang.nodes)
    run, name = driven.supervisor.run, driven.rig.names[1]
    heartbeat = Heartbeat(writer="w" * 8, run="run", attempt=1, step=7, phase="training", at_s=1.0, first_step=1)
    beat(run, heartbeat)
    if how == "deletion":
        going = {"deletionTimestamp": driven.rig.stamp(30), "deletionGracePeriodSeconds": 30}
        driven.rig.api.change("pods", "team", name, lambda pod: pod["metadata"].update(going))
    else:
        mark = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        driven.rig.pod(name, node="n2", conditions=[mark])
    state = driven.until(lambda state: state.phase == "saving")
    for _ in range(3):
        driven.supervisor.step()
    ((_, request),) = read_requests(run, 1)
    assert (request.then, state.incidents[-1].cause) == ("leave", "preemption")
    assert name in state.incidents[-1].evidence[0]
    assert driven.rig.deadlines() == []


def test_a_run_that_does_not_train_is_looked_at_more_often(driven):
    def noted(seconds: float) -> None:
        slept.append((driven.supervisor.state.phase, seconds))
        driven.sleep(seconds)

    slept: list[tuple[str, float]] = []
    driven.until(lambda _state: made(driven))
    driven.rig.run_pods()
    driven.until(lambda state: state.gang is not None and state.gang.nodes)
    driven.supervisor.clock = replace(driven.supervisor.clock, sleep=noted)
    driven.supervisor.drive(until=lambda: len(slept) > 1)
    driven.supervisor.ask_stop("test")
    driven.supervisor.drive(until=lambda: ("ending", POLICY.poll_s / 4) in slept)
    assert {seconds for phase, seconds in slept if phase == "running"} == {POLICY.poll_s}


def test_a_pod_that_cannot_be_killed_keeps_no_run_that_is_over_for_ever(driven):
    driven.supervisor.policy = POLICY.model_copy(update={"end_grace_s": 5.0, "end_wait_s": 5.0})
    driven.until(lambda _state: made(driven))
    driven.rig.run_pods()  # and nobody ever takes them away
    driven.until(lambda state: state.gang is not None and state.gang.nodes)
    driven.rig.ready |= {"n1": True, "n2": True}
    driven.supervisor.ask_stop("test")
    state = driven.supervisor.drive(until=lambda: driven.at_s > 100.0)
    assert state.phase == "stopped"
    assert 20.0 < driven.at_s < 100.0
    (line,) = [line for line in driven.said if "did not end within 10 s" in line]
    assert f"pod {driven.rig.names[0]} on node n1, pod {driven.rig.names[1]} on node n2" in line
