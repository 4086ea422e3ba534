"""Looks at a store: whether it answers, and whether it creates exclusively."""

import time
from collections.abc import Callable, Iterator

from rerail.plugins.checkpoint.open import open_store
from rerail.policies.doctor.finding import Finding, fail, ok, warn
from rerail.policies.errors import NotFoundError, RerailError, StoreRefusedError, TransientError

_SLOW_S = 2.0


def store_findings(
    store: str, control: str | None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Finding]:
    """Prove both roots; each proof writes one small object of a random name and takes it away again.

    Args:
        store: Address of the shards.
        control: Address of the documents, where it is another one.
        clock: Monotonic seconds.
    """
    for check, address in (("store", store), ("control", control)):
        if address:
            yield _proven(check, address, clock)


def _proven(check: str, address: str, clock: Callable[[], float]) -> Finding:
    begun_s = clock()
    try:
        open_store(address).prove()
    except StoreRefusedError as error:
        return fail(check, str(error), "use a store that creates exclusively: two attempts could both commit there")
    except NotFoundError as error:
        return fail(check, str(error), "check the address; a folder has to be mounted here")
    except TransientError as error:
        return fail(check, str(error), "check the network, the endpoint and that the store runs")
    except RerailError as error:
        return fail(check, str(error), "check the address and the login's rights: put, get, list and delete")
    took_s = clock() - begun_s
    found = f"{address} creates exclusively (proved in {took_s:.2f} s)"
    if took_s > _SLOW_S:
        return warn(check, found, "every decision of a recovery writes to it: a store this slow delays each of them")
    return ok(check, found)
