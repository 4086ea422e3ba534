"""Guards across runs: how many gangs may start in a window, and how much of a cluster may be fenced off.

A storm is many runs restarting at once because one thing broke under all of them; a wrong rule can also fence a whole
cluster in minutes. Both are bounded by tokens that all supervisors take from one shared document. Pure: the shared
document is a locked file on one machine and a ConfigMap with its resourceVersion in a cluster.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from rerail.policies.documents import Value


class GuardPolicy(Value):
    """Bounds for all runs that share a guard.

    Attributes:
        submissions: Restarts within ``window_s``, of all runs together; first attempts are free.
        window_s: Length of the sliding window in seconds.
        quarantined_share: At most this share of the nodes may be fenced by Rerail at once.
        quarantines: Nodes that may be fenced within ``window_s``; more opens the breaker, which only a person closes.
    """

    submissions: int = Field(60, ge=1)
    window_s: float = Field(300.0, gt=0)
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


class GuardState(Value):
    """The shared document.

    Attributes:
        breaker: Why no more nodes may be fenced until a person says so; empty while closed.
    """

    tokens: tuple[Token, ...] = ()
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
    """

    state: GuardState
    hold: str = ""


def ask_submission(state: GuardState, policy: GuardPolicy, *, run: str, attempt: int, now_s: float) -> Answer:
    """Ask to submit the gang of an attempt. Attempt 1 is not a restart and takes no token."""
    token_id = f"{run}/{attempt}"
    if attempt == 1 or _has(state, "submission", token_id):
        return Answer(state=state)
    recent = _recent(state, policy, "submission", now_s)
    if len(recent) >= policy.submissions:
        oldest_s = min(token.at_s for token in recent)
        free_in_s = max(0.0, oldest_s + policy.window_s - now_s)
        hold = (
            f"storm guard: {len(recent)} gangs were restarted in the last {policy.window_s:g} s, "
            f"{policy.submissions} allowed; the next may start in {free_in_s:.0f} s"
        )
        return Answer(state=state, hold=hold)
    return _given(state, policy, Token(kind="submission", id=token_id, at_s=now_s), now_s)


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
