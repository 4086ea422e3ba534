"""Gangs as a PodGroup around bare pods: the form for what is no vcjob, with a headless Service of its own."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rerail.plugins.gang.cluster import is_ours
from rerail.plugins.gang.submitted import PORT, ClusterBackend
from rerail.plugins.kube.api import Obj
from rerail.plugins.kube.resources import PODS, SERVICES, ResourceType
from rerail.plugins.volcano import PodGroup
from rerail.plugins.volcano.check import Problem
from rerail.policies.documents import Rendezvous
from rerail.policies.errors import (
    AlreadyExistsError,
    ClusterUnreachableError,
    NotFoundError,
    RefusedError,
    RerailError,
    TransientError,
)
from rerail.policies.supervisor.state import GangSpec, PodShape
from rerail.policies.workloads.podgroup import GangObjects, layout, render_podgroup, rendezvous_host


@dataclass(slots=True)
class PodGroupBackend(ClusterBackend):
    """The port ``GangBackend`` on PodGroups."""

    @property
    def shape(self) -> tuple[PodShape, ...]:
        """The pods that hold ranks."""
        return layout(self.workload)

    def render(self, gang: GangSpec) -> list[dict[str, Any]]:
        """The PodGroup, its Service, and the pods."""
        objects = self._objects(gang)
        return [objects.group, objects.service, *objects.pods]

    def problems(self, gang: GangSpec) -> tuple[Problem, ...]:
        """What speaks against creating this gang: its queue, and the server's opinion of each kind of its objects."""
        objects = self._objects(gang)
        found = self.watch.client.check_group(PodGroup.from_dict(objects.group))
        if any(problem.severity == "error" for problem in found):
            return found
        return (*found, *self._tried(SERVICES, objects.service), *self._tried(PODS, objects.pods[-1]))

    def _tried(self, resource: ResourceType, body: Obj) -> Iterator[Problem]:
        """What the server would say to one object."""
        api = self.watch.api
        try:
            api.create(resource, body, namespace=api.namespace, dry_run=True)
        except ClusterUnreachableError:
            raise
        except TransientError as error:  # a quota: it may pass
            yield Problem("warning", "", str(error))
        except RerailError as error:
            yield Problem("error", "", str(error))

    def gangs(self, run: str) -> tuple[str, ...]:
        """Gangs of which anything is left to end; a group without pods keeps its place in the queue, so it counts."""
        del run  # the watch reads one run
        seen = self.watch.snapshot()
        named = {*seen.groups, *seen.pods} - {""}
        return tuple(name for name in sorted(named) if name in seen.groups or not self.watch.ended(name))

    def create(self, gang: GangSpec) -> None:
        """Create the group, the Service and the pods that are missing."""
        objects = self._objects(gang)
        owned = ((SERVICES, objects.service), *((PODS, pod) for pod in objects.pods))
        self._create_owned(gang.name, objects.group, owned)

    def end(self, gang: str, grace_s: float) -> bool:
        """Go on ending ``gang``: every pod has its deadline, and the group goes when no pod may run any more."""
        self.delete_pods(gang, grace_s)
        group = self.watch.snapshot().groups.get(gang)
        if not self.watch.ended(gang):
            return False
        if group is not None and not group.deleting:
            try:
                self.watch.api.delete(PodGroup.RESOURCE, group.name, namespace=group.metadata.namespace, uid=group.uid)
            except NotFoundError:
                return True
        return True

    def rendezvous(self, gang: GangSpec) -> Rendezvous:
        """The pod of rank 0, by its name of the gang's headless Service, and a fresh id."""
        return Rendezvous(id=secrets.token_hex(8), host=rendezvous_host(self.workload, gang.name), port=PORT)

    def _objects(self, gang: GangSpec) -> GangObjects:
        return render_podgroup(self.workload, self.attempt(gang))

    def _create_owned(self, gang: str, group: Obj, owned: Iterable[tuple[ResourceType, Obj]]) -> None:
        """Create the group, and what goes with it."""
        made = self._create(PodGroup.RESOURCE, group, gang)
        owner = {
            "apiVersion": PodGroup.RESOURCE.api_version,
            "kind": PodGroup.RESOURCE.kind,
            "name": gang,
            "uid": made["metadata"]["uid"],
        }
        for resource, body in owned:
            metadata = {**body["metadata"], "ownerReferences": [owner]}
            self._create(resource, {**body, "metadata": metadata}, gang)

    def _create(self, resource: ResourceType, body: Obj, gang: str) -> Obj:
        """Create one object, or adopt the one that carries our run and gang."""
        api = self.watch.api
        try:
            return api.create(resource, body, namespace=api.namespace)
        except AlreadyExistsError as error:
            name = body["metadata"]["name"]
            try:
                found = api.get(resource, name, namespace=api.namespace)
            except NotFoundError:
                raise TransientError(f"{resource.full_name} {name!r} went away meanwhile") from error
            metadata = found["metadata"]
            if not is_ours(metadata.get("labels") or {}, run=self.watch.run, gang=gang):
                raise RefusedError(
                    f"{resource.full_name} {name!r} exists and is not of gang {gang!r} of run {self.watch.run!r}: "
                    "choose another run name, or delete it"
                ) from error
            if metadata.get("deletionTimestamp"):
                raise TransientError(f"{resource.full_name} {name!r} is being deleted; its name is not free") from error
            return found
