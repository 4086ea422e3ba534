"""How a run passes through the steps of a Workflow: when a step hands over, and what the step after it decides. Pure.

One step drives one gang, in-place attempts included. The step that sees the gang's end opens the next attempt itself,
and leaves when that gang is submitted: so Argo is not on the path of recovery. The next step finds it in the ledger.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, Literal

from rerail.policies.documents import Value
from rerail.policies.owners import not_yours
from rerail.policies.supervisor.state import AttemptRecord, Incident, Phase, RunState

Outcome = Literal["done", "next", "stopped"]
Decision = Literal["again", "give-up", "done"]
How = Literal["fresh", "resume"]


class StepExit(IntEnum):
    """Exit codes of ``rerail step run`` beside those of Rerail's errors."""

    DONE = 0
    NEXT = 10
    STOPPED = 11
    LEFT = 143
    """As after a SIGTERM that nobody handles: the gang goes on, and another runner takes it up."""


_OVER: Final[tuple[Phase, ...]] = ("done", "stopped")

_GOES_ON: Final = frozenset({"", "-1", "0", "10", "11", "64", "137", "143"})
"""Exit codes of a step after which the ledger alone decides: it handed over, or was lost. Others say what is wrong."""

ASKED: Final = "asked to stop: "

_TAKEN: Final = ("evicted", "preemption")
_MOST_TOLD: Final = 12
"""Ends of attempts in one text: it becomes the message of a node of the Workflow."""


def gang_of_step(begun: RunState | None, *, reopened: bool = False) -> str:
    """The gang that a step drives, as the ledger stands when it begins; empty where that is the next one.

    A step that comes into a recovery finishes it, and hands over.

    Args:
        begun: The newest state; None before the run's first decision.
        reopened: The run had stopped, and this step lets it try again.
    """
    if begun is None or begun.gang is None or reopened:
        return ""
    if begun.phase == "opening" and len(begun.attempts) > 1:
        return begun.attempts[-2].gang
    return begun.gang.name


def outcome(gang: str, state: RunState, *, settled: bool) -> Outcome | None:
    """How a step's work ends; None while it goes on.

    Args:
        gang: Of the step.
        state: The newest state.
        settled: All that the newest decision orders is done, and no older mark of a node is owed.
    """
    if state.phase == "done":
        return "done"
    if state.phase == "stopped":
        return "stopped"
    if gang and settled and state.phase == "running" and state.gang is not None and state.gang.name != gang:
        return "next"
    return None


def may_reopen(state: RunState, *, taken_over: bool, gave_up: bool) -> bool:
    """Whether a step that finds a stopped run may let it try again, since only a person can have brought it there.

    A runner that was lost just after it wrote the end is followed by one that must leave the end alone.

    Args:
        state: The newest state.
        taken_over: The newest decision gave it a new owner.
        gave_up: This run's Workflow was told the reason already, so somebody retried it.
    """
    return state.phase == "stopped" and (taken_over or gave_up or state.reason.startswith(ASKED))


class LastRun(Value):
    """The newest step ``run`` that did not succeed, as the Workflow shows it.

    Attributes:
        exit_code: As text; empty where nobody knows.
        message: Of its node.
    """

    exit_code: str = ""
    message: str = ""


class Assessment(Value):
    """What is to follow a step that did not succeed.

    Attributes:
        attempt: The attempt that the next step finds, or opens.
        words: Why, for people.
    """

    decision: Decision
    attempt: int
    words: str


def assess(
    run: str, state: RunState | None, *, owner: str, asked: str, last: LastRun | None = None, trouble: str = ""
) -> Assessment:
    """Decide what follows.

    Args:
        run: Its name.
        state: The newest state; None where there is none.
        owner: Who drives the run; empty where nobody knows.
        asked: The Workflow that asks.
        last: How the step ended.
        trouble: Why the run cannot be read.
    """
    attempt = state.attempt if state is not None else 1
    said = last.message if last is not None else ""
    if state is not None and state.phase == "done":
        return Assessment(decision="done", attempt=attempt, words=told(state))
    if owner and owner != asked:
        return _give_up(attempt, not_yours(run, owner=owner, asked=asked))
    if state is not None and state.phase == "stopped":
        return _give_up(attempt, state.reason)
    if last is not None and last.exit_code not in _GOES_ON:
        return _give_up(attempt, said or f"the step ended with exit code {last.exit_code}")
    if trouble:
        return _give_up(attempt, "; ".join(filter(None, (trouble, said))))
    if state is None:
        return Assessment(decision="again", attempt=1, words="the runner was lost before the first decision; once more")
    if state.phase in ("ending", "waiting"):
        attempt += 1
    return Assessment(decision="again", attempt=attempt, words=told(state))


def _give_up(attempt: int, words: str) -> Assessment:
    return Assessment(decision="give-up", attempt=attempt, words=words)


def told(state: RunState) -> str:
    """Where a run stands and how it came there, in a few sentences; each attempt in the same pods is named.

    Of a run that is done they tell every end, of another one those of the newest gang that ended an attempt.
    """
    ends = [record for record in state.attempts if record.end_cause and record.end_cause != "done"]
    if state.phase == "done":
        reached = state.attempts[-1].last_step if state.attempts else None
        many = len(state.attempts)
        how = "" if many == 1 else f" in {many} attempts"
        return "; ".join((f"done at step {reached}{how}", *_story(state, ends)))
    if not ends:
        return state.reason if state.phase == "stopped" else _waits(f"attempt {state.attempt} is {state.phase}", state)
    last, now = ends[-1], state.attempts[-1]
    here = [record for record in ends if record.gang == last.gang]
    if state.phase == "stopped":
        return "; ".join((state.reason, *(_story(state, here) if len(here) > 1 else ())))
    goes_on = _goes_on(state, now) if now.n != last.n else _waits("the next attempt waits", state)
    return "; ".join((*_story(state, here[:-1]), _ended(state, last), goes_on))


def _waits(words: str, state: RunState) -> str:
    return words + (f": {state.reason}" if state.reason else "")


def _story(state: RunState, ends: Sequence[AttemptRecord]) -> Iterator[str]:
    """How attempts ended, and how each went on in the same pods; only the newest of many."""
    left_out = max(0, len(ends) - _MOST_TOLD)
    if left_out:
        yield f"{left_out} earlier attempts"
    for record in ends[left_out:]:
        after = next((one for one in state.attempts if one.n == record.n + 1), None)
        went_on = ""
        if after is not None and after.how == "in-place" and after.started_from_step is not None:
            how = f"went on from step {after.started_from_step}" if after.started_from_step else "began anew"
            went_on = f", and attempt {after.n} {how} in the same pods"
        yield _ended(state, record) + went_on


def _ended(state: RunState, record: AttemptRecord) -> str:
    incident = next((one for one in reversed(state.incidents) if one.attempt == record.n), None)
    what = _fault(incident) if incident is not None else record.end_cause
    where = f" on {incident.node}" if incident is not None and incident.node else ""
    step = "" if record.last_step is None else f" at step {record.last_step}"
    # Whoever took pods away is named by the platform alone: a scheduler, a drain, somebody who deleted the job.
    taken = incident is not None and incident.class_name in _TAKEN and incident.evidence
    why = f" ({incident.evidence[0]})" if incident is not None and taken else ""
    return f"{what}{where} ended attempt {record.n}{step}{why}"


def _fault(incident: Incident) -> str:
    """The code that people search for, else the class."""
    kind, _, rest = incident.codes[0].partition(":") if incident.codes else ("", "", "")
    if kind and kind != "name":
        return f"{kind.upper()} {rest}"
    return (rest or incident.class_name).replace("_", " ")


def _goes_on(state: RunState, record: AttemptRecord) -> str:
    step = record.started_from_step
    if step is None:
        return f"attempt {record.n} is being opened"
    begins = f"attempt {record.n} goes on from step {step}" if step else f"attempt {record.n} begins anew"
    why = "" if step else ", since there was no checkpoint"
    if record.how == "in-place":
        return f"{begins} in the same pods{why}"
    if record.nodes:
        return f"{begins} on {_listed(record.nodes)}{why}"
    away = f", away from {_listed(sorted(state.quarantined))}" if state.quarantined else ""
    return f"{begins}{away}{why}"


def _listed(names: Sequence[str], at_most: int = 4) -> str:
    if len(names) > at_most:
        return f"{', '.join(names[: at_most - 1])} and {len(names) - at_most + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
