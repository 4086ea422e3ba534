"""What cannot run, or could not be recovered, is refused with the field, its value and the way out."""

import pytest

from rerail.policies.errors import UsageError
from rerail.policies.policy_text import parse_policy
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.workloads.podgroup import render_podgroup
from rerail.policies.workloads.reading import parse_manifest, read_workload
from rerail.policies.workloads.vcjob import render_vcjob

SPEC = ("spec",)
TASK = ("spec", "tasks", 0)
TEMPLATE = (*TASK, "template")
POD = (*TEMPLATE, "spec")
MAIN = (*POD, "containers", 0)
ANNOTATIONS = (*TEMPLATE, "metadata", "annotations")


def read(document, **more):
    return read_workload(document, "job.yaml", **more)


REFUSED = [
    ({("kind",): "Deployment"}, "job.yaml holds no workload, but Deployment/train: write a vcjob"),
    (
        {("apiVersion",): "batch/v1"},
        "apiVersion = 'batch/v1': is Kubernetes' own Job, which starts no gang: write batch.",
    ),
    ({("apiVersion",): "batch.volcano.sh/v2"}, "apiVersion = 'batch.volcano.sh/v2': is unknown: write batch.volcano"),
    ({("metadata",): {"generateName": "train-"}}, "generateName = 'train-': makes another name each time"),
    ({("metadata",): {}}, "metadata.name: is missing"),
    ({("metadata", "name"): "Train"}, "metadata.name: run name 'Train' is not usable"),
    ({("metadata", "name"): "t" * 53}, "is not usable: lower-case letters, digits and '-', at most 52"),
    ({("metadata", "labels"): {"rerail.dev/run": "Q"}}, "metadata.labels.rerail.dev/run: run name 'Q' is not usable"),
    ({("metadata", "name"): "t" * 50}, "would have 67 characters, and a host name has at most 63: shorten the run's"),
    ({(*SPEC, "tasks"): []}, "spec.tasks: a job needs at least one task"),
    ({(*SPEC, "tasks"): {"name": "w"}}, "spec.tasks = {'name': 'w'}: is not a list"),
    ({(*SPEC, "minAvailable"): 3}, "spec.minAvailable = 3: is more than the 2 replicas of all tasks"),
    (
        {(*SPEC, "schedulerName"): "default-scheduler"},
        "spec.schedulerName = 'default-scheduler': starts pods one by one",
    ),
    ({(*POD, "schedulerName"): "other"}, "template.spec.schedulerName = 'other': is another scheduler than the job's"),
    ({(*SPEC, "plugins"): {"mpi": []}}, "spec.plugins.mpi: mpirun starts ranks by ssh"),
    ({(*SPEC, "plugins"): {"ray": []}}, "spec.plugins.ray: Ray starts its workers itself"),
    ({(*SPEC, "plugins"): {"svc": "--x"}}, "spec.plugins.svc = '--x': is not a list"),
    ({(*TASK, "name"): "Worker"}, "spec.tasks[0].name = 'Worker': is no DNS label"),
    ({(*TASK, "name"): None}, "spec.tasks[0].name: is missing: pods are called 'train-a1-<task>-0'"),
    ({(*TASK, "name"): 7}, "spec.tasks[0].name = 7: is not text; write it in quotes: '7'"),
    ({(*TASK, "replicas"): 0}, "spec.tasks[0].replicas = 0: is not a whole number of at least 1"),
    ({(*TASK, "replicas"): None}, "spec.tasks[0].replicas = None: is not a whole number"),
    ({(*TASK, "minAvailable"): 3}, "spec.tasks[0].minAvailable = 3: is more than the task's 2 replicas"),
    ({(*TASK, "dependsOn"): {"name": ["head"]}}, "spec.tasks[0].dependsOn = {'name': ['head']}: the ranks of a gang"),
    (
        {(*TASK, "partitionPolicy"): {"totalPartitions": 2, "partitionSize": 2}},
        "2 partitions of 2 are not 2 replicas: make the product equal",
    ),
    ({(*POD, "containers"): []}, "spec.tasks[0].template.spec.containers: a pod needs at least one container"),
    ({(*MAIN, "name"): None}, "spec.tasks[0].template.spec.containers[0].name: is missing"),
    ({(*MAIN, "env"): [{"value": "1"}]}, "containers[0].env[0].name: is missing"),
    ({(*MAIN, "command"): None}, "containers[0].command: is missing, and what the image would run is not known here"),
    ({(*MAIN, "command"): None, (*MAIN, "args"): ["--a"]}, "python, train.py], with the args that stand there)"),
    ({(*MAIN, "command"): ["sh", "-c", "rerail-launch -- x"]}, "starts rerail-launch from within another command"),
    (
        {(*MAIN, "command"): ["torchrun", "x"], (*ANNOTATIONS, "rerail.dev/ranks-per-pod"): "4"},
        "launch starts the 4 ranks of the pod itself, so 4 agents of torchrun would start",
    ),
    ({(*MAIN, "resources"): {"limits": {"nvidia.com/gpu": "1.5"}}}, "nvidia.com/gpu = '1.5': is not a whole number of"),
    ({(*MAIN, "volumeMounts"): [{"name": "x"}]}, "volumeMounts[0].mountPath: is missing"),
    (
        {(*ANNOTATIONS, "rerail.dev/container"): "other"},
        "container = 'other': there is no such container; there are main",
    ),
    ({(*ANNOTATIONS, "rerail.dev/ranks-per-pod"): "many"}, "ranks-per-pod = 'many': is not a whole number of ranks"),
    ({(*ANNOTATIONS, "rerail.dev/ranks-per-pod"): 2}, "ranks-per-pod = 2: is not text; write it in quotes: '2'"),
    ({(*ANNOTATIONS, "rerail.dev/ranks-per-pod"): "0"}, "spec.tasks: no task holds ranks"),
    (
        {
            (*ANNOTATIONS, "rerail.dev/ranks-per-pod"): "3",
            (*MAIN, "resources"): {"limits": {"nvidia.com/gpu": 8}},
        },
        "ranks-per-pod = '3': 3 ranks do not share 8 nvidia.com/gpu evenly",
    ),
    ({(*POD, "nodeName"): "n1"}, "spec.nodeName = 'n1': pins the pods to one node past the scheduler"),
    ({(*POD, "hostname"): "me"}, "spec.hostname = 'me': ranks find each other by the host names that recovery gives"),
    ({(*POD, "terminationGracePeriodSeconds"): "60"}, "terminationGracePeriodSeconds = '60': is not a whole number"),
    ({(*POD, "nodeSelector"): {"pool": True}}, "nodeSelector.pool = True: is not text; write it in quotes: 'True'"),
    ({(*SPEC, "volumes"): [{}]}, "spec.volumes[0].mountPath: is missing"),
    ({("metadata", "labels"): {True: "x"}}, "metadata.labels: has the key True, which is not text"),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED, ids=[said[:60] for _, said in REFUSED])
def test_a_bad_vcjob_is_refused(job, fields, said):
    with pytest.raises(UsageError) as caught:
        read(job(fields))
    assert str(caught.value).startswith("job.yaml")
    assert said in str(caught.value)


def test_two_tasks_of_one_name_are_refused(job):
    document = job()
    document["spec"]["tasks"] *= 2
    with pytest.raises(UsageError, match="2 tasks are called 'worker'; names must differ"):
        read(document)


def test_a_file_has_one_workload(job):
    with pytest.raises(UsageError, match=r"holds 2 workloads \(Job/train, Job/train\)"):
        read([job(), job()])
    with pytest.raises(UsageError, match=r"job\.yaml holds no workload: write"):
        read([])
    with pytest.raises(UsageError, match="holds no object"):
        read(["text"])


def test_other_objects_of_the_file_are_no_workloads(job):
    prepare = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "prepare"}}
    assert read([prepare, job()]).beside == ("Job/prepare",)


def test_a_name_given_beside_the_manifest_names_the_run(job):
    assert read(job({("metadata",): {"generateName": "x-"}}), run="mine").run == "mine"
    with pytest.raises(UsageError, match="the run's name as given: run name 'No!' is not usable"):
        read(job(), run="No!")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", "the key 'a' stands twice"),
        ("a: [", r"no YAML: .* \(line 1, column 5\)"),
    ],
)
def test_yaml_that_means_something_else_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_manifest(text, "job.yaml")


def test_yaml_is_read_as_kubernetes_reads_it():
    assert parse_manifest("a: 2026-11-30\n---\n---\nb: 1", "f") == [{"a": "2026-11-30"}, {"b": 1}]
    assert parse_manifest("x: &x {a: 1}\ny: {<<: *x, b: 2}", "f") == [{"x": {"a": 1}, "y": {"a": 1, "b": 2}}]


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ({"name": "WORLD_SIZE", "value": "8"}, "env WORLD_SIZE is set to '8', and this attempt needs '2': remove it"),
        ({"name": "RERAIL_STORE", "value": "s3://other"}, "env RERAIL_STORE is set to 's3://other'"),
        (
            {"name": "RERAIL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            "env RERAIL_POD is set to {'fieldRef': {'fieldPath': 'metadata.uid'}}",
        ),
        ({"name": "RERAIL_HOLD_S"}, "env RERAIL_HOLD_S is set to nothing"),
    ],
)
def test_a_variable_that_recovery_must_set_is_not_overwritten(job, gang, variable, said):
    workload = read(job({(*MAIN, "env"): [variable]}))
    for render in (render_vcjob, render_podgroup):
        with pytest.raises(UsageError) as caught:
            render(workload, gang())
        assert f"job.yaml: task 'worker': {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "would lie inside the container and go with the pod: mount a volume"),
        ({(*MAIN, "volumeMounts"): [{"name": "v", "mountPath": "/ckptX"}]}, "would lie inside the container"),
        (
            {
                (*MAIN, "volumeMounts"): [{"name": "v", "mountPath": "/ckpt"}],
                (*POD, "volumes"): [{"name": "v", "emptyDir": {}}],
            },
            "lies on volume 'v' (emptyDir), which ends with the pod",
        ),
        ({(*MAIN, "volumeMounts"): [{"name": "v", "mountPath": "/ckpt", "readOnly": True}]}, "to be read only"),
        (
            {(*SPEC, "volumes"): [{"mountPath": "/ckpt", "volumeClaim": {}}]},
            "deletes with it, and every attempt is a job",
        ),
    ],
)
@pytest.mark.parametrize("key", ["store", "control"])
def test_a_store_that_would_be_lost_with_the_pod_is_refused(job, gang, fields, said, key):
    with pytest.raises(UsageError) as caught:
        render_vcjob(read(job(fields)), gang(**{key: "file:///ckpt/runs"}))
    assert "store file:///ckpt/runs" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {
            (*MAIN, "volumeMounts"): [
                {"name": "root", "mountPath": "/", "readOnly": True},
                {"name": "v", "mountPath": "/ckpt"},
            ],
            (*POD, "volumes"): [{"name": "root", "emptyDir": {}}, {"name": "v", "nfs": {}}],
        },
        {(*SPEC, "volumes"): [{"mountPath": "/ckpt", "volumeClaimName": "shared"}]},
        {
            (*MAIN, "volumeMounts"): [{"name": "e", "mountPath": "/ckpt"}, {"name": "v", "mountPath": "/ckpt/runs"}],
            (*POD, "volumes"): [{"name": "e", "emptyDir": {}}, {"name": "v", "persistentVolumeClaim": {}}],
        },
    ],
)
def test_the_innermost_mount_counts(job, gang, fields):
    render_vcjob(read(job(fields)), gang(store="file:///ckpt/runs"))


RUN = {
    "apiVersion": "rerail.dev/v1alpha1",
    "kind": "Run",
    "metadata": {"name": "charlm"},
    "spec": {"image": "x", "command": ["python"], "replicas": 1},
}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"replica": 2}, "unknown field spec.replica: did you mean 'replicas'?"),
        ({"zzz": 2}, "unknown field spec.zzz: known: image, imagePullPolicy"),
        ({"replicas": 0}, "spec.replicas = 0: Input should be greater than or equal to 1"),
        ({"command": []}, "spec.command = []: "),
        ({"image": None}, "spec.image = None: "),
        ({"policy": {"hold": 3}}, "run.yaml: spec.policy: unknown field 'hold'; did you mean 'hold_s'?"),
        ({"policy": {"poll_s": -1}}, "spec.policy: field 'poll_s' = -1"),
        (
            {"gpusPerReplica": 2, "resources": {"limits": {"nvidia.com/gpu": 3}}},
            "spec.gpusPerReplica = 2: leave the first",
        ),
        ({"ranksPerReplica": 3, "gpusPerReplica": 2}, "3 ranks do not share 2 nvidia.com/gpu evenly"),
    ],
)
def test_a_bad_run_is_refused(fields, said):
    with pytest.raises(UsageError) as caught:
        read_workload({**RUN, "spec": {**RUN["spec"], **fields}}, "run.yaml")
    assert said in str(caught.value)


SECRET = "AWS_SECRET_ACCESS_KEY=hunter2"


@pytest.mark.parametrize("env", [{"K": SECRET}, [SECRET], [{"name": [SECRET]}]])
def test_a_value_in_env_is_not_shown(job, env):
    wrong = [{**RUN, "spec": {**RUN["spec"], "env": env}}, {**RUN, "spec": [{"env": env}]}, job({(*MAIN, "env"): env})]
    wrong += [job({POD: [{"env": env}]}), job({(*MAIN, "env"): [{"name": {SECRET: 1}}]})]
    for document in wrong:
        with pytest.raises(UsageError, match=r"env|spec") as caught:
            read(document)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "? [a]\n: b",
        "a: !!int abc",
        "a: !!bool abc",
        "a: !!timestamp abc",
        "a: " + "1" * 5000,
        "a: " + "[" * 2000 + "]" * 2000,
        "a: &a {b: *a}",
    ],
)
def test_yaml_that_breaks_its_reader_is_bad_input(text):
    with pytest.raises(UsageError, match=r"run\.yaml"):
        read_workload(parse_manifest(text, "run.yaml"), "run.yaml")
    with pytest.raises(UsageError, match=r"p\.yaml: "):
        parse_policy(text, "p.yaml", RecoveryPolicy())


def test_a_line_of_no_yaml_is_not_shown():
    with pytest.raises(UsageError, match=r"run\.yaml: no YAML: .* \(line 2, column 18\)") as caught:
        parse_manifest("env:\n- SECRET: hunter2: :\n", "run.yaml")
    assert "hunter2" not in str(caught.value)


def test_a_run_of_a_newer_version_is_refused():
    with pytest.raises(UsageError, match=r"apiVersion = 'rerail\.dev/v2'"):
        read_workload({**RUN, "apiVersion": "rerail.dev/v2"}, "run.yaml")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({(*TASK, "topologyPolicy"): "restricted"}, "spec.tasks[0].topologyPolicy"),
        (
            {(*TASK, "partitionPolicy"): {"totalPartitions": 1, "partitionSize": 2}},
            "spec.tasks[0].partitionPolicy is made by Volcano's job controller",
        ),
        ({(*MAIN, "args"): ["$(VC_TASK_INDEX)"]}, "spec.tasks[0].template: VC_TASK_INDEX is made by"),
        ({(*SPEC, "volumes"): [{"mountPath": "/x", "volumeClaim": {}}]}, "spec.volumes[0].volumeClaim"),
    ],
)
def test_what_only_the_job_controller_makes_is_no_podgroup(job, gang, fields, said):
    with pytest.raises(UsageError) as caught:
        render_podgroup(read(job(fields)), gang())
    assert said in str(caught.value)
    assert "use --backend vcjob" in str(caught.value)
