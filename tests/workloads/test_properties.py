"""Whatever the user writes: it survives, ranks are whole, and an excluded node is never chosen."""

import copy
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.workloads import podgroup, vcjob
from rerail.policies.workloads.attempt import AttemptGang, spec_hash
from rerail.policies.workloads.difference import difference
from rerail.policies.workloads.exclusion import exclude_nodes
from rerail.policies.workloads.reading import read_workload

NODES = [f"node-{index}" for index in range(4)]
LABELS = {node: (node if index % 2 else f"ip-{index}") for index, node in enumerate(NODES)}

words = st.text("abcdefgh-", min_size=1, max_size=8).filter(lambda word: word.strip("-") == word)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=5,
)


def _expression(key, values):
    return st.builds(
        lambda operator, some: {"key": key, "operator": operator, "values": some},
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True),
    )


expressions = st.lists(
    _expression("kubernetes.io/hostname", sorted(LABELS.values())) | _expression("zone", ["a", "b"]), max_size=3
)
fields = st.lists(_expression("metadata.name", NODES).map(lambda one: {**one, "values": one["values"][:1]}), max_size=2)
terms = st.lists(
    st.fixed_dictionaries({}, optional={"matchExpressions": expressions, "matchFields": fields}), max_size=3
)
affinities = st.none() | terms.map(
    lambda some: {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": some}}}
)


def selects(affinity, node, zone):
    """Whether Kubernetes would let a pod of this affinity onto the node; an empty term selects none."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required or not required["nodeSelectorTerms"]:
        return True
    seen = {"kubernetes.io/hostname": LABELS[node], "zone": zone, "metadata.name": node}
    for term in required["nodeSelectorTerms"]:
        parts = [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
        if parts and all((seen[one["key"]] in one["values"]) == (one["operator"] == "In") for one in parts):
            return True
    return False


@settings(max_examples=200, deadline=None)
@given(
    affinity=affinities,
    excluded=st.lists(st.sampled_from(NODES), unique=True),
    read=st.lists(st.sampled_from(NODES), unique=True),
    data=st.data(),
)
def test_excluded_nodes_are_never_chosen_and_no_other_changes(affinity, excluded, read, data):
    spec = {"affinity": copy.deepcopy(affinity)}
    gang = AttemptGang(
        run="r",
        gang="r-a1",
        attempt=1,
        store="s3://b",
        excluded_nodes=tuple(excluded),
        hostnames={node: LABELS[node] for node in read},
    )
    exclude_nodes(spec, gang)
    node, zone = data.draw(st.sampled_from(NODES)), data.draw(st.sampled_from(["a", "b"]))
    assert selects(spec["affinity"], node, zone) == (node not in excluded and selects(affinity, node, zone))
    for term in (
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        if excluded
        else ()
    ):
        # The API server allows one value for each requirement on a field.
        assert all(len(one["values"]) == 1 for one in term.get("matchFields") or [])


@st.composite
def jobs(draw):
    names = draw(st.lists(words, min_size=1, max_size=3, unique=True))
    tasks = []
    for name in names:
        gpus = draw(st.sampled_from([0, 1, 2, 8]))
        container = {"name": "main", "image": "x", "command": ["python", *draw(st.lists(words, max_size=2))]}
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": draw(st.sampled_from([gpus, str(gpus)]))}}
        if draw(st.booleans()):
            container["env"] = [{"name": word.upper(), "value": word} for word in draw(st.lists(words, unique=True))]
        spec = {"containers": [container], **draw(st.dictionaries(words, plain, max_size=2))}
        affinity = draw(affinities)
        if affinity:
            spec["affinity"] = affinity
        grace_s = draw(st.none() | st.integers(0, 900))
        if grace_s is not None:
            spec["terminationGracePeriodSeconds"] = grace_s
        template = {"spec": spec, "metadata": {"labels": draw(st.dictionaries(words, words, max_size=2))}}
        ranks = draw(st.none() | st.sampled_from(["1", "2", "8", "16"]))
        if ranks and (not gpus or int(ranks) % gpus == 0 or gpus % int(ranks) == 0):
            template["metadata"]["annotations"] = {"rerail.dev/ranks-per-pod": ranks}
        task = {"name": name, "replicas": draw(st.integers(1, 5)), "template": template}
        tasks.append({**task, **draw(st.dictionaries(words.filter(lambda word: word != "name"), plain, max_size=2))})
    policies = draw(st.lists(st.just({"event": "PodFailed", "action": "RestartJob"}), max_size=1))
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": draw(words), "labels": draw(st.dictionaries(words, words, max_size=2))},
        "spec": {"tasks": tasks, "policies": policies, **draw(st.dictionaries(words, plain, max_size=3))},
    }


attempts = st.builds(
    lambda attempt, nodes, grace_s, owner: {
        "attempt": attempt,
        "excluded_nodes": tuple(nodes),
        "grace_s": grace_s,
        "owner": owner,
    },
    st.integers(1, 999_999),
    st.lists(st.sampled_from(NODES), unique=True),
    st.floats(0, 1000),
    st.sampled_from(["", "workflow/ns/name/uid"]),
)


def gang_of(workload, attempt):
    return AttemptGang(run=workload.run, gang=f"{workload.run}-a{attempt['attempt']}", store="s3://b/r", **attempt)


MAY_CHANGE = re.compile(
    r"metadata\.(name|labels|annotations)\b|spec\.(schedulerName|minAvailable|maxRetry|policies|plugins)\b"
    r"|spec\.tasks\[[^]]+\]\.(minAvailable|template\.metadata|template\.spec\.(affinity|restartPolicy"
    r"|terminationGracePeriodSeconds|containers\[main\]\.(command|env)))\b"
)


def contains(outer, inner):
    """Whether everything of ``inner`` is in ``outer``."""
    if isinstance(inner, dict):
        return all(key in outer and contains(outer[key], value) for key, value in inner.items())
    return outer == inner


@settings(max_examples=100, deadline=None)
@given(document=jobs(), attempt=attempts)
def test_the_users_fields_survive(document, attempt):
    before = copy.deepcopy(document)
    workload = read_workload(document, "f")
    job = vcjob.render_vcjob(workload, gang_of(workload, attempt))
    assert document == before == workload.document
    for change in difference(document, job):
        assert MAY_CHANGE.match(change.path), change
    assert contains(job["metadata"]["labels"], document["metadata"]["labels"])
    for old, new in zip(document["spec"]["tasks"], job["spec"]["tasks"], strict=True):
        assert contains(new["template"]["metadata"], old["template"]["metadata"])
        was, now = (one["template"]["spec"]["containers"][0] for one in (old, new))
        assert now["command"] == ["rerail-launch", "--", *was["command"]]
        own = was.get("env", [])
        assert now["env"][len(now["env"]) - len(own) :] == own
        grace_s = new["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s >= max(attempt["grace_s"], old["template"]["spec"].get("terminationGracePeriodSeconds", 30))


@settings(max_examples=100, deadline=None)
@given(document=jobs(), attempt=attempts)
def test_rendering_what_was_rendered_changes_nothing(document, attempt):
    workload = read_workload(document, "f")
    gang = gang_of(workload, attempt)
    job = vcjob.render_vcjob(workload, gang)
    again = read_workload(job, "f")
    assert again.run == workload.run
    assert vcjob.render_vcjob(again, gang) == job
    assert job["metadata"]["annotations"]["rerail.dev/spec-hash"] == spec_hash(job)
    assert spec_hash({**job, "spec": {**job["spec"], "queue": "other-queue"}}) != spec_hash(job)


@settings(max_examples=100, deadline=None)
@given(document=jobs())
def test_ranks_are_whole_and_follow_from_names(document):
    workload = read_workload(document, "f")
    layout = vcjob.layout(workload)
    ranks = [rank for pod in layout for rank in range(pod.first_rank, pod.first_rank + pod.ranks)]
    assert ranks == list(range(workload.world_size))
    assert len({pod.suffix for pod in layout}) == len(layout) == workload.size
    assert all(len(f"{workload.run}-a999999-{pod.suffix}") <= 63 for pod in layout)
    others = podgroup.layout(workload)
    assert [(pod.first_rank, pod.ranks) for pod in others] == [(pod.first_rank, pod.ranks) for pod in layout]
    # What launch computes in each pod: the task's first rank, and the pod's index times its ranks.
    for pod, member in zip(layout, workload.members(), strict=True):
        task = workload.tasks[member.task]
        assert task.first_rank + member.index * task.ranks_per_pod == pod.first_rank
        assert pod.suffix == f"{task.name}-{member.index}"


@settings(max_examples=50, deadline=None)
@given(document=jobs(), attempt=attempts)
def test_bare_pods_differ_from_the_jobs_in_their_names_only(document, attempt):
    workload = read_workload(document, "f")
    gang = gang_of(workload, attempt)
    job, objects = vcjob.render_vcjob(workload, gang), podgroup.render_podgroup(workload, gang)
    assert objects.group["spec"]["minMember"] == len(objects.pods) == workload.size
    for number, (pod, member) in enumerate(zip(objects.pods, workload.members(), strict=True)):
        template = copy.deepcopy(job["spec"]["tasks"][member.task]["template"])
        for variable in template["spec"]["containers"][0]["env"]:
            if variable["name"] == "RERAIL_POD_INDEX":
                variable.pop("valueFrom")
                variable["value"] = str(member.index)
        own = {"hostname": f"{gang.gang}-{number}", "subdomain": gang.gang, "schedulerName": "volcano"}
        assert pod["spec"] == {**template["spec"], **own}
        assert pod["metadata"]["name"] == f"{gang.gang}-{number}"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == gang.gang
        assert contains(pod["metadata"]["labels"], template["metadata"]["labels"])
