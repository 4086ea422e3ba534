"""Tasks for a DAG of your own, written with Hera: a resilient gang, a guarded step, a save before an eviction.

    with Workflow(generate_name="llama-", entrypoint="main") as w, DAG(name="main"):
        train = resilient_gang("train", store="s3://ckpt/runs", image="llama:1", command="python train.py")
        Task(name="prepare", ...) >> train >> Task(name="evaluate", ...)

Each refers to the library in the cluster by its versioned name. With ``inline`` the templates become part of the
workflow, and nothing but its accounts has to be in the cluster.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from hera.workflows import DAG, Container, Task, Workflow
from hera.workflows.models import TemplateRef

from rerail.plugins.gang.clusters import FANOUT
from rerail.plugins.steps.inputs import MOST_ATTEMPTS
from rerail.policies.errors import UsageError
from rerail.workflows import fanout, pre_evict, report, retry, train
from rerail.workflows.naming import versioned
from rerail.workflows.render import refuse_twins

Text = str | Mapping[str, Any]
"""YAML as text, or as what YAML would give."""


def resilient_gang(
    name: str = "train",
    *,
    store: str,
    image: str = "",
    command: str | Sequence[str] = "",
    replicas: int | str = 1,
    gpus_per_replica: int | str = 8,
    queue: str = "default",
    priority_class: str = "",
    manifest: Text = "",
    policy: Text = "",
    run: str = "",
    deadline_s: int | str = 120,
    max_attempts: int | str = 20,
    backend: str = "vcjob",
    take_over: bool = False,
    guard_namespace: str = "",
    control: str = "",
    store_secret: str = "rerail-store",  # noqa: S107  # a Secret's name
    rerail_image: str = "",
    inline: Workflow | None = None,
    cluster_scope: bool = False,
    depends: str | None = None,
    when: str | None = None,
) -> Task:
    """A gang that goes on after faults, as one task. Its output parameter ``run`` names the run.

    Numbers and texts may be Argo's expressions, as ``"{{inputs.parameters.replicas}}"``.

    Args:
        name: Of the task.
        store: Where checkpoints and the run's documents are kept.
        image: With your code and rerail.
        command: What each rank runs.
        replicas: Pods.
        gpus_per_replica: GPUs of each pod, and as many ranks.
        queue: Volcano's.
        priority_class: PriorityClass of the gang.
        manifest: Your own vcjob or Run instead of image, command, replicas, GPUs and queue.
        policy: Fields of the recovery policy that differ.
        run: Name of the run; empty takes the manifest's name, else the workflow's.
        deadline_s: Seconds that a save on request may take.
        max_attempts: Attempts before the run gives up, at most 80.
        backend: ``vcjob`` or ``podgroup``; or ``fanout``, where Argo makes the pods, and so is needed for a recovery.
        take_over: Continue a run that somebody else began.
        guard_namespace: Of the guard that runs share, where that is another one.
        control: Store of the run's documents, where it is another one.
        store_secret: Secret with the store's access.
        rerail_image: Of Rerail's own steps. Empty: as the library was rendered; inline: one of no registry.
        inline: Put the templates into this workflow instead of referring to the library.
        cluster_scope: The library is there as ClusterWorkflowTemplates.
        depends: As of any task; ``>>`` sets it, too.
        when: As of any task.

    Raises:
        UsageError: Neither image and command nor a manifest is given, or both; a manifest for pods that Argo makes; or
            more attempts than Argo nests.
    """
    words = command if isinstance(command, str) else shlex.join(command)
    if bool(manifest) == bool(image or words) or bool(image) != bool(words):
        raise UsageError(f"task {name!r}: give image and command, or a manifest, and not both")
    if manifest and backend == FANOUT:
        raise UsageError(
            f"task {name!r}: backend = {FANOUT!r}: pods that Argo makes cannot have the fields of a manifest; give "
            "image and command, or take the backend 'podgroup' or 'vcjob'"
        )
    if str(max_attempts).isdecimal() and not 1 <= int(max_attempts) <= MOST_ATTEMPTS:
        raise UsageError(
            f"task {name!r}: max_attempts = {max_attempts}: Argo nests no more than 100 templates, so 1 to "
            f"{MOST_ATTEMPTS} are possible; a run that came to its end is continued by another workflow"
        )
    arguments = {
        "store": store,
        "run": run,
        "image": image,
        "command": words,
        "replicas": str(replicas),
        "gpus-per-replica": str(gpus_per_replica),
        "queue": queue,
        "priority-class": priority_class,
        "manifest": _text(manifest),
        "policy": _text(policy),
        "deadline-s": str(deadline_s),
        "max-attempts": str(max_attempts),
        "backend": backend,
        "take-over": "true" if take_over else "false",
        "guard-namespace": guard_namespace,
        "control": control,
        "store-secret": store_secret,
        **_steps_image(rerail_image),
    }
    library, templates = (train.NAME, train.ENTRY), train.train_templates
    if backend == FANOUT:
        del arguments["manifest"], arguments["backend"]
        library, templates = (fanout.NAME, fanout.ENTRY), fanout.fanout_templates
    return _task(name, library, arguments, templates, inline, cluster_scope=cluster_scope, depends=depends, when=when)


def guarded_step(
    name: str,
    *,
    template: str = "",
    template_ref: TemplateRef | None = None,
    arguments: Mapping[str, str] | None = None,
    retries: int | str = 3,
    settle_s: int | str = 30,
    rerail_image: str = "",
    inline: Workflow | None = None,
    cluster_scope: bool = False,
    depends: str | None = None,
    when: str | None = None,
) -> Task:
    """A step of yours that runs again on another node when its node was at fault, as one task.

    Args:
        name: Of the task.
        template: The step's template in this workflow; needs ``inline``.
        template_ref: Or in a WorkflowTemplate.
        arguments: For the step; needs ``inline``, since the library's wrapper does not know them.
        retries: How often it is tried again.
        settle_s: Seconds for which a failed step's node is looked at: its agent may be later than the failure.
        rerail_image: Of Rerail's own steps. Empty: as the library was rendered; inline: one of no registry.
        inline: Put the wrapper into this workflow instead of referring to the library.
        cluster_scope: The library is there as ClusterWorkflowTemplates.
        depends: As of any task.
        when: As of any task.

    Raises:
        UsageError: No template is named, or two; or it can only be done inline.
    """
    if bool(template) == bool(template_ref):
        raise UsageError(f"task {name!r}: name one template of yours: template=, or template_ref=")
    if inline is None and (template or arguments or (template_ref and template_ref.cluster_scope)):
        raise UsageError(
            f"task {name!r}: the library's wrapper takes a template_ref of the namespace and no arguments; pass "
            "inline=<the workflow>"
        )
    if inline is None and template_ref is not None:
        own = {"template-name": str(template_ref.name), "template": str(template_ref.template)}
    else:
        own = dict(arguments or {})

    def templates(*, prefix: str) -> list[DAG | Container]:
        return retry.guard_templates(prefix=prefix, template=template, template_ref=template_ref, arguments=arguments)

    library = (retry.NAME, retry.ENTRY)
    passed = own | {"retries": str(retries), "settle-s": str(settle_s), **_steps_image(rerail_image)}
    return _task(name, library, passed, templates, inline, cluster_scope=cluster_scope, depends=depends, when=when)


def evict_gang(
    name: str = "pre-evict",
    *,
    gang: str,
    deadline_s: int | str = 120,
    reason: str = "evicted by a workflow",
    store: str = "",
    control: str = "",
    cluster_scope: bool = False,
    depends: str | None = None,
    when: str | None = None,
) -> Task:
    """A gang saves and leaves, as one task; it fails when no commit holds all that was done.

    Args:
        name: Of the task.
        gang: The run, or its gang RUN-aN.
        deadline_s: Seconds that the commit is waited for.
        reason: For the record.
        store: As seen from here; empty: as the gang's pods say.
        control: Of the run's documents, where that is another one.
        cluster_scope: The library is there as ClusterWorkflowTemplates.
        depends: As of any task.
        when: As of any task.
    """
    arguments = {"gang": gang, "deadline-s": str(deadline_s), "reason": reason, "store": store, "control": control}
    library = (pre_evict.NAME, "pre-evict")
    return _task(name, library, arguments, None, None, cluster_scope=cluster_scope, depends=depends, when=when)


def run_report(
    name: str = "report",
    *,
    store: str,
    run: str,
    control: str = "",
    cluster_scope: bool = False,
    depends: str | None = None,
    when: str | None = None,
) -> Task:
    """The report of a run, as one task.

    Args:
        name: Of the task.
        store: Of the run.
        run: Its name; of a gang in the same DAG ``"{{tasks.train.outputs.parameters.run}}"``.
        control: Of the run's documents, where that is another one.
        cluster_scope: The library is there as ClusterWorkflowTemplates.
        depends: As of any task.
        when: As of any task.
    """
    arguments = {"store": store, "run": run, "control": control}
    library = (report.NAME, "report")
    return _task(name, library, arguments, None, None, cluster_scope=cluster_scope, depends=depends, when=when)


def _task(
    name: str,
    library: tuple[str, str],
    arguments: Mapping[str, str],
    templates: Callable[..., Sequence[DAG | Container]] | None,
    inline: Workflow | None,
    *,
    cluster_scope: bool,
    depends: str | None,
    when: str | None,
) -> Task:
    more: dict[str, Any] = {"depends": depends, "when": when, "arguments": dict(arguments)}
    if inline is None or templates is None:
        reference = TemplateRef(name=versioned(library[0]), template=library[1], cluster_scope=cluster_scope or None)
        return Task(name=name, template_ref=reference, **more)
    _put(inline, templates(prefix=f"{name}-"))
    return Task(name=name, template=f"{name}-{library[1]}", **more)


def _put(workflow: Workflow, templates: Sequence[DAG | Container]) -> None:
    """Add the templates to the workflow; inside of its ``with`` block Hera has done so already."""
    for template in templates:
        if not any(template is there for there in workflow.templates):
            workflow.templates.append(template)
    refuse_twins(
        f"workflow {workflow.name or workflow.generate_name!r}", [{"name": one.name} for one in workflow.templates]
    )


def _steps_image(image: str) -> dict[str, str]:
    return {"rerail-image": image} if image else {}


def _text(content: Text) -> str:
    return content if isinstance(content, str) else yaml.safe_dump(dict(content), sort_keys=False, width=100_000)
