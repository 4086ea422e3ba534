"""Which cluster, as whom, in which namespace: from a kubeconfig, or from inside a pod."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from rerail.plugins.kube.transport import Transport
from rerail.policies.errors import UsageError

IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Connection:
    """A way to a cluster.

    Attributes:
        transport: Sends requests.
        namespace: The context's own; ``default`` where it names none.
        origin: Where the configuration came from, for messages.
    """

    transport: Transport
    namespace: str
    origin: str


def user_agent(product: str = "rerail") -> str:
    """How requests are signed in the API server's audit log, for example ``rerail/0.1.0``."""
    try:
        return f"{product}/{version('rerail')}"
    except PackageNotFoundError:
        return product


def connect(
    kubeconfig: str | Path | None = None,
    *,
    context: str | None = None,
    namespace: str | None = None,
    agent: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    """Load a configuration: the file given, else ``$KUBECONFIG``, else ~/.kube/config, else the pod's own account.

    Nothing is sent yet.

    Args:
        kubeconfig: Path of a kubeconfig; several, separated by ``:``, are merged as kubectl does.
        context: A context of it; its current one by default.
        namespace: Overrides the context's.
        agent: The User-Agent.
        environ: The process's environment.

    Raises:
        UsageError: No configuration, or one that cannot be used; says where it was looked for.
    """
    configuration = Configuration()
    source = str(kubeconfig) if kubeconfig else environ.get("KUBECONFIG", "")
    if not source and (Path.home() / ".kube" / "config").is_file():
        source = str(Path.home() / ".kube" / "config")
    try:
        if source:
            load_kube_config(  # type: ignore[no-untyped-call]
                config_file=source, context=context, client_configuration=configuration, persist_config=False
            )
            own, origin = _namespace_of(source, context), source
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            own, origin = IN_CLUSTER_NAMESPACE.read_text(encoding="utf-8").strip(), "the pod's service account"
    except (ConfigException, OSError, yaml.YAMLError) as error:
        where = f"kubeconfig {source!r}" + (f", context {context!r}" if context else "")
        if not source:
            where = "no kubeconfig (KUBECONFIG is not set, ~/.kube/config is not there), and not inside a pod"
        raise UsageError(f"no way to a cluster: {where}: {error}; give --kubeconfig FILE or set KUBECONFIG") from error
    transport = Transport(ApiClient(configuration=configuration), user_agent=agent or user_agent())
    return Connection(transport=transport, namespace=namespace or own or "default", origin=origin)


def _namespace_of(source: str, context: str | None) -> str:
    """The namespace that the chosen context names; the first file of a merged list wins, as in kubectl."""
    contexts: dict[str, str] = {}
    current = context or ""
    for path in source.split(os.pathsep):
        if not path or not Path(path).expanduser().is_file():
            continue
        content = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8")) or {}
        current = current or str(content.get("current-context") or "")
        for one in content.get("contexts") or []:
            contexts.setdefault(str(one.get("name")), str((one.get("context") or {}).get("namespace") or ""))
    return contexts.get(current, "")
