"""rerail-checkpoint-gc: every few minutes, gangs without a workflow are ended, and old checkpoints go.

Argo runs no exit hook when a workflow is terminated or deleted, so somebody has to look. A run that no workflow began
is never touched.
"""

from typing import Final

from hera.workflows import CronWorkflow

from rerail.workflows.accounts import REAPER
from rerail.workflows.naming import LABELS, about, versioned
from rerail.workflows.parameters import DEADLINE, RERAIL_IMAGE, STORE_SECRET
from rerail.workflows.steps import step

NAME: Final = "rerail-checkpoint-gc"

SETTINGS: Final = (DEADLINE, STORE_SECRET, RERAIL_IMAGE)


def reaper() -> CronWorkflow:
    """The library's rerail-checkpoint-gc."""
    reap = step("reap", ["step", "reap"], inputs=[setting.entry() for setting in SETTINGS], account=REAPER, retries=2)
    return CronWorkflow(
        name=versioned(NAME),
        annotations=about(
            "End gangs without a workflow, and remove old checkpoints",
            "Looks for gangs whose workflow is finished, stopped, terminated or gone: they save, and are ended. Then "
            "the runs' own retention is asked for. Runs that no workflow began are left alone.",
            "checkpoint",
            "retention",
        ),
        labels=LABELS,
        schedules=["*/5 * * * *"],
        concurrency_policy="Allow",  # a reaper on a lost node must not be the last one; two of them do no harm
        starting_deadline_seconds=120,
        successful_jobs_history_limit=1,
        failed_jobs_history_limit=3,
        entrypoint="reap",
        service_account_name=REAPER,
        arguments=[setting.argument() for setting in SETTINGS],
        templates=[reap],
    )
