"""Ways through rendered documents."""

import itertools
import json
import re


def spec_of(document):
    """The workflow spec of a Workflow, a template of one, or a CronWorkflow."""
    return document["spec"].get("workflowSpec", document["spec"])


def references(part):
    """Every ``{{...}}`` below a part of a document."""
    return re.findall(r"\{\{=?\s*(.*?)\s*\}\}", json.dumps(part, ensure_ascii=False))


def tasks_of(template):
    """Tasks of a DAG; none of another template."""
    return (template.get("dag") or {}).get("tasks") or []


def inputs_of(template):
    """Input parameters by name."""
    return {one["name"]: one for one in (template.get("inputs") or {}).get("parameters") or []}


def outputs_of(template):
    """Output parameters by name."""
    return {one["name"]: one for one in (template.get("outputs") or {}).get("parameters") or []}


def depended_on(task):
    """Names of tasks that ``depends`` names."""
    words = re.findall(r"[A-Za-z0-9_-]+(?:\.[A-Za-z]+)?", task.get("depends") or "")
    return {word.split(".")[0] for word in words}


def leaves(template):
    """Tasks that no other task depends on: of them Argo makes the verdict, where ``target`` names no others."""
    tasks = tasks_of(template)
    inner = set(itertools.chain.from_iterable(depended_on(task) for task in tasks))
    return {task["name"] for task in tasks} - inner
