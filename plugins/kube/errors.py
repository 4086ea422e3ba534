"""The API server's answers as errors of ours: each names the verb, the object, the namespace and the way out."""

import json
from dataclasses import dataclass
from typing import Any

from rerail.plugins.kube.resources import ResourceType
from rerail.policies.errors import (
    AlreadyExistsError,
    ClusterUnreachableError,
    ConflictError,
    DisruptionBudgetError,
    ExpiredError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    NotInstalledError,
    QuotaExceededError,
    RefusedError,
    RerailError,
)

_NOT_CARRIED_OUT = frozenset({429, 503})
"""Answers by which the API server, or what stands before it, turns a request away unseen."""


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked, for messages.

    Attributes:
        verb: As RBAC rules name it: get, list, watch, create, update, patch, delete.
        resource: The kind of object.
        namespace: None for cluster-wide requests.
        name: None for requests about a collection.
        subresource: For example ``status``.
    """

    verb: str
    resource: ResourceType
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None

    def __str__(self) -> str:
        """For example: create jobs.batch.volcano.sh 'llama-a1' in namespace 'team'."""
        of = f"/{self.subresource}" if self.subresource else ""
        name = f" {self.name!r}" if self.name else ""
        if self.namespace:
            where = f" in namespace {self.namespace!r}"
        else:
            where = " in all namespaces" if self.resource.namespaced else ""
        return f"{self.verb} {self.resource.full_name}{of}{name}{where}"

    @property
    def rule(self) -> str:
        """The RBAC rule that allows this call, as an item of a Role's (or ClusterRole's) ``rules``."""
        of = f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural
        return f'- apiGroups: ["{self.resource.group}"]\n  resources: ["{of}"]\n  verbs: ["{self.verb}"]'

    @property
    def role(self) -> str:
        """Where the rule belongs."""
        return f"a Role in namespace {self.namespace!r}" if self.namespace else "a ClusterRole"


def status_of(body: bytes) -> dict[str, Any]:
    """The ``Status`` object in an answer's body; empty where the body is none (a proxy's page, plain text)."""
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) and content.get("kind") == "Status" else {}


def error_of(code: int, body: bytes, call: Call, *, retry_after: str | None = None) -> RerailError:
    """Turn an answer with an error code into the error to raise.

    Args:
        code: HTTP status, or ``code`` of a Status in a watch.
        body: The answer's body.
        call: What was asked.
        retry_after: The header Retry-After, in seconds.
    """
    status = status_of(body)
    message = str(status.get("message") or body[:300].decode(errors="replace").strip() or f"HTTP {code}")
    details = status.get("details") or {}
    if code == 403:  # noqa: PLR2004 -- HTTP status codes read better than names for them
        return _forbidden(call, message, details)
    if code == 404:  # noqa: PLR2004
        return _not_found(call, message, details)
    if code == 409:  # noqa: PLR2004
        if status.get("reason") == "AlreadyExists":
            return AlreadyExistsError(f"cannot {call}: the name is taken; choose another, or delete the object first")
        return ConflictError(
            f"cannot {call}: {message}; it changed since it was read, or is another one: read it again"
        )
    if code == 401:  # noqa: PLR2004
        return RefusedError(
            f"cannot {call}: the API server does not accept these credentials; renew the login or the service "
            "account's token (kubectl auth whoami shows who you are)"
        )
    if code == 410:  # noqa: PLR2004
        return ExpiredError(f"cannot {call}: the API server no longer has this point of its history; list again")
    if code in (400, 405, 413, 415, 422):
        return InvalidObjectError(f"cannot {call}: {_invalid(message, details, call)}")
    wait_s = _seconds(retry_after) if retry_after else _seconds(details.get("retryAfterSeconds"))
    if call.subresource == "eviction":
        # 429 for one budget in the way, 500 for a pod that several cover; the server's own word names them.
        said = [cause for cause in details.get("causes") or [] if isinstance(cause, dict)]
        budgets = [str(cause.get("message")) for cause in said if cause.get("reason") == "DisruptionBudget"]
        if budgets or "PodDisruptionBudget" in message or "disruption budget" in message:
            why = "; ".join((message, *budgets))
            return DisruptionBudgetError(f"cannot {call} now: {why}", retry_after_s=wait_s)
    return ClusterUnreachableError(
        f"cannot {call} now: the API server answered {code}: {message}; try again",
        retry_after_s=wait_s,
        outcome_unknown=code not in _NOT_CARRIED_OUT,
    )


def _forbidden(call: Call, message: str, details: dict[str, Any]) -> RerailError:
    if "exceeded quota" in message:
        return QuotaExceededError(
            f"cannot {call}: {message}; free resources in the namespace or have its ResourceQuota raised"
        )
    causes = {cause.get("reason") for cause in details.get("causes") or [] if isinstance(cause, dict)}
    if "NamespaceTerminating" in causes or "is being terminated" in message:
        return ForbiddenError(f"cannot {call}: the namespace is being deleted; use another one")
    if " cannot " in message or "RBAC" in message:
        return ForbiddenError(
            f"cannot {call}: the rights are missing ({message}). Add to {call.role}:\n{call.rule}", rule=call.rule
        )
    return ForbiddenError(f"cannot {call}: {message}; a rule of the cluster's admission forbids it, not your rights")


def _not_found(call: Call, message: str, details: dict[str, Any]) -> RerailError:
    if details.get("kind") == "namespaces" and call.resource.plural != "namespaces":
        return NotFoundError(f"cannot {call}: namespace {call.namespace!r} does not exist; create it, or name another")
    if details.get("name"):
        return NotFoundError(f"cannot {call}: it does not exist")
    if call.resource.product:
        return NotInstalledError(
            f"cannot {call}: {call.resource.product}'s CRDs are not installed in this cluster "
            f"({call.resource.api_version} {call.resource.kind} is unknown); install them, or choose another context"
        )
    return NotInstalledError(f"cannot {call}: the cluster does not serve {call.resource.api_version} ({message})")


def _invalid(message: str, details: dict[str, Any], call: Call) -> str:
    causes = [
        f"{cause.get('field')}: {cause.get('message')}"
        for cause in details.get("causes") or []
        if isinstance(cause, dict) and cause.get("field")
    ]
    if "unknown field" in message:
        product = call.resource.product or "the cluster"
        return f"{message}; a typing error, or {product} here is too old to know the field: leave it out or upgrade"
    return "; ".join(causes) if causes else message


def _seconds(text: object) -> float | None:
    try:
        return max(0.0, float(str(text)))
    except ValueError:
        return None
