"""Bad input to `rerail run` on a real cluster: refused before anything is created, or ended with a reason."""

import copy
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig.access import Cluster
from rig.training import Gang, manifest

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.notes import read_heartbeat
from rerail.plugins.cli.rights import documents
from rerail.plugins.gang.rights import OF_BACKEND, refuse_missing
from rerail.plugins.kube.api import KubeApi
from rerail.policies.errors import NotFoundError, RefusedError, TransientError

ACCOUNT = "trainer"
OBJECTS = "jobs.batch.volcano.sh,podgroups.scheduling.volcano.sh,pods,commands.bus.volcano.sh"


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> Iterator[str]:
    """A queue of these tests alone."""
    if cluster.volcano == "none":
        pytest.skip("this cluster has no Volcano")
    name = f"rerail-bad-{secrets.token_hex(3)}"
    make_queue(cluster, name)
    yield name
    cluster.kubectl("delete", "queue", name, "--wait=false")


def make_queue(cluster: Cluster, name: str) -> None:
    body = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, "reclaimable": False},
    }
    cluster.kubectl("create", "-f", "-", document=body)
    cluster.wait("the queue is open", lambda: state_of(cluster, name) == "Open")


def state_of(cluster: Cluster, queue: str) -> str:
    return str(cluster.read("queue", queue).get("status", {}).get("state", ""))


def order(cluster: Cluster, queue: str, action: str) -> None:
    """What ``vcctl queue operate`` does."""
    uid = cluster.read("queue", queue)["metadata"]["uid"]
    target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": queue, "uid": uid}
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": f"{queue}-{secrets.token_hex(3)}", "namespace": "default", "ownerReferences": [target]},
        "action": action,
        "target": target,
    }
    cluster.kubectl("create", "-f", "-", document=command)


@pytest.fixture(scope="module")
def closed(cluster: Cluster, queue: str) -> Iterator[str]:
    """A queue that takes no jobs."""
    name = f"{queue}-closed"
    make_queue(cluster, name)
    order(cluster, name, "CloseQueue")
    cluster.wait("the queue is closed", lambda: state_of(cluster, name) == "Closed")
    yield name
    cluster.kubectl("delete", "queue", name, "--wait=false")


def only_full(gang: Gang) -> None:
    if not gang.cluster.full:
        pytest.skip("only in full: make cluster-test-full")


def small(gang: Gang, queue: str, **more: Any) -> dict[str, Any]:
    """A training without devices, so that it never waits for those of other tests."""
    job = manifest(gang.cluster, gang.name, **{"replicas": 1, "gpus": 0, "steps": 20, "queue": queue, **more})
    # Pods that ask for nothing are placed by another action, which does not look at queues.
    main_of(job).setdefault("resources", {})["requests"] = {"cpu": "10m"}
    return job


def main_of(job: dict[str, Any]) -> dict[str, Any]:
    container = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    assert isinstance(container, dict)
    return container


def wait_trains(gang: Gang) -> None:
    def steps() -> bool:
        try:
            beat = read_heartbeat(gang.run)
        except (NotFoundError, TransientError):
            return False
        return beat is not None and beat.first_step is not None

    gang.cluster.wait(f"{gang.name} trains", steps)


def refused(gang: Gang, code: int, *words: str) -> None:
    """`rerail run` ends with this code and these words, and nothing was created."""
    gang.end(code)
    said = " ".join(gang.said().split())
    for word in words:
        assert word in said, said
    place = gang.namespace
    assert not gang.cluster.kubectl("get", OBJECTS, "-n", place, "-o", "name")
    with pytest.raises(NotFoundError):
        read_run(gang.run)


@pytest.fixture(params=["vcjob", "podgroup"])
def kind(request, gang) -> str:
    gang.backend = request.param
    return request.param


def test_a_queue_that_is_missing_is_refused(gang, kind):
    if kind == "podgroup":
        only_full(gang)
    gang.start(small(gang, "no-such-queue"))
    refused(gang, 5, "queue 'no-such-queue' does not exist; create it, or name another")


def test_a_queue_that_is_closed_is_refused(gang, closed):
    gang.start(small(gang, closed))
    refused(gang, 5, f"queue '{closed}' is Closed; open it, or name another")


def test_a_namespace_that_is_missing_is_refused(gang, queue):
    other = replace(gang, namespace="rerail-test-no-such-namespace")
    other.start(small(gang, queue))
    refused(other, 5, "namespace 'rerail-test-no-such-namespace' does not exist; create it, or name another")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"minAvailable": 5}, "spec.minAvailable = 5: is more than the 1 replicas"),
        ({"name": "x" * 50}, "a host name has at most 63"),
        ({"schedulerName": "default-scheduler"}, "starts pods one by one"),
    ],
)
def test_a_manifest_that_cannot_run_is_refused(gang, queue, change, words):
    if "minAvailable" not in change:
        only_full(gang)
    job = small(gang, queue)
    job["spec"].update({key: value for key, value in change.items() if key != "name"})
    job["spec"]["tasks"][0]["name"] = change.get("name", "worker")
    gang.start(job)
    refused(gang, 2, words)


def test_a_job_that_the_cluster_does_not_accept_is_refused_with_its_words(gang, queue):
    job = small(gang, queue)
    job["spec"]["noSuchField"] = True
    gang.start(job)
    refused(gang, 5, 'unknown field "spec.noSuchField"', "too old to know the field")


def test_an_image_that_is_not_there_stops_the_run_with_the_reason(gang, queue):
    job = small(gang, queue)
    main_of(job).update(image="registry.invalid/none:1", imagePullPolicy="Never")
    gang.start(job)
    ended = gang.end(1)
    assert ended["reason"].startswith("stuck-image: the container of pod")
    assert "ErrImageNeverPull" in ended["reason"]
    assert "correct the image" in ended["reason"]
    assert len(ended["attempts"]) == 1, "a person has to act: no further attempt is made"
    gang.cluster.wait("the gang is ended", lambda: not living(gang))


def living(gang: Gang) -> list[str]:
    return [pod["metadata"]["name"] for pod in gang.pods() if pod["status"]["phase"] in ("Pending", "Running")]


def test_more_devices_than_there_are_stop_the_run_after_its_wait(gang, queue):
    gang.start(small(gang, queue, gpus=1, replicas=99), policy={"capacity_wait_s": 2.0})
    ended = gang.end(1)
    assert ended["reason"].startswith("no capacity: 99 slots wanted, ")
    assert "for 2 s (policy capacity_wait_s)" in ended["reason"]
    assert not gang.cluster.kubectl("get", OBJECTS, "-n", gang.namespace, "-o", "name")


def test_a_job_that_somebody_deletes_is_followed_by_the_next_attempt(gang, queue):
    only_full(gang)
    gang.start(small(gang, queue, steps=50, delay_s=0.2))
    wait_trains(gang)
    gang.cluster.kubectl("delete", "vcjob", f"{gang.name}-a1", "-n", gang.namespace, "--wait=false")
    ended = gang.end()
    assert [attempt["gang"] for attempt in ended["attempts"]] == [f"{gang.name}-a1", f"{gang.name}-a2"]
    assert ended["incidents"][0]["class"] in ("preemption", "evicted", "gang-deleted")


# Rights.


def as_account(gang: Gang, roles: list[Mapping[str, Any]]) -> Gang:
    """The same run, driven with exactly these rights."""
    cluster, place = gang.cluster, gang.namespace
    cluster.kubectl("create", "serviceaccount", ACCOUNT, "-n", place)
    cluster.kubectl("apply", "-f", "-", document={"apiVersion": "v1", "kind": "List", "items": roles})
    content = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    token = cluster.kubectl("create", "token", ACCOUNT, "-n", place).strip()
    for user in content["users"]:
        user["user"] = {"token": token}
    path = gang.folder / "kubeconfig"
    path.write_text(json.dumps(content))
    probe = replace(cluster, kubeconfig=path)
    last = roles[0]["rules"][-1] if roles[0]["rules"] else None
    if last:  # rights take a moment to reach the API server's own caches
        asked = ("auth", "can-i", last["verbs"][-1], last["resources"][0], "-n", place)
        cluster.wait("the rights count", lambda: "yes" in probe.kubectl(*asked, check=False))
    return replace(gang, cluster=probe)


@pytest.fixture
def roles(gang) -> Iterator[list[Any]]:
    """What `rerail rights` prints for the namespace, under cluster-wide names of its own."""
    every = documents(gang.backend, gang.namespace, account=ACCOUNT, guard_namespace=gang.namespace)
    made = [one for one in every if one["metadata"].get("namespace", gang.namespace) == gang.namespace]
    yield _own(made, gang.namespace)
    for one in made:
        if one["kind"].startswith("Cluster"):
            gang.cluster.kubectl("delete", one["kind"], one["metadata"]["name"], check=False)


def _own(made: list[Any], place: str) -> list[Any]:
    for one in made:
        if one["kind"].startswith("Cluster"):
            one["metadata"]["name"] = f"{place}-{ACCOUNT}"
        if one["kind"] == "ClusterRoleBinding":
            one["roleRef"]["name"] = f"{place}-{ACCOUNT}"
    return made


def test_with_the_minimal_rights_a_run_goes_from_start_to_end(kind, gang, queue, roles):
    if kind == "podgroup":
        only_full(gang)
    driven = as_account(gang, roles)
    driven.start(small(gang, queue, steps=20, delay_s=0.0))
    ended = driven.end()
    assert ended["phase"] == "done", gang.said()
    assert len(ended["attempts"]) == 1
    assert "forbidden" not in gang.said()


def without(made: list[Any], resource: str, verb: str) -> list[Any]:
    """The Roles without one verb."""
    made = copy.deepcopy(made)
    for one in made:
        for rule in one.get("rules", []):
            if resource in rule["resources"]:
                rule["verbs"] = [other for other in rule["verbs"] if other != verb]
        if "rules" in one:
            one["rules"] = [rule for rule in one["rules"] if rule["verbs"]]
    return made


def in_namespace(gang: Gang) -> list[Any]:
    made = documents(gang.backend, gang.namespace, account=ACCOUNT, guard_namespace=gang.namespace)
    return [one for one in made if one["metadata"].get("namespace") == gang.namespace]


def test_a_missing_right_is_refused_with_its_rule(gang, queue):
    driven = as_account(gang, without(in_namespace(gang), "pods", "deletecollection"))
    driven.start(small(gang, queue))
    rule = 'apiGroups: [""] resources: ["pods"] verbs: ["deletecollection"]'
    refused(replace(driven, cluster=gang.cluster), 5, "rights are missing", rule, "a Role in namespace")


def test_every_right_is_missed_where_it_is_missing(kind, gang):
    only_full(gang)
    made = in_namespace(gang)
    driven = as_account(gang, made)
    with closing(KubeApi.connect(driven.cluster.kubeconfig, namespace=gang.namespace)) as api:
        for resource, verbs in OF_BACKEND[kind].items():
            for verb in verbs:
                items = without(made, resource.plural, verb)
                document = {"apiVersion": "v1", "kind": "List", "items": items}
                gang.cluster.kubectl("apply", "-f", "-", document=document)
                rule = f'resources: ["{resource.plural}"]\n  verbs: ["{verb}"]'

                def told(kind=kind, rule=rule) -> bool:
                    try:
                        refuse_missing(api, kind, guard_namespace=None)
                    except RefusedError as error:
                        return str(error).endswith(rule) and str(error).count("verbs:") == 1
                    return False

                gang.cluster.wait(f"{verb} {resource.plural} is missed", told, 20.0)


# What is found in mid-run: minutes of waiting, so only in full.


def test_a_queue_that_closes_in_mid_run_is_told_and_waited_for_with_a_bound(gang, queue):
    only_full(gang)
    own = f"{queue}-{gang.name}"
    make_queue(gang.cluster, own)
    try:
        gang.start(small(gang, own, steps=100, delay_s=0.2), policy={"capacity_wait_s": 8.0})
        wait_trains(gang)
        order(gang.cluster, own, "CloseQueue")
        gang.cluster.wait("it closes", lambda: state_of(gang.cluster, own) in ("Closing", "Closed"))
        gang.kill_pod(gang.pods()[0])
        gang.wait("it says so", lambda state: state.attempt == 2 and f"queue {own!r} Clos" in state.reason)
        ended = gang.end(1)
        assert "its queue takes no jobs" in ended["reason"] or "Clos" in ended["reason"]
        assert "capacity_wait_s" in ended["reason"]
        order(gang.cluster, own, "OpenQueue")
        gang.cluster.wait("it opens", lambda: state_of(gang.cluster, own) == "Open")
        gang.start()
        assert gang.end()["phase"] == "done"
    finally:
        gang.cluster.kubectl("delete", "queue", own, "--wait=false")


def test_an_image_that_cannot_be_pulled_stops_the_run_with_the_reason(gang, queue):
    only_full(gang)
    job = small(gang, queue)
    main_of(job).update(image="registry.invalid/none:1", imagePullPolicy="Always")
    gang.start(job, policy={"load_within_s": 300.0})
    ended = gang.end(1)
    assert "stuck-image" in ended["reason"]
    assert "ErrImagePull" in ended["reason"] or "ImagePullBackOff" in ended["reason"]


def test_a_quota_is_waited_for_and_the_gang_comes_when_it_has_room(gang, queue):
    only_full(gang)
    gang.backend = "podgroup"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": gang.namespace},
        "spec": {"hard": {"pods": "1"}},
    }
    gang.cluster.kubectl("create", "-f", "-", document=quota)
    gang.cluster.wait(
        "the quota counts",
        lambda: "hard" in gang.cluster.read("resourcequota", "small", "-n", gang.namespace).get("status", {}),
    )
    gang.start(small(gang, queue, replicas=2))
    gang.wait("it says so", lambda state: "exceeded quota: small" in state.reason)
    gang.cluster.kubectl("delete", "resourcequota", "small", "-n", gang.namespace)
    assert gang.end()["phase"] == "done"
