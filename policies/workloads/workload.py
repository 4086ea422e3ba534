"""What the user wants to run, read and checked once; every backend renders attempts from it."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field, JsonValue

from rerail.policies.documents import Value


class Task(Value):
    """Pods that are alike.

    Attributes:
        name: As in the manifest; part of the pods' names.
        ranks_per_pod: Ranks of each pod; 0 for a task that only stands beside the ranks (a data server).
        first_rank: Lowest rank of its first pod; pod ``i`` begins ``i * ranks_per_pod`` later.
        container: Position of the container that holds the ranks.
        gpu_resource: Resource name of its GPUs, for example ``nvidia.com/gpu``; empty without any.
        gpus_per_pod: How many of them that container has.
        node_selector: Labels that its nodes carry.
        tolerations: Taints that its pods bear, as Kubernetes has them.
    """

    name: str
    replicas: int = Field(ge=1)
    ranks_per_pod: int = Field(ge=0)
    first_rank: int = Field(ge=0)
    container: int = Field(ge=0)
    gpu_resource: str = ""
    gpus_per_pod: int = Field(0, ge=0)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, JsonValue], ...] = ()


class Member(Value):
    """One pod of the gang.

    Attributes:
        task: Position of its task.
        index: Its index within the task.
        number: Its index within the gang.
        ranks: Its ranks are ``first_rank .. first_rank + ranks - 1``; 0 where it holds none.
    """

    task: int
    index: int
    number: int
    first_rank: int
    ranks: int


class Workload(Value):
    """A user's workload. Ranks follow the order of tasks, then of pods, so a pod's name fixes its ranks.

    Attributes:
        run: Name of the run.
        namespace: As in the manifest; None leaves it to the caller.
        document: The manifest as a vcjob, the user's own or made from a Run. Never changed; copied for each attempt.
        source: File, or what else it came from, for messages.
        store: Address of the store, where the manifest says it.
        policy: The recovery policy, where the manifest says it, checked.
        beside: Further objects of the same file, as ``ConfigMap/name``. They are the user's to apply.
    """

    run: str
    namespace: str | None
    queue: str
    tasks: tuple[Task, ...] = Field(min_length=1)
    document: dict[str, Any]
    source: str
    store: str | None = None
    control: str | None = None
    policy: dict[str, JsonValue] = Field(default_factory=dict)
    beside: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of the gang."""
        return sum(task.replicas * task.ranks_per_pod for task in self.tasks)

    @property
    def size(self) -> int:
        """Pods of the gang."""
        return sum(task.replicas for task in self.tasks)

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the PersistentVolumeClaims that its pods mount."""
        spec = self.document["spec"]
        named = [one.get("volumeClaimName") for one in spec.get("volumes") or []]
        for task in spec["tasks"]:
            volumes = task["template"]["spec"].get("volumes") or []
            named += [(one.get("persistentVolumeClaim") or {}).get("claimName") for one in volumes]
        return tuple(dict.fromkeys(str(name) for name in named if name))

    def members(self) -> Iterator[Member]:
        """Every pod of the gang, in the order of ranks."""
        number = 0
        for position, task in enumerate(self.tasks):
            for index in range(task.replicas):
                yield Member(
                    task=position,
                    index=index,
                    number=number,
                    first_rank=task.first_rank + index * task.ranks_per_pod,
                    ranks=task.ranks_per_pod,
                )
                number += 1
