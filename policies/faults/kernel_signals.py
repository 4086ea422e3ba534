"""From the events of a kernel log line to fault signals, and back to what the judgement of an event needs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rerail.policies.faults import FaultSignal, Severity
from rerail.policies.faults.catalogue import Catalogue
from rerail.policies.faults.explain import Judgement, judge
from rerail.policies.faults.kernel_envelope import Stamp
from rerail.policies.faults.kernel_lines import Event, events_of, is_worth_parsing

FUTURE_S: Final = 300.0  # a stamp further ahead than this, or before 2007, comes from a clock that was not set
_FIRST_CUDA_S: Final = 1_167_609_600.0
_YEAR_S: Final = 366 * 86_400.0


def signals_of_line(
    line: str,
    *,
    node: str,
    catalogue: Catalogue,
    read_at_s: float,
    boot_at_s: float | None = None,
    utc_offset_s: float = 0.0,
    source: str = "kernlog",
    raw_ref: str = "",
) -> tuple[FaultSignal, ...]:
    """The signals of one line of the kernel log of ``node``.

    Args:
        line: The line without its end.
        node: Whose log it is; what the text says about hosts does not count.
        catalogue: Gives scope and severity of codes.
        read_at_s: When the line was read, epoch seconds: the time of a line without a stamp of its own.
        boot_at_s: When the node booted, epoch seconds, for stamps that count from there.
        utc_offset_s: The node's zone, seconds east of UTC, for stamps in civil time.
        source: Name of the source.
        raw_ref: Where the line lies.
    """
    if not is_worth_parsing(line):
        return ()
    seen, events = events_of(line)
    at_s, exact = stamp_s(seen.stamp, read_at_s=read_at_s, boot_at_s=boot_at_s, utc_offset_s=utc_offset_s)
    return tuple(
        signal_of(
            event,
            judge(event, catalogue),
            node=node,
            at_s=at_s,
            exact=exact,
            boot_id=seen.facts.get("boot_id"),
            source=source,
            raw_ref=f"{raw_ref}#{number}" if number and raw_ref else raw_ref,
        )
        for number, event in enumerate(events)
        if event.kind != "mapping"
    )


def signal_of(
    event: Event,
    judged: Judgement,
    *,
    node: str,
    at_s: float,
    exact: bool = True,
    boot_id: str | None = None,
    source: str = "kernlog",
    raw_ref: str = "",
) -> FaultSignal:
    """One event as a signal. For the arguments see ``signals_of_line``; ``exact``: the line told ``at_s`` itself."""
    recovery = judged.recovery
    return FaultSignal(
        source=source,
        node=node,
        devices=(event.pci,) if event.pci else (),
        scope=judged.scope,
        codes=(event.code,),
        severity=_severity(event, judged),
        action_hint=recovery.action if recovery and not recovery.clears else None,
        first_seen_s=at_s,
        boot_id=boot_id,
        raw_ref=raw_ref,
        clears_key=_clears_key(event, judged, event.pci or "?"),
        cleared="clears" in judged.marks,
        details=_details(event, exact=exact),
    )


def _severity(event: Event, judged: Judgement) -> Severity:
    word = (event.severity or "").lower().replace("-", "")
    if word.endswith("nonfatal"):
        return "warning"
    if word.endswith("fatal") or judged.quarantine != "none":
        return "fatal"
    return "info" if judged.action == "none" else "warning"


def _clears_key(event: Event, judged: Judgement, device: str) -> str | None:
    """What a later line takes back: the driver's recovery action of a GPU, or a code that another code clears."""
    if judged.recovery is not None:
        return f"recovery:{device}"
    clears = judged.entry.clears if judged.entry else None
    return f"{clears or event.code}:{device}"


def _details(event: Event, *, exact: bool) -> dict[str, Any]:
    details = {key: value for key, value in event.facts.items() if value is not None}
    if event.severity:
        details["severity_word"] = event.severity
    if event.body:
        details["text"] = event.body[:500]
    if event.continuation:
        details["continuation"] = True
    if not exact:
        details["stamped_at_reading"] = True
    return details


def event_of_signal(signal: FaultSignal, code: str) -> Event | None:
    """The event behind one code of a signal, as far as the source told it; None for a code that is no code."""
    kind, _, _ = code.partition(":")
    if kind not in {"xid", "sxid", "name"}:
        return None
    details = signal.details
    return Event(
        "xid" if kind == "xid" else "sxid" if kind == "sxid" else "name",
        code,
        pci=signal.devices[0] if signal.devices else None,
        severity=_word(details.get("severity_word")),
        continuation=details.get("continuation") is True,
        facts=dict(details),
    )


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def judgements_of(signal: FaultSignal, catalogue: Catalogue) -> Sequence[tuple[str, Judgement]]:
    """Each code of a signal with what it alone means."""
    events = ((code, event_of_signal(signal, code)) for code in signal.codes)
    return [(code, judge(event, catalogue)) for code, event in events if event is not None]


def stamp_s(
    stamp: Stamp | None, *, read_at_s: float, boot_at_s: float | None, utc_offset_s: float
) -> tuple[float, bool]:
    """Epoch seconds of a stamp by the node's clock, and whether the stamp itself told them.

    A stamp that cannot be true (years ago, or ahead of the reading) gives the time of reading.
    """
    at_s: float | None = None
    if stamp is None:
        return read_at_s, False
    if stamp.kind == "epoch":
        at_s = stamp.value_s
    elif stamp.kind == "monotonic":
        at_s = None if boot_at_s is None else boot_at_s + stamp.value_s
    elif stamp.kind == "local":
        at_s = stamp.value_s - utc_offset_s
    else:
        at_s = _newest_year(stamp.value_s, read_at_s + utc_offset_s)
        at_s = None if at_s is None else at_s - utc_offset_s
    if at_s is None or not _FIRST_CUDA_S <= at_s <= read_at_s + FUTURE_S:
        return read_at_s, False
    return at_s, True


def _newest_year(value_s: float, read_at_local_s: float) -> float | None:
    """The newest date of this month, day and time that is not in the future; None where no recent year has it."""
    parts = datetime.fromtimestamp(value_s, tz=UTC)
    try:
        year = datetime.fromtimestamp(read_at_local_s + FUTURE_S, tz=UTC).year
    except (ValueError, OverflowError, OSError):
        return None
    for candidate in (year, year - 1):
        try:
            at_s = parts.replace(year=candidate).timestamp()
        except ValueError:
            continue
        if at_s <= read_at_local_s + FUTURE_S and read_at_local_s - at_s <= _YEAR_S:
            return at_s
    return None
