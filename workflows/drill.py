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
SETTINGS: Final = (DRILL, SEED, RERAIL_IMAGE)


def drill_template() -> WorkflowTemplate:
    """The library's rerail-drill."""
    kept = f"{OUTPUTS}/{{{{inputs.parameters.drill}}}}"
    drill = step(
        "drill",
        [
            "drill",
            "--seed={{inputs.parameters.seed}}",
            f"--keep={OUTPUTS}",
            "--output=json",
            "--",
            "{{inputs.parameters.drill}}",
        ],
        inputs=[setting.entry() for setting in SETTINGS],
        artifacts={"report": f"{kept}/report.html", "report-data": f"{kept}/report.json"},
        account=READER,
        retries=1,
        memory="4Gi",
    )
    return workflow_template(
        NAME,
        "Drill a fault",
        "Breaks a gang of four real processes inside one pod, lets it recover, and compares it with an uninterrupted "
        "run. Fails when the drill's claim did not hold. The image needs `rerail[demo]`.",
        tags=("drill",),
        settings=SETTINGS,
        templates=[drill],
        account=READER,
    )
