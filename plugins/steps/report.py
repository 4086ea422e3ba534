"""``rerail step report``: the report of a run, from its store; as exit hook it also ends a gang that is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.report import build_report, read_facts, write
from rerail.plugins.report.words import headline
from rerail.plugins.steps.assess import named
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.outputs import Outputs
from rerail.policies.errors import RerailError
from rerail.policies.recovery import RecoveryPolicy

TEMPLATE: Final = Path("/var/run/argo/template")
"""What Argo's executor is to do with this pod, as JSON."""

_NO_PLACE: Final = "Argo has no artifact repository, so the report is not kept here: `rerail report` shows it"


def perform(inputs: Inputs, outputs: Outputs, api: KubeApi | None, *, log: Callable[[str], None]) -> str:
    """Write ``report.html`` and ``report.json`` beside the output parameters.

    Returns:
        The run in a sentence or three; why there is no report, where there is none.
    """
    try:
        name = inputs.run_name(None, otherwise=named(inputs, api))
        opened = inputs.open(name)
        doc = read_run(opened)
        entry = newest_entry(opened)
        if entry is None:
            words = f"run {name!r} has no report yet: nothing was decided"
        else:
            policy = RecoveryPolicy.from_mapping(dict(doc.policy), f"run.json of run {name!r}")
            made = build_report(entry.state, read_facts(opened), policy)
            words = headline(made)
            if has_repository():
                write(made, outputs.folder)
            else:
                log(_NO_PLACE)  # files that it could not save would fail the pod
    except RerailError as error:
        words = f"there is no report: {error}"
    log(words)
    outputs.words(words)
    return words


def has_repository(template: Path = TEMPLATE) -> bool:
    """Whether Argo has a place for artifacts; where it does not say, it is believed to."""
    try:
        location = json.loads(template.read_text(encoding="utf-8")).get("archiveLocation")
    except (OSError, ValueError):
        return True
    return location is None or bool(set(location) - {"archiveLogs"})
