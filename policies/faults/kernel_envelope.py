"""The envelope of a log line: who wrote it, when, and what is left for the parsers once it is taken off.

A process of a user may print anything, also the words of a kernel fault. So text counts only where nothing shows that a
process wrote it: another syslog identifier, a facility that is not the kernel's, a log level, a rank, a sentence.
"""

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

MAX_TEXT: Final = 16384  # characters; a record of the kernel is below 1 KiB, and a message holds a few of them
_MAX_HEADS: Final = 12
_MAX_DIGITS: Final = 20
_MICRO: Final = 1e-6
_NO_YEAR: Final = 1972  # a leap year, so that 29 February can be read
_FABRIC_MANAGER: Final = frozenset({"nv-fabricmanager", "nvidia-fabricmanager", "fabricmanager"})
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LOCAL_MONTHS: Final = {"mär": 3, "mrz": 3, "mai": 5, "okt": 10, "dez": 12}  # others stay unread: no stamp, no guess


@dataclass(frozen=True)
class Stamp:
    """When a line was written, as far as the line itself says.

    Attributes:
        kind: ``epoch``: seconds since 1970. ``monotonic``: seconds since boot. ``local``: civil time of the node, in
            seconds since 1970 as if its zone were UTC. ``yearless``: the same, without a year (counted in 1972).
        value_s: Seconds.
    """

    kind: Literal["epoch", "monotonic", "local", "yearless"]
    value_s: float


@dataclass
class Envelope:
    """A line, its text and what the transport says about it.

    Attributes:
        text: What is left when every known head is taken off.
        stamp: The line's most exact stamp, None where there is none that can be read.
        userland: A process, not the kernel, wrote the line.
        fabric_manager: The line has the form, or the identifier, of Fabric Manager's own log.
        container: It came through a container's log, so its text does not say on which node.
        partial: The container's log cut the line; the rest follows in the next one.
        facts: ``boot_id`` and ``kmsg_seq`` where the transport carries them.
    """

    text: str
    stamp: Stamp | None = None
    userland: bool = False
    fabric_manager: bool = False
    container: bool = False
    partial: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


_ISO = r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:\s?(Z|UTC|GMT|[+-]\d\d:?\d\d))?"
_MONTH = r"([^\W\d_]{2,6}\.?|\d{1,2}月)"

# One head after the other, each at the beginning of what is left.
_CRI = re.compile(rf"{_ISO} (?:stdout|stderr) ([FP]) ")
_KMSG = re.compile(r"(\d{1,4}),(\d{1,20}),(\d{1,20}),[^;\n]{1,40};")
_DECODE = re.compile(r"([a-z0-9]{2,9})\s*:(?:emerg|alert|crit|err|warn|notice|info|debug)\s*:\s*")
_PRI = re.compile(r"<(\d{1,3})>(?:1 (?=\S))?")
_SECONDS = re.compile(r"\[\s*(\d{1,10}\.\d{1,9})(?:\s*<[^>]{1,20}>)?\s*\]\s*")
_CTIME = re.compile(rf"\[\s*[^\W\d_]{{1,5}}\.?,?\s+{_MONTH}\s+(\d{{1,2}})\s+(\d\d):(\d\d):(\d\d)\s+(\d{{4}})\s*\]\s*")
_FM_LOG = re.compile(r"\[([A-Za-z]{3}) (\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)\]\s*\[[A-Za-z]+\]\s*(?:\[tid \d+\]\s*)?")
_ISO_DATE = re.compile(rf"(?:[^\W\d_]{{2,5}}\.? )?{_ISO}(?:\s+|:\s*)")
_SYSLOG_DATE = re.compile(rf"{_MONTH}\s+(\d{{1,2}})日?,?\s+(\d\d):(\d\d):(\d\d)(?:[.,]\d{{1,9}})?\s+")
_UNIX_DATE = re.compile(r"(\d{9,10}\.\d{1,9})\s+")
_GREP = re.compile(r"(?:/\S{1,200}?|[\w.-]{1,100}\.(?:log|txt|\d)|messages|syslog|dmesg):(?:\d{1,9}[:-])?\s*(?=\S)")
_SKIP = re.compile(
    r"\[\s*(?:\.\.\.|\+?\d{1,9}\.\d{1,9}|\w{3}\s+\d{1,2} \d\d:\d\d)\s*\]\s*"  # dmesg's deltas, and cut-off stamps
    r"|\[\s*[TC]\s*\d{1,10}\s*\]:?\s*"  # CONFIG_PRINTK_CALLER
    r"|MESSAGE=|(?:\S{1,64} )?kern(?:el)?(?:\s+-\s+-\s+-\s+|:\s*|\s+(?=\[))",
    re.IGNORECASE,
)
_IDENT = re.compile(r"(?:[^\s:\[]{1,253} )?([A-Za-z_][\w./@-]{0,63})(?:\[\d{1,10}\])?(?::\s+|\s+-\s+-\s+-\s+)")

_KERNEL_WORDS = re.compile(
    r"NVRM:|nvidia-nvswitch\d*:|detected (?:NVSwitch|number of NVSwitches)|failed to find the GPU handle"
    r"|nvidia [0-9a-f:.]{7,16}:|pcieport [0-9a-f:.]{7,16}:|pciehp |oom-kill:"
    r"|(?:Memory cgroup out|Out) of memory:",
    re.IGNORECASE,
)
_LEVEL = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\blevel=|\brank\s*\d")
_BEHIND_KERNEL = re.compile(r"(?:^|\s)kernel:\s*$", re.IGNORECASE)
_PERSON = re.compile(
    r"[\"'`]\s*$"  # quoted
    r"|(?:^|\s)[A-Za-z_][\w.-]{0,63}(?:\[\d+\])?:\s*$"  # who: …
    r"|\[[A-Za-z_][\w .:-]{0,40}\]:?\s*$"  # [who] …
    r"|[A-Za-z]{2,}\s+[a-z]{2,}\b"  # a sentence
)


def open_line(line: str) -> Envelope:
    """Take a line's transport off.

    Args:
        line: One record without its line end; only its first 16 Ki characters are looked at.
    """
    line = line[:MAX_TEXT]
    opened = _from_json(line) if line.lstrip()[:1] == "{" else None
    return _strip(opened or Envelope(text=line))


def _strip(seen: Envelope) -> Envelope:
    """Take off one known head after the other, then judge what still stands before the kernel's words."""
    at = 0
    for _ in range(_MAX_HEADS):
        if _KERNEL_WORDS.match(seen.text, at):
            break
        end = _head(seen, at)
        if end is None:
            break
        at = end
    seen.text = seen.text[at:].lstrip()
    words = _KERNEL_WORDS.search(seen.text)
    before = seen.text[: words.start()] if words else ""
    if before and "\n" not in before:
        person = _LEVEL.search(before) or (not _BEHIND_KERNEL.search(before) and _PERSON.search(before))
        seen.userland |= bool(person)
    return seen


def _head(seen: Envelope, at: int) -> int | None:
    """The end of the head that begins at ``at``, None where none does; what it says goes into ``seen``."""
    text = seen.text
    while text[at : at + 1].isspace():
        at += 1
    return _machine_head(seen, text, at) or _dated_head(seen, text, at) or _plain_head(seen, text, at)


def _machine_head(seen: Envelope, text: str, at: int) -> int | None:
    """Heads that programs write for programs: CRI, /dev/kmsg, dmesg --decode, syslog priorities."""
    if found := _CRI.match(text, at):
        seen.stamp, seen.container, seen.partial = _iso(found), True, found[9] == "P"
    elif found := _KMSG.match(text, at):
        seen.stamp = Stamp("monotonic", int(found[3]) * _MICRO)
        seen.facts["kmsg_seq"] = int(found[2])
        seen.userland |= int(found[1]) >> 3 != 0  # facility 0 is the kernel's; writers of /dev/kmsg get 1
    elif found := _DECODE.match(text, at):
        seen.userland |= found[1] != "kern"
    elif found := _PRI.match(text, at):
        seen.userland |= int(found[1]) >> 3 != 0
    return found.end() if found else None


def _dated_head(seen: Envelope, text: str, at: int) -> int | None:
    """A date, and behind a date of syslog the host and the identifier of who wrote."""
    if found := _FM_LOG.match(text, at):
        seen.stamp = seen.stamp or _civil(found[1], found[2], found[4], found[5], found[6], year=found[3])
        seen.fabric_manager = True
        return found.end()
    if found := _CTIME.match(text, at):
        seen.stamp = seen.stamp or _civil(*found.groups()[:5], year=found[6])
        return found.end()
    if found := _SECONDS.match(text, at):
        if seen.stamp is None or seen.stamp.kind in {"local", "yearless"}:
            seen.stamp = Stamp("monotonic", float(found[1]))
        return found.end()
    if found := _ISO_DATE.match(text, at):
        seen.stamp = _iso(found)
    elif found := _SYSLOG_DATE.match(text, at):
        seen.stamp = seen.stamp or _civil(*found.groups()[:5], year=None)
    elif found := _UNIX_DATE.match(text, at):
        seen.stamp = Stamp("epoch", float(found[1]))
    return _identified(seen, text, found.end()) if found else None


def _identified(seen: Envelope, text: str, at: int) -> int:
    """Behind a date: the end of ``host identifier[pid]:`` if that stands there, else ``at``."""
    found = _IDENT.match(text, at)
    if not found or _KERNEL_WORDS.match(text, at) or _KERNEL_WORDS.match(text, found.start(1)):
        return at
    ident = found[1].lower()
    if ident in _FABRIC_MANAGER:
        seen.fabric_manager = True
    elif ident != "kernel":
        if found.start(1) == at:  # no host before it: dmesg's own texts begin like that, too
            return at
        seen.userland = True
    return found.end()


def _plain_head(seen: Envelope, text: str, at: int) -> int | None:
    if found := _SKIP.match(text, at) or _GREP.match(text, at):
        return found.end()
    if (found := _IDENT.match(text, at)) and found[1].lower() in _FABRIC_MANAGER:
        seen.fabric_manager = True
        return found.end()
    return None


def _iso(found: re.Match[str]) -> Stamp | None:
    year, month, day, hour, minute, second = (int(found[n]) for n in range(1, 7))
    fraction = float(f"0.{found[7]}") if found[7] else 0.0
    try:
        civil = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp() + fraction
    except ValueError:
        return None
    zone = found[8]
    if zone is None:
        return Stamp("local", civil)
    if zone[0] not in "+-":
        return Stamp("epoch", civil)
    offset_s = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return Stamp("epoch", civil - offset_s if zone[0] == "+" else civil + offset_s)


def _civil(month: str, day: str, hour: str, minute: str, second: str, *, year: str | None) -> Stamp | None:
    name = month.rstrip(".").lower()
    if name.endswith("月"):
        number = int(name[:-1])
    elif name[:3] in _MONTHS:
        number = _MONTHS.index(name[:3]) + 1
    else:
        number = _LOCAL_MONTHS.get(name[:3], 0)
    try:
        stamp = datetime(
            int(year) if year else _NO_YEAR, number, int(day), int(hour), int(minute), int(second), tzinfo=UTC
        )
    except ValueError:
        return None
    return Stamp("local" if year else "yearless", stamp.timestamp())


def _from_json(line: str) -> Envelope | None:
    """A record of journalctl -o json, of dmesg --json, of a container engine or a log shipper; None if it is none."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    key = next((key for key in ("MESSAGE", "msg", "log", "message") if key in content), None)
    if key is None:
        return None
    seen = Envelope(text=_text(content[key])[:MAX_TEXT])
    transport = content.get("_TRANSPORT", content.get("SYSLOG_IDENTIFIER", "kernel"))
    app = {"level", "levelname", "logger", "severity"} & content.keys()
    seen.userland = transport not in {"kernel", "kern"} or (bool(app) and "_TRANSPORT" not in content)
    if str(content.get("SYSLOG_IDENTIFIER", "")).lower() in _FABRIC_MANAGER:
        seen.userland, seen.fabric_manager = False, True
    seen.container = key in {"log", "message"}
    if isinstance(content.get("_BOOT_ID"), str):
        seen.facts["boot_id"] = content["_BOOT_ID"]
    seen.stamp = _number(content.get("__REALTIME_TIMESTAMP"), "epoch") or _number(
        content.get("_SOURCE_MONOTONIC_TIMESTAMP", content.get("__MONOTONIC_TIMESTAMP")), "monotonic"
    )
    return seen


def _number(value: Any, kind: Literal["epoch", "monotonic"]) -> Stamp | None:
    """A stamp from microseconds as a string of digits or an integer."""
    digits = str(value)
    return Stamp(kind, int(digits) * _MICRO) if digits.isdecimal() and len(digits) <= _MAX_DIGITS else None


def _text(value: Any) -> str:
    """The text of a message: journald gives a message as bytes where it is no UTF-8, a list where it is there twice."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(part, int) and 0 <= part < 256 for part in value):  # noqa: PLR2004 -- a byte
            return bytes(value).decode(errors="replace")
        return "\n".join(part for part in value if isinstance(part, str))
    return ""
