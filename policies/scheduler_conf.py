"""What a configuration of Volcano's scheduler does to gangs, and to an extender that holds back evictions. Pure.

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


def check_gangs(text: str) -> tuple[ConfProblem, ...]:
    """What of a scheduler's configuration breaks gangs, or keeps one that comes from ever getting room.

    Args:
        text: The YAML of ``volcano-scheduler.conf``.

    Returns:
        Problems, errors first. Where an extender stands in it, those of ``check_scheduler_conf`` are among them.

    Raises:
        UsageError: The text is no such configuration.
    """
    actions, tiers = _read(text)
    plugins = [one for tier in tiers for one in tier]
    asks = any(one.get("name") == EXTENDER for one in plugins)
    found = [*_gang_plugin(actions, tiers, asks=asks), *_order_and_room(actions, plugins)]
    if asks:
        known = {one.code for one in found}
        found += [one for one in check_scheduler_conf(text) if one.code not in known]
    elif "shuffle" in actions:
        found.append(_error("silent-action", "action 'shuffle' evicts single pods, locked ones too: leave it out"))
    return tuple(sorted(found, key=lambda one: one.severity != "error"))


def _gang_plugin(actions: list[str], tiers: list[list[dict[str, Any]]], *, asks: bool) -> list[ConfProblem]:
    places = [(at, one) for at, tier in enumerate(tiers) for one in tier if one.get("name") == "gang"]
    if not places:
        return [_error("no-gang", "no plugin 'gang': pods of a gang are placed one by one; add it to the first tier")]
    at, gang = places[-1]
    found = []
    if "preempt" in actions and gang.get("enablePreemptable") is not False:
        found.append(
            _warning(
                "gang-never-leaves",
                "'enablePreemptable' of gang is not false: a gang of full size is never a victim of preempt, so one of "
                "higher priority waits for ever; set it to false, and let the extender (`rerail serve extender`) or "
                "the lock rerail.dev/preemption-lock guard gangs",
            )
        )
    elif "preempt" in actions and not asks:
        found.append(
            _warning(
                "gang-breaks",
                "'enablePreemptable' of gang is false and no extender is asked: preempt takes single ranks of a gang; "
                'add the extender (`rerail serve extender`), or annotate gangs rerail.dev/preemption-lock: "true"',
            )
        )
    later = [str(one.get("name")) for tier in tiers[at + 1 :] for one in tier]
    named = sorted({"proportion", "capacity"} & set(later))
    if "reclaim" in actions and gang.get("enableReclaimable") is not False and named:
        found.append(
            _warning(
                "gang-porous",
                f"gang stands in an earlier tier than {', '.join(named)}: its no to reclaim only ends that tier, and "
                "ranks of a full gang are taken all the same; put all plugins into one tier",
            )
        )
    return found


def _order_and_room(actions: list[str], plugins: list[dict[str, Any]]) -> list[ConfProblem]:
    found = []
    if any(one.get("name") == "drf" and one.get("enableJobOrder") is not False for one in plugins):
        found.append(
            _warning(
                "drf-order",
                "drf orders jobs by their share: a new job takes the place of a gang that lost one rank (volcano "
                "#5805); set 'enableJobOrder: false' on drf, or give gangs a higher PriorityClass",
            )
        )
    evicts = [action for action in actions if action in ("preempt", "reclaim", "gangpreempt", "gangreclaim")]
    shares = [str(one.get("name")) for one in plugins if one.get("name") in ("proportion", "capacity")]
    if "enqueue" in actions and evicts and shares:
        found.append(
            _error(
                "enqueue",
                f"action 'enqueue' with {shares[0]} keeps a newcomer out of a full queue, so that {evicts[0]} is never "
                "tried for it: leave it out (allocate then admits PodGroups itself)",
            )
        )
    found += [
        _warning("both-actions", f"{whole!r} does not go together with {single!r}: choose one")
        for single, whole in (("preempt", "gangpreempt"), ("reclaim", "gangreclaim"))
        if single in actions and whole in actions
    ]
    return found


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
