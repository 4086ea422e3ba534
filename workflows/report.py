"""rerail-report: the report of a run from its store, at any time."""

from typing import Final

from hera.workflows import WorkflowTemplate

from rerail.workflows.accounts import READER
from rerail.workflows.branches import REPORT_FILES
from rerail.workflows.parameters import CONTROL, RERAIL_IMAGE, STORE, STORE_SECRET, Setting
from rerail.workflows.single import workflow_template
from rerail.workflows.steps import step

NAME: Final = "rerail-report"

RUN: Final = Setting(name="run", default=None, description="The run.")
SETTINGS: Final = (STORE, RUN, CONTROL, STORE_SECRET, RERAIL_IMAGE)


def report_template() -> WorkflowTemplate:
    """The library's rerail-report."""
    report = step(
        "report",
        ["step", "report"],
        inputs=[setting.entry() for setting in SETTINGS],
        outputs={"words": ""},
        artifacts=REPORT_FILES,
        account=READER,
        retries=3,
    )
    return workflow_template(
        NAME,
        "Report of a run",
        "Reads a run's store and writes the report: attempts, faults, what was lost, and whether the state was the "
        "same. Open the artifact `report`.",
        tags=("report",),
        settings=SETTINGS,
        templates=[report],
        account=READER,
    )
