"""One thing that was looked at, and what came of it."""

from typing import Literal

from rerail.policies.documents import Value

Verdict = Literal["ok", "warn", "fail", "skipped"]


class Finding(Value):
    """The result of one check.

    Attributes:
        check: A word for programs, for example ``volcano-crds``.
        verdict: ``fail``: recovery does not work like this; ``warn``: it works and something will hurt; ``skipped``: it
            could not be looked at.
        found: What is there, in words.
        way_out: What to do; empty where all is well.
    """

    check: str
    verdict: Verdict
    found: str
    way_out: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check=check, verdict="ok", found=found)


def warn(check: str, found: str, way_out: str) -> Finding:
    """It works, and something will hurt."""
    return Finding(check=check, verdict="warn", found=found, way_out=way_out)


def fail(check: str, found: str, way_out: str) -> Finding:
    """Recovery does not work like this."""
    return Finding(check=check, verdict="fail", found=found, way_out=way_out)


def skipped(check: str, found: str, way_out: str = "") -> Finding:
    """It could not be looked at."""
    return Finding(check=check, verdict="skipped", found=found, way_out=way_out)


def failed(findings: tuple[Finding, ...]) -> bool:
    """Whether any check failed."""
    return any(one.verdict == "fail" for one in findings)
