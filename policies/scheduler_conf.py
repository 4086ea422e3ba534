"""Whether a configuration of Volcano's scheduler lets an extender hold back an eviction. Pure.

What is named here was read in Volcano's source (v1.15, HEAD of August 2026), and what it does was seen on a cluster.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import yaml

from rerail.policies.documents import Value
from rerail.policies.errors import UsageError

EXTENDER: Final = "extender"

_SILENT_ACTIONS: Final[Mapping[str, str]] = {
    "gangpreempt": "preempt",
    "gangreclaim": "reclaim",
    "shuffle": "",
}
"""Actions that evict without asking the extender, and the one that does ask in its place."""

_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "preempt": ("extender.preemptableVerb", "enablePreemptable"),
    "reclaim": ("extender.reclaimableVerb", "enableReclaimable"),
}
_VICTIM_PLUGINS: Final[Mapping[str, frozenset[str]]] = {
    "preempt": frozenset({"priority", "gang", "conformance", "drf", "tdm", "pdb", "cdp", EXTENDER}),
    "reclaim": frozenset({"gang", "conformance", "proportion", "capacity", "pdb", "cdp", "drf", EXTENDER}),
}


class ConfProblem(Value):
    """One thing that is wrong, or worth knowing.

    Attributes:
        severity: ``error``: an eviction can pass the extender by, or never comes; ``warning``: look at it.
        code: A word for programs.
        text: What it does, and the way out.
    """

    severity: Literal["error", "warning"]
    code: str
    text: str


def check_scheduler_conf(text: str) -> tuple[ConfProblem, ...]:
    """What is wrong with a scheduler's configuration, for consent before preemption.

    Args:
        text: The YAML of ``volcano-scheduler.conf``.

    Returns:
        Problems, errors first; empty if the extender is asked before every eviction.

    Raises:
        UsageError: The text is no such configuration.
    """
    actions, tiers = _read(text)
    found = [*_of_actions(actions), *_of_tiers(actions, tiers)]
    return tuple(sorted(found, key=lambda one: one.severity != "error"))


def _read(text: str) -> tuple[list[str], list[list[dict[str, Any]]]]:
    try:
        conf = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"the scheduler's configuration is no YAML: {error}") from None
    if not isinstance(conf, dict) or not isinstance(conf.get("actions"), str):
        raise UsageError("the scheduler's configuration has no text 'actions'; give volcano-scheduler.conf")
    tiers = conf.get("tiers") or []
    if not isinstance(tiers, list) or not all(isinstance(tier, dict) for tier in tiers):
        raise UsageError("the scheduler's configuration: 'tiers' is no list of objects; give volcano-scheduler.conf")
    plugins = [tier.get("plugins") or [] for tier in tiers]
    if not all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in plugins):
        raise UsageError("the scheduler's configuration: a tier's 'plugins' is no list of objects")
    return [action.strip() for action in conf["actions"].split(",") if action.strip()], plugins


def _error(code: str, text: str) -> ConfProblem:
    return ConfProblem(severity="error", code=code, text=text)


def _warning(code: str, text: str) -> ConfProblem:
    return ConfProblem(severity="warning", code=code, text=text)


def _of_actions(actions: list[str]) -> list[ConfProblem]:
    found = []
    for action in actions:
        if action in _SILENT_ACTIONS:
            instead = f": use {_SILENT_ACTIONS[action]}" if _SILENT_ACTIONS[action] else ": leave it out"
            found.append(_error("silent-action", f"action {action!r} evicts without asking the extender{instead}"))
    if not set(actions) & _VERBS.keys():
        found.append(_warning("no-eviction", "neither preempt nor reclaim is among the actions: nobody is evicted"))
    elif "enqueue" in actions:
        found.append(
            _error(
                "enqueue",
                "action 'enqueue' keeps a newcomer out of a full queue, so that eviction is never tried for it: "
                "leave it out (allocate then admits PodGroups itself)",
            )
        )
    return found


def _of_tiers(actions: list[str], tiers: list[list[dict[str, Any]]]) -> list[ConfProblem]:
    places = [
        (tier, at)
        for tier, plugins in enumerate(tiers)
        for at, one in enumerate(plugins)
        if one.get("name") == EXTENDER
    ]
    if not places:
        return [_error("no-extender", "no plugin 'extender': nobody is asked before an eviction")]
    tier, at = places[-1]
    given = tiers[tier][at].get("arguments")
    arguments = given if isinstance(given, dict) else {}
    found = []
    for action, (verb, switch) in _VERBS.items():
        if action not in actions:
            continue
        if not arguments.get(verb):
            found.append(_error("no-verb", f"{verb!r} is not set: {action} does not ask the extender"))
        elif tiers[tier][at].get(switch) is False:
            found.append(_error("switched-off", f"{switch!r} of the extender is false: {action} does not ask it"))
        found += _leaks(action, tiers, tier, at)
    if not arguments.get("extender.urlPrefix"):
        found.append(_error("no-address", "'extender.urlPrefix' is not set: every question fails, which is a no"))
    if len(places) > 1:
        found.append(_warning("twice", "the extender stands in several places; Volcano keeps one"))
    if not arguments.get("extender.managedResources"):
        found.append(
            _warning(
                "asked-for-all",
                "'extender.managedResources' is not set: an extender that is down holds back evictions for pods "
                "without accelerators too; name your accelerators, for example [nvidia.com/gpu]",
            )
        )
    return found


def _leaks(action: str, tiers: list[list[dict[str, Any]]], tier: int, at: int) -> list[ConfProblem]:
    """Plugins by which victims of this action pass the extender."""
    switch = _VERBS[action][1]

    def named(plugins: list[dict[str, Any]]) -> list[str]:
        return [
            str(one.get("name"))
            for one in plugins
            if one.get("name") in _VICTIM_PLUGINS[action] - {EXTENDER} and one.get(switch) is not False
        ]

    found = []
    earlier = [name for plugins in tiers[:tier] for name in named(plugins)]
    later = [name for plugins in tiers[tier + 1 :] for name in named(plugins)]
    behind = named(tiers[tier][at + 1 :])
    if earlier:
        found.append(
            _error(
                "tier-before",
                f"{', '.join(earlier)} in an earlier tier name victims for {action} without the extender being asked: "
                "put all plugins into one tier, the extender last",
            )
        )
    if later:
        found.append(
            _error(
                "tier-after",
                f"a no of the extender only ends its tier; {', '.join(later)} in a later tier name victims for "
                f"{action} all the same: put all plugins into one tier, the extender last",
            )
        )
    if behind:
        found.append(
            _warning(
                "not-last",
                f"{', '.join(behind)} stand behind the extender for {action}: gangs are asked to leave for victims "
                "that those plugins then refuse; put the extender last",
            )
        )
    return found
