"""Which commits a faulty device took part in. Pure; the executor asks while it resolves a start."""

from collections.abc import Iterable

from rerail.policies.manifest import Manifest
from rerail.policies.supervisor.state import Suspicion


def doubt(suspicions: Iterable[Suspicion], manifest: Manifest) -> str | None:
    """Why a commit cannot be trusted; None if nothing speaks against it.

    Stamps are compared with those of the same node only: both sides are that node's own clock.
    """
    for suspicion in suspicions:
        if suspicion.attempt != manifest.attempt:
            continue
        for snapshot in manifest.snapshots:
            if snapshot.node != suspicion.node:
                continue
            if suspicion.since_s is None:
                return f"{suspicion.why}; no stamp says since when"
            if snapshot.at_s > suspicion.since_s:
                late_s = snapshot.at_s - suspicion.since_s
                return f"{suspicion.why}; snapshot {late_s:.3f} s later than its first sign minus the margin"
    return None
