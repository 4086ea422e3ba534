"""The pods of a job and what its plugins add: names, labels, variables, the headless Service and the list of hosts."""

import copy
from typing import Any, Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import CONFIG_MAPS, SERVICES, ResourceType
from rerail.plugins.volcano import Task, VolcanoJob
from rerail.plugins.volcano.job import GROUP_ANNOTATION, JOB_NAME_LABEL, TASK_INDEX_LABEL, TASK_LABEL
from rerail.policies.errors import AlreadyExistsError, NotFoundError
from rig.standin.objects import OUT_OF_SYNC, PREEMPTABLE, Obj, owner_reference

NETWORK_POLICIES: Final = ResourceType("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
COOLDOWN: Final = "volcano.sh/cooldown-time"
HOSTS_FOLDER: Final = "/etc/volcano"


def pod_name(job: VolcanoJob, task: Task, index: int) -> str:
    return f"{job.name}-{task.name}-{index}"


def pod_of(job: VolcanoJob, task: Task, index: int) -> Obj:
    """One pod of a task, with what the plugins svc and env add."""
    template = copy.deepcopy(task.template)
    metadata = template.get("metadata") or {}
    marks = {"volcano.sh/queue-name": job.spec.queue, JOB_NAME_LABEL: job.name}
    marks |= {TASK_LABEL: str(task.name), TASK_INDEX_LABEL: str(index)}
    inherited = {
        key: job.metadata.annotations[key] for key in (PREEMPTABLE, COOLDOWN) if key in job.metadata.annotations
    }
    labelled = {key: job.metadata.labels[key] for key in (PREEMPTABLE, COOLDOWN) if key in job.metadata.labels}
    annotations = {
        GROUP_ANNOTATION: job.pod_group_name,
        "volcano.sh/job-version": str(job.status.version),
        "volcano.sh/job-retry-count": str(job.status.retry_count),
        "volcano.sh/template-uid": f"{job.name}-{task.name}",
    }
    spec = template.get("spec") or {}
    spec.setdefault("schedulerName", job.spec.scheduler_name)
    if job.spec.priority_class_name:
        spec.setdefault("priorityClassName", job.spec.priority_class_name)
    containers = [*spec.get("containers", []), *spec.get("initContainers", [])]
    if "env" in job.spec.plugins:
        for container in containers:
            values = [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
            container["env"] = [*container.get("env", []), *values]
    if "svc" in job.spec.plugins:
        _add_hosts(job, spec, containers, pod_name(job, task, index))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job, task, index),
            "namespace": job.metadata.namespace,
            "ownerReferences": [owner_reference(job).to_dict()],
            "labels": {
                **(metadata.get("labels") or {}),
                **marks,
                "volcano.sh/job-namespace": job.metadata.namespace,
                **labelled,
            },
            "annotations": {**(metadata.get("annotations") or {}), **marks, **annotations, **inherited},
        },
        "spec": spec,
    }


def _add_hosts(job: VolcanoJob, spec: Obj, containers: list[Any], name: str) -> None:
    spec.setdefault("hostname", name)
    spec.setdefault("subdomain", job.name)
    config = hosts_name(job)
    keys = [key for key in hosts_of(job) if not key.endswith(".host")]
    for container in containers:
        values = [{"name": key, "valueFrom": {"configMapKeyRef": {"name": config, "key": key}}} for key in keys]
        container["env"] = [*container.get("env", []), *values]
        mount = {"name": config, "mountPath": HOSTS_FOLDER}
        container["volumeMounts"] = [*container.get("volumeMounts", []), mount]
    spec["volumes"] = [*spec.get("volumes", []), {"name": config, "configMap": {"name": config}}]


def hosts_name(job: VolcanoJob) -> str:
    return f"{job.name}-svc"


def hosts_of(job: VolcanoJob) -> dict[str, str]:
    """Host names of each task, as the variables and files of the plugin svc."""
    found: dict[str, str] = {}
    for task in job.spec.tasks:
        hosts = [f"{pod_name(job, task, index)}.{job.name}" for index in range(task.replicas)]
        word = str(task.name).replace("-", "_")
        found[f"{word}.host"] = "\n".join(hosts)
        found[f"VC_{word.upper()}_HOSTS"] = ",".join(hosts)
        found[f"VC_{word.upper()}_NUM"] = str(len(hosts))
    return found


class Plugins:
    """What the plugins svc and env do when a job begins, changes and is killed."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    def begin(self, job: VolcanoJob) -> None:
        """Make the Service, the list of hosts and the network policy, once in each life of the job's pods."""
        resources = job.status.controlled_resources
        for plugin in job.spec.plugins:
            if plugin == "svc" and "plugin-svc" not in resources:
                self._publish(job)
            resources[f"plugin-{plugin}"] = plugin

    def change(self, job: VolcanoJob) -> None:
        """Keep the list of hosts right."""
        if "svc" in job.spec.plugins:
            self._write_hosts(job)

    def end(self, job: VolcanoJob) -> None:
        """Remove what ``begin`` made, at every kill."""
        resources = job.status.controlled_resources
        if "plugin-svc" in resources:
            names = [(CONFIG_MAPS, hosts_name(job)), (SERVICES, job.name)]
            if not _said(job, "disable-network-policy"):
                names.append((NETWORK_POLICIES, job.name))
            for kind, name in names:
                self._delete(job, kind, name)
        for plugin in job.spec.plugins:
            resources.pop(f"plugin-{plugin}", None)

    def _publish(self, job: VolcanoJob) -> None:
        self._write_hosts(job)
        labels = job.pod_labels
        early = _said(job, "publish-not-ready-addresses")
        self._create(job, SERVICES, {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": early})
        if not _said(job, "disable-network-policy"):
            own = {"podSelector": {"matchLabels": labels}}
            self._create(job, NETWORK_POLICIES, {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]})

    def _write_hosts(self, job: VolcanoJob) -> None:
        body = self._body(job, CONFIG_MAPS, hosts_name(job)) | {"data": hosts_of(job)}
        try:
            self._api.create(CONFIG_MAPS, body)
        except AlreadyExistsError:
            patch = {"data": hosts_of(job)}
            self._api.patch(CONFIG_MAPS, hosts_name(job), patch, namespace=job.metadata.namespace)

    def _create(self, job: VolcanoJob, kind: ResourceType, spec: Obj) -> None:
        try:
            self._api.create(kind, self._body(job, kind, job.name) | {"spec": spec})
        except AlreadyExistsError:
            return

    def _delete(self, job: VolcanoJob, kind: ResourceType, name: str) -> None:
        try:
            self._api.delete(kind, name, namespace=job.metadata.namespace)
        except NotFoundError:
            return

    @staticmethod
    def _body(job: VolcanoJob, kind: ResourceType, name: str) -> Obj:
        owner = owner_reference(job).to_dict()
        metadata = {"name": name, "namespace": job.metadata.namespace, "ownerReferences": [owner]}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def _said(job: VolcanoJob, flag: str) -> bool:
    return any(one.lstrip("-") in (flag, f"{flag}=true") for one in job.spec.plugins.get("svc", []))


def marked(pod: Obj) -> bool:
    """Whether the controller itself killed it."""
    return OUT_OF_SYNC in (pod["metadata"].get("annotations") or {})
