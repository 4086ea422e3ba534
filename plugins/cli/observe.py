"""``rerail run --observe``: what would be decided for a run that exists, while nothing is touched."""

import signal
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rerail.plugins.cli.driving import Progress, document
from rerail.plugins.cli.locate import Located, locate
from rerail.plugins.cli.output import Output, emit
from rerail.policies.errors import UsageError
from rerail.policies.recovery import RecoveryPolicy

if TYPE_CHECKING:
    from rerail.plugins.gang.observing import Observer


def observe(
    name: str | None,
    *,
    backend: str,
    store: str | None,
    control: str | None,
    namespace: str | None,
    guard_namespace: str | None,
    state: Path | None,
    output: Output,
) -> None:
    """Look at a run until it is over, or Ctrl-C, and say what a supervisor would do.

    Args:
        name: Of the run, or of a gang of it.
        backend: Where its gangs are.
        store: Its store's address; in a cluster its pods say it.
        control: Of the documents, where that is another one.
        namespace: Cluster: of the gangs.
        guard_namespace: Cluster: of the ConfigMap that may pause all runs.
        state: This machine: folder of pods and nodes.
        output: Form of the document at the end.

    Raises:
        UsageError: No run is named, or it is one of another backend.
        NotFoundError: There is no such run.
    """
    if name is None:
        raise UsageError("--observe looks at a run that exists: name it with --run")
    progress = Progress()
    with ExitStack() as held:
        if backend == "local" and store is None:
            store = (Path.cwd() / "rerail-runs").as_uri()
        found = locate(name, store, control, namespace, held)
        watcher = (
            _local(found, state, progress)
            if backend == "local"
            else _cluster(found, held, progress, backend=backend, namespace=namespace, guard_namespace=guard_namespace)
        )
        progress.line(f"observing run {found.run.run} in {found.store}: nothing is written, marked or ended")
        left: list[int] = []

        def leave(number: int, _frame: FrameType | None) -> None:
            left.append(number)

        before = {one: signal.signal(one, leave) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            last = watcher.drive(until=lambda: bool(left))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if last is not None:
        emit(document(last, found.store, left_running=bool(left)), output)


def _local(found: Located, state: Path | None, progress: Progress) -> "Observer":
    from rerail.plugins.cli.run import state_folder
    from rerail.plugins.gang.local import LocalBackend
    from rerail.plugins.gang.observing import Observer
    from rerail.plugins.nodes.local import LocalNodes
    from rerail.plugins.nodes.pausing import LocalPause

    run = found.run.run
    if found.doc.workload is not None:
        raise UsageError(f"run {run!r} has its gangs in a cluster; add --backend vcjob (or podgroup, fanout)")
    folder = (state or state_folder(found.store)) / run
    pods = LocalBackend(run, folder / "pods", (), {})
    return Observer(
        found.run,
        pods,
        LocalNodes(folder / "nodes", used=pods.used),
        RecoveryPolicy.from_mapping(dict(found.doc.policy), f"run.json of run {run!r}"),
        pause=LocalPause(folder.parent),
        on_event=progress.entry,
        log=progress.line,
    )


def _cluster(
    found: Located,
    held: ExitStack,
    progress: Progress,
    *,
    backend: str,
    namespace: str | None,
    guard_namespace: str | None,
) -> "Observer":
    from rerail.plugins.gang.clusters import ALL_BACKENDS, observed
    from rerail.plugins.gang.submission import owner_of
    from rerail.plugins.volcano import VolcanoClient
    from rerail.policies.owners import namespace_of

    if backend not in ALL_BACKENDS:
        raise UsageError(f"--backend {backend!r} is not known; use one of: local, {', '.join(ALL_BACKENDS)}")
    where = namespace or found.namespace or namespace_of(owner_of(found.run, found.doc))
    client = held.enter_context(VolcanoClient.connect(namespace=where or None))
    return observed(
        found.run,
        client,
        held,
        kind=backend,
        store=found.store,
        guard_namespace=guard_namespace,
        log=progress.line,
        on_event=progress.entry,
    )
