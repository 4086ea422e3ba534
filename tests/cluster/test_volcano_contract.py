"""What Rerail relies on of Volcano's job controller. Written against the real one; the stand-in is held to it."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest
from rig import volcano
from rig.gangs import DEAF, ON_TERM, SLEEP, Gangs, after, full, no_slots, policy, when_ranks

from rerail.plugins.kube.resources import CONFIG_MAPS, PODS, SERVICES
from rerail.plugins.kube.watch import Watch
from rerail.plugins.volcano import Command, JobAction, PodGroup, Queue, VolcanoJob
from rerail.policies.errors import NotFoundError

LOSS = ["PodFailed", "PodEvicted"]


@full
def test_pods_come_only_after_the_group_is_inqueue(gangs):
    seen: dict[str, int] = {}
    watches = [Watch(gangs.api, PodGroup.RESOURCE, for_s=60), Watch(gangs.api, PODS, for_s=60)]

    def groups() -> None:
        for event in watches[0]:
            if event.object.get("status", {}).get("phase") == "Inqueue":
                seen.setdefault("inqueue", int(event.object["metadata"]["resourceVersion"]))

    def pods() -> None:
        for event in watches[1]:
            if event.change == "added":
                seen.setdefault("pod", int(event.object["metadata"]["resourceVersion"]))

    threads = [threading.Thread(target=groups), threading.Thread(target=pods)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(lambda: [watch.stop() for watch in watches])
        gangs.run("gang", 2)
        gangs.cluster.wait("both were seen", lambda: len(seen) == 2)

    assert seen["inqueue"] < seen["pod"]


def test_a_gang_runs_and_completes_with_its_names_labels_and_plugins(gangs):
    say = "import os; print(os.environ['VC_TASK_INDEX'], os.environ['VK_TASK_INDEX'], os.environ['VC_RANK_HOSTS'])"
    plugins = {"env": [], "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]}
    job = gangs.submit("gang", 2, f"{say}; import time; time.sleep(25)", plugins=plugins)
    pods = gangs.wait_pods(job, 2, "Running")
    running = gangs.phase("gang", "Running")
    group = gangs.group(running)
    service = gangs.api.get(SERVICES, "gang")
    hosts = gangs.api.get(CONFIG_MAPS, "gang-svc")["data"]
    gangs.client.wait(PodGroup, job.pod_group_name, {"Running"}, timeout_s=30, poll_s=2)

    assert set(pods) == {"gang-rank-0", "gang-rank-1"}
    for index, pod in enumerate(pods[name] for name in sorted(pods)):
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels["volcano.sh/job-name"] == labels["volcano.sh/job-name"] == "gang"
        assert labels["volcano.sh/job-namespace"] == gangs.namespace
        assert labels["volcano.sh/task-index"] == annotations["volcano.sh/task-index"] == str(index)
        assert labels["volcano.sh/task-spec"] == "rank"
        assert labels["volcano.sh/queue-name"] == "default"
        assert annotations["scheduling.k8s.io/group-name"] == job.pod_group_name
        assert (annotations["volcano.sh/job-version"], annotations["volcano.sh/job-retry-count"]) == ("0", "0")
        owner = pod["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (job.uid, True, True)
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (pod["metadata"]["name"], "gang")
        assert pod["spec"]["schedulerName"] == "volcano"
    assert group is not None
    assert (group.spec.min_member, group.spec.min_task_member, group.spec.queue) == (2, {"rank": 2}, "default")
    assert group.spec.min_resources["pods"] == "2"
    assert group.metadata.owner_references[0].uid == job.uid
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert hosts["VC_RANK_HOSTS"] == "gang-rank-0.gang,gang-rank-1.gang"
    assert hosts["VC_RANK_NUM"] == "2"
    assert hosts["rank.host"] == "gang-rank-0.gang\ngang-rank-1.gang"
    log = gangs.cluster.kubectl("logs", "gang-rank-1", "-n", gangs.namespace)
    assert log.strip() == "1 1 gang-rank-0.gang,gang-rank-1.gang"

    done = gangs.phase("gang", "Completed", fail_on=["Failed"])
    assert [condition.status for condition in done.status.conditions] == ["Pending", "Running", "Completed"]
    assert len(gangs.in_phase(job, "Succeeded")) == 2
    with pytest.raises(NotFoundError):
        gangs.client.wait(PodGroup, job.pod_group_name, set(), timeout_s=15, poll_s=1)


@full
def test_a_queue_opens_and_a_job_of_a_missing_one_gets_no_pods(gangs):
    name = f"{gangs.namespace}-q"
    gangs.submit("early", 1, queue=name, slots=0)
    gangs.holds("no queue, no pods", lambda: not gangs.pods("early") and gangs.job("early").phase == "Pending", 3)
    try:
        assert gangs.queue(name, weight=1).is_open
        gangs.run("later", 1, queue=name)
    finally:
        gangs.cluster.kubectl("delete", "vcjob", "--all", "-n", gangs.namespace, "--wait=false")
        gangs.client.delete(Queue, name, timeout_s=30)


def test_a_failed_rank_terminates_the_job_at_once_and_its_pod_is_kept(gangs):
    code = when_ranks(1, then=after(1, 3))
    job = gangs.submit("gang", 3, code, policies=[policy("TerminateJob", *LOSS)])
    ended = gangs.phase("gang", "Terminated", fail_on=["Failed", "Completed"])
    gangs.cluster.wait("only the failed pod is left", lambda: set(gangs.pods(job)) == {"gang-rank-1"})

    assert [condition.status for condition in ended.status.conditions][-2:] == ["Terminating", "Terminated"]
    assert (ended.status.retry_count, ended.status.version >= 1) == (0, True)
    state = gangs.pods(job)["gang-rank-1"]["status"]
    assert (state["phase"], state["containerStatuses"][0]["state"]["terminated"]["exitCode"]) == ("Failed", 3)
    assert gangs.group(job) is None
    reasons = {event["reason"] for event in gangs.events("gang")}
    assert "ExecuteAction" in reasons


def test_an_evicted_rank_restarts_the_whole_job_with_new_pods(gangs):
    job = gangs.run("gang", 3, policies=[policy("RestartJob", *LOSS)])
    before = gangs.uids(job)
    gangs.delete_pod("gang-rank-1")
    gangs.cluster.wait("three new pods run", lambda: new_pods_run(gangs, "gang", 3, before))
    again = gangs.phase("gang", "Running")

    assert again.status.retry_count == 1
    assert [condition.status for condition in again.status.conditions][-3:] == ["Restarting", "Pending", "Running"]
    assert gangs.annotate(job, "volcano.sh/job-retry-count") == {"1"}
    assert gangs.annotate(job, "volcano.sh/job-version") == {str(again.status.version)}


def new_pods_run(gangs: Gangs, job: str, count: int, before: set[str]) -> bool:
    pods = gangs.in_phase(job, "Running").values()
    return len(pods) == count and not before & {pod["metadata"]["uid"] for pod in pods}


@full
def test_max_retry_one_means_no_restart_and_the_failed_pod_is_kept(gangs):
    job = gangs.submit(
        "gang", 2, when_ranks(0, then=after(1, 7)), policies=[policy("RestartJob", "PodFailed")], maxRetry=1
    )
    ended = gangs.phase("gang", "Failed", fail_on=["Completed", "Terminated"])
    gangs.cluster.wait("only the failed pod is left", lambda: set(gangs.pods(job)) == {"gang-rank-0"})

    assert ended.status.retry_count == 1
    assert [condition.status for condition in ended.status.conditions][-2:] == ["Restarting", "Failed"]


@full
def test_max_retry_two_means_one_restart(gangs):
    job = gangs.submit(
        "gang", 2, when_ranks(0, then=after(2, 7)), policies=[policy("RestartJob", "PodFailed")], maxRetry=2
    )
    before = gangs.wait_pods(job, 2, "Running")
    first = {pod["metadata"]["uid"] for pod in before.values()}
    gangs.cluster.wait("two new pods run", lambda: new_pods_run(gangs, "gang", 2, first))
    ended = gangs.phase("gang", "Failed", fail_on=["Completed", "Terminated"])

    assert ended.status.retry_count == 2
    assert gangs.annotate(job, "volcano.sh/job-retry-count") == {"1"}


@full
def test_without_a_policy_a_failed_rank_leaves_the_job_running(gangs):
    job = gangs.submit("gang", 2, when_ranks(0, then=after(2, 3)))
    gangs.phase("gang", "Running")
    gangs.wait_pods("gang", 1, "Failed")
    gangs.cluster.wait("it is counted", lambda: gangs.job("gang").status.failed == 1)
    gangs.holds("it runs on", lambda: gangs.job("gang").phase == "Running")

    assert gangs.job("gang").status.running == 1
    # Only its group says that something is wrong.
    gangs.client.wait(PodGroup, job.pod_group_name, {"Unknown"}, timeout_s=30, poll_s=2)


@full
def test_an_exit_code_policy_answers_to_its_code_only(gangs):
    rules = [policy("AbortJob", exitCode=3)]
    gangs.submit("other", 2, when_ranks(0, then=after(1, 4)), policies=rules)
    gangs.submit("same", 2, when_ranks(0, then=after(1, 3)), policies=rules)
    gangs.phase("same", "Aborted", fail_on=["Failed"])
    gangs.wait_pods("other", 1, "Failed")

    gangs.holds("another code does nothing", lambda: gangs.job("other").phase == "Running", 2)


@full
def test_a_completed_task_completes_the_job(gangs):
    quick = {"name": "quick", "replicas": 1, "template": {"spec": task_pod(gangs, after(1, 0))}}
    quick["policies"] = [policy("CompleteJob", "TaskCompleted")]
    slow = {"name": "slow", "replicas": 1, "template": {"spec": task_pod(gangs, SLEEP)}}
    job = gangs.submit("gang", 1, tasks=[quick, slow])
    gangs.phase("gang", "Completed", fail_on=["Failed", "Terminated"])
    gangs.cluster.wait("the slow pod is gone", lambda: set(gangs.pods(job)) == {"gang-quick-0"})


def task_pod(gangs: Gangs, code: str) -> dict[str, Any]:
    containers = [gangs.container(code, {"rerail.test/slot": 1})]
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": containers}


def test_commands_abort_resume_and_terminate(gangs):
    job = gangs.run("gang", 2)
    before = gangs.uids(job)
    gangs.client.command("gang", JobAction.ABORT_JOB, timeout_s=40)
    aborted = gangs.phase("gang", "Aborted")
    gangs.cluster.wait("no pods", lambda: not gangs.pods(job))
    gangs.client.command("gang", JobAction.RESUME_JOB, timeout_s=40)
    gangs.cluster.wait("new pods run", lambda: new_pods_run(gangs, "gang", 2, before))
    resumed = gangs.phase("gang", "Running")
    gangs.client.command("gang", JobAction.TERMINATE_JOB, timeout_s=40)
    gangs.phase("gang", "Terminated")

    assert (aborted.status.retry_count, resumed.status.retry_count) == (0, 1)
    assert gangs.client.list(Command) == ()
    assert "CommandIssued" in {event["reason"] for event in gangs.events("gang")}


@full
def test_a_command_sent_while_restarting_is_swallowed(gangs):
    job = gangs.run("gang", 2, DEAF, policies=[policy("RestartJob", *LOSS)], grace_s=12)
    before = gangs.uids(job)
    gangs.delete_pod("gang-rank-0")
    gangs.client.command("gang", JobAction.RESTART_JOB, timeout_s=30)
    assert gangs.job("gang").phase == "Restarting"
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "gang", "uid": job.uid}
    order = {"metadata": {"name": "late"}, "action": "TerminateJob", "target": {**owner, "controller": True}}
    gangs.client.create(Command.from_dict(order))
    gangs.cluster.wait("it is taken", lambda: not gangs.client.list(Command))
    gangs.cluster.wait("new pods run all the same", lambda: new_pods_run(gangs, "gang", 2, before))

    assert gangs.phase("gang", "Running").status.retry_count == 1


def test_a_rank_that_exits_0_when_evicted_completes_the_job(gangs):
    rules = [policy("CompleteJob", "TaskCompleted"), policy("RestartJob", *LOSS)]
    gangs.run("gang", 1, ON_TERM.format(code=0), policies=rules, grace_s=20)
    gangs.listens("gang-rank-0")
    gangs.delete_pod("gang-rank-0")

    gangs.phase("gang", "Completed", fail_on=["Restarting", "Failed"])


@full
def test_a_rank_that_fails_when_evicted_fires_pod_failed_first(gangs):
    rules = [policy("TerminateJob", "PodFailed"), policy("RestartJob", "PodEvicted")]
    gangs.run("gang", 1, ON_TERM.format(code=75), policies=rules, grace_s=20)
    gangs.listens("gang-rank-0")
    gangs.delete_pod("gang-rank-0")

    gangs.phase("gang", "Terminated", fail_on=["Restarting", "Failed"])


@full
def test_a_job_that_is_deleted_takes_its_pods_and_its_group_along(gangs):
    job = gangs.run("gang", 2)
    gangs.client.delete(VolcanoJob, "gang", timeout_s=60)

    assert not gangs.pods(job)
    gangs.cluster.wait("its group is gone", lambda: gangs.group(job) is None)


@full
def test_a_finished_job_is_deleted_after_its_time(gangs):
    gangs.submit("gang", 1, after(0, 0), ttlSecondsAfterFinished=2)

    def gone() -> bool:
        return not any(job.name == "gang" for job in gangs.client.list(VolcanoJob))

    gangs.phase("gang", "Running", "Completed")
    gangs.cluster.wait("the job is gone", gone)


def test_what_the_stand_in_does_not_play_it_refuses_by_name(gangs):
    if gangs.cluster.volcano != "stand-in":
        pytest.skip("the real one plays it")
    gangs.submit("far", 1, networkTopology={"mode": "hard", "highestTierAllowed": 1})
    gangs.submit("pods", 1, policies=[policy("RestartPod", "PodFailed")])
    gangs.submit("unknown", 1, plugins={"pytorch": []})
    words = {"far": "networkTopology", "pods": "RestartPod", "unknown": "plugin pytorch"}
    for name, word in words.items():
        gangs.cluster.wait(f"{name} is refused", lambda name=name: refused(gangs, name))
        assert word in refused(gangs, name)
        assert not gangs.pods(name)


def refused(gangs: Gangs, name: str) -> str:
    return " ".join(event["message"] for event in gangs.events(name) if event["reason"] == "NotPlayed")


@full
def test_a_job_goes_on_when_volcano_starts_again(gangs):
    job = gangs.run("gang", 2, policies=[policy("RestartJob", *LOSS)])
    before = gangs.uids(job)
    restart_volcano(gangs)
    gangs.holds("nothing happens", lambda: gangs.uids(job) == before and gangs.job("gang").phase == "Running")
    gangs.delete_pod("gang-rank-0")
    gangs.cluster.wait("new pods run", lambda: new_pods_run(gangs, "gang", 2, before))


@full
def test_a_policy_on_pending_pods_restarts_a_healthy_job_after_volcano_starts_again(gangs):
    gangs.only_real("policy timeout")
    job = gangs.run("gang", 2, policies=[policy("RestartJob", "PodPending", timeout="8s")])
    before = gangs.uids(job)
    gangs.holds("nothing happens", lambda: gangs.uids(job) == before, 5)
    restart_volcano(gangs)
    gangs.cluster.wait("new pods run", lambda: new_pods_run(gangs, "gang", 2, before))


@full
def test_a_live_pod_that_is_marked_out_of_sync_is_replaced(gangs):
    job = gangs.run("gang", 2, policies=[policy("TerminateJob", "PodEvicted")])
    before = gangs.uids(job)
    mark = {"metadata": {"annotations": {"volcano.sh/controller-out-of-sync": "true"}}}
    gangs.api.patch(PODS, "gang-rank-0", mark)
    gangs.cluster.wait(
        "one is new", lambda: len(gangs.in_phase(job, "Running")) == 2 and len(gangs.uids(job) - before) == 1
    )

    assert gangs.phase("gang", "Running").status.retry_count == 0


@full
def test_a_pod_that_volcano_restarts_itself_is_not_evicted(gangs):
    gangs.only_real("action RestartPod")
    rules = [policy("RestartPod", "PodFailed"), policy("TerminateJob", "PodEvicted")]
    job = gangs.submit("gang", 2, when_ranks(0, then=after(4, 3)), policies=rules, maxRetry=9)
    before = gangs.wait_pods(job, 2, "Running")
    gangs.cluster.wait(
        "one is new", lambda: len(gangs.uids(job) - {p["metadata"]["uid"] for p in before.values()}) == 1
    )
    again = gangs.phase("gang", "Running", fail_on=["Terminating", "Terminated", "Failed"])

    assert (again.status.retry_count, again.status.version) == (1, 0)
    assert gangs.group(job) is not None


@full
def test_a_failure_while_volcano_is_away_is_lost_on_its_policies(gangs):
    gangs.run("gang", 2, when_ranks(0, then=after(6, 3)), policies=[policy("TerminateJob", *LOSS)])
    ours(gangs)
    folder = real_folder(gangs)
    volcano.stop()
    try:
        gangs.wait_pods("gang", 1, "Failed")
    finally:
        volcano.switch(folder)
    gangs.cluster.wait("it is counted", lambda: gangs.job("gang").status.failed == 1)
    gangs.holds("it runs on", lambda: gangs.job("gang").phase == "Running", 5)


def ours(gangs: Gangs) -> None:
    if not gangs.cluster.ours:
        pytest.skip("only the Volcano of our own cluster can be restarted")


def real_folder(gangs: Gangs) -> Any:
    return (
        volcano.programs(gangs.cluster.volcano.removeprefix("real, from ")) if "real" in gangs.cluster.volcano else None
    )


def restart_volcano(gangs: Gangs) -> None:
    ours(gangs)
    volcano.switch(real_folder(gangs))


@full
def test_an_unknown_policy_fires_once_in_the_life_of_a_job(gangs):
    rules = [policy("AbortJob", "Unknown")]
    gangs.run("fresh", 2, policies=rules)
    with no_slots(gangs.cluster):
        gangs.delete_pod("fresh-rank-0")
        gangs.phase("fresh", "Aborted", fail_on=["Failed"])
    job = gangs.run("older", 2, policies=rules)
    before = gangs.uids(job)
    gangs.client.command("older", JobAction.RESTART_JOB, timeout_s=30)
    gangs.cluster.wait("new pods run", lambda: new_pods_run(gangs, "older", 2, before))
    with no_slots(gangs.cluster):
        gangs.delete_pod("older-rank-0")
        gangs.client.wait(PodGroup, job.pod_group_name, {"Unknown"}, timeout_s=30, poll_s=1)
        gangs.holds("nobody aborts it", lambda: gangs.job("older").phase not in {"Aborting", "Aborted"}, 5)
