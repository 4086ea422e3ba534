"""A run from the few parameters of a form, for whoever has no manifest."""

import re
import shlex
from typing import Any, Final

from rerail.plugins.volcano.base import DNS_SUBDOMAIN
from rerail.policies.errors import UsageError
from rerail.policies.workloads.run_manifest import RUN_KIND, RUN_VERSION

AUTHORITIES: Final = "rerail-ca"
"""ConfigMap with certificates of authorities of one's own; it may be missing."""

AUTHORITIES_FOLDER: Final = "/etc/rerail/ca"
"""Where its files are in steps and ranks: AWS_CA_BUNDLE, in the store's Secret, names one."""


def simple_manifest(
    name: str,
    *,
    image: str,
    command: str,
    replicas: str = "1",
    gpus_per_replica: str = "0",
    queue: str = "",
    priority_class: str = "",
    secret: str = "",
) -> dict[str, Any]:
    """A ``rerail.dev/v1alpha1`` Run, from text as forms give it.

    Args:
        name: Of the run.
        image: With the user's code.
        command: Of each rank, as in a shell.
        replicas: Pods.
        gpus_per_replica: GPUs of each pod.
        queue: Volcano's; empty is the default one.
        priority_class: Of the gang; empty leaves it to the cluster.
        secret: With the store's access as variables of the environment; it may be missing. Empty names none.

    Raises:
        UsageError: Names the parameter, the value and the way out.
    """
    if not image.strip() or not command.strip():
        lacking = "image" if not image.strip() else "command"
        raise UsageError(f"parameter {lacking} is empty: give image and command, or a manifest of your own")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"parameter command = {command!r}: {error}; quote it as in a shell") from None
    check_image("image", image.strip())
    spec: dict[str, Any] = {
        "image": image.strip(),
        "command": words,
        "replicas": number("replicas", replicas, least=1),
        "gpusPerReplica": number("gpus-per-replica", gpus_per_replica, least=0),
    }
    if queue.strip():
        spec["queue"] = queue.strip()
    if priority_class.strip():
        spec["priorityClassName"] = priority_class.strip()
    if secret.strip():
        spec["envFrom"] = [{"secretRef": {"name": secret.strip(), "optional": True}}]
        spec["volumes"] = [{"name": AUTHORITIES, "configMap": {"name": AUTHORITIES, "optional": True}}]
        spec["volumeMounts"] = [{"name": AUTHORITIES, "mountPath": AUTHORITIES_FOLDER, "readOnly": True}]
    return {"apiVersion": RUN_VERSION, "kind": RUN_KIND, "metadata": {"name": name}, "spec": spec}


def check_image(parameter: str, text: str) -> None:
    """Refuse what names no image.

    Raises:
        UsageError: It is empty, or has spaces.
    """
    if not re.fullmatch(r"\S+", text):
        raise UsageError(f"parameter {parameter} = {text!r}: an image belongs there, as registry/name:tag")


def check_name(parameter: str, text: str) -> None:
    """Refuse what names no object of Kubernetes.

    Raises:
        UsageError: It is no DNS subdomain.
    """
    if not re.fullmatch(DNS_SUBDOMAIN, text):
        raise UsageError(
            f"parameter {parameter} = {text!r}: a name of small letters, digits, '-' and '.' belongs there, such as "
            "'team-a'"
        )


def number(parameter: str, text: str, *, least: int, most: int = 10**6) -> int:
    """A whole number that a form gave.

    Raises:
        UsageError: It is none, or out of bounds.
    """
    if not re.fullmatch(r"[0-9]{1,7}", text) or not least <= int(text) <= most:
        raise UsageError(f"parameter {parameter} = {text!r}: a whole number from {least} to {most} belongs there")
    return int(text)
