"""What the API server's audit log says of a stretch of time."""

import json
from collections.abc import Iterable

ARGO = "system:serviceaccount:argo:argo"
"""As whom Argo's controller comes."""


def pods_of_argo(lines: Iterable[str], *, namespace: str, since: str, gang: str) -> int | None:
    """How many pods Argo created in a namespace before a vcjob was.

    Args:
        lines: Of the log, in its order.
        namespace: Of the workflow and its gang.
        since: From when on, as the log writes times: ``2026-11-30T12:00:00.000000Z``.
        gang: Name of the vcjob whose creation ends the count.

    Returns:
        The pods; None where the vcjob was not created.
    """
    pods = 0
    for line in lines:
        if f'"{namespace}"' not in line:
            continue
        call = json.loads(line)
        what = call.get("objectRef") or {}
        made = call["verb"] == "create" and call.get("responseStatus", {}).get("code") == 201
        if not made or what.get("namespace") != namespace or call["requestReceivedTimestamp"] < since:
            continue
        if (what.get("resource"), what.get("name")) == ("jobs", gang):
            return pods
        if what.get("resource") == "pods" and "subresource" not in what and call["user"]["username"] == ARGO:
            pods += 1
    return None
