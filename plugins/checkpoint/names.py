"""Which keys a store accepts. Keys come out of manifests, and manifests come from outside: nothing hostile passes."""

import re
from threading import Lock

from rerail.policies.errors import RefusedError

HIDDEN = ".rerail-"
"""Names that begin so are the store's own (temporary files, proofs): never listed, never accepted in a key."""

PROOFS = f"{HIDDEN}proof."
"""So begins the key that a store's proof of exclusive creation leaves for a moment, in the store's own root."""

_HOSTILE = re.compile(r"(^/)|(^|/)\.\.?(/|$)|//|[\x00-\x1f\x7f\\]|(^|/)\.rerail-")


def _check(text: str, what: str) -> str:
    hostile = _HOSTILE.search(text)
    if hostile is None:
        try:
            text.encode()
        except UnicodeEncodeError:
            hostile = re.search("[\ud800-\udfff]", text)
    if hostile:
        raise RefusedError(
            f"{what} {text!r} is refused because of {hostile[0]!r}: keys are relative paths without '..', backslashes, "
            "control characters or names of the store's own; a checkpoint that names it is not to be trusted"
        )
    return text


def check_key(key: str) -> str:
    """Return ``key`` if it can name an object below a prefix.

    Raises:
        RefusedError: It is empty, absolute, leaves the prefix, or holds backslashes or control characters.
    """
    if not key or key.endswith("/"):
        raise RefusedError(f"key {key!r} is refused: it names no object; give a relative path that does not end in '/'")
    return _check(key, "key")


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it can be listed; empty means everything.

    Raises:
        RefusedError: It is absolute, leaves the root, or holds backslashes or control characters.
    """
    return _check(prefix, "prefix")


class Requests:
    """Counts the requests of all views of one store; safe between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made = 0

    def count(self) -> None:
        """Note one request."""
        with self._lock:
            self._made += 1

    @property
    def made(self) -> int:
        """Requests so far."""
        return self._made
