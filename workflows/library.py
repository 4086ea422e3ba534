"""The library: every template that Rerail renders, in the order in which people meet them."""

from collections.abc import Callable
from functools import partial
from typing import Final

from hera.workflows import CronWorkflow, WorkflowTemplate

from rerail.workflows.drill import NAMED, drill_template
from rerail.workflows.fanout import fanout_template
from rerail.workflows.inference_failover import failover_template
from rerail.workflows.node_fault import node_fault_template
from rerail.workflows.node_release import node_release_template
from rerail.workflows.pre_evict import pre_evict_template
from rerail.workflows.reaper import reaper
from rerail.workflows.report import report_template
from rerail.workflows.retry import retry_template
from rerail.workflows.train import train_template

TEMPLATES: Final[tuple[Callable[[], WorkflowTemplate], ...]] = (
    train_template,
    fanout_template,
    pre_evict_template,
    report_template,
    retry_template,
    node_fault_template,
    node_release_template,
    failover_template,
    drill_template,
    *(partial(drill_template, named) for named in NAMED),
)

CRONS: Final[tuple[Callable[[], CronWorkflow], ...]] = (reaper,)


def all_templates() -> list[WorkflowTemplate | CronWorkflow]:
    """Every object, built afresh."""
    return [*(build() for build in TEMPLATES), *(build() for build in CRONS)]
