"""Durations and sizes as people write them."""

import re

from rerail.policies.errors import UsageError

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def duration_s(text: str, what: str) -> float:
    """Read a duration such as ``90s``, ``1h30m``, ``2d`` or a plain number of seconds.

    Args:
        text: As given.
        what: The option or field it was given for, for the message.

    Returns:
        Seconds, never negative.

    Raises:
        UsageError: Names the option, the value and the forms that work.
    """
    clean = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", clean):
        return float(clean)
    found = _DURATION.fullmatch(clean)
    if not clean or not found:
        raise UsageError(f"{what} = {text!r} is no duration; write seconds (90), or 90s, 1h30m, 2d")
    return sum(float(part) * unit for part, unit in zip(found.groups(), _SECONDS, strict=True) if part)


def size_bytes(text: str, what: str) -> int:
    """Read a size such as ``16MiB``, ``1GB`` or a plain number of bytes.

    Raises:
        UsageError: Names the option, the value and the forms that work.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{what} = {text!r} is no size; write bytes (1048576), or 16MiB, 1GiB, 500MB")
    size = float(found[1]) * _BYTES[found[2] or "B"]
    if size != int(size) or size < 1:
        raise UsageError(f"{what} = {text!r} is {size:g} bytes; a whole number of bytes, at least 1, is wanted")
    return int(size)
