"""Small documents around commits: marks, certificates, requests, reports and the heartbeat."""

from collections.abc import Callable, Iterable

from rerail.plugins.checkpoint.store import Created, RunStore, Store, all_entries
from rerail.policies import keys
from rerail.policies.documents import Certificate, Heartbeat, Mark, Pause, Report, Request, digest_of
from rerail.policies.errors import DamagedError, NewerFormatError, NotFoundError, SupersededError
from rerail.policies.manifest import CertificateRef

_REPORTER = "launch"


def mark_commit(run: RunStore, *, attempt: int, step: int, kind: keys.MarkKind, why: str, writer: str) -> None:
    """Mark a commit ``bad``, ``suspect`` or as a ``pin``. Marking it again, by anybody, changes nothing."""
    mark = Mark(writer=writer, run=run.run, attempt=attempt, step=step, mark=kind, why=why)
    run.control.create(keys.mark(attempt, step, kind), mark.encode())


def unmark_commit(run: RunStore, *, attempt: int, step: int, kind: keys.MarkKind) -> None:
    """Take a mark away (a person's decision); one that is not there is no error."""
    run.control.delete((keys.mark(attempt, step, kind),))


def read_marks(run: RunStore) -> frozenset[keys.MarkKey]:
    """All marks of the run, by their keys alone."""
    return frozenset(mark for entry in all_entries(run.control, keys.MARKS) if (mark := keys.parse_mark(entry.key)))


def certificate_ref(certificate: Certificate) -> CertificateRef:
    """The name by which every later manifest of the attempt refers to its certificate."""
    return CertificateRef(attempt=certificate.attempt, digest=digest_of(certificate.encode()))


def create_certificate(run: RunStore, certificate: Certificate) -> Certificate:
    """Write the attempt's certificate, once.

    Raises:
        SupersededError: Another start of the process group used this attempt number already.
    """
    key = keys.certificate(certificate.attempt)
    outcome = run.control.create(key, certificate.encode())
    if isinstance(outcome, Created):
        return certificate
    standing = Certificate.decode(outcome.data, f"{run.control.url}: {key}")
    if standing.writer != certificate.writer:
        raise SupersededError(
            f"attempt {certificate.attempt} of run {run.run!r} has the certificate of another start of its process "
            "group; an attempt number is used once: leave with 86, the supervisor opens the next attempt"
        )
    return standing


def read_certificate(run: RunStore, attempt: int) -> Certificate:
    """The certificate of an attempt; NotFoundError before its first step."""
    key = keys.certificate(attempt)
    return Certificate.decode(run.control.get(key), f"{run.control.url}: {key}")


def _number_of(key: str) -> int:
    digits = key.removesuffix(".json").rsplit(".", 1)[-1]
    return int(digits) if digits.isdigit() else 0


def _create_numbered(
    store: Store, known: Iterable[str], key_of: Callable[[int], str], data: bytes, own: Callable[[bytes, str], bool]
) -> tuple[str, bytes]:
    """Create the next number's document, or find that ``own`` recognises the one that took the number.

    Args:
        store: Takes it.
        known: Keys of one listing, none of which is ours: what came after it is met number by number.
        key_of: The key of a number.
        data: The document.
        own: Whether a document that stands is this one.
    """
    number = 1 + max(map(_number_of, known), default=0)
    while True:
        key = key_of(number)
        outcome = store.create(key, data)
        if isinstance(outcome, Created):
            return key, data
        if own(outcome.data, key):
            return key, outcome.data
        number += 1


def add_request(
    run: RunStore,
    *,
    attempt: int,
    reason: str,
    within_s: float,
    then: str,
    writer: str,
    id: str,  # noqa: A002 - the field's name in the document
) -> Request:
    """Ask the ranks of ``attempt`` to save.

    Args:
        run: The run's stores.
        attempt: The attempt that is asked.
        reason: Why, for people and for the report.
        within_s: Seconds from first sight, on the reader's own clock, after which an answer is of no use.
        then: ``stay`` or ``leave``.
        writer: Random id of this write.
        id: Name of the request; asking again under the same id is the same request.

    Returns:
        The request that stands.
    """
    known = read_requests(run, attempt)
    for _, standing in known:
        if standing.id == id:
            return standing
    request = Request.model_validate(
        {
            "writer": writer,
            "run": run.run,
            "attempt": attempt,
            "id": id,
            "reason": reason,
            "within_s": within_s,
            "then": then,
        }
    )
    key, data = _create_numbered(
        run.control,
        [key for key, _ in known],
        lambda number: keys.request(attempt, number),
        request.encode(),
        lambda found, key: Request.decode(found, key).id == id,
    )
    return Request.decode(data, key)


def read_requests(run: RunStore, attempt: int, *, after: str = "") -> list[tuple[str, Request]]:
    """Requests to ``attempt`` whose key is beyond ``after``, oldest first, each with its key."""
    return [
        (key, Request.decode(run.control.get(key), f"{run.control.url}: {key}"))
        for key in _keys_after(run.control, keys.requests_of(attempt), after)
    ]


def add_report(run: RunStore, report: Report) -> str:
    """Tell the supervisor something about an attempt; returns the report's key."""
    key, _ = _create_numbered(
        run.control,
        _keys_after(run.control, keys.signals_of(report.attempt, _REPORTER), ""),
        lambda number: keys.signal(report.attempt, _REPORTER, number),
        report.encode(),
        lambda found, key: Report.decode(found, key).writer == report.writer,
    )
    return key


def read_reports(run: RunStore, attempt: int, *, after: str = "") -> list[tuple[str, Report]]:
    """Reports about ``attempt`` whose key is beyond ``after``, oldest first, each with its key."""
    prefix = keys.signals_of(attempt, _REPORTER)
    return [
        (key, Report.decode(run.control.get(key), f"{run.control.url}: {key}"))
        for key in _keys_after(run.control, prefix, after)
    ]


def _keys_after(store: Store, prefix: str, after: str) -> list[str]:
    found: list[str] = []
    while True:
        page = store.page(prefix, start_after=after)
        found += [entry.key for entry in page.entries]
        if page.next_after is None:
            return found
        after = page.next_after


def pause_run(run: RunStore, pause: Pause) -> Pause:
    """Hold the run; returns the pause that stands, which may be somebody's earlier one."""
    outcome = run.control.create(keys.PAUSE, pause.encode())
    return pause if isinstance(outcome, Created) else Pause.decode(outcome.data, keys.PAUSE)


def resume_run(run: RunStore) -> bool:
    """Let a paused run go on; whether it was paused."""
    paused = bool(why_paused(run))
    run.control.delete((keys.PAUSE,))
    return paused


def why_paused(run: RunStore) -> str:
    """Why the run is held; empty while it is not. A pause that cannot be read is one."""
    try:
        return Pause.decode(run.control.get(keys.PAUSE), f"{run.control.url}: {keys.PAUSE}").reason
    except NotFoundError:
        return ""
    except (DamagedError, NewerFormatError) as error:
        return f"{error}; `rerail resume` takes it away"


def beat(run: RunStore, heartbeat: Heartbeat) -> None:
    """Overwrite the heartbeat: a hint, never truth."""
    run.control.put(keys.HEARTBEAT, heartbeat.encode())


def read_heartbeat(run: RunStore) -> Heartbeat | None:
    """The newest heartbeat; None if there is none, or none that can be read (it is only a hint)."""
    try:
        return Heartbeat.decode(run.control.get(keys.HEARTBEAT), keys.HEARTBEAT)
    except (NotFoundError, DamagedError):
        return None
