"""The guard of a cluster: one ConfigMap, changed with its resourceVersion, that all supervisors share."""

import json
import time
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from rerail.plugins.kube.api import KubeApi, Obj, Patience
from rerail.plugins.kube.resources import CONFIG_MAPS
from rerail.policies.errors import AlreadyExistsError, ConflictError, DamagedError, NotFoundError, TransientError
from rerail.policies.guards import (
    Answer,
    GuardPolicy,
    GuardState,
    ask_quarantine,
    ask_submission,
    close_breaker,
)

NAME: Final = "rerail-guard"
KEY: Final = "guard.json"

MOST_BYTES: Final = 512 << 10
"""Half of what a ConfigMap takes. A token is 200 bytes and goes with its window, so only a policy that allows
thousands of restarts within one comes near."""

_TRIES: Final = 10
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5

_LONGEST_HOLD_S: Final = 15.0
"""However long the guard will hold, it is asked again after this: a person may have deleted the ConfigMap."""


class KubeGuard:
    """Gives tokens to all supervisors that name the same ConfigMap. Safe for use by several threads.

    Every method raises ``TransientError`` where the API server does not answer, or the ConfigMap changed at every try;
    no answer means hold. What waiting does not change is told as such: ``RefusedError`` with the right that is missing,
    ``NotFoundError`` without the namespace, ``DamagedError`` where the document is none. A ConfigMap that somebody
    deleted is made again, with no token and a closed breaker.

    Args:
        api: The API server.
        namespace: Where the ConfigMap is; the connection's by default. One per cluster: it must be the same for all.
        name: Of the ConfigMap.
        policy: The bounds.
        answer_s: Seconds after which no answer is none, for each request.
        again_s: Seconds for which a reason to hold is repeated without asking anew, where the guard does not say for
            how long it will hold.
        wall_s: Epoch seconds, for the tokens.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str | None = None,
        name: str = NAME,
        policy: GuardPolicy | None = None,
        answer_s: float = 5.0,
        again_s: float = 2.0,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        # A pass of the supervisor waits for this answer, so it is tried less long than other requests.
        patience = Patience(request_s=answer_s, total_s=answer_s)
        self._api = KubeApi(api.connection, patience=patience, clock=api.clock, sleep=api.sleep, jitter=api.jitter)
        self._namespace = namespace or api.namespace
        self._name = name
        self.policy = policy or GuardPolicy()
        self._again_s = again_s
        self._wall_s = wall_s
        self._given: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], tuple[float, str]] = {}

    def ask_submission(self, run: str, attempt: int, *, since_s: float | None = None) -> str:
        """Ask to submit the gang of an attempt; the reason to hold, or an empty string. Once per attempt."""
        return self._once(
            (run, str(attempt)),
            lambda state: ask_submission(
                state, self.policy, run=run, attempt=attempt, since_s=since_s, now_s=self._wall_s()
            ),
        )

    def ask_quarantine(self, node: str, incident: str, *, nodes: int, fenced: int) -> str:
        """Ask to fence a node for everybody; the reason to hold, or an empty string. Once per incident."""
        return self._once(
            (node, incident),
            lambda state: ask_quarantine(
                state,
                self.policy,
                node=node,
                incident=incident,
                nodes=nodes,
                fenced=fenced,
                now_s=self._wall_s(),
            ),
        )

    def close_breaker(self) -> None:
        """A person lets nodes be fenced again."""
        self._held.clear()
        self._ask(lambda state: Answer(state=close_breaker(state)))

    def _once(self, asked: tuple[str, str], question: Callable[[GuardState], Answer]) -> str:
        """Ask what was not answered yet: supervisors ask in every pass, and a token that was given stays given."""
        if asked in self._given:
            return ""
        until_s, hold = self._held.get(asked, (0.0, ""))
        if hold and self._api.clock() < until_s:
            return hold
        answer = self._ask(question)
        if answer.hold:
            again_s = min(answer.again_in_s, _LONGEST_HOLD_S) * (1 + self._api.jitter() / 4) or self._again_s
            self._held[asked] = self._api.clock() + again_s, answer.hold
        else:
            self._given.add(asked)
            self._held.pop(asked, None)
        return answer.hold

    def _ask(self, question: Callable[[GuardState], Answer]) -> Answer:
        for number in range(_TRIES):
            found = self._read()
            before = self._state(found)
            answer = question(before)
            if answer.state == before:
                return answer
            try:
                refused = self._write(found, answer)
                return answer.model_copy(update={"hold": refused}) if refused else answer
            except (ConflictError, AlreadyExistsError):
                pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**number)
                self._api.sleep(pause_s * (0.5 + self._api.jitter() / 2))
            except NotFoundError:
                if found is None:
                    raise  # not the ConfigMap but its namespace is missing
        raise TransientError(f"{self._where} changed between reading and writing {_TRIES} times", retry_after_s=1.0)

    @property
    def _where(self) -> str:
        return f"ConfigMap {self._name!r} in namespace {self._namespace!r}"

    def _read(self) -> Obj | None:
        try:
            return self._api.get(CONFIG_MAPS, self._name, namespace=self._namespace)
        except NotFoundError:
            return None

    def _state(self, found: Obj | None) -> GuardState:
        text = ((found or {}).get("data") or {}).get(KEY)
        if text is None:
            return GuardState()
        try:
            return GuardState.model_validate(json.loads(text))
        except (ValueError, ValidationError) as error:
            raise DamagedError(
                f"{self._where}, {KEY}: not a guard document ({' '.join(str(error).split())[:300]}); look at it, then "
                f"delete it: kubectl -n {self._namespace} delete configmap {self._name} (the next one who asks makes a "
                "new one, with a closed breaker)"
            ) from error

    def _write(self, found: Obj | None, answer: Answer) -> str:
        text = answer.state.model_dump_json(indent=1) + "\n"
        if len(text.encode()) > MOST_BYTES:
            return (
                f"{self._where} would become larger than {MOST_BYTES >> 10} KiB: {len(answer.state.tokens)} tokens; "
                "lower submissions or window_s of the guard"
            )
        if found is None:
            metadata = {"name": self._name, "labels": {"app.kubernetes.io/managed-by": "rerail"}}
            body: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}
            self._api.create(CONFIG_MAPS, body, namespace=self._namespace)
        else:
            body = {**found, "data": {**(found.get("data") or {}), KEY: text}}
            self._api.replace(CONFIG_MAPS, body, namespace=self._namespace)
        return ""
