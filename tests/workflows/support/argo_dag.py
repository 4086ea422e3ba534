"""Argo 4.0.5's verdict on a DAG, as its controller forms it (dag.go, assessDAGPhase), for templates without a cluster.

A task runs when its ``depends`` holds and its ``when`` is true; else it is Omitted or Skipped. Such a task has the
worst phase of those before it. The DAG's phase is the worst of its targets: those of ``target``, or its leaves. A
reference to an output that was never reported is waited for without end: here it is ``HangError``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from argo_documents import depended_on, inputs_of, leaves, outputs_of, tasks_of

Obj = dict[str, Any]

COMPLETED = ("Succeeded", "Failed", "Error")
RESULTS = {"Succeeded": "Succeeded", "Failed": "Failed", "Error": "Errored", "Skipped": "Skipped", "Omitted": "Omitted"}
BARE = ("Succeeded", "Skipped")


class HangError(Exception):
    """A reference that never resolves."""


@dataclass
class Ended:
    """How one node ended.

    reported    whether its pod told its outputs; a lost one did not
    """

    phase: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    reported: bool = True


Play = Callable[[str, Mapping[str, str]], Ended]
"""Plays a pod: template name and inputs -> how it ends."""


@dataclass
class Controller:
    """Runs the templates of one object.

    templates   by name
    play        what pods do
    ran         (path, phase) of every task that ran, in order
    """

    templates: Mapping[str, Obj]
    play: Play
    ran: list[tuple[str, str]] = field(default_factory=list)

    def run(self, name: str, given: Mapping[str, str], path: str = "") -> Ended:
        """Run one template; with a retry until it succeeds or the limit is reached."""
        template = self.templates[name]
        inputs = {key: given.get(key, one.get("default", one.get("value"))) for key, one in inputs_of(template).items()}
        missing = [key for key, value in inputs.items() if value is None]
        assert not missing, (path, name, missing)
        retry = template.get("retryStrategy") or {}
        dag = "dag" in template
        # What a retry does to pods is the play's business; only DAGs are run again here.
        tries = int(self._filled(str(retry["limit"]), inputs, {}, path)) + 1 if dag and retry else 1
        for number in range(tries):
            there = f"{path}({number})" if tries > 1 else path
            ended = (
                self._dag(template, {**inputs, "{{retries}}": str(number)}, there) if dag else self.play(name, inputs)
            )
            if ended.phase == "Succeeded":
                break
        self.ran.append((path, ended.phase))
        return ended

    def _dag(self, template: Obj, inputs: Mapping[str, str], path: str) -> Ended:
        tasks = {task["name"]: task for task in tasks_of(template)}
        ended: dict[str, Ended] = {}
        while len(ended) < len(tasks):
            ready = [task for name, task in tasks.items() if name not in ended and depended_on(task) <= set(ended)]
            assert ready, f"{path}: a circle"
            for task in ready:
                ended[task["name"]] = self._task(task, inputs, ended, f"{path}.{task['name']}")
        targets = (template["dag"].get("target") or "").split() or leaves(template)
        phases = [self._branch(name, tasks, ended) for name in targets if not self._forgiven(tasks[name], ended[name])]
        phase = next((one for one in phases if one != "Succeeded"), "Succeeded")
        return Ended(
            phase, self._outputs(template, ended) if phase == "Succeeded" else {}, reported=phase == "Succeeded"
        )

    def _task(self, task: Obj, inputs: Mapping[str, str], ended: Mapping[str, Ended], path: str) -> Ended:
        depends = task.get("depends")
        if depends and not self._holds(depends, ended):
            return Ended("Omitted")
        if "when" in task and not self._compared(self._filled(task["when"], inputs, ended, path)):
            return Ended("Skipped")
        given = {
            one["name"]: self._filled(one["value"], inputs, ended, path)
            for one in (task.get("arguments") or {}).get("parameters") or []
        }
        if "withSequence" in task:
            return self._sequence(task, given, inputs, ended, path)
        if "template" in task:
            return self.run(task["template"], given, path)
        result = self.play("outside", given)
        self.ran.append((path, result.phase))
        return result

    def _sequence(
        self, task: Obj, given: Mapping[str, str], inputs: Mapping[str, str], ended: Mapping[str, Ended], path: str
    ) -> Ended:
        """Every item, whatever becomes of the others; the group has the worst phase of them."""
        count = int(self._filled(str(task["withSequence"]["count"]), inputs, ended, path))
        phases = []
        for number in range(count):
            own = {key: value.replace("{{item}}", str(number)) for key, value in given.items()}
            phases.append(self.run(task["template"], own, f"{path}({number})").phase)
        return Ended(next((one for one in phases if one != "Succeeded"), "Succeeded" if phases else "Skipped"))

    def _branch(self, name: str, tasks: Mapping[str, Obj], ended: Mapping[str, Ended]) -> str:
        if ended[name].phase in COMPLETED:
            return ended[name].phase
        above = [self._branch(one, tasks, ended) for one in depended_on(tasks[name])]
        return next((one for one in above if one != "Succeeded"), "Succeeded")

    @staticmethod
    def _forgiven(task: Obj, ended: Ended) -> bool:
        on = task.get("continueOn") or {}
        return bool((ended.phase == "Failed" and on.get("failed")) or (ended.phase == "Error" and on.get("error")))

    def _outputs(self, template: Obj, ended: Mapping[str, Ended]) -> dict[str, str]:
        found = {}
        for name, one in outputs_of(template).items():
            source = one["valueFrom"]
            where = re.search(r"tasks\.([a-z-]+)\.outputs\.parameters\.([a-z-]+)", str(source))
            assert where
            found[name] = ended[where[1]].outputs.get(where[2], source["default"])
        return found

    def _filled(self, text: str, inputs: Mapping[str, str], ended: Mapping[str, Ended], path: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name == "item":
                return found[0]
            if name.startswith("inputs.parameters."):
                return inputs[name.removeprefix("inputs.parameters.")]
            task, _, output = name.removeprefix("tasks.").partition(".")
            result = ended[task]
            if output in ("id", "status"):
                return f"{task}-{output}"
            if result.phase in ("Skipped", "Omitted"):
                return ""
            if not result.reported:
                raise HangError(f"{path} waits for {name}")
            return result.outputs[output.removeprefix("outputs.parameters.")]

        return re.sub(r"\{\{([^}]+)\}\}", value, text)

    @staticmethod
    def _holds(depends: str, ended: Mapping[str, Ended]) -> bool:
        def value(found: re.Match[str]) -> str:
            name, _, result = found[0].partition(".")
            wanted = (result,) if result else BARE
            return str(RESULTS[ended[name].phase] in wanted)

        text = re.sub(r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z]+)?", value, depends)
        return bool(eval(text.replace("&&", " and ").replace("||", " or ")))

    @staticmethod
    def _compared(text: str) -> bool:
        left, operator, right = re.fullmatch(r"'([^']*)' (==|!=) '([^']*)'", text).groups()
        return (left == right) is (operator == "==")
