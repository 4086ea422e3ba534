"""Parsers: from one line of a kernel log, or of Fabric Manager's log, to the events in it.

Pure, and total: any text gives events or none, never an exception. What an event means is not decided here.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rerail.policies.faults.kernel_envelope import MAX_TEXT, Envelope, open_line

Kind = Literal["xid", "sxid", "name", "mapping"]

COMM_MAX: Final = 16  # the kernel keeps 15 characters of a process's name, which its user chooses
_WORD_DIGITS: Final = 8
_GPU_LOST: Final = 79

_PCI = r"(?:PCI:\s*)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F]{1,2})?"


@dataclass(frozen=True)
class Event:
    """One record.

    Attributes:
        code: ``xid:79``, ``sxid:20034``, ``name:oom_kill``; ``mapping`` for a line that only tells an address.
        pci: ``0000:3b:00``: domain of four digits or more, lower case, without the function; None if not told.
        severity: The word of the line, as it stands there.
        body: The text after code, pid and name.
        continuation: More about the record before it, not a second one.
        facts: What else the line tells, by the names that documents use.
    """

    kind: Kind
    code: str
    pci: str | None = None
    severity: str | None = None
    body: str = ""
    continuation: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def number(self) -> int | None:
        """The XID or SXID; None for the rest."""
        return int(self.code.rpartition(":")[2]) if self.kind in {"xid", "sxid"} else None


# Almost every line of a log has none of these words: then nothing else is tried. Substrings are ten times faster here
# than one expression that ignores case.
_WORDS: Final = (
    "nvrm",
    "nvswitch",
    "nvidia",
    "multicast team",
    "out of memory: kill",
    "oom-kill:",
    "pciehp",
    "collective operation timeout",
    '"message":[',
    '"message": [',
)

_XID = re.compile(
    rf"NVRM:\s*Xid\s*\(\s*{_PCI}\s*(?:GPU-I:(\d{{1,4}})\s*)?(?:GPU-CI:(\d{{1,4}})\s*)?[^()]{{0,40}}\)\s*:\s*"
    r"(\d{1,9})(?![\w])\s*",
    re.IGNORECASE,
)
_SXID = re.compile(
    rf"nvidia-nvswitch(\d{{1,4}}):\s*SXid\s*\(\s*{_PCI}\s*\)\s*:\s*(\d{{1,9}})(?!\w)\s*,?\s*", re.IGNORECASE
)
_FABRIC = re.compile(
    rf"detected NVSwitch\s+(fatal|non-fatal)\s+error\s+(\d{{1,9}})(?!\w)(?:.{{0,80}}?pci bus id\s+{_PCI})?"
    r"(?:.{0,60}?\bport\s+(\d{1,4}))?",
    re.IGNORECASE,
)
_RECORD = re.compile(rf"(?:{_XID.pattern})|(?:{_SXID.pattern})", re.IGNORECASE)
_NEW_TEXT = re.compile(r"(?:^|[\n\r]|\\n|\\r|#012|\]|kernel:)\s*$", re.IGNORECASE)
_LINE_END = re.compile(r"[\n\r]|\\n|\\r|#012")

_PID = re.compile(r",?\s*pid=(?:'<unknown>'|<unknown>|'?(\d{1,10})'?|[^,]{0,40})\s*", re.IGNORECASE)
_NAME = re.compile(r",\s*name=(?:'<unknown>'|<unknown>|([^,\n]{0,64}))", re.IGNORECASE)
_CAUSED_BY = re.compile(r"caused by previous Xid\s+(\d{1,9})(?!\w)", re.IGNORECASE)
_SM = re.compile(r"\(?\bGPC\s+(\d{1,3}),?\s*TPC\s+(\d{1,3})(?:,?\s*SM\s+(\d{1,3}))?", re.IGNORECASE)
_CLIENT = re.compile(r"\bGPC(\d{1,3})\s+GPCCLIENT_", re.IGNORECASE)
_ESR = re.compile(r"Graphics\s+Exception:\s*ESR\b", re.IGNORECASE)
_LINK = re.compile(r"\blink\s+(-?\d{1,4})", re.IGNORECASE)
_REGISTERS = re.compile(r"\blink\s+-?\d{1,4}\s*\(\s*((?:0x[0-9a-f]{1,8}\s*,?\s*){1,16})\)?", re.IGNORECASE)
_NVLINK5 = re.compile(
    r"([A-Z][A-Z0-9_/ ]{1,60}?)\s+((?:Link[ -]?)?(?:Non-?fatal|Fatal))\s+XC\s?(\d)\s+i\s?(\d)\s+Link\s+(-?\d{1,4})"
    r"\s*(?:\(([^)]{0,200}))?",
    re.IGNORECASE,
)
_HEX = re.compile(r"0x([0-9a-f]{1,8})(?![0-9a-f])", re.IGNORECASE)
_RECOVERY = re.compile(r"recovery action changed\s+from\s+(.{0,60}?)\s+to\s+(.{0,60})", re.IGNORECASE | re.DOTALL)
_RECOVERY_VALUE = re.compile(r"(?:0x([0-9a-f]{1,4})\s*)?\(?\s*([^()]{0,40}?)\s*\)?[\s.]*$", re.IGNORECASE)

_SEVERITY = re.compile(r"(Fatal|Non-?fatal)\s*,?\s*", re.IGNORECASE)
_MORE = re.compile(r"Data\s*\{|Severity\s+\d+\s+Engine", re.IGNORECASE)

_MAPPING = re.compile(rf"NVRM:\s*GPU\s+(?:at\s+)?{_PCI}\s*:\s*(GPU-[0-9a-f-]{{8,40}})", re.IGNORECASE)
_FELL_OFF = re.compile(
    rf"NVRM:(?:(?!NVRM:).){{0,40}}?(?:GPU\s+(?:at\s+)?{_PCI}.{{0,120}}?)?"
    r"(?:(?:has\s+)?fallen off the bus|GPU (?:is |has been )?lost\b)",
    re.IGNORECASE | re.DOTALL,
)
_GPU_AT = rf"(?:GPU\s+(?:at\s+)?{_PCI}\s*:?\s*)?"
_PATTERNS: Final[dict[str, tuple[str, ...]]] = {
    "gpu_init_failed": (
        rf"NVRM:\s*{_GPU_AT}(?:RmInitAdapter|rm_init_adapter)\s+failed.*",
        rf"NVRM:\s*{_GPU_AT}(?:failed to copy vbios|This PCI I/O region assigned)",
        rf"nvidia:?\s+(?:probe of\s+)?{_PCI}:?\s+(?:probe\s+(?:with driver nvidia )?)?failed with error",
        r"NVRM:\s*(?:The NVIDIA probe routine failed|None of the NVIDIA (?:graphics )?(?:adapters|devices))",
    ),
    "uvm_fatal": (r"(?:NVRM|nvidia-uvm):.{0,80}(?:global fatal error|requiring os reboot)",),
    "driver_mismatch": (r"NVRM:\s*API mismatch",),
    "nvlink_rx_detect_failed": (
        r"NVRM:\s*knvlink\w{0,60}:\s*(?:Failed to update Rx Detect|Getting peer\d+.{0,4}postRxDet)",
    ),
    "gsp_rate_limited": (rf"NVRM:\s*Rate limiting GSP RPC error prints(?: for GPU at {_PCI})?",),
    "pcie_slot_down": (r"pciehp:?\s*Slot\(?[\w-]{1,16}\)?:\s*(?:Link Down|Card not present|Surprise)",),
    "pcie_fatal": (
        rf"nvidia\s+{_PCI}:.{{0,20}}PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)",
        rf"nvidia\s+{_PCI}:.{{0,20}}AER: can't recover",
    ),
    "pcie_corrected": (rf"nvidia\s+{_PCI}:.{{0,20}}PCIe Bus Error: severity=Correct(?:ed|able)",),
    "oom_kill": (
        r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (\d{1,10})[ ,]+\(?([^),]{0,64})",
        r"oom-kill:constraint=\w{1,40}.*",
    ),
    "fabric_topology_mismatch": (r"detected number of NVSwitches don'?t match with any supported system topology",),
    "fabric_multicast_failed": (r"failed to find the GPU handle \d+ in the multicast team",),
    "collective_timeout": (r"(?:\[Rank (\d{1,7})\].{0,120})?Watchdog caught collective operation timeout.*",),
}
_NAMED: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE)) for name, patterns in _PATTERNS.items() for pattern in patterns
)
_TAKES_PROCESSES: Final = frozenset({"oom_kill", "collective_timeout"})
_MINOR = re.compile(r"minor number (\d{1,4})", re.IGNORECASE)
_OOM_TASK = re.compile(r"\btask=([^,]{1,64}),pid=(\d{1,10})")
_WORK = re.compile(r"SeqNum=(\d{1,18}).{0,20}OpType=(\w{1,40})")


def is_worth_parsing(line: str) -> bool:
    """Whether a line may hold an event; a cheap first look."""
    lowered = line[:MAX_TEXT].lower()
    return any(word in lowered for word in _WORDS)


def events_of(line: str) -> tuple[Envelope, list[Event]]:
    """All events of one line, in order, with the envelope it came in.

    A line of a process of a user gives no event of the kernel; what it may tell are the troubles of processes.
    """
    seen = open_line(line)
    text = seen.text
    if seen.userland:
        return seen, [event for event in _named(text) if event.code.partition(":")[2] in _TAKES_PROCESSES]
    events = _records(text)
    events += [_fabric(found) for found in _FABRIC.finditer(text)]
    return seen, events or _named(text)


def _records(text: str) -> list[Event]:
    """XID and SXID records; one inside another's process name is no record."""
    starts: list[re.Match[str]] = []
    for found in _RECORD.finditer(text):
        if not starts or _NEW_TEXT.search(text, starts[-1].end(), found.start()) or not _in_name(text, starts, found):
            starts.append(found)
    ends = [*(found.start() for found in starts[1:]), len(text)][: len(starts)]
    return [_record(found, text[found.end() : end]) for found, end in zip(starts, ends, strict=True)]


def _in_name(text: str, starts: list[re.Match[str]], found: re.Match[str]) -> bool:
    name_at = text.rfind("name=", starts[-1].end(), found.start())
    return name_at >= 0 and found.start() - name_at <= COMM_MAX + len("name=")


def _record(found: re.Match[str], rest: str) -> Event:
    xid = _XID.match(found[0])
    if xid:
        return _xid(xid, rest)
    sxid = _SXID.match(found[0])
    assert sxid
    return _sxid(sxid, rest)


def _xid(found: re.Match[str], rest: str) -> Event:
    cut = _LINE_END.search(rest)
    rest = rest[: cut.start()] if cut else rest
    facts: dict[str, Any] = {"pid": None}
    if found[2] or found[3]:
        facts["mig"] = {key: int(found[n]) for key, n in (("gi", 2), ("ci", 3)) if found[n]}
    if pid := _PID.match(rest):
        facts["pid"] = int(pid[1]) if pid[1] else None
        rest = rest[pid.end() :]
    if name := _NAME.match(rest):
        if name[1]:
            facts["name"] = name[1].strip()
        rest = rest[name.end() :]
    body = rest.strip(" ,\t")
    number = int(found[4])
    severity, more = _details(body)
    return Event(
        "xid",
        f"xid:{number}",
        pci=normal_pci(found[1]),
        severity=severity,
        body=body,
        continuation=number == 13 and _ESR.match(body) is not None,  # noqa: PLR2004 -- XID 13: one crash, many lines
        facts=facts | more,
    )


def _details(body: str) -> tuple[str | None, dict[str, Any]]:
    """What the body of an XID tells, by kind of body."""
    facts: dict[str, Any] = {}
    if unit := _NVLINK5.match(body):
        words = [int(word[1], 16) for word in _HEX.finditer(unit[6] or "") if _is_whole(word, unit[6])]
        facts = {"unit": unit[1].strip(), "link": int(unit[5]), "words": len(words), "registers": words}
        if words:
            facts["subcode"] = words[0] >> 20 & 0x3F
        return unit[2], facts
    if caused := _CAUSED_BY.search(body):
        facts["caused_by"] = int(caused[1])
    if sm := _SM.search(body):
        facts |= {key: int(sm[n]) for key, n in (("gpc", 1), ("tpc", 2), ("sm", 3)) if sm[n]}
    elif client := _CLIENT.search(body):
        facts["gpc"] = int(client[1])
    if link := _LINK.search(body):
        facts["link"] = int(link[1])
    if registers := _REGISTERS.search(body):
        facts["registers"] = [int(word[1], 16) for word in _HEX.finditer(registers[1])]
    if changed := _RECOVERY.search(body):
        facts["recovery"] = changed[2].strip()
        value = _RECOVERY_VALUE.match(facts["recovery"])
        facts["recovery_text"] = value[2] if value else facts["recovery"]
        facts["recovery_value"] = int(value[1], 16) if value and value[1] else None
    return None, facts


def _is_whole(word: re.Match[str], text: str) -> bool:
    """A word at the end of a line that was cut off may lack digits."""
    return word.end() < len(text) or len(word[1]) == _WORD_DIGITS


def _sxid(found: re.Match[str], rest: str) -> Event:
    cut = _LINE_END.search(rest)
    body = rest[: cut.start()] if cut else rest
    severity = _SEVERITY.match(body)
    told = body[severity.end() :] if severity else body
    facts: dict[str, Any] = {"switch": int(found[1])}
    if link := _LINK.search(told):
        facts["link"] = int(link[1])
    return Event(
        "sxid",
        f"sxid:{int(found[3])}",
        pci=normal_pci(found[2]),
        severity=severity[1] if severity else None,
        body=told.strip(),
        continuation=not severity and _MORE.match(told) is not None,
        facts=facts,
    )


def _fabric(found: re.Match[str]) -> Event:
    pci = normal_pci(found[3]) if found[3] else None
    facts: dict[str, Any] = {"port": int(found[4])} if found[4] else {}
    facts["same_incident_as"] = f"kernel SXid {int(found[2])} on {pci}"
    return Event("sxid", f"sxid:{int(found[2])}", pci=pci, severity=found[1].capitalize(), body=found[0], facts=facts)


def _named(text: str) -> list[Event]:
    """Faults without a number: each kind once."""
    if mapping := _MAPPING.search(text):
        return [Event("mapping", "mapping", pci=normal_pci(mapping[1]), facts={"uuid": mapping[2]})]
    if lost := _FELL_OFF.search(text):
        pci = normal_pci(lost[1]) if lost[1] else None
        return [Event("xid", f"xid:{_GPU_LOST}", pci=pci, body=lost[0], facts={"pid": None, "xid_explicit": False})]
    for name, pattern in _NAMED:
        if found := pattern.search(text):
            return [_one_named(name, found)]
    return []


def _one_named(name: str, found: re.Match[str]) -> Event:
    facts: dict[str, Any] = {}
    pci = None
    groups = [group for group in found.groups() if group]
    if name == "oom_kill":
        task = _OOM_TASK.search(found[0])
        if task:
            facts = {"pid": int(task[2]), "name": task[1]}
        elif len(groups) > 1:
            facts = {"pid": int(groups[0]), "name": groups[1]}
    elif name == "collective_timeout":
        facts |= {"rank": int(groups[0])} if groups else {}
        if work := _WORK.search(found[0]):
            facts |= {"seq_num": int(work[1]), "op_type": work[2]}
    elif groups:
        pci = normal_pci(groups[0])
    if minor := _MINOR.search(found[0]):
        facts["device_minor"] = int(minor[1])
    return Event("name", f"name:{name}", pci=pci, body=found[0], continuation=name == "gsp_rate_limited", facts=facts)


def normal_pci(address: str) -> str:
    """A PCI address as documents write it: ``0000:3b:00``; a missing domain is 0, a function is dropped."""
    parts = address.lower().removeprefix("pci:").split(".")[0].split(":")
    domain = int(parts[0], 16) if len(parts) > 2 else 0  # noqa: PLR2004 -- domain, bus, device
    return f"{domain:04x}:{parts[-2]}:{parts[-1]}"
