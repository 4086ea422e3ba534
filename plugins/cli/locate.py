"""The run that a person names: in the store that is given, else in the cluster, by the labels of its pods."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from rerail.plugins.checkpoint.store import RunStore
from rerail.policies.documents import RunDoc
from rerail.policies.errors import NotFoundError, UsageError

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", show_default=False, help="The run, or one of its gangs RUN-aN.")
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", envvar="RERAIL_STORE", help="Store address. [default: as the run's pods say]"),
]
ControlOption = Annotated[
    str | None,
    typer.Option("--control", envvar="RERAIL_CONTROL", help="Store of control documents, where it is another one."),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Where the run's pods are looked for. [default: everywhere]")
]


@dataclass(frozen=True, slots=True)
class Located:
    """A run that was found.

    Attributes:
        store: Its store's address.
        namespace: Of its pods; empty where it was found by its store alone.
    """

    run: RunStore
    doc: RunDoc
    store: str
    namespace: str = ""


def locate(name: str, store: str | None, control: str | None, namespace: str | None, held: ExitStack) -> Located:
    """Find a run.

    Args:
        name: Of the run, or of a gang of it.
        store: Where to look; else the cluster's pods say where it is.
        control: Of the documents, where that is another one.
        namespace: Of the pods; every one by default.
        held: Keeps the connection to the API server.

    Raises:
        NotFoundError: There is no such run.
        UsageError: Neither a store nor a cluster can be asked.
    """
    from rerail.plugins.checkpoint.attempts import read_run
    from rerail.plugins.evict.find import in_cluster, in_store, open_place

    unknown = f"run {name!r} is not known"
    if store is not None:
        opened, doc = in_store(name, store, control, otherwise=unknown)
        return Located(run=opened, doc=doc, store=store, namespace=namespace or "")
    try:
        api = connected(held)
    except UsageError as error:
        raise UsageError(f"{error}; or say where the run is: --store (or RERAIL_STORE)") from None
    try:
        place = in_cluster(api, name, namespace, ended=True, otherwise=unknown)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; where its pods are gone, say where it is: --store (or RERAIL_STORE)") from None
    opened = open_place(place, control=control)
    return Located(run=opened, doc=read_run(opened), store=place.store, namespace=place.namespace)


def connected(held: ExitStack) -> Any:
    """The API server, until the stack ends."""
    from rerail.plugins.kube.api import KubeApi

    api = KubeApi.connect()
    held.callback(api.close)
    return api
