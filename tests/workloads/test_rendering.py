"""Single decisions of the renderers."""

from fractions import Fraction

import pytest

from rerail.policies.errors import UsageError
from rerail.policies.workloads import podgroup, vcjob
from rerail.policies.workloads.difference import Change, difference, unified
from rerail.policies.workloads.quantities import pod_requests, quantity, spelled
from rerail.policies.workloads.reading import read_workload

SPEC = ("spec",)
TASK = ("spec", "tasks", 0)
POD = (*TASK, "template", "spec")
MAIN = (*POD, "containers", 0)


def read(document):
    return read_workload(document, "job.yaml")


def main_of(template):
    return template["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, ["--publish-not-ready-addresses=true"]),
        (["--x"], ["--x", "--publish-not-ready-addresses=true"]),
        (["--publish-not-ready-addresses=false", "--x"], ["--x", "--publish-not-ready-addresses=true"]),
        (["-publish-not-ready-addresses"], ["--publish-not-ready-addresses=true"]),
        (["--publish-not-ready-addresses=true", "--x"], ["--publish-not-ready-addresses=true", "--x"]),
    ],
)
def test_addresses_are_published_before_ranks_are_ready(job, gang, given, wanted):
    plugins = vcjob.render_vcjob(read(job({(*SPEC, "plugins", "svc"): given})), gang())["spec"]["plugins"]
    assert plugins == {"svc": wanted, "env": []}


@pytest.mark.parametrize(("own", "grace_s", "wanted"), [(None, 5, 30), (None, 30.1, 31), (10, 5.5, 10), (10, 12.2, 13)])
def test_the_grace_covers_the_longest_save(job, gang, own, grace_s, wanted):
    workload = read(job({(*POD, "terminationGracePeriodSeconds"): own}))
    pod = vcjob.render_vcjob(workload, gang(grace_s=grace_s))["spec"]["tasks"][0]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == wanted


@pytest.mark.parametrize(
    "command", [["rerail-launch", "--", "x"], ["/opt/bin/rerail-launch", "x"], ["rerail", "launch", "--", "x"]]
)
def test_a_command_that_is_launch_already_stays(job, gang, command):
    job_ = vcjob.render_vcjob(read(job({(*MAIN, "command"): command})), gang())
    assert main_of(job_["spec"]["tasks"][0]["template"])["command"] == command


def test_a_priority_class_that_is_asked_for_counts_everywhere(job, gang):
    fields = {(*SPEC, "priorityClassName"): "batch", (*POD, "priorityClassName"): "low"}
    workload = read(job(fields))
    kept = vcjob.render_vcjob(workload, gang())["spec"]
    assert (kept["priorityClassName"], kept["tasks"][0]["template"]["spec"]["priorityClassName"]) == ("batch", "low")
    raised = vcjob.render_vcjob(workload, gang(priority_class="high"))["spec"]
    assert (raised["priorityClassName"], raised["tasks"][0]["template"]["spec"]["priorityClassName"]) == (
        "high",
        "high",
    )
    objects = podgroup.render_podgroup(workload, gang(priority_class="high"))
    assert objects.group["spec"]["priorityClassName"] == "high"
    assert {pod["spec"]["priorityClassName"] for pod in objects.pods} == {"high"}


def test_another_name_of_volcanos_scheduler_is_kept(job, gang):
    workload = read(job({(*SPEC, "schedulerName"): "volcano-gpu"}))
    assert vcjob.render_vcjob(workload, gang())["spec"]["schedulerName"] == "volcano-gpu"
    assert podgroup.render_podgroup(workload, gang()).pods[0]["spec"]["schedulerName"] == "volcano-gpu"


def test_launch_says_how_it_ended_where_the_container_says(job, gang):
    template = vcjob.render_vcjob(read(job({(*MAIN, "terminationMessagePath"): "/tmp/end"})), gang())["spec"]["tasks"][
        0
    ]
    assert {"name": "RERAIL_TERMINATION_LOG", "value": "/tmp/end"} in main_of(template["template"])["env"]


def test_the_users_variables_may_refer_to_ours(job, gang):
    own = {"name": "OUT", "value": "/data/$(RERAIL_RUN)"}
    template = vcjob.render_vcjob(read(job({(*MAIN, "env"): [own]})), gang())["spec"]["tasks"][0]["template"]
    assert main_of(template)["env"][0] == {"name": "RERAIL_RUN", "value": "train"}
    assert main_of(template)["env"][-1] == own


def test_the_store_may_stand_in_the_manifest(job):
    variables = [
        {"name": "RERAIL_STORE", "value": "s3://a/b"},
        {"name": "RERAIL_CONTROL", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}},
    ]
    workload = read(job({(*MAIN, "env"): variables}))
    assert (workload.store, workload.control) == ("s3://a/b", None)


@pytest.mark.parametrize(
    ("resources", "wanted"),
    [
        ({"limits": {"nvidia.com/gpu": "8", "cpu": 1}}, ("nvidia.com/gpu", 8, 8)),
        ({"requests": {"amd.com/gpu": 4}}, ("amd.com/gpu", 4, 4)),
        ({"limits": {"nvidia.com/mig-1g.10gb": 2}}, ("nvidia.com/mig-1g.10gb", 2, 2)),
        ({"limits": {"cpu": 64}}, ("", 0, 1)),
        ({"limits": {"nvidia.com/gpu": 0}}, ("nvidia.com/gpu", 0, 1)),
    ],
)
def test_ranks_follow_from_gpus(job, resources, wanted):
    (task,) = read(job({(*MAIN, "resources"): resources})).tasks
    assert (task.gpu_resource, task.gpus_per_pod, task.ranks_per_pod) == wanted


def test_ranks_meet_at_rank_0(job):
    workload = read(job())
    assert vcjob.rendezvous_host(workload, "train-a3") == "train-a3-worker-0.train-a3"
    assert vcjob.rendezvous_host(workload, "train-a3", "ns") == "train-a3-worker-0.train-a3.ns.svc"
    assert podgroup.rendezvous_host(workload, "train-a3", "ns") == "train-a3-0.train-a3.ns.svc"


def test_a_task_without_ranks_stands_beside_and_is_not_the_meeting_point(job, gang):
    document = job()
    board = {"name": "board", "replicas": 1, "template": {"metadata": {}, "spec": {"containers": [{"name": "b"}]}}}
    board["template"]["metadata"]["annotations"] = {"rerail.dev/ranks-per-pod": "0"}
    document["spec"]["tasks"].insert(0, board)
    workload = read(document)
    assert (workload.world_size, workload.size) == (2, 3)
    assert [pod.suffix for pod in vcjob.layout(workload)] == ["worker-0", "worker-1"]
    assert [pod.suffix for pod in podgroup.layout(workload)] == ["1", "2"]
    assert podgroup.rendezvous_host(workload, "train-a1") == "train-a1-1.train-a1"
    rendered = vcjob.render_vcjob(workload, gang())
    assert rendered["spec"]["minAvailable"] == 3
    assert rendered["spec"]["tasks"][0]["template"]["spec"] == board["template"]["spec"]


def test_a_jobs_own_volumes_are_mounted_into_bare_pods(job, gang):
    fields = {
        (*SPEC, "volumes"): [{"mountPath": "/ckpt", "volumeClaimName": "shared"}],
        (*POD, "initContainers"): [{"name": "init"}],
        ("metadata", "annotations"): {"volcano.sh/preemptable": "false", "note": "mine"},
    }
    objects = podgroup.render_podgroup(read(job(fields)), gang(store="file:///ckpt"))
    pod = objects.pods[1]
    assert pod["spec"]["volumes"] == [{"name": "job-volume-0", "persistentVolumeClaim": {"claimName": "shared"}}]
    mount = [{"name": "job-volume-0", "mountPath": "/ckpt"}]
    assert [one["volumeMounts"] for kind in ("initContainers", "containers") for one in pod["spec"][kind]] == [
        mount
    ] * 2
    assert pod["metadata"]["annotations"]["volcano.sh/preemptable"] == "false"
    assert "note" not in pod["metadata"]["annotations"]
    assert objects.group["metadata"]["annotations"]["note"] == "mine"


def test_a_difference_names_items_of_lists_and_sees_types():
    before = {"a": [{"name": "x", "v": 1}, {"name": "y"}], "b": [{"v": 1}], "c": ["1"], "d": 1}
    after = {"a": [{"name": "y"}, {"name": "x", "v": 2}], "b": [{"v": 1}, {}], "c": ["1", "2"], "d": True}
    assert difference(before, after, ((r"a\[x\]", "first"), ("b", "second"), ("c", "third"))) == (
        Change(path="a[x].v", before=1, after=2, why="first"),
        Change(path="b[1]", before=None, after={}, why="second"),
        Change(path="c", before=["1"], after=["1", "2"], why="third"),
        Change(path="d", before=1, after=True, why="differs from the manifest"),
    )
    assert difference(before, before) == ()
    assert unified(before, before, "f") == ""


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", Fraction(1, 2)),
        ("16Gi", Fraction(16 * 2**30)),
        ("1e3", Fraction(1000)),
        ("1E", Fraction(10**18)),
        ("1.5k", Fraction(1500)),
        (".5", Fraction(1, 2)),
        (8, Fraction(8)),
        (0.1, Fraction(1, 10)),
    ],
)
def test_quantities_are_exact(text, amount):
    assert quantity(text, "x") == amount


@pytest.mark.parametrize("text", ["", "8 Gi", "1Kb", "m", True, None, ["1"]])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(UsageError, match=r"x = .* is no quantity"):
        quantity(text, "x")


def test_a_quantity_is_spelled_without_loss():
    assert [spelled(Fraction(one)) for one in ("2", "1/2", "3/2", "1/3")] == ["2", "500m", "1500m", "334m"]


def test_a_pod_asks_for_its_containers_or_its_largest_init_container():
    def one(name, cpu, **more):
        return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [one("a", "1"), {"name": "b", "resources": {"limits": {"memory": "1Ki", "cpu": "500m"}}}],
        "initContainers": [one("side", "250m", restartPolicy="Always"), one("init", "4")],
        "overhead": {"cpu": "10m"},
    }
    assert pod_requests(spec, "x") == {"cpu": Fraction(4260, 1000), "memory": Fraction(1024)}
    spec["initContainers"].reverse()
    assert pod_requests(spec, "x")["cpu"] == Fraction(4010, 1000)
    spec["initContainers"].pop(0)
    assert pod_requests(spec, "x") == {"cpu": Fraction(1760, 1000), "memory": Fraction(1024)}
