"""A template of the library that is one step or one DAG: what all of them have in common."""

from collections.abc import Iterable, Sequence

from hera.workflows import DAG, Container, Suspend, WorkflowTemplate
from hera.workflows.models import PodGC

from rerail.workflows.naming import LABELS, about, versioned
from rerail.workflows.parameters import Setting


def workflow_template(
    name: str,
    title: str,
    description: str,
    *,
    tags: Iterable[str],
    settings: Iterable[Setting],
    templates: Sequence[DAG | Container | Suspend],
    account: str,
) -> WorkflowTemplate:
    """A WorkflowTemplate of the library; its first template is the entrypoint.

    Args:
        name: Without the version.
        title: One line for Argo's lists.
        description: Markdown, for the submit form.
        tags: For searching.
        settings: Parameters of the form.
        templates: The first is the one to refer to.
        account: ServiceAccount of the pods.
    """
    return WorkflowTemplate(
        name=versioned(name),
        annotations=about(title, description, *tags),
        labels=LABELS,
        entrypoint=templates[0].name,
        service_account_name=account,
        arguments=[setting.argument() for setting in settings],
        templates=list(templates),
        pod_gc=PodGC(strategy="OnPodSuccess", delete_delay_duration="10m"),
    )
