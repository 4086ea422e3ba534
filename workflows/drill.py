"""rerail-drill: a fault on purpose, on a small gang of processes inside one pod; needs no GPU and touches nobody's."""

from typing import Final

from hera.workflows import WorkflowTemplate

from rerail.plugins.drill.scenarios import SCENARIOS
from rerail.workflows.accounts import READER
from rerail.workflows.parameters import RERAIL_IMAGE, Setting
from rerail.workflows.single import workflow_template
from rerail.workflows.steps import OUTPUTS, step

NAME: Final = "rerail-drill"

DRILL: Final = Setting(
    name="drill",
    default="gpu",
    choices=tuple(SCENARIOS),
    description="Which fault. gpu: a GPU is lost in mid-run, and training goes on elsewhere.",
)
SEED: Final = Setting(name="seed", default="1", description="Of parameters, order of samples and dropout.")
SETTINGS: Final = (SEED, RERAIL_IMAGE)

NAMED: Final = ("gpu", "node", "partition", "driver")
"""The drills that have a template of their own: what acceptance of a cluster asks for."""


def drill_template(named: str = "") -> WorkflowTemplate:
    """The library's rerail-drill, which takes any drill, or rerail-drill-NAMED.

    Args:
        named: The drill; empty makes it a parameter.
    """
    which = named or f"{{{{inputs.parameters.{DRILL.name}}}}}"
    settings = SETTINGS if named else (DRILL, *SETTINGS)
    kept = f"{OUTPUTS}/{which}"
    drill = step(
        "drill",
        [
            "drill",
            "--seed={{inputs.parameters.seed}}",
            f"--keep={OUTPUTS}",
            "--output=json",
            "--",
            which,
        ],
        inputs=[setting.entry() for setting in settings],
        artifacts={"report": f"{kept}/report.html", "report-data": f"{kept}/report.json"},
        account=READER,
        retries=1,
        memory="4Gi",
    )
    claim = f" Here: {SCENARIOS[named].hypothesis}." if named else ""
    return workflow_template(
        f"{NAME}-{named}" if named else NAME,
        f"Drill a fault: {named}" if named else "Drill a fault",
        "Breaks a gang of four real processes inside one pod, lets it recover, and compares it with an uninterrupted "
        f"run. Fails when the drill's claim did not hold. The image needs `rerail[demo]`.{claim}",
        tags=("drill",),
        settings=settings,
        templates=[drill],
        account=READER,
    )
