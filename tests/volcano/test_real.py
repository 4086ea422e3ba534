"""The same client against a real API server (RERAIL_TEST_KUBECONFIG): what the fake cannot vouch for.

Needs the right to create namespaces, CRDs and roles. Tests that need Volcano's controllers say so and are skipped by
name where none answers.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PODS,
    ResourceType,
)
from rerail.plugins.kube.watch import Watch
from rerail.plugins.volcano import (
    Command,
    JobAction,
    JobPhase,
    PodGroup,
    Queue,
    VolcanoClient,
    VolcanoJob,
    generate_crds,
)
from rerail.plugins.volcano.rights import IN_NAMESPACE, minimal_cluster_role, minimal_role, rules
from rerail.policies.errors import (
    AlreadyExistsError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    NotInstalledError,
)

pytestmark = pytest.mark.cluster

ROLES = ResourceType("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = ResourceType("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = ResourceType("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_BINDINGS = ResourceType(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
ACCOUNTS = ResourceType("", "v1", "serviceaccounts", "ServiceAccount")
TOKENS = ResourceType("", "v1", "serviceaccounts", "TokenRequest")


@pytest.fixture
def api(real_cluster: str) -> Iterator[KubeApi]:
    one = KubeApi.connect(real_cluster)
    name = f"rerail-volcano-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    one.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    one.close()
    mine = KubeApi.connect(real_cluster, namespace=name)
    _install(mine)
    yield mine
    with suppress(NotFoundError):
        mine.delete(NAMESPACES, name)
    mine.close()


@pytest.fixture
def client(api: KubeApi) -> VolcanoClient:
    return VolcanoClient(api)


def _install(api: KubeApi) -> None:
    """Make our minimal CRDs where the cluster has none, and wait until they are served."""
    for crd in generate_crds():
        with suppress(AlreadyExistsError):
            api.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
    end = time.monotonic() + 30
    for kind in (VolcanoJob, PodGroup, Queue, Command):
        while True:
            try:
                api.list(kind.RESOURCE)
                break
            except NotInstalledError:
                assert time.monotonic() < end
                time.sleep(0.1)


def test_generated_crds_are_accepted(api):
    for crd in generate_crds():
        # Under a group of their own, so that they are judged whether or not Volcano's are installed.
        text = json.dumps(crd).replace(".volcano.sh", ".rerail-test.example")
        api.create(CUSTOM_RESOURCE_DEFINITIONS, json.loads(text), dry_run=True)


def test_objects_come_back_as_they_were_sent(client, make_job):
    job = client.create(make_job())
    assert client.get(VolcanoJob, job.name).spec == job.spec
    assert (job.spec.queue, job.spec.max_retry) == ("default", 3)
    assert client.create(make_job()).uid == job.uid
    with pytest.raises(AlreadyExistsError, match="is not what is to be created"):
        client.create(make_job(replicas=3))
    assert client.create(make_job("train-a2"), dry_run=True).uid
    assert [one.name for one in client.list(VolcanoJob)] == [job.name]
    name = f"{client.api.namespace}-q"
    queue = client.create(Queue(metadata={"name": name}, spec={"weight": 3, "capability": {"cpu": 4}}))
    assert queue.spec.dequeue_strategy == "traverse"
    client.delete(Queue, name, timeout_s=30)
    group = client.create(PodGroup(metadata={"name": "g"}, spec={"min_member": 2}))
    assert client.patch(PodGroup, "g", {"spec": {"minMember": 3}}).spec.min_member == 3
    assert group.spec.queue == "default"


def test_fields_that_volcano_does_not_know_are_refused_by_name(client, make_job):
    with pytest.raises(InvalidObjectError, match=r'unknown field "spec.bogus".*too old'):
        client.create(make_job(bogus=1))
    job = make_job()
    job.spec.tasks[0].name = "Not_A_Label"
    with pytest.raises(InvalidObjectError, match=r"spec\.tasks\[0\]\.name"):
        client.create(job)


def test_conflicts_and_preconditions(client, make_job):
    job = client.create(make_job())
    client.patch(VolcanoJob, job.name, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ConflictError, match="read it again"):
        client.replace(job)
    assert client.scale(job.name, {"worker": 3}).spec.tasks[0].replicas == 3
    with pytest.raises(ConflictError):
        client.api.delete(VolcanoJob.RESOURCE, job.name, uid="00000000-0000-0000-0000-000000000000")
    gone = client.delete(VolcanoJob, job.name, timeout_s=60, propagation="Background")
    assert gone.uid == job.uid


def test_absent_things_are_told_apart(client):
    with pytest.raises(NotFoundError, match="it does not exist"):
        client.get(VolcanoJob, "none")
    absent = ResourceType("nope.rerail-test.example", "v1", "things", "Thing", product="Nope")
    with pytest.raises(NotInstalledError, match="Nope's CRDs are not installed"):
        client.api.list(absent)
    with pytest.raises(NotFoundError, match="namespace 'rerail-none' does not exist"):
        client.create(VolcanoJob(metadata={"name": "x", "namespace": "rerail-none"}, spec={"tasks": [{"name": "a"}]}))


def test_a_watch_follows_changes_and_ends(client, make_job):
    events = []
    for event in client.watch(VolcanoJob, labels={"a": "b"}, for_s=60):
        events.append(event.change)
        if event.change == "synced":
            client.create(make_job(), dry_run=True)
            client.create(make_job())
            client.patch(VolcanoJob, "train-a1", {"metadata": {"labels": {"a": "b"}}})
        if event.change == "added":
            client.patch(VolcanoJob, "train-a1", {"metadata": {"labels": {"a": None}}})
        if event.change == "deleted":
            break
    assert [one for one in events if one != "modified"] == ["synced", "added", "deleted"]


class Stale(Watch):
    """Asks once for a point of history that is long gone."""

    asked = 0

    def _list(self, left_s: float):
        listing = super()._list(left_s)
        Stale.asked += 1
        return type(listing)(listing.items, "1") if Stale.asked == 1 else listing


def test_a_real_410_is_survived(client, make_job):
    Stale.asked = 0
    told: list[Any] = []
    changes = []
    for event in Stale(client.api, VolcanoJob.RESOURCE, for_s=60, on_trouble=told.append):
        changes.append(event.change)
        if changes == ["synced", "synced"]:
            client.create(make_job())
        if event.change == "added":
            break
    assert [type(error) for error in told] == [ExpiredError]


def test_bookmarks_come_and_are_no_events(client, make_job):
    client.create(make_job())
    changes = [event.change for event in client.watch(VolcanoJob, for_s=3)]
    assert changes[:2] == ["added", "synced"]
    assert set(changes[2:]) <= {"modified"}  # by Volcano's controllers, where they run


def as_account(api: KubeApi, kubeconfig: str, folder: Path, name: str, verbs: dict) -> VolcanoClient:
    """A client with exactly these rights."""
    api.create(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    role = minimal_role(name, api.namespace) | {"rules": rules(verbs)}
    api.create(ROLES, role)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": api.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    api.create(
        BINDINGS,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": reference,
            "subjects": [subject],
        },
    )
    path = ACCOUNTS.path(api.namespace, name, "token")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    from rerail.plugins.kube.errors import Call

    answer = api._send(Call("create", ACCOUNTS, api.namespace, name, "token"), "POST", path, body=body)
    content = yaml.safe_load(Path(kubeconfig).read_text())
    for user in content["users"]:
        user["user"] = {"token": answer["status"]["token"]}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(content))
    return VolcanoClient.connect(file, namespace=api.namespace)


def test_with_the_minimal_role_everything_works_and_without_a_verb_its_rule_is_named(
    api, client, real_cluster, tmp_path, make_job
):
    if client.api.may("get", ResourceType("nope.example", "v1", "x", "X")) is False:
        pytest.skip("this account is not an administrator")
    full = as_account(api, real_cluster, tmp_path, "full", dict(IN_NAMESPACE))
    if full.api.may("get", NAMESPACES):
        pytest.skip("this API server allows everything to everybody (no RBAC)")
    job = full.create(make_job())
    assert full.verdict(job.name).state == "pending"
    assert [event.change for event in full.watch(VolcanoJob, for_s=1)][:2] == ["added", "synced"]
    assert any("could not be looked at" in str(one) for one in full.preflight(make_job("train-a3")))
    calls = {
        "get": lambda one: one.get(VolcanoJob, job.name),
        "list": lambda one: one.list(VolcanoJob),
        "create": lambda one: one.create(make_job("train-a2")),
        "patch": lambda one: one.scale(job.name, {"worker": 2}),
        "update": lambda one: one.replace(one.get(VolcanoJob, job.name)),
        "watch": lambda one: list(one.watch(VolcanoJob, for_s=5)),
        "delete": lambda one: one.delete(VolcanoJob, job.name, timeout_s=90, propagation="Background"),
    }
    for verb, call in calls.items():
        verbs = dict(IN_NAMESPACE)
        verbs[VolcanoJob.RESOURCE] = tuple(one for one in verbs[VolcanoJob.RESOURCE] if one != verb)
        short = as_account(api, real_cluster, tmp_path, f"no-{verb}", verbs)
        with pytest.raises(ForbiddenError) as caught:
            call(short)
        assert caught.value.rule == (
            f'- apiGroups: ["batch.volcano.sh"]\n  resources: ["jobs"]\n  verbs: ["{verb}"]'
        ), verb
        short.close()
    for call in calls.values():
        call(full)
    full.close()
    assert minimal_cluster_role("x")["rules"]


def needs_volcano(client: VolcanoClient) -> None:
    """Skip where no controller opens a new queue."""
    name = f"{client.api.namespace}-probe"
    client.create(Queue(metadata={"name": name}, spec={"weight": 1}))
    try:
        client.wait(Queue, name, {"Open"}, timeout_s=20)
    except Exception as error:  # noqa: BLE001 -- whatever it is: no controller
        pytest.skip(f"Volcano's controllers do not run here: {error}")
    finally:
        client.api.delete(Queue.RESOURCE, name)


def test_a_job_is_aborted_judged_and_deleted_with_proof(client, make_job):
    needs_volcano(client)
    job = make_job()
    job.spec.tasks[0].template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "9999"}}
    made = client.create(job)
    assert client.command(made.name, JobAction.ABORT_JOB, timeout_s=60).sent >= 1
    client.wait(VolcanoJob, made.name, {JobPhase.ABORTED}, timeout_s=60)
    assert client.verdict(made.name).state == "suspended"
    gone = client.delete(VolcanoJob, made.name, timeout_s=60)
    assert gone.was_there
    assert client.api.list(PODS, labels=made.pod_labels).items == ()
