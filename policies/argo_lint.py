"""What goes wrong with a workflow of Argo only when something fails: found by reading its templates. Pure.

Each rule names the template, what will happen, and the way out. They hold for Argo 4.0.5; the rendered library keeps
all of them, and `rerail lint` asks them about workflows of others.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from rerail.policies.documents import Value

Template = Mapping[str, Any]

FINAL_PHASES: Final = ("Completed", "Failed", "Aborted", "Terminated")
"""In which a vcjob stays."""

MOST_NESTED: Final = 100
"""Calls of templates within each other before Argo stops with 'Maximum recursion depth exceeded'."""

TORCHRUN_KILLS_AFTER_S: Final = 30.0
"""What torchrun gives its workers between SIGTERM and SIGKILL."""

_SHUTDOWN_TIMEOUT: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_FORWARDED: Final = ("TERM", "INT", "HUP", "QUIT")
_ONLY_ERROR: Final = re.compile(r"status\s*==\s*'Error'|pod deleted")
_ONLY_FAILED: Final = re.compile(r"status\s*==\s*'Failed'|exitCode\)?\s*(?:==|in)\s*\[?\s*'?\d")
_REFERENCE: Final = re.compile(r"\{\{.*?\}\}")


class Finding(Value):
    """One thing that will go wrong.

    Attributes:
        rule: Its short name.
        severity: ``note`` only says under which condition it holds.
        where: Template and field.
        problem: What happens.
        fix: What to write instead.
    """

    rule: str
    severity: Literal["error", "note"] = "error"
    where: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.fix}"


def lint(templates: Sequence[Template]) -> tuple[Finding, ...]:
    """Everything that is wrong with the templates of one workflow, in their order."""
    found: list[Finding] = []
    for template in templates:
        found += [
            *retry(template),
            *resource(template),
            *container(template),
            *outputs(template),
            *conditions(template),
            *fail_fast(template),
        ]
    return (*found, *recursion(templates))


def retry(template: Template) -> Iterator[Finding]:
    """A retry that does not answer lost pods, can never happen, never ends, or does not wait."""
    strategy = template.get("retryStrategy")
    if strategy is None:
        return
    where = f"{_name(template)}.retryStrategy"
    policy, expression = str(strategy.get("retryPolicy") or ""), str(strategy.get("expression") or "")
    if not expression and policy in ("", "OnFailure"):
        yield Finding(
            rule="retry-infrastructure",
            where=where,
            problem="infrastructure errors not retried",
            fix="a lost pod is Error, not Failed: write retryPolicy Always with an expression",
        )
    if expression and not policy:
        yield Finding(
            rule="retry-version",
            severity="note",
            where=where,
            problem="ok from 3.5 (expression alone decides)",
            fix="state minimum version, or write retryPolicy: Always",
        )
    impossible = {"OnFailure": _ONLY_ERROR, "OnError": _ONLY_FAILED}.get(policy)
    if expression and impossible and all(impossible.search(part) for part in expression.split("||")):
        yield Finding(
            rule="retry-never",
            where=where,
            problem="policy AND expression can never both hold",
            fix="write retryPolicy: Always, and let the expression decide",
        )
    if strategy.get("limit") in (None, ""):
        yield Finding(
            rule="retry-limit",
            where=where,
            problem="there is no limit, so it is tried for ever and a back-off does not count",
            fix="write a limit",
        )


def resource(template: Template) -> Iterator[Finding]:
    """A gang made by a resource template: made twice, or waited for without end."""
    made = template.get("resource")
    if made is None:
        return
    name = _name(template)
    manifest = str(made.get("manifest") or "")
    metadata = made.get("metadata") or {}
    if template.get("retryStrategy") and made.get("action") == "create":
        generated = "generateName" in metadata or "generateName:" in manifest
        problem = "retried create with generateName is not idempotent" if generated else "a retried create fails"
        yield Finding(
            rule="retried-create",
            where=f"{name}.resource",
            problem=f"{problem}, since the object stays when its pod is lost",
            fix="metadata.name fixed + action apply, or create with AlreadyExists treated as attach",
        )
    success, failure = str(made.get("successCondition") or ""), str(made.get("failureCondition") or "")
    if "status.state.phase" in success + failure:
        matched = {*phases_of(success), *phases_of(failure)}
        missing = [phase for phase in FINAL_PHASES if phase not in matched]
        if missing:
            ends = [phase for phase in FINAL_PHASES if phase not in phases_of(success)]
            yield Finding(
                rule="unmatched-phase",
                where=f"{name}.resource",
                problem=f"phases {', '.join(missing)} unmatched: it is asked for them for ever",
                fix=f"failureCondition: status.state.phase in ({','.join(ends)})",
            )


def phases_of(condition: str) -> tuple[str, ...]:
    """Phases for which a condition on ``status.state.phase`` holds, as far as it names them."""
    found = re.search(r"status\.state\.phase\s+in\s*\(([^)]*)\)", condition)
    if found:
        return tuple(phase.strip() for phase in found[1].split(","))
    single = re.search(r"status\.state\.phase\s*={1,2}\s*(\w+)", condition)
    return (single[1],) if single else ()


def container(template: Template) -> Iterator[Finding]:
    """A container without a command: the controller asks the registry for it, which it may not reach."""
    for kind in ("container", "script"):
        one = template.get(kind)
        if one is not None and not one.get("command"):
            yield Finding(
                rule="command",
                where=f"{_name(template)}.{kind}",
                problem="there is no command, so the controller asks the image's registry",
                fix="write the command out",
            )


def outputs(template: Template) -> Iterator[Finding]:
    """An output without a default: where a pod is lost, whoever refers to it waits without end."""
    for one in (template.get("outputs") or {}).get("parameters") or []:
        source = one.get("valueFrom") or {}
        if source and "supplied" not in source and "default" not in source:
            yield Finding(
                rule="output-default",
                where=f"{_name(template)}.outputs.{one.get('name')}",
                problem="there is no default, and a reference to an output that a lost pod never wrote is waited for",
                fix="write valueFrom.default",
            )


def conditions(template: Template) -> Iterator[Finding]:
    """A ``when`` with a bare reference: an empty value, or one with a dash, cannot be read."""
    for task in _tasks(template):
        text = str(task.get("when") or "")
        bare = _REFERENCE.findall(re.sub(r"'[^']*'|\"[^\"]*\"", "", text))
        if bare:
            yield Finding(
                rule="when-quoted",
                where=f"{_name(template)}.{task.get('name')}.when",
                problem=f"{bare[0]} is not quoted, so an empty value or one with '-' is an error",
                fix=f"write '{bare[0]}'",
            )


def fail_fast(template: Template) -> Iterator[Finding]:
    """The template's own failFast: it ends a DAG with the first child that fails, whatever depends on the failure."""
    if template.get("failFast"):
        yield Finding(
            rule="fail-fast",
            where=f"{_name(template)}.failFast",
            problem="the first child that fails ends all, so no branch of recovery runs",
            fix="leave it out (Hera's DAG(fail_fast=...) sets it as well)",
        )


def recursion(templates: Sequence[Template]) -> Iterator[Finding]:
    """Templates that call themselves: how often that can be before Argo stops."""
    calls = {_name(one): tuple(str(task.get("template")) for task in _tasks(one)) for one in templates}
    for name in calls:
        levels = _way_back(name, calls)
        if levels:
            yield Finding(
                rule="recursion",
                severity="note",
                where=name,
                problem=f"it calls itself over {levels} levels, so at most {most_attempts(levels)} times",
                fix="bound it by a number that is counted",
            )


def nesting(levels: int, attempts: int) -> Finding | None:
    """Whether so many attempts of so many levels nest; None where they do."""
    if levels * attempts <= MOST_NESTED:
        return None
    fitting = most_attempts(levels)
    return Finding(
        rule="recursion",
        where=f"{attempts} attempts of {levels} levels",
        problem=f"{levels * attempts} > {MOST_NESTED}",
        fix=f"retryStrategy on the attempt template, or attempts <= {fitting} with {levels} levels; long loops live in "
        "the runner",
    )


def most_attempts(levels: int) -> int:
    """How many attempts of so many levels nest, with some room for what is around them."""
    return max(1, MOST_NESTED // levels // 10 * 10)


def launcher_timer(
    launcher: str, *, grace_s: float, save_s: float, env: Mapping[str, str] | None = None
) -> Finding | None:
    """Whether a launcher kills its workers before a save is done; None where the time is enough.

    Args:
        launcher: Name of the program that starts the ranks.
        grace_s: The pod's time between SIGTERM and SIGKILL.
        save_s: The longest save that was measured.
        env: Of the pod.
    """
    timers = {"the pod": grace_s}
    if launcher == "torchrun":
        timers["launcher"] = float((env or {}).get(_SHUTDOWN_TIMEOUT) or TORCHRUN_KILLS_AFTER_S)
    shortest = min(timers, key=lambda name: timers[name])
    if timers[shortest] >= save_s:
        return None
    return Finding(
        rule="shortest-timer",
        where=launcher,
        problem=f"{shortest} kills after {timers[shortest]:g} s < {save_s:g} s save time",
        fix=f"ask for the save before the deletion (rerail evict), set {_SHUTDOWN_TIMEOUT} where the installed torch "
        "has it, or start the ranks by rerail-launch",
    )


def signal_reaches(launcher: str, signal: str) -> bool:
    """Whether a signal to a launcher's process comes to its ranks."""
    return launcher != "torchrun" or signal.removeprefix("SIG") in _FORWARDED


def _way_back(name: str, calls: Mapping[str, Sequence[str]]) -> int:
    """The fewest calls from a template to itself; 0 where there is no way."""
    seen: set[str] = set()
    here, levels = set(calls.get(name, ())), 1
    while here:
        if name in here:
            return levels
        seen |= here
        here = {target for one in here for target in calls.get(one, ())} - seen
        levels += 1
    return 0


def _tasks(template: Template) -> Iterator[Mapping[str, Any]]:
    yield from (template.get("dag") or {}).get("tasks") or []
    for group in template.get("steps") or []:
        yield from group if isinstance(group, list) else group.get("steps") or []


def _name(template: Template) -> str:
    return str(template.get("name") or "template")
