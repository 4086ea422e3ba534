"""``python -m rig.standin --kubeconfig FILE --conf FILE``: plays Volcano until it is told to end."""

import argparse
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rerail.plugins.kube.api import KubeApi, Patience
from rerail.plugins.kube.resources import NODES, PODS, PRIORITY_CLASSES
from rerail.plugins.volcano import Command, PodGroup, Queue, VolcanoJob
from rerail.policies.errors import RerailError
from rig.standin.conf import NotPlayedError
from rig.standin.jobs import JobController
from rig.standin.refusals import words
from rig.standin.scheduler import Scheduler
from rig.standin.store import Store
from rig.standin.teller import Teller, log
from rig.standin.upkeep import Upkeep

KINDS = (*(kind.RESOURCE for kind in (VolcanoJob, Command, PodGroup, Queue)), PODS, NODES, PRIORITY_CLASSES)
SESSION_EVERY_S = 1.0
UPKEEP_EVERY_S = 0.5


def main() -> int:
    """Run until SIGTERM; exit code 1 where it cannot go on."""
    parser = argparse.ArgumentParser(prog="rig.standin", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--conf", type=Path, required=True, help="the scheduler's configuration")
    parser.add_argument("--ready", type=Path, required=True, help="a file that is made after the first session")
    arguments = parser.parse_args()
    ending = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ending.set())
    api = KubeApi.connect(arguments.kubeconfig, patience=Patience(request_s=10.0, total_s=2.0))
    jobs = JobController(api, Teller(api, "vc-controller-manager"))
    store = Store(api, KINDS, jobs.hear)
    jobs.store = store
    try:
        scheduler = Scheduler(api, store, Teller(api, "volcano"), arguments.conf)
    except NotPlayedError as error:
        log(f"{arguments.conf}: {words([str(error)])}")
        return 1
    upkeep = Upkeep(api, store, Teller(api, "vc-controller-manager"))
    store.start()

    def session() -> None:
        scheduler.session()
        arguments.ready.touch()

    loops = [
        threading.Thread(target=_repeat, args=(ending, session, SESSION_EVERY_S)),
        threading.Thread(target=_repeat, args=(ending, upkeep.look, UPKEEP_EVERY_S)),
        threading.Thread(target=_repeat, args=(ending, lambda: jobs.work(0.2), 0.0)),
    ]
    for loop in loops:
        loop.start()
    while not ending.wait(0.5):
        if store.broken.is_set() or not all(loop.is_alive() for loop in loops):
            break
    failed = not ending.is_set()
    ending.set()
    for loop in loops:
        loop.join()
    store.stop()
    api.close()
    return int(failed)


def _repeat(ending: threading.Event, work: Callable[[], None], every_s: float) -> None:
    """Do it again and again; what the API server refused this time is tried the next time."""
    while not ending.is_set():
        try:
            work()
        except RerailError as error:
            log(f"{work}: {error}")
        ending.wait(every_s)


if __name__ == "__main__":
    sys.exit(main())
