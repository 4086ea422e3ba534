"""Reading the input of a case: typed access with errors that name the key, and wording that families share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rerail.policies.errors import UsageError

Case = Mapping[str, Any]
Answer = dict[str, Any]


def need(case: Case, key: str) -> Any:
    """The value of a key that the case must have.

    Raises:
        UsageError: The key is missing; names it and the keys that are there.
    """
    if case.get(key) is None:
        there = ", ".join(sorted(case)) or "none"
        raise UsageError(f"input of kind {case.get('kind')!r} has no {key!r} (its keys: {there}); add it")
    return case[key]


def need_int(case: Case, key: str) -> int:
    """A whole number that the case must have.

    Raises:
        UsageError: Missing, or no whole number.
    """
    value = need(case, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{key!r} = {value!r}: a whole number is needed")
    return value


def number(case: Case, key: str, default: float = 0.0) -> float:
    """A number that the case may have.

    Raises:
        UsageError: There, but no number.
    """
    value = case.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{key!r} = {value!r}: a number is needed")
    return float(value)


def sub_cases(case: Case) -> Sequence[Case] | None:
    """The parallel list ``cases`` of an input that asks several questions at once, or None."""
    cases = case.get("cases")
    if cases is None:
        return None
    if not isinstance(cases, list) or not all(isinstance(one, Mapping) for one in cases):
        raise UsageError(f"'cases' = {cases!r}: a list of objects is needed")
    return cases


def listed(words: Iterable[object], *, last: str = " and ") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    texts = [str(word) for word in words]
    if len(texts) < 2:  # noqa: PLR2004 - a list of one needs no joining word
        return "".join(texts)
    return ", ".join(texts[:-1]) + last + texts[-1]
