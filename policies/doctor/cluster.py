"""Judgements about a cluster: what is installed in which version, how Argo is set up, and its clock. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rerail.policies.doctor.finding import Finding, fail, ok, skipped, warn
from rerail.policies.documents import Value

Obj = Mapping[str, Any]

CLOCK_OK_S: Final = 2.0
"""The Date header counts whole seconds, so less than this says nothing."""

REQUEUE_DEFAULT_S: Final = 10.0
REQUEUE_OK_S: Final = 2.0
OLDEST_ARGO: Final = (4, 0)

_WANTED: Final = "4.0 or newer is needed (the templates are tried on 4.0.5): upgrade Argo Workflows"

_UNITS_S: Final[Mapping[str, float]] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Product(Value):
    """A product whose kinds are needed.

    Attributes:
        check: Of the finding.
        kinds: ``plural.group`` and the version that is used.
        needed: Whether nothing works without it.
        without: What works all the same, or what to do.
    """

    check: str
    name: str
    kinds: tuple[tuple[str, str], ...]
    needed: bool = True
    without: str


VOLCANO: Final = Product(
    check="volcano-crds",
    name="Volcano",
    kinds=(
        ("jobs.batch.volcano.sh", "v1alpha1"),
        ("podgroups.scheduling.volcano.sh", "v1beta1"),
        ("queues.scheduling.volcano.sh", "v1beta1"),
        ("commands.bus.volcano.sh", "v1alpha1"),
    ),
    without="install Volcano with its CRDs, or name another context of the kubeconfig",
)
ARGO: Final = Product(
    check="argo-crds",
    name="Argo Workflows",
    kinds=(
        ("workflows.argoproj.io", "v1alpha1"),
        ("workflowtemplates.argoproj.io", "v1alpha1"),
        ("cronworkflows.argoproj.io", "v1alpha1"),
    ),
    needed=False,
    without="`rerail run --backend` works without Argo; for the templates install Argo Workflows 4.0 or newer",
)


def judge_kinds(product: Product, served: Mapping[str, Sequence[str]]) -> Finding:
    """Whether a product's kinds are served in the versions that are used.

    Args:
        product: Whose.
        served: Versions by ``plural.group``; a kind that is missing here is not served.
    """
    absent = [kind for kind, _ in product.kinds if not served.get(kind)]
    other = [
        f"{kind} is served as {', '.join(served[kind])}, not as {version}"
        for kind, version in product.kinds
        if served.get(kind) and version not in served[kind]
    ]
    if not absent and not other:
        return ok(product.check, ", ".join(f"{kind}/{version}" for kind, version in product.kinds))
    if len(absent) == len(product.kinds):
        judge = fail if product.needed else warn
        return judge(product.check, f"{product.name} is not installed: none of its kinds is served", product.without)
    found = "; ".join(([f"not served: {', '.join(absent)}"] if absent else []) + other)
    return fail(product.check, found, f"{product.name}'s CRDs are of another version: install those of its release")


def judge_argo(controllers: Sequence[Obj] | None, cron_fields: frozenset[str] | None) -> Finding:
    """Whether Argo is 4.0 or newer.

    Args:
        controllers: Deployments of workflow controllers; None where nobody may look.
        cron_fields: Fields of a CronWorkflow's spec by its CRD; None where nobody may look or the CRD does not say.
    """
    check = "argo-version"
    tags = sorted({tag for one in controllers or () for tag in _tags(one)})
    known = [(version, tag) for tag in tags if (version := _version(tag)) is not None]
    if known:
        version, tag = min(known)
        if version < OLDEST_ARGO:
            return fail(check, f"its controller's image is of {tag}", _WANTED)
        return ok(check, f"its controller's image is of {tag}")
    if cron_fields and "schedule" in cron_fields:
        # Argo 4.0 took the field away; 3.6 and 3.7 had both.
        return fail(check, "its CronWorkflow still has the field 'schedule', which 4.0 took away", _WANTED)
    if cron_fields and "schedules" in cron_fields:
        return ok(check, "its CronWorkflow has 'schedules' and no 'schedule': 4.0 or newer")
    said = f"image tags {', '.join(tags)} name no version" if tags else "no Deployment of its controller is seen"
    return skipped(check, f"{said}, and its CRDs do not tell either", "look at `argo version`; 4.0 or newer is needed")


def argo_too_old(version: str) -> str:
    """Why this version of Argo does not do; empty where it does, or where the text names none.

    Args:
        version: As its own programs say it; builds of people's own say v0.0.0.
    """
    found = _version(version)
    if found is None or found == (0, 0) or found >= OLDEST_ARGO:
        return ""
    return f"Argo Workflows {version} runs this step, and {_WANTED}"


def judge_requeue(controllers: Sequence[Obj] | None) -> Finding:
    """How long Argo's controller lets a workflow wait between looks."""
    check = "argo-requeue"
    if not controllers:
        return skipped(
            check, "no Deployment of Argo's controller is seen", "pass --argo-namespace, or ask for the right"
        )
    given = _environment(controllers[0]).get("DEFAULT_REQUEUE_TIME")
    wait_s = REQUEUE_DEFAULT_S if given is None else _duration_s(given)
    where = "DEFAULT_REQUEUE_TIME of the workflow controller"
    metadata = controllers[0].get("metadata") or {}
    way_out = (
        f"set {where} to 1s: it is on the way of every step (recovery itself does not wait for Argo): kubectl -n "
        f"{metadata.get('namespace', 'argo')} set env deployment/{metadata.get('name', 'workflow-controller')} "
        "DEFAULT_REQUEUE_TIME=1s"
    )
    if wait_s is None:
        return warn(check, f"{where} is {given!r}, which is no duration", way_out)
    found = f"{where} is {'not set, which means 10 s' if given is None else given}"
    return ok(check, found) if wait_s <= REQUEUE_OK_S else warn(check, found, way_out)


def judge_clock(offset_s: float | None, doubt_s: float, *, margin_s: float) -> Finding:
    """Whether this machine's clock and the API server's agree.

    Args:
        offset_s: The API server's minus ours, in seconds; None where it does not say.
        doubt_s: Half of the time that asking took.
        margin_s: The policy's ``suspect_margin_s``: what a clock may be off before a bad commit can count as good.
    """
    check = "clock"
    if offset_s is None:
        return skipped(check, "the API server's answer carries no Date")
    off_s = max(0.0, abs(offset_s) - doubt_s)
    ahead = "ahead of" if offset_s < 0 else "behind"
    found = f"this machine's clock is {abs(offset_s):.1f} s {ahead} the API server's (within {doubt_s:.1f} s)"
    way_out = (
        "let NTP or chrony set the clock here and on the nodes: which commits are suspect after a fault is told by "
        f"time, with a margin of {margin_s:g} s (policy suspect_margin_s)"
    )
    if off_s <= CLOCK_OK_S:
        return ok(check, found)
    return fail(check, found, way_out) if off_s > margin_s else warn(check, found, way_out)


def _containers(deployment: Obj) -> list[Obj]:
    template = (deployment.get("spec") or {}).get("template") or {}
    return list((template.get("spec") or {}).get("containers") or [])


def _tags(deployment: Obj) -> list[str]:
    images = [str(container.get("image") or "").partition("@")[0] for container in _containers(deployment)]
    return [image.rpartition("/")[2].partition(":")[2] for image in images if ":" in image.rpartition("/")[2]]


def _version(tag: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)(?:\D|$)", tag)
    return (int(found[1]), int(found[2])) if found else None


def _environment(deployment: Obj) -> dict[str, str]:
    return {
        str(one["name"]): str(one.get("value") or "")
        for container in _containers(deployment)
        for one in container.get("env") or []
    }


def _duration_s(text: str) -> float | None:
    """A Go duration; None where it is none."""
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+", text):
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
