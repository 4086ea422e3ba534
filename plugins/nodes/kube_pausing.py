"""The switch that holds all runs of a cluster: a key in the guard's ConfigMap."""

from collections.abc import Callable
from typing import Final

from rerail.plugins.kube.api import KubeApi, Obj, Patience
from rerail.plugins.kube.resources import CONFIG_MAPS
from rerail.plugins.nodes.kube_guard import NAME
from rerail.plugins.nodes.pausing import KEY, NO_REASON
from rerail.policies.errors import AlreadyExistsError, ConflictError, NotFoundError, TransientError

_TRIES: Final = 5


class KubePause:
    """All runs of a cluster whose supervisors name the same ConfigMap, which is the guard's.

    Args:
        api: The API server.
        namespace: Of the ConfigMap; the connection's by default.
        name: Of the ConfigMap.
        again_s: Seconds for which an answer is repeated without asking anew; supervisors ask in every pass.
        answer_s: Seconds after which no answer is none.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str | None = None,
        name: str = NAME,
        again_s: float = 2.0,
        answer_s: float = 5.0,
    ) -> None:
        patience = Patience(request_s=answer_s, total_s=0.0)
        self._api = KubeApi(api.connection, patience=patience, clock=api.clock, sleep=api.sleep, jitter=api.jitter)
        self._namespace = namespace or api.namespace
        self._name = name
        self._again_s = again_s
        self._asked_at_s: float | None = None
        self._known = ""

    def why(self) -> str:
        """Why all runs are held; empty while none is held by this.

        Raises:
            RerailError: No answer, or a right is missing; not asked again before ``again_s``.
        """
        at_s = self._api.clock()
        if self._asked_at_s is None or at_s - self._asked_at_s >= self._again_s:
            self._asked_at_s = at_s
            found = self._read()
            text = ((found or {}).get("data") or {}).get(KEY)
            self._known = "" if text is None else str(text).strip() or NO_REASON
        return self._known

    def pause(self, reason: str) -> None:
        """Hold them; a pause that stands gets the new reason.

        Raises:
            RerailError: The ConfigMap cannot be written.
        """
        self._change(lambda data: {**data, KEY: reason})

    def resume(self) -> bool:
        """Let them go on; whether they were held.

        Raises:
            RerailError: The ConfigMap cannot be written.
        """
        found = self._read()
        if KEY not in ((found or {}).get("data") or {}):
            return False
        self._change(lambda data: {name: text for name, text in data.items() if name != KEY})
        return True

    def _read(self) -> Obj | None:
        try:
            return self._api.get(CONFIG_MAPS, self._name, namespace=self._namespace)
        except NotFoundError:
            return None

    def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        for _ in range(_TRIES):
            found = self._read()
            data = change((found or {}).get("data") or {})
            try:
                if found is None:
                    metadata = {"name": self._name, "labels": {"app.kubernetes.io/managed-by": "rerail"}}
                    body: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
                    self._api.create(CONFIG_MAPS, body, namespace=self._namespace)
                else:
                    self._api.replace(CONFIG_MAPS, {**found, "data": data}, namespace=self._namespace)
            except (ConflictError, AlreadyExistsError):
                continue
            self._asked_at_s = None
            return
        raise TransientError(
            f"ConfigMap {self._name!r} in namespace {self._namespace!r} changed at each of {_TRIES} tries",
            retry_after_s=1.0,
        )
