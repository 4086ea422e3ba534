"""Guards across runs: how many gangs may start in a window, in which order, and how much of a cluster may be fenced.

A storm is many runs restarting at once because one thing broke under all of them; a wrong rule can also fence a whole
cluster in minutes. Both are bounded by tokens that all supervisors take from one shared document. Pure: the shared
document is a locked file on one machine and a ConfigMap with its resourceVersion in a cluster.

Gangs that were taken away come back in the order of their runs' age, some time apart: a scheduler that orders gangs of
one priority by when they were created, in whole seconds, then has them in that order. The first that asks does not wait
for others, and nobody waits for a run that does not take its turn.
"""

from datetime import UTC, datetime
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from rerail.policies.documents import Value

IN_LINE: Final = "storm guard: gangs that were taken away come back one after the other, those of older runs first"
"""Why a gang waits for its turn. Always the same words: each other reason is a decision in a run's ledger."""


class GuardPolicy(Value):
    """Bounds for all runs that share a guard.

    Attributes:
        submissions: Restarts within ``window_s``, of all runs together; first attempts are free.
        window_s: Length of the sliding window in seconds.
        pace_s: At least so long after any restart, the next gang that was taken away comes back.
        turn_s: How long a run that is first in line is waited for.
        quarantined_share: At most this share of the nodes may be fenced by Rerail at once.
        quarantines: Nodes that may be fenced within ``window_s``; more opens the breaker, which only a person closes.
    """

    submissions: int = Field(60, ge=1)
    window_s: float = Field(300.0, gt=0)
    pace_s: float = Field(1.0, ge=0)
    turn_s: float = Field(10.0, gt=0)
    quarantined_share: float = Field(0.34, gt=0, le=1)
    quarantines: int = Field(8, ge=1)


class Token(Value):
    """One permission that was given.

    Attributes:
        id: What it was given for; asking again for the same is the same token.
        at_s: Wall clock of the asker, epoch seconds.
    """

    kind: Literal["submission", "quarantine"]
    id: str
    node: str = ""
    at_s: float


class InLine(Value):
    """A gang that was taken away and waits for its turn to come back.

    Attributes:
        id: As its token's.
        since_s: When its run first asked for a gang, epoch seconds: older runs go first.
        asked_at_s: When it came into the line, by the asker's wall clock.
    """

    id: str
    since_s: float
    asked_at_s: float


class GuardState(Value):
    """The shared document.

    Attributes:
        line: Who waits for a turn, the oldest run first.
        breaker: Why no more nodes may be fenced until a person says so; empty while closed.
    """

    tokens: tuple[Token, ...] = ()
    line: tuple[InLine, ...] = ()
    breaker: str = ""

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        if len({(token.kind, token.id) for token in self.tokens}) != len(self.tokens):
            raise ValueError("a token is listed twice")
        return self


class Answer(Value):
    """What the guard says.

    Attributes:
        hold: Why not now; empty when the token was given.
        again_in_s: Asking again earlier has no sense, in seconds; 0 where that is not known.
    """

    state: GuardState
    hold: str = ""
    again_in_s: float = 0.0


def ask_submission(
    state: GuardState, policy: GuardPolicy, *, run: str, attempt: int, now_s: float, since_s: float | None = None
) -> Answer:
    """Ask to submit the gang of an attempt. Attempt 1 is not a restart and takes no token.

    Args:
        state: The shared document.
        policy: Its bounds.
        run: The run.
        attempt: Its attempt.
        now_s: Wall clock, epoch seconds.
        since_s: For a gang that was taken away: when its run first asked for one, epoch seconds. It comes back in the
            order of these. None for gangs that failed: they wait for nobody.
    """
    token_id = f"{run}/{attempt}"
    if attempt == 1 or _has(state, "submission", token_id):
        return Answer(state=state)
    recent = _recent(state, policy, "submission", now_s)
    hold = ""
    if len(recent) >= policy.submissions:
        free_at_s = min(token.at_s for token in recent) + policy.window_s
        hold = (
            f"storm guard: {len(recent)} gangs were restarted in the last {policy.window_s:g} s, "
            f"{policy.submissions} allowed; the next may start at {_clock(free_at_s)}"
        )
    if since_s is not None:
        return _in_turn(state, policy, token_id, since_s, now_s=now_s, hold=hold)
    if hold:
        return Answer(state=state, hold=hold)
    return _given(state, policy, Token(kind="submission", id=token_id, at_s=now_s), now_s)


def _in_turn(
    state: GuardState, policy: GuardPolicy, token_id: str, since_s: float, *, now_s: float, hold: str
) -> Answer:
    """Give the token to who is first in line, or who waited long enough for those that are before it."""
    line = {one.id: one for one in state.line if one.asked_at_s > now_s - 2 * policy.window_s}
    own = line.pop(token_id, None)
    if own is None or own.asked_at_s < now_s - policy.window_s:  # renewed before it is forgotten
        own = InLine(id=token_id, since_s=since_s, asked_at_s=now_s)
    ahead = [one for one in line.values() if (one.since_s, one.id) < (since_s, token_id)]
    # A clock that runs ahead of ours makes nobody wait for more than its part.
    given_s = sorted((min(one.at_s, now_s) for one in state.tokens if one.kind == "submission"), reverse=True)
    filled_s = given_s[policy.submissions - 1 : policy.submissions]
    open_s = max((0.0, *(at_s + policy.pace_s for at_s in given_s[:1]), *(at_s + policy.window_s for at_s in filled_s)))
    # Nobody took his turn since then, or came into the line.
    idle_s = max((open_s, *(min(one.asked_at_s, now_s) for one in ahead)))
    if now_s < (idle_s + len(ahead) * policy.turn_s if ahead else open_s):
        waiting = tuple(sorted((*line.values(), own), key=lambda one: (one.since_s, one.id)))
        again_in_s = max(policy.pace_s, open_s - now_s) + len(ahead) * policy.pace_s
        return Answer(state=state.model_copy(update={"line": waiting}), hold=hold or IN_LINE, again_in_s=again_in_s)
    behind = tuple(one for one in line.values() if one not in ahead)
    token = Token(kind="submission", id=token_id, at_s=now_s)
    return _given(state.model_copy(update={"line": behind}), policy, token, now_s)


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S UTC")


def ask_quarantine(
    state: GuardState, policy: GuardPolicy, *, node: str, incident: str, nodes: int, fenced: int, now_s: float
) -> Answer:
    """Ask to fence a node for everybody. The run that met the fault avoids the node in any case.

    Args:
        state: The shared document.
        policy: Its bounds.
        node: The node to fence.
        incident: Id of the incident; asking again for the same is the same token.
        nodes: Nodes in all.
        fenced: Nodes that are fenced already, this one not counted.
        now_s: Wall clock, epoch seconds.
    """
    token_id = f"{node}/{incident}"
    if _has(state, "quarantine", token_id):
        return Answer(state=state)
    if state.breaker:
        return Answer(state=state, hold=f"breaker is open: {state.breaker}")
    if fenced + 1 > max(1, int(nodes * policy.quarantined_share)):
        hold = (
            f"{fenced} of {nodes} nodes are fenced; with {node} it would be more than "
            f"{policy.quarantined_share:.0%} (guard quarantined_share): release or repair one, or raise the share"
        )
        return Answer(state=state, hold=hold)
    recent = _recent(state, policy, "quarantine", now_s)
    if len(recent) >= policy.quarantines:
        why = f"{len(recent)} nodes were fenced within {policy.window_s:g} s (guard quarantines); a person closes it"
        return Answer(state=state.model_copy(update={"breaker": why}), hold=f"breaker is open: {why}")
    return _given(state, policy, Token(kind="quarantine", id=token_id, node=node, at_s=now_s), now_s)


def close_breaker(state: GuardState) -> GuardState:
    """A person looked and lets nodes be fenced again; the window begins anew."""
    kept = tuple(token for token in state.tokens if token.kind != "quarantine")
    return state.model_copy(update={"breaker": "", "tokens": kept})


def _has(state: GuardState, kind: str, token_id: str) -> bool:
    return any(token.kind == kind and token.id == token_id for token in state.tokens)


def _recent(state: GuardState, policy: GuardPolicy, kind: str, now_s: float) -> list[Token]:
    return [token for token in state.tokens if token.kind == kind and token.at_s > now_s - policy.window_s]


def _given(state: GuardState, policy: GuardPolicy, token: Token, now_s: float) -> Answer:
    kept = tuple(old for old in state.tokens if old.at_s > now_s - policy.window_s)
    return Answer(state=state.model_copy(update={"tokens": (*kept, token)}))
