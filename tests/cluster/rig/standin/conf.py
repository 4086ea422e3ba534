"""The scheduler's configuration, as far as it is played."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from rerail.plugins.volcano import go_duration_s

ACTIONS: Final = frozenset({"enqueue", "allocate", "preempt", "reclaim", "backfill"})
PLUGINS: Final = frozenset(
    {
        *("priority", "gang", "conformance", "overcommit", "drf", "predicates", "proportion"),
        *("nodeorder", "binpack", "extender"),
    }
)
FLAGS: Final = frozenset({"enablePreemptable", "enableReclaimable", "enableJobOrder"})
EXTENDER: Final = frozenset(
    f"extender.{word}"
    for word in ("urlPrefix", "httpTimeout", "ignorable", "managedResources", "preemptableVerb", "reclaimableVerb")
)


class NotPlayedError(Exception):
    """The configuration asks for something that the stand-in does not play."""


@dataclass(frozen=True)
class Extender:
    """A service that is asked for its consent.

    Attributes:
        verbs: Path of the question, by ``preemptable`` and ``reclaimable``.
        managed: Only pods that ask for one of these resources are asked about; empty: all.
    """

    url: str
    timeout_s: float
    verbs: dict[str, str]
    managed: frozenset[str]


@dataclass(frozen=True)
class Conf:
    """What is played.

    Attributes:
        actions: In this order in each session.
        preemptable: Plugins, in the order of the one tier, that have a say in who may be preempted.
        reclaimable: The same for reclaim.
    """

    actions: tuple[str, ...]
    preemptable: tuple[str, ...]
    reclaimable: tuple[str, ...]
    extender: Extender | None = field(default=None)


def read(path: Path) -> Conf:
    """Read a configuration.

    Raises:
        NotPlayedError: It asks for more than is played, or cannot be read.
    """
    try:
        content = yaml.safe_load(path.read_text())
        actions = tuple(word.strip() for word in content["actions"].split(","))
        tiers = [tier["plugins"] for tier in content["tiers"]]
    except (OSError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise NotPlayedError(f"{path} is no configuration of a scheduler: {error!r}") from error
    found = [f"action {action}" for action in actions if action not in ACTIONS]
    found += [key for key in content if key not in ("actions", "tiers")]
    found += ["several tiers"] if len(tiers) != 1 else []
    for plugin in tiers[0]:
        found += _more(plugin)
    if found:
        raise NotPlayedError(", ".join(found))
    named = {plugin["name"]: plugin for plugin in tiers[0]}
    extender = _extender(named["extender"].get("arguments") or {}) if "extender" in named else None
    return Conf(actions, _those(named, "Preemptable", extender), _those(named, "Reclaimable", extender), extender)


_SAY: Final = {
    "Preemptable": ("priority", "gang", "conformance"),
    "Reclaimable": ("gang", "conformance", "proportion"),
}


def _those(named: dict[str, Any], question: str, extender: Extender | None) -> tuple[str, ...]:
    asked = [name for name in named if name in _SAY[question] and named[name].get(f"enable{question}", True)]
    if extender and question.lower() in extender.verbs:
        position = [name for name in named if name in asked or name == "extender"].index("extender")
        asked.insert(position, "extender")
    return tuple(asked)


def _more(plugin: Any) -> list[str]:
    """What a plugin asks for beyond what is played."""
    name = plugin["name"]
    if name not in PLUGINS:
        return [f"plugin {name}"]
    allowed = {"name", "arguments", *FLAGS}
    found = [f"{name}: {key}" for key in plugin if key not in allowed]
    if name == "drf" and (plugin.get("enableJobOrder", True) or plugin.get("enablePreemptable", True)):
        found.append("drf with enableJobOrder or enablePreemptable")
    known = EXTENDER if name == "extender" else frozenset()
    return found + [f"{name}: {key}" for key in plugin.get("arguments") or {} if key not in known]


def _extender(arguments: dict[str, Any]) -> Extender:
    verbs = {word: arguments.get(f"extender.{word}Verb") for word in ("preemptable", "reclaimable")}
    return Extender(
        url=str(arguments["extender.urlPrefix"]),
        timeout_s=go_duration_s(str(arguments.get("extender.httpTimeout", "1s"))),
        verbs={word: str(verb) for word, verb in verbs.items() if verb},
        managed=frozenset(arguments.get("extender.managedResources") or ()),
    )
