"""What the stand-in has to say, as Events on the objects and as lines of its log."""

import sys
import threading
import time

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import EVENTS
from rerail.policies.errors import RerailError
from rig.standin.objects import Obj, name_of, namespace_of, now_text, uid_of

AGAIN_S = 60.0
"""The same words about the same object are not said again before."""


class Teller:
    def __init__(self, api: KubeApi, component: str) -> None:
        self._api = api
        self._component = component
        self._said: dict[tuple[str, str, str], float] = {}
        self._lock = threading.Lock()

    def tell(self, about: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an Event about an object; one that cannot be recorded is only logged."""
        key, now = (uid_of(about), reason, message), time.monotonic()
        with self._lock:
            if now - self._said.get(key, -AGAIN_S) < AGAIN_S:
                return
            self._said = {said: at for said, at in self._said.items() if now - at < AGAIN_S} | {key: now}
        namespace = namespace_of(about) or "default"
        log(f"{about.get('kind')} {namespace}/{name_of(about)}: {reason}: {message}")
        subject = {"apiVersion": about.get("apiVersion"), "kind": about.get("kind"), "name": name_of(about)}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name_of(about)[:40].rstrip('.-')}.", "namespace": namespace},
            "involvedObject": {**subject, "namespace": namespace_of(about) or None, "uid": uid_of(about)},
            "reason": reason,
            "message": message[:1000],
            "type": "Warning" if warning else "Normal",
            "count": 1,
            "firstTimestamp": now_text(),
            "lastTimestamp": now_text(),
            "source": {"component": self._component},
        }
        try:
            self._api.create(EVENTS, event, strict=False)
        except RerailError as error:
            log(f"no Event about {namespace}/{name_of(about)}: {error}")


def log(line: str) -> None:
    sys.stderr.write(f"{now_text()} {line}\n")
    sys.stderr.flush()
