"""Gangs as a PodGroup around pods that Argo makes: here the group and the Service come from, and how the gang ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rerail.plugins.gang.giving_up import give_up
from rerail.plugins.gang.podgroup import PodGroupBackend
from rerail.plugins.gang.pods import is_ghost
from rerail.plugins.gang.submitted import waiting
from rerail.plugins.kube.api import Obj
from rerail.plugins.kube.resources import PODS, SERVICES
from rerail.plugins.volcano import PodGroup
from rerail.plugins.volcano.check import Problem
from rerail.policies.errors import ConflictError, NotFoundError
from rerail.policies.owners import WorkflowRef
from rerail.policies.supervisor.state import GangSpec
from rerail.policies.volcano_verdict import GHOST_AFTER_S
from rerail.policies.workloads.attempt import GANG_LABEL
from rerail.policies.workloads.fanout import RankPods, made_as, rank_pods, render_fanout
from rerail.policies.workloads.podgroup import GangObjects

ENDED: Final = "GangEnded"
"""Reason of a pod that was never placed, and whose gang is over."""

_PLACED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(slots=True)
class FanoutBackend(PodGroupBackend):
    """The port ``GangBackend`` on PodGroups whose pods a Workflow brings."""

    def render(self, gang: GangSpec) -> list[dict[str, Any]]:
        """The PodGroup and its Service."""
        objects = self._objects(gang)
        return [objects.group, objects.service]

    def ranks(self, gang: GangSpec) -> RankPods:
        """What Argo is told to make the gang's pods."""
        return rank_pods(self.workload, self.attempt(gang))

    def has_pods(self, gang: str) -> bool:
        """Whether any pod of the gang was made: then somebody brings them already."""
        return bool(self.watch.snapshot().pods.get(gang))

    def problems(self, gang: GangSpec) -> tuple[Problem, ...]:
        """What speaks against creating this gang; its pods are Argo's to create, so nobody is asked about them."""
        objects = self._objects(gang)
        found = self.watch.client.check_group(PodGroup.from_dict(objects.group))
        if any(problem.severity == "error" for problem in found):
            return found
        return (*found, *self._tried(SERVICES, objects.service))

    def gangs(self, run: str) -> tuple[str, ...]:
        """Gangs of which anything is left to end; a ghost counts, since Argo waits for its end."""
        left = PodGroupBackend.gangs(self, run)
        haunted = (name for name in self.watch.snapshot().pods if name and any(self._ghosts(name)))
        return tuple(sorted({*left, *haunted}))

    def create(self, gang: GangSpec) -> None:
        """Create the group, which goes with its Workflow, and the Service."""
        objects = self._objects(gang)
        group = objects.group
        workflow = WorkflowRef.of(self.owner)
        if workflow is not None:
            owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": workflow.name}
            group = {**group, "metadata": {**group["metadata"], "ownerReferences": [{**owner, "uid": workflow.uid}]}}
        self._create_owned(gang.name, group, ((SERVICES, objects.service),))

    def delete_pods(self, gang: str, grace_s: float) -> None:
        """Ask once for the deletion of a gang's live pods, and let those that were never placed fail.

        A pod that is deleted while it is pending Argo makes again, as if nobody had meant it.
        """
        grace = max(1, round(grace_s))
        live = list(self.watch.snapshot().live(gang))
        for pod in live:
            if not (pod.get("spec") or {}).get("nodeName"):
                self._fail(pod)
        if any((pod.get("spec") or {}).get("nodeName") for pod in waiting(live, grace)):
            self.watch.api.delete_all(PODS, labels={GANG_LABEL: gang}, fields=_PLACED, grace_s=grace)
        for pod in self._ghosts(gang):
            self._forget(pod)

    def _objects(self, gang: GangSpec) -> GangObjects:
        return render_fanout(self.workload, self.attempt(gang))

    def _fail(self, pod: Obj) -> None:
        """Let a pod fail that no node has yet; once it has one, it is deleted like the others."""
        metadata = pod["metadata"]
        patch = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {"phase": "Failed", "reason": ENDED, "message": "its gang ended before this pod had a node"},
        }
        try:
            self.watch.api.patch(
                PODS, made_as(pod), patch, namespace=metadata["namespace"], subresource="status", repeatable=True
            )
        except (ConflictError, NotFoundError):
            return  # it changed since: the next pass sees how

    def _ghosts(self, gang: str) -> Iterator[Obj]:
        """Pods that were to be gone long ago, on nodes that do not report: nobody but a person, or we, ends them."""
        _, pods = self.watch.facts(gang)
        return (pod for pod, facts in pods if is_ghost(facts) and (facts.overdue_s or 0.0) > GHOST_AFTER_S)

    def _forget(self, pod: Obj) -> None:
        """Take a ghost's object away: Argo waits for that. Its name is no other pod's, and its node is kept from work.

        Should its processes live on unseen, the store lets none of them commit: its attempt is sealed.
        """
        words = "its node is lost, and its pod was given up: its gang was ended"
        try:
            actual = self.watch.api.get(PODS, made_as(pod), namespace=pod["metadata"]["namespace"])
        except NotFoundError:
            return
        give_up(self.watch.api, actual, words, wall_s=self.watch.now().timestamp())
