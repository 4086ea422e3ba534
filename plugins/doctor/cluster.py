"""Looks at a cluster: its API server, what is installed, rights, Argo, Volcano's scheduler, and other healers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.plugins.gang.rights import LOOK_AT_QUEUES, lacks, missing
from rerail.plugins.gang.volumes import READ_ATTACHMENTS, READ_CLAIMS
from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.plugins.kube.discovery import served_groups, served_kinds, server_clock
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ResourceType,
)
from rerail.plugins.nodes.kube_pausing import KubePause
from rerail.plugins.nodes.rights import LOOK_AND_MARK
from rerail.policies.doctor.cluster import ARGO, VOLCANO, judge_argo, judge_clock, judge_kinds, judge_requeue
from rerail.policies.doctor.finding import Finding, fail, ok, skipped, warn
from rerail.policies.doctor.healers import judge_healers
from rerail.policies.doctor.runs import judge_pause
from rerail.policies.errors import ForbiddenError, NotFoundError, RerailError, UsageError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.scheduler_conf import check_gangs

Obj = dict[str, Any]

SCHEDULER_CONF: Final = "volcano-scheduler-configmap"
CONTROLLER: Final = "workflow-controller"
"""The end of the name of Argo's controller, with and without a Helm release's before it."""

_CONF_ENDING: Final = ".conf"


@dataclass(slots=True)
class ClusterLook:
    """One look at a cluster.

    Attributes:
        api: With the login whose view counts.
        backend: Of the runs to come: vcjob or podgroup.
        volcano_namespace: Of Volcano's own objects.
        argo_namespace: Of Argo's controller; None looks in all of them.
        guard_namespace: Of the guard's ConfigMap; None where the gangs are.
        account: Whose rights count, as ``namespace/name`` of a ServiceAccount; our own by default.
        scheduler_conf: Text of the scheduler's configuration; else its ConfigMap is read.
    """

    api: KubeApi
    backend: str = "vcjob"
    volcano_namespace: str = "volcano-system"
    argo_namespace: str | None = None
    guard_namespace: str | None = None
    account: str | None = None
    scheduler_conf: str | None = None
    policy: RecoveryPolicy = field(default_factory=RecoveryPolicy)

    def findings(self) -> Iterator[Finding]:
        """Every check, one after the other; without an API server only that."""
        try:
            clock = server_clock(self.api)
            groups = served_groups(self.api)
        except RerailError as error:
            yield fail("api-server", str(error), "check the kubeconfig's context, address and login")
            return
        yield ok("api-server", f"{self.api.connection.transport.server} answers ({clock.version})")
        yield judge_clock(clock.offset_s, clock.doubt_s, margin_s=self.policy.suspect_margin_s)
        for product in (VOLCANO, ARGO):
            of = {kind.partition(".")[2] for kind, _ in product.kinds}
            served: dict[str, tuple[str, ...]] = {}
            for group in sorted(of & groups.keys()):
                served |= served_kinds(self.api, group, groups[group])
            yield judge_kinds(product, served)
        yield from self._rights()
        yield self._pause()
        if any(kind.partition(".")[2] in groups for kind, _ in VOLCANO.kinds):
            yield from self._scheduler()
        deployments, daemon_sets = self._list(DEPLOYMENTS), self._list(DAEMON_SETS)
        if "argoproj.io" in groups:
            controllers = self._controllers(deployments)
            yield judge_argo(controllers, self._cron_fields())
            yield judge_requeue(controllers)
        workloads = None
        if deployments is not None or daemon_sets is not None:
            every = [*(deployments or []), *(daemon_sets or [])]
            workloads = [(str(one["metadata"].get("namespace", "")), str(one["metadata"]["name"])) for one in every]
        yield from judge_healers(groups, workloads)

    def _rights(self) -> Iterator[Finding]:
        who = f"ServiceAccount {self.account}" if self.account else "this login"
        rest = f"`rerail rights --backend {self.backend} --namespace {self.api.namespace}"
        account = f" --account {self.account.rpartition('/')[2]}" if self.account else ""
        way_out = f"{rest}{account} | kubectl apply -f -` gives all that is needed"
        try:
            needed = list(lacks(self.api, self.backend, guard_namespace=self.guard_namespace, account=self.account))
            useful: list[Call] = []
            for rights in (LOOK_AT_QUEUES, LOOK_AND_MARK, READ_ATTACHMENTS, READ_CLAIMS):
                useful += missing(self.api, rights, account=self.account)
        except ForbiddenError as error:
            yield skipped("rights", f"what {who} may do cannot be asked: {error}", "ask as an administrator")
            return
        if needed:
            yield fail("rights", f"{who} may not {'; '.join(map(str, needed))}", way_out)
        else:
            yield ok("rights", f"{who} may do all that `rerail run --backend {self.backend}` needs")
        if useful:
            yield warn(
                "rights-of-nodes",
                f"{who} may not {'; '.join(map(str, useful))}: faults of nodes are not seen, or nodes not marked",
                way_out,
            )

    def _pause(self) -> Finding:
        try:
            why = KubePause(self.api, namespace=self.guard_namespace).why()
        except RerailError as error:
            return skipped("pause", f"whether all runs are paused cannot be told: {error}")
        where = f" --guard-namespace {self.guard_namespace}" if self.guard_namespace else ""
        return judge_pause(why, of="all runs of this guard", resume=f"rerail resume --all{where}")

    def _scheduler(self) -> Iterator[Finding]:
        check = "scheduler"
        where = "the file of --scheduler-conf"
        text = self.scheduler_conf
        if text is None:
            where = f"ConfigMap {self.volcano_namespace}/{SCHEDULER_CONF}"
            try:
                found = self.api.get(CONFIG_MAPS, SCHEDULER_CONF, namespace=self.volcano_namespace)
            except (NotFoundError, ForbiddenError) as error:
                yield skipped(check, str(error), "pass --volcano-namespace, or the file itself: --scheduler-conf FILE")
                return
            data = found.get("data") or {}
            text = next((str(one) for name, one in sorted(data.items()) if name.endswith(_CONF_ENDING)), "")
        try:
            problems = check_gangs(text)
        except UsageError as error:
            yield fail(check, f"{where}: {error}", "Volcano goes on with its last or default configuration: mend it")
            return
        for problem in problems:
            judge = fail if problem.severity == "error" else warn
            yield judge(f"{check}-{problem.code}", problem.text, f"edit {where}; Volcano reads it again by itself")
        if not problems:
            yield ok(check, f"{where}: gangs stay whole, and whoever comes gets room")

    def _list(self, resource: ResourceType) -> list[Obj] | None:
        try:
            return list(self.api.list(resource, namespace=ALL_NAMESPACES).items)
        except ForbiddenError:
            return None

    def _controllers(self, deployments: list[Obj] | None) -> list[Obj] | None:
        if deployments is None and self.argo_namespace is not None:
            try:
                deployments = list(self.api.list(DEPLOYMENTS, namespace=self.argo_namespace).items)
            except ForbiddenError:
                return None
        if deployments is None:
            return None
        return [
            one
            for one in deployments
            if str(one["metadata"]["name"]).endswith(CONTROLLER)
            and self.argo_namespace in (None, one["metadata"].get("namespace"))
        ]

    def _cron_fields(self) -> frozenset[str] | None:
        """Fields of a CronWorkflow's spec, where its CRD may be read and says them."""
        try:
            found = self.api.get(CUSTOM_RESOURCE_DEFINITIONS, "cronworkflows.argoproj.io")
        except (NotFoundError, ForbiddenError):
            return None
        for version in (found.get("spec") or {}).get("versions") or []:
            schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            spec = (schema.get("properties") or {}).get("spec") or {}
            if spec.get("properties"):
                return frozenset(spec["properties"])
        return None
