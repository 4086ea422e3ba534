"""What pods of the library's templates do in a test of a verdict."""

from argo_dag import Ended
from argo_documents import outputs_of
from hypothesis import strategies as st

PHASES = st.sampled_from(["Succeeded", "Failed", "Error"])
DECISIONS = st.sampled_from(["again", "give-up", "done"])


def templates_of(library, owner):
    return {one["name"]: one for one in library[owner]["spec"]["templates"]}


def defaults_of(template):
    """The outputs of a pod that wrote none of its files."""
    return {name: one["valueFrom"].get("default", "") for name, one in outputs_of(template).items()}


def arguments_of(library, owner, **given_):
    found = {one["name"]: one.get("value", "x") for one in library[owner]["spec"]["arguments"]["parameters"]}
    return found | {name.replace("_", "-"): value for name, value in given_.items()}


class Pods:
    """Plays pods by a script: name of the template -> how its next pods end, the last of it for ever."""

    def __init__(self, templates, **script):
        self.templates, self.script = templates, {name.replace("_", "-"): list(ends) for name, ends in script.items()}
        self.last = {}

    def __call__(self, name, _inputs):
        ends = self.script.get(name, [])
        end = ends.pop(0) if len(ends) > 1 else ends[0] if ends else ("Succeeded", {})
        phase, outputs = end if isinstance(end, tuple) else (end, {})
        self.last[name] = phase
        known = defaults_of(self.templates[name]) if name in self.templates else {}
        return Ended(phase, {**known, **outputs}, reported=phase == "Succeeded")
