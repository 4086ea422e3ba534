"""Others in a cluster that would restart, drain or repair too. Pure; the table is ``healers.yaml``."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib.resources import files

import yaml
from pydantic import Field

from rerail.policies.doctor.finding import Finding, ok, skipped, warn
from rerail.policies.documents import Value


class Healer(Value):
    """One of them.

    Attributes:
        groups: API groups that only it serves.
        workloads: Names, or their beginnings, of its DaemonSets and Deployments.
        does: What it does to a gang.
        way_out: How both can live together.
    """

    name: str
    groups: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    does: str = Field(min_length=1)
    way_out: str = Field(min_length=1)


@lru_cache(maxsize=1)
def load_healers() -> tuple[Healer, ...]:
    """The packaged table."""
    text = files(__package__).joinpath("healers.yaml").read_text(encoding="utf-8")
    return tuple(Healer.model_validate(row) for row in yaml.safe_load(text)["healers"])


def judge_healers(
    groups: Collection[str],
    workloads: Sequence[tuple[str, str]] | None,
    *,
    known: Sequence[Healer] | None = None,
) -> tuple[Finding, ...]:
    """Which of them are there, one finding each.

    Args:
        groups: API groups that the cluster serves.
        workloads: Namespace and name of its DaemonSets and Deployments; None where nobody may look.
        known: The table; the packaged one by default.
    """
    found = []
    for healer in load_healers() if known is None else known:
        seen = [f"API group {group}" for group in healer.groups if group in groups]
        seen += [
            f"{namespace}/{name}"
            for namespace, name in workloads or ()
            if any(name == begin or name.startswith(f"{begin}-") for begin in healer.workloads)
        ]
        if seen:
            there = f"{healer.name} is there ({', '.join(seen[:4])}): it {healer.does}"
            found.append(warn("other-healers", there, healer.way_out))
    if workloads is None:
        found.append(
            skipped(
                "other-healers",
                "DaemonSets and Deployments may not be listed, so healers without an API group of their own are not "
                "seen",
                "ask for list on daemonsets and deployments of group apps",
            )
        )
    return tuple(found) or (ok("other-healers", "nobody else is known to drain or repair nodes here"),)
