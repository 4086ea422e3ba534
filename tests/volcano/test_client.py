"""The client against a server that misbehaves: idempotent creates, waits that end, orders that are seen done."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rerail.plugins.kube.api import ALL_NAMESPACES
from rerail.plugins.volcano import Command, JobAction, JobPhase, PodGroup, Queue, VolcanoClient, VolcanoJob
from rerail.plugins.volcano.client import SPEC_HASH
from rerail.policies.errors import (
    AlreadyExistsError,
    ClusterUnreachableError,
    ConditionError,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    NotInstalledError,
    UsageError,
)


def set_phase(fake_api, name: str, phase: str, **status: Any) -> None:
    def change(one: dict) -> None:
        one.setdefault("status", {})["state"] = {"phase": phase}
        one["status"].update(status)

    fake_api.change("jobs", "team", name, change)


def add_pod(fake_api, job: VolcanoJob, index: int = 0, *, uid: str | None = None, **more: Any) -> None:
    name = f"{job.name}-worker-{index}"
    labels = {"volcano.sh/job-name": job.name, "volcano.sh/job-namespace": "team"}
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": job.name, "uid": uid or job.uid}
    metadata = {"name": name, "namespace": "team", "labels": labels, "ownerReferences": [owner]}
    metadata |= more.pop("metadata", {})
    fake_api.put("pods", {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}, **more})


def eventually(condition: Callable[[], bool], *, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "did not come in time"
        threading.Event().wait(0.02)


def test_create_get_list_by_type(client, make_job):
    made = client.create(make_job())
    assert made.metadata.namespace == "team"
    assert made.uid
    assert client.get(VolcanoJob, "train-a1") == made
    assert client.list(VolcanoJob) == (made,)
    assert client.list(VolcanoJob, namespace=ALL_NAMESPACES, labels={"no": "such"}) == ()
    assert client.list(Queue) == ()
    with pytest.raises(NotFoundError, match="'nope'"):
        client.get(Queue, "nope")


def test_creating_the_same_again_gives_the_same(client, fake_api, make_job):
    first = client.create(make_job())
    assert client.create(make_job()) == first
    assert client.create(make_job(), uid=first.uid) == first
    with pytest.raises(AlreadyExistsError, match="another object of the same content"):
        client.create(make_job(), uid="other")
    with pytest.raises(AlreadyExistsError, match="is not what is to be created"):
        client.create(make_job(replicas=3))
    assert len(fake_api.find("jobs")) == 1


def test_what_was_read_can_be_created_again_elsewhere(client, make_job):
    made = client.create(make_job())
    copied = made.model_copy(deep=True)
    copied.metadata.name = "train-a2"
    again = client.create(copied)
    assert again.uid != made.uid
    assert again.metadata.annotations[SPEC_HASH] != made.metadata.annotations[SPEC_HASH]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_create_whose_answer_was_lost_is_repeated_without_a_second_object(client, fake_api, make_job, lost):
    fake_api.lose_reply("POST", "/jobs", times=lost)
    made = client.create(make_job())
    assert [one["metadata"]["uid"] for one in fake_api.find("jobs")] == [made.uid]


def test_a_create_that_never_gets_an_answer_ends(client, fake_api, make_job):
    fake_api.fail("POST", "/jobs", 500, times=10_000)
    with pytest.raises(ClusterUnreachableError):
        client.create(make_job())


def test_a_name_whose_object_is_being_deleted_is_not_used(client, fake_api, make_job):
    client.create(make_job())
    stamp = {"deletionTimestamp": "2026-11-29T00:00:00Z", "finalizers": ["x"]}
    fake_api.change("jobs", "team", "train-a1", lambda one: one["metadata"].update(stamp))
    with pytest.raises(AlreadyExistsError, match="being deleted; choose another name"):
        client.create(make_job())


def test_a_dry_run_stores_nothing_and_strict_fields_are_refused(client, fake_api, make_job):
    assert client.create(make_job(), dry_run=True).uid == "dry"
    assert fake_api.find("jobs") == []
    with pytest.raises(InvalidObjectError, match="too old to know the field"):
        client.create(make_job(bogus=1))


def test_without_volcano_the_error_says_so(client, fake_api, make_job):
    fake_api.uninstall("batch.volcano.sh")
    for ask in (lambda: client.create(make_job()), lambda: client.list(VolcanoJob), lambda: client.verdict("x")):
        with pytest.raises(NotInstalledError, match="Volcano's CRDs are not installed"):
            ask()


def test_patches_cannot_replace_the_list_of_tasks(client, make_job):
    client.create(make_job())
    with pytest.raises(InvalidObjectError, match="scale"):
        client.patch(VolcanoJob, "train-a1", {"spec": {"tasks": [{"replicas": 1}]}})
    assert client.patch(VolcanoJob, "train-a1", {"metadata": {"labels": {"a": "b"}}}).metadata.labels == {"a": "b"}


def test_scale_changes_replicas_where_the_task_still_is(client, make_job):
    client.create(make_job())
    job = client.scale("train-a1", {"worker": 4}, min_available=3)
    assert (job.spec.tasks[0].replicas, job.spec.min_available) == (4, 3)
    assert job.spec.tasks[0].template["spec"]["containers"]
    with pytest.raises(NotFoundError, match="has no task 'ps'; it has worker"):
        client.scale("train-a1", {"ps": 1})


def test_watch_gives_typed_objects(client, fake_api, make_job):
    client.create(make_job())
    events = []
    for event in client.watch(VolcanoJob, for_s=20):
        events.append((event.change, event.object and event.object.phase))
        if event.change == "synced":
            set_phase(fake_api, "train-a1", "Running")
        if event.change == "modified":
            break
    assert events == [("added", "Pending"), ("synced", None), ("modified", "Running")]


def test_wait_for_phases_or_for_a_function(client, fake_api, make_job):
    client.create(make_job())
    threading.Timer(0.2, set_phase, (fake_api, "train-a1", "Running")).start()
    assert client.wait(VolcanoJob, "train-a1", {JobPhase.RUNNING}, timeout_s=20).phase == JobPhase.RUNNING
    assert client.wait(VolcanoJob, "train-a1", lambda job: job.status.version == 0, timeout_s=20)
    fake_api.put("queues", {"metadata": {"name": "q"}, "status": {"state": "Open"}})
    assert client.wait(Queue, "q", {"Open"}, timeout_s=20).is_open
    fake_api.put("podgroups", {"metadata": {"name": "g", "namespace": "team"}, "status": {"phase": "Inqueue"}})
    assert client.wait(PodGroup, "g", {"Inqueue", "Running"}, timeout_s=20)


def test_every_other_end_of_a_wait_is_named(client, fake_api, make_job):
    with pytest.raises(NotFoundError, match="nothing to wait for"):
        client.wait(VolcanoJob, "none", {"Running"}, timeout_s=20)
    job = client.create(make_job())
    with pytest.raises(NotFoundError, match="another object now"):
        client.wait(VolcanoJob, job.name, {"Running"}, timeout_s=20, uid="other")
    with pytest.raises(DeadlineError, match="'Pending' after 1 s; awaited: Running"):
        client.wait(VolcanoJob, job.name, {"Running"}, timeout_s=1)
    set_phase(fake_api, job.name, "Failed")
    with pytest.raises(ConditionError, match="is 'Failed'; from there Running is not reached"):
        client.wait(VolcanoJob, job.name, {"Running"}, timeout_s=20, fail_on={"Failed", "Terminated"})
    watches = fake_api.asked("GET", "watch=true")

    def remove() -> None:
        eventually(lambda: fake_api.asked("GET", "watch=true") > watches)
        fake_api.remove("jobs", "team", job.name)

    thread = threading.Thread(target=remove)
    thread.start()
    with pytest.raises(NotFoundError, match="was deleted while Completed was awaited; its phase was 'Failed'"):
        client.wait(VolcanoJob, job.name, {"Completed"}, timeout_s=20)
    thread.join()


def test_a_wait_survives_what_a_watch_survives(client, fake_api, fake_module, make_job):
    client.create(make_job())
    fake_api.streams.append(fake_module.Stream(silent=True))
    timer = threading.Timer(0.2, lambda: (set_phase(fake_api, "train-a1", "Running"), fake_api.compact()))
    timer.start()
    assert client.wait(VolcanoJob, "train-a1", {"Running"}, timeout_s=20)


def test_a_wait_on_a_silent_server_ends_with_its_last_words(kubeconfig, fake_api):
    fake_api.hang("GET", "/jobs", times=100)
    client = VolcanoClient.connect(kubeconfig)
    begun = time.monotonic()
    with pytest.raises(DeadlineError, match=r"could not be read within 1 s; the last failure: .*did not answer"):
        client.wait(VolcanoJob, "x", {"Running"}, timeout_s=1)
    assert time.monotonic() - begun < 10
    client.close()


def test_delete_proves_that_no_pod_is_left(client, fake_api, make_job):
    job = client.create(make_job())
    add_pod(fake_api, job)

    def let_go() -> None:
        eventually(lambda: bool(fake_api.find("jobs")[0]["metadata"].get("deletionTimestamp")))
        fake_api.remove("pods", "team", "train-a1-worker-0")
        fake_api.remove("jobs", "team", "train-a1")

    thread = threading.Thread(target=let_go)
    thread.start()
    gone = client.delete(VolcanoJob, "train-a1", timeout_s=20)
    thread.join()
    assert (gone.uid, gone.was_there) == (job.uid, True)
    assert fake_api.find("pods") == []
    assert client.delete(VolcanoJob, "train-a1", uid=job.uid, timeout_s=20).was_there is False


def test_delete_names_the_pods_that_stay_and_their_node(client, fake_api, make_job):
    job = client.create(make_job())
    add_pod(fake_api, job, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    with pytest.raises(
        DeadlineError, match=r"1 pods are left: train-a1-worker-0 on node n1 \(Running, overdue for \d+ s"
    ):
        client.delete(VolcanoJob, "train-a1", timeout_s=0.5)


def test_delete_spares_a_successor_of_the_same_name(client, fake_api, make_job):
    job = client.create(make_job())
    add_pod(fake_api, job)
    with pytest.raises(ConflictError, match="which was meant, is gone"):
        client.delete(VolcanoJob, "train-a1", uid="older", timeout_s=5)
    assert fake_api.find("jobs")
    assert fake_api.asked("DELETE", "/jobs") == 0


def test_a_lost_answer_to_a_delete_does_not_matter(client, fake_api, make_job):
    client.create(make_job())
    fake_api.lose_reply("DELETE", "/jobs", times=1)
    assert client.delete(VolcanoJob, "train-a1", timeout_s=20).was_there


class Controller:
    """Takes commands, and moves jobs as told."""

    def __init__(self, fake_api, moves: dict[str, str], *, swallow: int = 0) -> None:
        self.api, self.moves, self.swallow, self.taken = fake_api, moves, swallow, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.over.wait(0.02):
            for one in self.api.find("commands"):
                self.api.remove("commands", "team", one["metadata"]["name"])
                self.taken.append(one)
                if len(self.taken) > self.swallow:
                    set_phase(self.api, one["target"]["name"], self.moves[one["action"]], version=1)

    def stop(self) -> None:
        self.over.set()
        self.thread.join(10)


def test_a_command_is_sent_taken_and_seen_done(client, fake_api, make_job):
    job = client.create(make_job())
    set_phase(fake_api, job.name, "Running")
    controller = Controller(fake_api, {"AbortJob": "Aborting", "ResumeJob": "Pending"})
    outcome = client.command(job.name, JobAction.ABORT_JOB, reason="test", timeout_s=20)
    assert (outcome.phase_before, outcome.phase_after, outcome.sent) == ("Running", "Aborting", 1)
    (taken,) = controller.taken
    command = Command.from_dict(taken)
    assert command.target == command.metadata.owner_references[0]
    assert (command.target.uid, command.target.controller, command.reason) == (job.uid, True, "test")
    assert command.name.startswith("train-a1-abortjob-")
    set_phase(fake_api, job.name, "Aborted", version=0)
    # The restart was over before anybody looked: its version tells.
    assert client.command(job.name, "ResumeJob", timeout_s=20).phase_after == "Pending"
    controller.stop()


def test_a_command_waits_until_the_job_can_hear_it(client, fake_api, make_job):
    job = client.create(make_job())
    set_phase(fake_api, job.name, "Restarting")
    controller = Controller(fake_api, {"TerminateJob": "Terminating"})
    threading.Timer(0.5, set_phase, (fake_api, job.name, "Running")).start()
    assert client.command(job.name, JobAction.TERMINATE_JOB, timeout_s=20).phase_before == "Running"
    controller.stop()
    set_phase(fake_api, job.name, "Restarting")
    with pytest.raises(DeadlineError, match="stays Restarting"):
        client.command(job.name, JobAction.TERMINATE_JOB, timeout_s=0.3)


def test_a_command_that_was_swallowed_is_sent_again(client, fake_api, make_job, monkeypatch):
    monkeypatch.setattr("rerail.plugins.volcano.commands.RESEND_AFTER_S", 0.3)
    job = client.create(make_job())
    set_phase(fake_api, job.name, "Running")
    controller = Controller(fake_api, {"AbortJob": "Aborting"}, swallow=2)
    assert client.command(job.name, JobAction.ABORT_JOB, timeout_s=20).sent == 3
    controller.stop()


def test_a_command_that_nobody_takes_is_withdrawn(client, fake_api, make_job):
    job = client.create(make_job())
    with pytest.raises(DeadlineError, match=r"no controller took.*withdrawn"):
        client.command(job.name, JobAction.ABORT_JOB, timeout_s=0.4)
    assert fake_api.find("commands") == []


def test_a_command_whose_create_got_no_answer_is_one_command(client, fake_api, make_job):
    job = client.create(make_job())
    fake_api.lose_reply("POST", "/commands", times=1)
    controller = Controller(fake_api, {"AbortJob": "Aborted"})
    client.command(job.name, JobAction.ABORT_JOB, timeout_s=20)
    controller.stop()
    assert len({one["metadata"]["name"] for one in controller.taken}) == 1


def test_commands_that_would_do_nothing_are_refused(client, fake_api, make_job):
    job = client.create(make_job())
    with pytest.raises(UsageError, match=r"cannot carry.*RestartPod"):
        client.command(job.name, JobAction.RESTART_POD)
    with pytest.raises(ConditionError, match="acts only on an aborted job"):
        client.command(job.name, JobAction.RESUME_JOB)
    with pytest.raises(ConflictError, match="Volcano acts by name"):
        client.command(job.name, JobAction.ABORT_JOB, uid="older")
    set_phase(fake_api, job.name, "Aborted")
    with pytest.raises(ConditionError, match="RestartJob does nothing there"):
        client.command(job.name, JobAction.RESTART_JOB)
    set_phase(fake_api, job.name, "Failed")
    with pytest.raises(ConditionError, match="which nothing changes any more"):
        client.command(job.name, JobAction.ABORT_JOB)
    assert fake_api.asked("POST", "/commands") == 0


def test_preflight_tells_all_that_speaks_against_a_job(client, fake_api, make_job):
    problems = client.preflight(make_job(queue="research"))
    assert [str(one) for one in problems] == [
        "error: spec.queue: queue 'research' does not exist; create it, or name another"
    ]
    fake_api.put("queues", {"metadata": {"name": "research"}, "status": {"state": "Closed"}})
    assert "is Closed" in str(client.preflight(make_job(queue="research"))[0])
    fake_api.put("queues", {"metadata": {"name": "research"}, "status": {"state": "Open"}})
    assert client.preflight(make_job(queue="research")) == ()
    assert "root" in str(client.preflight(make_job(queue="root"))[0])
    fake_api.deny("get", "queues")
    (warning,) = client.preflight(make_job(queue="research"))
    assert warning.severity == "warning"
    fake_api.deny("create", "jobs")
    assert any(
        one.severity == "error" and "verbs" in one.message for one in client.preflight(make_job(queue="research"))
    )


def test_a_missing_right_names_the_rule_whatever_the_verb(client, fake_api, make_job):
    job = client.create(make_job())
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: client.get(VolcanoJob, job.name),
        "list": lambda: client.list(VolcanoJob),
        "patch": lambda: client.patch(VolcanoJob, job.name, {}),
        "update": lambda: client.replace(job),
        "watch": lambda: next(event for event in client.watch(VolcanoJob) if event.change == "modified"),
        "delete": lambda: client.delete(VolcanoJob, job.name, timeout_s=1),
    }
    for verb, call in calls.items():
        fake_api.denied = {(verb, "jobs")}
        with pytest.raises(ForbiddenError) as caught:
            call()
        assert caught.value.rule
        assert f'verbs: ["{verb}"]' in caught.value.rule


def test_verdict_looks_at_pods_group_queue_and_nodes(client, fake_api, make_job):
    job = client.create(make_job())
    observer = client.observe(job.name)
    assert observer.look().state == "pending"
    fake_api.put("queues", {"metadata": {"name": "default"}, "status": {"state": "Closed"}})
    assert "queue 'default' Closed" in observer.look().why
    set_phase(fake_api, job.name, "Running")
    for index in range(2):
        add_pod(fake_api, job, index)
    add_pod(fake_api, job, 7, uid="older")
    assert "2 of 2 running" in observer.look().why
    failed = {"phase": "Failed", "reason": "NodeShutdown"}
    add_pod(fake_api, job, 1, status=failed)
    set_phase(fake_api, job.name, "Terminated")
    verdict = observer.look()
    assert (verdict.state, verdict.cause, verdict.pods) == ("terminated", "infrastructure", ("train-a1-worker-1",))
    fake_api.remove("pods", "team", "train-a1-worker-1")
    event = {"metadata": {"name": "e", "namespace": "team"}, "involvedObject": {"uid": job.uid}}
    fake_api.put("events", {**event, "message": "Job failed on action SyncJob for retry limit reached"})
    assert observer.look().state == "controller_gave_up"
    fake_api.remove("jobs", "team", job.name)
    assert observer.look().state == "deleted"


def test_an_observer_knows_since_when_a_state_holds(client, fake_api, make_job):
    job = client.create(make_job())
    at = [1000.0]
    client.api.clock = lambda: at[0]
    observer = client.observe(job.name)
    set_phase(fake_api, job.name, "Restarting")
    assert observer.look().state == "restarting"
    at[0] += 119
    assert observer.look().state == "restarting"
    at[0] += 1
    assert observer.look().stuck == "S4"
    set_phase(fake_api, job.name, "Pending")
    assert observer.look().state == "pending"
    set_phase(fake_api, job.name, "Restarting")
    assert observer.look().state == "restarting"
    fake_api.remove("jobs", "team", job.name)
    client.create(make_job())
    assert observer.look().state == "deleted", "another job of the same name is not the one observed"


def test_a_ghost_on_a_node_that_is_gone_is_stuck_at_once(client, fake_api, make_job):
    job = client.create(make_job())
    set_phase(fake_api, job.name, "Running")
    add_pod(fake_api, job, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    verdict = client.verdict(job.name)
    assert (verdict.state, verdict.stuck, verdict.pods) == ("stuck", "S3", ("train-a1-worker-0",))
    fake_api.put("nodes", {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert client.verdict(job.name).state == "running"
