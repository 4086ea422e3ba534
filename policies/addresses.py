"""Addresses of stores: taken apart, and shown without what may be a secret."""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from rerail.policies.errors import UsageError

FORMS: Final = "use file:///absolute/folder or s3://bucket/prefix"

_USER: Final = re.compile(r"(^|//)[^/\s]*@")
_QUERY: Final = re.compile(r"(//[^\s?#]*)[?#][^\s\"']*")


def shown(text: str) -> str:
    """An address, or words that hold some, without user, password, query and fragment."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1***@", text))


def split(address: str) -> SplitResult:
    """The parts of an address.

    Raises:
        UsageError: It cannot be taken apart, for example for a bracket that is never closed.
    """
    try:
        return urlsplit(address)
    except ValueError:
        raise UsageError(f"store address {shown(address)!r} is no address: its host is malformed; {FORMS}") from None
