"""NVSentinel's custom drain: its node-drainer makes a DrainRequest and waits for the condition DrainComplete.

node-drainer evicts nothing itself then, so that the pods which it lists are all ours to move. It makes one request for
each health event, names it ``drain-<node>-<event>``, and by its contract deletes it once the condition is True.
The resource definition is the plugin's own by NVSentinel's contract; ``objects`` has it, and the template that
node-drainer renders requests from. Fields of a request that are missing count as empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rerail.plugins.evict.slots.ports import Obj, SlotOptions, options_of
from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.resources import ResourceType
from rerail.policies.drains import Ask, DrainNote, Telling

NAME: Final = "nvsentinel"
NOTE: Final = "rerail.dev/drain"
CONDITION: Final = "DrainComplete"
GROUP: Final = "nvsentinel.nvidia.com"

DRAIN_REQUESTS: Final = ResourceType(GROUP, "v1alpha1", "drainrequests", "DrainRequest", product="NVSentinel")
_STATUS: Final = ResourceType(GROUP, "v1alpha1", "drainrequests/status", "DrainRequest", product="NVSentinel")

_ONE_DEVICE: Final = "COMPONENT_RESET"
"""The action for which only pods on the faulty GPU have to leave, where NVSentinel drains partly."""


class NvsentinelOptions(SlotOptions):
    """Options of the slot.

    Attributes:
        namespace: Where node-drainer makes its requests; all by default.
        condition: The condition that node-drainer is configured to wait for.
    """

    namespace: str = ""
    condition: str = CONDITION


@dataclass(slots=True)
class NvsentinelSlot:
    """The port ``Slot`` on DrainRequests."""

    options: NvsentinelOptions
    name: str = NAME
    _api: KubeApi = field(init=False)
    _cache: Cache[Obj] = field(init=False)

    @property
    def deadline_s(self) -> float:
        """As the port says. NVSentinel's chart has a limit of 30 minutes; not every release of its code enforces it."""
        return self.options.deadline_s

    @property
    def rights(self) -> Mapping[ResourceType, tuple[str, ...]]:
        """As the port says."""
        return {DRAIN_REQUESTS: ("list", "watch", "patch"), _STATUS: ("patch",)}

    def objects(self, namespace: str) -> tuple[Obj, ...]:
        """The resource definition, and node-drainer's template."""
        del namespace
        return definition(), template(self.options.namespace or NAME)

    def start(self, api: KubeApi) -> None:
        """Begin to watch."""
        self._api = api
        namespace = self.options.namespace or ALL_NAMESPACES
        self._cache = Cache(api, DRAIN_REQUESTS, keep=lambda one: one, namespace=namespace)
        self._cache.start()

    def stop(self) -> None:
        """End it."""
        self._cache.stop()

    def asks(self) -> tuple[Ask, ...]:
        """Every request that names a node and is not being deleted."""
        found = [one for one in self._cache.values() if not one["metadata"].get("deletionTimestamp")]
        asks = [ask_of(one, self.options.condition) for one in found]
        return tuple(sorted((ask for ask in asks if ask.node), key=lambda ask: ask.id))

    def keep(self, ask: Ask, note: DrainNote) -> None:
        """Annotate the request."""
        one = self._object(ask)
        body = {"metadata": {"uid": one["metadata"]["uid"], "annotations": {NOTE: note.text()}}}
        self._cache.take(self._api.patch(DRAIN_REQUESTS, one["metadata"]["name"], body, **_where(one), repeatable=True))

    def tell(self, ask: Ask, telling: Telling) -> None:
        """Set the condition; those of others stay."""
        one = self._object(ask)
        metadata = one["metadata"]
        conditions = _with(one, self.options.condition, telling)
        body = {
            "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": conditions},
        }
        told = self._api.patch(
            DRAIN_REQUESTS, metadata["name"], body, **_where(one), subresource="status", repeatable=True
        )
        self._cache.take(told)

    def _object(self, ask: Ask) -> Obj:
        namespace, _, name = ask.id.rpartition("#")[0].partition("/")
        known = self._cache.get(name, namespace)
        return known if known is not None else self._api.get(DRAIN_REQUESTS, name, namespace=namespace)


def make(given: Mapping[str, str]) -> NvsentinelSlot:
    """The slot, from ``--set nvsentinel.NAME=VALUE``.

    Raises:
        UsageError: An option is not known or cannot be used.
    """
    return NvsentinelSlot(options_of(NvsentinelOptions, NAME, given))


def ask_of(one: Obj, condition: str) -> Ask:
    """A request as its object says it."""
    metadata, spec = one["metadata"], one.get("spec") or {}
    listed = spec.get("podsToDrain")
    named = listed.items() if isinstance(listed, dict) else ()
    annotations = metadata.get("annotations") or {}
    words = [str(spec[key]) for key in ("checkName", "recommendedAction", "reason") if spec.get(key)]
    return Ask(
        id=f"{metadata.get('namespace', '')}/{metadata['name']}#{metadata['uid']}",
        node=str(spec.get("nodeName") or ""),
        pods=tuple(f"{namespace}/{pod}" for namespace, pods in named for pod in pods or ()),
        gangs=spec.get("recommendedAction") != _ONE_DEVICE,
        why=": ".join(words),
        note=DrainNote.of(annotations.get(NOTE)),
        told=_told(one, condition),
    )


def _where(one: Obj) -> dict[str, Any]:
    return {"namespace": str(one["metadata"].get("namespace") or ""), "kind": "merge"}


def _conditions(one: Obj) -> list[Obj]:
    return [condition for condition in (one.get("status") or {}).get("conditions") or () if isinstance(condition, dict)]


def _told(one: Obj, type_: str) -> Telling | None:
    """What was told last; nothing where somebody else made the condition, be it that it says Pending."""
    for condition in _conditions(one):
        if condition.get("type") == type_:
            done = condition.get("status") == "True"
            return Telling(
                done=done, reason=str(condition.get("reason") or ""), message=str(condition.get("message") or "")
            )
    return None


def _with(one: Obj, type_: str, telling: Telling) -> list[Obj]:
    status = "True" if telling.done else "False"
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    others = []
    for condition in _conditions(one):
        if condition.get("type") != type_:
            others.append(condition)
        elif condition.get("status") == status:
            since = condition.get("lastTransitionTime") or since
    return [
        *others,
        {
            "type": type_,
            "status": status,
            "reason": telling.reason,
            "message": telling.message,
            "lastTransitionTime": since,
        },
    ]


def _text() -> Obj:
    return {"type": "string"}


def _list(of: Obj) -> Obj:
    return {"type": "array", "items": of}


def _map(of: Obj) -> Obj:
    return {"type": "object", "additionalProperties": of}


def _object(**properties: Obj) -> Obj:
    return {"type": "object", "properties": properties}


def definition() -> Obj:
    """The resource definition, with the fields that node-drainer fills and those that we write."""
    entity = _object(type=_text(), value=_text())
    spec = _object(
        nodeName=_text(),
        podsToDrain=_map(_list(_text())),
        checkName=_text(),
        recommendedAction=_text(),
        errorCode=_list(_text()),
        healthEventID=_text(),
        entitiesImpacted=_list(entity),
        metadata=_map(_text()),
        reason=_text(),
    )
    condition = _object(
        type=_text(),
        status=_text(),
        reason=_text(),
        message=_text(),
        lastTransitionTime={**_text(), "format": "date-time"},
    )
    schema = _object(
        spec={**spec, "required": ["nodeName"]},
        status=_object(conditions=_list({**condition, "required": ["type", "status"]})),
    )
    columns = [
        {"name": "Node", "type": "string", "jsonPath": ".spec.nodeName"},
        {"name": "Drained", "type": "string", "jsonPath": f'.status.conditions[?(@.type=="{CONDITION}")].status'},
        {"name": "Reason", "type": "string", "jsonPath": f'.status.conditions[?(@.type=="{CONDITION}")].reason'},
    ]
    version = {
        "name": DRAIN_REQUESTS.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    names = {"kind": DRAIN_REQUESTS.kind, "plural": DRAIN_REQUESTS.plural, "singular": "drainrequest"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": DRAIN_REQUESTS.full_name},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def template(namespace: str) -> Obj:
    """The ConfigMap from which node-drainer renders a request, in Go's template language.

    Args:
        namespace: Of node-drainer; its chart's value ``customDrain.templateConfigMapName`` names the ConfigMap.
    """
    rendered = f"""\
apiVersion: {DRAIN_REQUESTS.api_version}
kind: {DRAIN_REQUESTS.kind}
spec:
  nodeName: {{{{ .HealthEvent.NodeName | printf "%q" }}}}
  checkName: {{{{ .HealthEvent.CheckName | printf "%q" }}}}
  recommendedAction: {{{{ .HealthEvent.RecommendedAction.String | printf "%q" }}}}
  healthEventID: {{{{ .EventID | printf "%q" }}}}
  reason: {{{{ .HealthEvent.Message | printf "%q" }}}}
  errorCode: [{{{{ range $n, $code := .HealthEvent.ErrorCode }}}}{{{{ if $n }}}}, {{{{ end }}}}\
{{{{ $code | printf "%q" }}}}{{{{ end }}}}]
  podsToDrain:
{{{{- range $namespace, $pods := .PodsToDrain }}}}
    {{{{ $namespace | printf "%q" }}}}: [{{{{ range $n, $pod := $pods }}}}{{{{ if $n }}}}, {{{{ end }}}}\
{{{{ $pod | printf "%q" }}}}{{{{ end }}}}]
{{{{- else }}}} {{}}
{{{{- end }}}}
"""
    metadata = {"name": "rerail-drain-template", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"drain-template.yaml": rendered},
    }
