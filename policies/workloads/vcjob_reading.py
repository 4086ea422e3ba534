"""Reading a user's vcjob: what cannot run as a gang, or could not be recovered, is said before anything is created."""

import re
from collections import Counter
from typing import Any, Final

from rerail.policies.errors import UsageError
from rerail.policies.keys import ATTEMPT_LIMIT, check_run_name
from rerail.policies.workloads.attempt import RUN_LABEL
from rerail.policies.workloads.fields import Field, plain_copy
from rerail.policies.workloads.lock import check_lock
from rerail.policies.workloads.pod_template import LAUNCH, launches_itself
from rerail.policies.workloads.workload import Task, Workload

API_VERSION: Final = "batch.volcano.sh/v1alpha1"
KIND: Final = "Job"
RANKS_ANNOTATION: Final = "rerail.dev/ranks-per-pod"
CONTAINER_ANNOTATION: Final = "rerail.dev/container"
MAX_NAME: Final = 63
"""Longest DNS label: a pod's name is its host name, and a gang's name is a Service's and a label's value."""

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_OTHER_LAUNCHERS: Final = {
    "mpi": "mpirun starts ranks by ssh, where launch neither sees nor ends them",
    "ray": "Ray starts its workers itself, where launch neither sees nor ends them",
}


def read_vcjob(document: object, source: str = "the manifest", *, run: str | None = None) -> Workload:
    """Read and check a vcjob.

    Args:
        document: The object, as YAML has it. Unknown fields are kept.
        source: File it came from, for messages.
        run: Name of the run; None takes the label ``rerail.dev/run``, else the job's own name.

    Raises:
        UsageError: It is no vcjob, or cannot run as a gang; names the field, the value and the way out.
    """
    content = plain_copy(document, source)
    job = Field(source, "", content)
    _check_kind(job)
    name = _run_name(job, run)
    spec = job.at("spec")
    if not spec.at("tasks").each():
        raise spec.at("tasks").error("a job needs at least one task", show=False)
    tasks: list[Task] = []
    for item in spec.at("tasks").each():
        tasks.append(_task(item, name, sum(task.replicas * task.ranks_per_pod for task in tasks)))
    _check_gang(spec, tasks)
    _check_scheduling(spec)
    check_lock(job)
    variables = _main_variables(spec, tasks)
    return Workload(
        run=name,
        namespace=job.at("metadata").at("namespace").text() or None,
        queue=spec.at("queue").text() or "default",
        tasks=tuple(tasks),
        document=content,
        source=source,
        store=variables.get("RERAIL_STORE"),
        control=variables.get("RERAIL_CONTROL"),
    )


def _check_kind(job: Field) -> None:
    kind, version = job.at("kind"), job.at("apiVersion")
    if kind.value != KIND:
        raise kind.error(f"is no vcjob: write kind: {KIND} and apiVersion: {API_VERSION}")
    if version.value != API_VERSION:
        why = (
            "is Kubernetes' own Job, which starts no gang" if str(version.value).startswith("batch/") else "is unknown"
        )
        raise version.error(f"{why}: write {API_VERSION}, with spec.tasks")


def _run_name(job: Field, given: str | None) -> str:
    metadata = job.at("metadata")
    label = metadata.at("labels").at(RUN_LABEL)
    name = metadata.at("name")
    if not name.text() and not given:
        if metadata.at("generateName").text():
            raise metadata.at("generateName").error(
                "makes another name each time, and a run is continued by its name: write metadata.name"
            )
        raise name.error("is missing: it names the run", show=False)
    try:
        return check_run_name(given or label.text() or name.text())
    except UsageError as error:
        where = "the run's name as given" if given else (label if label.text() else name).path
        raise UsageError(f"{job.source}: {where}: {error}") from None


def _task(task: Field, run: str, first_rank: int) -> Task:
    name = task.at("name")
    if not name.text():
        raise name.error(f"is missing: pods are called '{run}-a1-<task>-0'", show=False)
    if not _DNS_LABEL.fullmatch(name.text()):
        raise name.error("is no DNS label: lower-case letters, digits and '-', such as 'worker'")
    replicas = task.at("replicas").whole(least=1)
    longest = f"{run}-a{ATTEMPT_LIMIT - 1}-{name.text()}-{replicas - 1}"
    if len(longest) > MAX_NAME:
        raise name.error(
            f"pod {longest!r} of a late attempt would have {len(longest)} characters, and a host name has at most "
            f"{MAX_NAME}: shorten the run's or the task's name by {len(longest) - MAX_NAME}"
        )
    template = task.at("template")
    pod = template.at("spec")
    position = _main_container(template)
    container = pod.at("containers").each()[position]
    resource, gpus = _gpus(container)
    ranks = _ranks(template.at("metadata").at("annotations").at(RANKS_ANNOTATION), resource, gpus)
    _check_task(task, replicas)
    _check_pod(pod)
    if ranks:
        _check_command(container, ranks)
    return Task(
        name=name.text(),
        replicas=replicas,
        ranks_per_pod=ranks,
        first_rank=first_rank,
        container=position,
        gpu_resource=resource,
        gpus_per_pod=gpus,
        node_selector={key: pod.at("nodeSelector").at(key).text() for key in pod.at("nodeSelector").mapping()},
        tolerations=tuple(one.mapping() for one in pod.at("tolerations").each()),
    )


def _main_container(template: Field) -> int:
    """Position of the container that holds the ranks: the first, or the one that the annotation names."""
    containers = template.at("spec").at("containers")
    names = [one.at("name").text() for one in containers.each()]
    if not names:
        raise containers.error("a pod needs at least one container", show=False)
    for one in containers.each():
        if not one.at("name").text():
            raise one.at("name").error("is missing", show=False)
        for variable in one.at("env").each():
            if not variable.at("name").text():
                raise variable.at("name").error("is missing", show=False)
    wanted = template.at("metadata").at("annotations").at(CONTAINER_ANNOTATION)
    if not wanted.text():
        return 0
    if wanted.text() not in names:
        raise wanted.error(f"there is no such container; there are {', '.join(names)}")
    return names.index(wanted.text())


def _gpus(container: Field) -> tuple[str, int]:
    """Resource name and number of the container's GPUs; ``("", 0)`` without any."""
    for side in ("limits", "requests"):
        resources = container.at("resources").at(side)
        names = sorted(resources.mapping(), key=lambda name: (name != "nvidia.com/gpu", name))
        for name in names:
            if name.endswith("/gpu") or name.startswith("nvidia.com/mig-"):
                count = resources.at(name)
                if not re.fullmatch(r"\d{1,6}", str(count.value)):
                    raise count.error("is not a whole number of GPUs")
                return name, int(count.value)
    return "", 0


def _ranks(annotation: Field, resource: str, gpus: int) -> int:
    if annotation.value is None:
        return gpus or 1
    if not re.fullmatch(r"\d{1,5}", annotation.text()):
        raise annotation.error("is not a whole number of ranks; write '8', or '0' for pods without ranks")
    ranks = int(annotation.text())
    if gpus and ranks % gpus and gpus % ranks:
        raise annotation.error(f"{ranks} ranks do not share {gpus} {resource} evenly")
    return ranks


def _check_task(task: Field, replicas: int) -> None:
    least = task.at("minAvailable")
    if least.value is not None and least.whole() > replicas:
        raise least.error(f"is more than the task's {replicas} replicas, so the gang would never start")
    if task.at("dependsOn").at("name").each():
        raise task.at("dependsOn").error(
            "the ranks of a gang start together, and one that waits for another task holds up all of them: leave it out"
        )
    cut = task.at("partitionPolicy")
    if cut.value is not None:
        total, size = cut.at("totalPartitions").whole(least=1), cut.at("partitionSize").whole(least=1)
        if total * size != replicas:
            raise cut.error(f"{total} partitions of {size} are not {replicas} replicas: make the product equal")


def _check_pod(pod: Field) -> None:
    for key, why in (
        ("nodeName", "pins the pods to one node past the scheduler, so no attempt could avoid it: use nodeSelector"),
        ("hostname", "ranks find each other by the host names that recovery gives: leave it out"),
        ("subdomain", "ranks find each other by the host names that recovery gives: leave it out"),
    ):
        if pod.at(key).text():
            raise pod.at(key).error(why)
    pod.at("terminationGracePeriodSeconds").whole(0)
    required = pod.at("affinity").at("nodeAffinity").at("requiredDuringSchedulingIgnoredDuringExecution")
    for term in required.at("nodeSelectorTerms").each():
        for expression in (*term.at("matchExpressions").each(), *term.at("matchFields").each()):
            expression.at("values").texts()
    for volume in pod.at("volumes").each():
        volume.mapping()


def _check_command(container: Field, ranks: int) -> None:
    command, args = container.at("command"), container.at("args").texts()
    words = command.texts()
    for mount in container.at("volumeMounts").each():
        if not mount.at("mountPath").text():
            raise mount.at("mountPath").error("is missing", show=False)
    if not words:
        raise command.error(
            f"is missing, and what the image would run is not known here: write it out, since launch runs it for each "
            f"rank (for example command: [python, train.py]{', with the args that stand there' if args else ''})",
            show=False,
        )
    if not launches_itself(words) and any(LAUNCH in word for word in (*words, *args)):
        raise command.error(
            f"starts {LAUNCH} from within another command, where signals do not reach it: write the ranks' command "
            f"itself, and {LAUNCH} is put before it"
        )
    if ranks > 1 and _is_torchrun(words):
        raise command.error(
            f"launch starts the {ranks} ranks of the pod itself, so {ranks} agents of torchrun would start: write the "
            "script's own command (python train.py); RANK, WORLD_SIZE and MASTER_* are set"
        )


def _is_torchrun(words: list[str]) -> bool:
    return words[0].rsplit("/", maxsplit=1)[-1] == "torchrun" or any(
        module in words for module in ("torch.distributed.run", "torch.distributed.launch")
    )


def _check_gang(spec: Field, tasks: list[Task]) -> None:
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            raise spec.at("tasks").error(f"{count} tasks are called {name!r}; names must differ", show=False)
    if not any(task.ranks_per_pod for task in tasks):
        raise spec.at("tasks").error(f"no task holds ranks: {RANKS_ANNOTATION} is '0' for all of them", show=False)
    replicas = sum(task.replicas for task in tasks)
    least = spec.at("minAvailable")
    if least.value is not None and least.whole() > replicas:
        raise least.error(f"is more than the {replicas} replicas of all tasks, so the gang would never start")


def _check_scheduling(spec: Field) -> None:
    scheduler = spec.at("schedulerName")
    if scheduler.text() == "default-scheduler":
        raise scheduler.error("starts pods one by one: write volcano, or leave it out")
    for item in spec.at("tasks").each():
        own = item.at("template").at("spec").at("schedulerName")
        if own.text() and own.text() != (scheduler.text() or "volcano"):
            raise own.error("is another scheduler than the job's: leave it out")
    plugins = spec.at("plugins")
    for name in plugins.mapping():
        plugins.at(name).texts()
        if name in _OTHER_LAUNCHERS:
            raise plugins.at(name).error(
                f"{_OTHER_LAUNCHERS[name]}: leave the plugin out, and give every pod the ranks' own command", show=False
            )
    for volume in spec.at("volumes").each():
        if not volume.at("mountPath").text():
            raise volume.at("mountPath").error("is missing", show=False)


def _main_variables(spec: Field, tasks: list[Task]) -> dict[str, str]:
    """Variables with plain values of the container that holds rank 0."""
    position = next(index for index, task in enumerate(tasks) if task.ranks_per_pod)
    pod: dict[str, Any] = spec.at("tasks").each()[position].at("template").at("spec").mapping()
    env = pod["containers"][tasks[position].container].get("env") or []
    return {one["name"]: one["value"] for one in env if isinstance(one.get("value"), str)}
