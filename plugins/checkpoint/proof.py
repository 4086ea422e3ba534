"""The proof that a store creates exclusively. The whole commit protocol rests on it, so it is tried, not trusted."""

from collections.abc import Callable
from threading import Lock

from rerail.plugins.checkpoint.store import Created, Exists
from rerail.policies.errors import StoreRefusedError

_lock = Lock()
_proven: set[str] = set()


def prove_once(address: str, proof: Callable[[], None]) -> None:
    """Run ``proof`` unless it already passed for ``address`` in this process; a failed one is tried again."""
    with _lock:
        if address not in _proven:
            proof()
            _proven.add(address)


def prove_exclusive(
    create: Callable[[bytes], Created | Exists], get: Callable[[], bytes], *, token: str, store: str, way_out: str
) -> None:
    """Create one key twice with different bytes: the second must be refused, and the first one's bytes must stand.

    Args:
        create: Creates the probe key with the given bytes.
        get: Reads the probe key.
        token: Random; makes the bytes this process's own.
        store: Address, for the message.
        way_out: What the user can do, for the message.

    Raises:
        StoreRefusedError: The store overwrites, or loses the first document.
    """
    first, second = f"first {token}".encode(), f"second {token}".encode()
    outcome = create(first)
    if not isinstance(outcome, Created):
        raise StoreRefusedError(
            f"{store} says that a key of a fresh random name exists already: {outcome!r}. {way_out}"
        )
    outcome = create(second)
    stands = get()
    if outcome != Exists(first) or stands != first:
        what = "overwrote an existing document" if stands == second else f"answered {outcome!r}, and holds {stands!r}"
        raise StoreRefusedError(
            f"{store} cannot create exclusively: asked to create one key twice, it {what}. "
            f"Two attempts of a run could both commit there, so Rerail does not use it. {way_out}"
        )
