"""The extender put together: gangs, book, worker and server, from start to stop."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Thread

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.extender import Decider, ExtenderServer
from rerail.plugins.evict.extender_gangs import OurGangs
from rerail.plugins.evict.extender_metrics import ExtenderMetrics
from rerail.plugins.evict.extender_worker import CHECKPOINT_EVERY_S, Worker
from rerail.plugins.evict.locks import Locks
from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.policies.consent import ConsentBook
from rerail.policies.errors import RerailError


def steady_wall_clock() -> Callable[[], float]:
    """Epoch seconds that never run backwards: the wall clock of now, then the monotonic one."""
    wall_s, begun_s = time.time(), time.monotonic()
    return lambda: wall_s + time.monotonic() - begun_s


def _open(run: str, store: str, control: str | None) -> RunStore:
    return open_run(run, store=store, control=control, outside=True)


@contextmanager
def serving(
    api: KubeApi,
    address: tuple[str, int],
    *,
    hold_s: float,
    namespace: str = ALL_NAMESPACES,
    starve_s: float | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    now: Callable[[], float] | None = None,
    opened: Callable[[str, str, str | None], RunStore] = _open,
) -> Iterator[ExtenderServer]:
    """An extender that answers while the block runs.

    The first answer comes after the first list of gangs, so that notes of an earlier process count from the beginning;
    without an API server it comes all the same, after ten seconds, and every hold is a new one.

    Args:
        api: The API server.
        address: Host and port to listen on; port 0 takes a free one.
        hold_s: The most that an evictor waits for one gang.
        namespace: Only gangs of this one.
        starve_s: How long a PodGroup waits for room before the lock of a gang is opened for it; None opens none.
        checkpoint_every_s: How often a gang's newest commit is looked for.
        now: Epoch seconds that do not run backwards.
        opened: Opens a run's stores.

    Raises:
        OSError: The address cannot be listened on.
    """
    now = now or steady_wall_clock()
    book = ConsentBook(hold_s=hold_s)
    gangs = OurGangs(api, namespace)
    decider = Decider(book, gangs, ExtenderMetrics(), now)

    def noted(group: str, note: object) -> None:
        with decider.lock:
            book.restore(group, note, now())

    def gone(group: str) -> None:
        with decider.lock:
            book.drop(group, now())

    gangs.on_note, gangs.on_gone = noted, gone

    locks = None if starve_s is None else Locks(decider, api, namespace, starve_s)

    def trouble() -> str:
        try:
            gangs.check()
            if locks is not None:
                locks.check()
        except RerailError as error:
            return str(error)
        return ""

    with ExtenderServer(address, decider, trouble) as server, gangs, locks or nullcontext():
        with suppress(RerailError):
            gangs.check()
        with Worker(decider, api, opened, locks, checkpoint_every_s=checkpoint_every_s) as worker:
            server.broken = lambda: worker.broken
            thread = Thread(target=server.serve_forever, args=(0.1,), name="rerail-extender-http", daemon=True)
            thread.start()
            try:
                yield server
            finally:
                server.shutdown()
                thread.join()
