"""Templates and the commands that they run agree: every command, option, variable and output is there on both sides."""

import ast
import re
from pathlib import Path

import pytest
from argo_documents import inputs_of, outputs_of
from typer.main import get_command

from rerail.plugins import cli, steps
from rerail.plugins.cli.main import build
from rerail.plugins.steps.inputs import MOST_ATTEMPTS
from rerail.workflows.parameters import MAX_ATTEMPTS, WORK, names

STEPS = [
    *sorted(Path(steps.__file__).parent.glob("*.py")),
    *sorted(Path(cli.__file__).parent.glob("step*.py")),
]
READ_BY_OPTIONS = {"RERAIL_STORE", "RERAIL_CONTROL", "RERAIL_OUTPUTS"}
"""Where a command has an option for it."""


def containers(templates):
    for owner, template in templates:
        if template.get("container", {}).get("command") == ["rerail"]:
            yield owner, template


def command_of(args):
    """The command that these arguments call, and what of them is left for it."""
    found, rest = get_command(build()), list(args)
    while rest and hasattr(found, "commands"):
        assert rest[0] in found.commands, args
        found = found.commands[rest.pop(0)]
    return found, rest


def calls(name):
    """Every call of a method of this name in the steps."""
    for path in STEPS:
        for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(one, ast.Call) and getattr(one.func, "attr", getattr(one.func, "id", "")) == name:
                yield one


def read_by_steps():
    """Parameters that some step reads."""
    first = [one.args[0] for name in ("text", "number") for one in calls(name)]
    found = {one.value for one in first if isinstance(one, ast.Constant)}
    source = "".join(path.read_text(encoding="utf-8") for path in STEPS)
    return found | {name.lower().replace("_", "-") for name in re.findall(r'"RERAIL_([A-Z_]+)"', source)}


def test_each_template_runs_a_command_that_exists_with_options_that_it_has(templates):
    for owner, template in containers(templates):
        command, rest = command_of(template["container"]["args"])
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        given = {word.split("=")[0] for word in rest if word.startswith("--") and word != "--"}
        assert given <= known, (owner, template["name"], given - known)


def test_each_step_reads_what_it_is_told(templates):
    """What nobody reads would stand in the Workflow's status for every node of every attempt."""
    known = read_by_steps()
    for owner, template in containers(templates):
        if template["container"]["args"][0] != "step":
            continue
        for variable in template["container"]["env"]:
            name = variable["name"].removeprefix("RERAIL_").lower().replace("_", "-")
            assert variable["name"] in READ_BY_OPTIONS or name in known, (owner, template["name"], variable["name"])


def test_each_output_is_written_by_some_step(templates):
    written = {key.arg.replace("_", "-") for one in calls("write") for key in one.keywords if key.arg}
    for owner, template in containers(templates):
        assert set(outputs_of(template)) <= written, (owner, template["name"], set(outputs_of(template)) - written)


@pytest.mark.parametrize("step", ["resolve", "open", "run", "assess", "retry-assess", "node-judge", "node-release"])
def test_outputs_lie_where_the_step_writes_them(step, templates):
    found = [one for _, one in containers(templates) if one["container"]["args"][:2] == ["step", step]]
    assert found
    for template in found:
        variables = {one["name"]: one.get("value") for one in template["container"]["env"]}
        for name, one in outputs_of(template).items():
            assert one["valueFrom"]["path"] == f"{variables['RERAIL_OUTPUTS']}/{name}"


def test_the_workflow_tells_its_steps_who_it_is(templates):
    for _, template in containers(templates):
        variables = {one["name"]: one.get("value") for one in template["container"]["env"]}
        assert variables["RERAIL_WORKFLOW"] == "{{workflow.name}}"
        assert variables["RERAIL_WORKFLOW_UID"] == "{{workflow.uid}}"
        assert variables["RERAIL_NAMESPACE"] == "{{workflow.namespace}}"
        for name in inputs_of(template):
            if name != "rerail-image":
                assert variables[f"RERAIL_{name.upper().replace('-', '_')}"] == f"{{{{inputs.parameters.{name}}}}}"


@pytest.mark.parametrize("name", ["rerail-train-v0-1", "rerail-train-fanout-v0-1"])
def test_the_exit_hook_is_told_all_that_a_runner_is_but_what_to_begin(name, library):
    spec = library[name]["spec"]
    templates = {one["name"]: inputs_of(one) for one in spec["templates"]}
    begins = {*names(WORK), "max-attempts", "take-over", "gang"}
    assert set(templates["farewell"]) == set(templates["run"]) - begins
    told = {one["name"]: one["value"] for one in spec["hooks"]["exit"]["arguments"]["parameters"]}
    assert told == {one: f"{{{{workflow.parameters.{one}}}}}" for one in templates["farewell"]}


def test_the_form_tells_as_many_attempts_as_the_step_takes():
    assert f"At most {MOST_ATTEMPTS}:" in MAX_ATTEMPTS.description
