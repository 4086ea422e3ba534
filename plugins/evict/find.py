"""Where a gang is: its run's store, by an address or by what its pods say, and its namespace."""

from collections.abc import Sequence
from typing import Any

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.plugins.kube.resources import PODS
from rerail.plugins.trainer.orders import gang_number
from rerail.policies.documents import RunDoc, Value
from rerail.policies.errors import NotFoundError, UsageError
from rerail.policies.workloads.attempt import GANG_LABEL, RUN_LABEL

Obj = dict[str, Any]


class Place(Value):
    """A gang in a cluster.

    Attributes:
        store: As its pods see it; empty where they do not say.
        control: Of the documents, where that is another one.
    """

    run: str
    gang: str
    namespace: str
    store: str = ""
    control: str | None = None


def run_names(name: str) -> tuple[str, ...]:
    """The runs that ``name`` may mean: itself, and the run of a gang ``<run>-a<n>``."""
    number = gang_number(name)
    return (name,) if number is None else (name, name.rpartition("-a")[0])


def in_store(
    name: str, store: str, control: str | None, *, otherwise: str = "nothing to evict"
) -> tuple[RunStore, RunDoc]:
    """The run of a run's or gang's name.

    Args:
        name: Of the run, or of a gang of it.
        store: Its address.
        control: Of the documents, where that is another one.
        otherwise: What it means to the caller that there is none, for the error.

    Raises:
        NotFoundError: Neither is there.
        UsageError: The name or an address cannot be used.
    """
    for run in run_names(name):
        opened = open_run(run, store=store, control=control, outside=True)
        try:
            return opened, read_run(opened)
        except NotFoundError:
            continue
    raise NotFoundError(
        f"{otherwise}: neither a run nor a gang {name!r} is at {control or store}; check the name and --store"
    )


def in_cluster(
    api: KubeApi, name: str, namespace: str | None, *, ended: bool = False, otherwise: str = "nothing to evict"
) -> Place:
    """The gang of a run's or gang's name, by the labels of its pods.

    Args:
        api: The API server.
        name: Of the run, or of the gang.
        namespace: Where to look; every one by default.
        ended: Also by pods that ended.
        otherwise: What it means to the caller that there is none, for the error.

    Raises:
        NotFoundError: No pod carries the name.
        UsageError: Several namespaces have such a run.
    """
    for label in (RUN_LABEL, GANG_LABEL):
        pods = api.list(PODS, namespace=namespace or ALL_NAMESPACES, labels={label: name}).items
        over = () if ended else ("Succeeded", "Failed")
        live = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in over]
        found = places(live)
        spaces = sorted({place.namespace for place in found})
        if len(spaces) > 1:
            raise UsageError(f"{name!r} is in several namespaces ({', '.join(spaces)}); pass --namespace")
        if found:
            return max(found, key=lambda place: gang_number(place.gang) or 0)
    where = f"namespace {namespace!r}" if namespace else "the cluster"
    alive = "" if ended else "living "
    raise NotFoundError(f"{otherwise}: no {alive}pod in {where} is of a run or gang {name!r}")


def places(pods: Sequence[Obj]) -> tuple[Place, ...]:
    """The gangs that the pods belong to, each once; pods of no gang of ours are left out."""
    found: dict[tuple[str, str], Place] = {}
    for pod in pods:
        metadata = pod["metadata"]
        labels = metadata.get("labels") or {}
        run, gang = labels.get(RUN_LABEL), labels.get(GANG_LABEL)
        if not run or not gang:
            continue
        told = _environment(pod)
        key = (str(metadata.get("namespace", "")), str(gang))
        if key not in found or not found[key].store:
            found[key] = Place(
                run=run,
                gang=gang,
                namespace=key[0],
                store=told.get("RERAIL_STORE", ""),
                control=told.get("RERAIL_CONTROL") or None,
            )
    return tuple(found[key] for key in sorted(found))


def _environment(pod: Obj) -> dict[str, str]:
    containers = (pod.get("spec") or {}).get("containers") or []
    return {
        str(one["name"]): str(one["value"])
        for container in containers
        for one in container.get("env") or []
        if "value" in one
    }


def open_place(place: Place, *, store: str | None = None, control: str | None = None) -> RunStore:
    """The stores of a gang's run, as its pods say unless other addresses are given.

    Raises:
        UsageError: The pods do not say where, and nobody else does.
        NotFoundError: The folder is not here: it is mounted elsewhere.
    """
    address = store or place.store
    if not address:
        raise UsageError(f"the pods of gang {place.gang!r} do not say where their store is; pass --store")
    chosen = control or (None if store else place.control)
    return open_run(place.run, store=address, control=chosen, outside=True)
