"""The rendered library on a real API server and Argo: accepted, with the verdict that is promised and its rights.

The steps are played here: each pod does what the parameter ``control`` says for it, so that every way through the DAG
is gone in seconds.
"""

import json

import pytest
import yaml
from rig.gangs import full

from rerail.workflows.library import all_templates
from rerail.workflows.rbac import DUTIES
from rerail.workflows.render import documents, files, flat, write

TRAIN, RETRY = "rerail-train-v0-1", "rerail-retry-v0-1"

PLAYED = """
import json, os, pathlib, signal, sys, time
step, path = sys.argv[2], os.environ["NODE_NAME"]
acts = json.loads(os.environ.get("RERAIL_CONTROL") or "null") or dict()
acts = acts.get("farewell" if path.endswith("onExit") else step, [dict()])
act = acts[min(path.count("next-attempt"), len(acts) - 1)]
act = act if isinstance(act, dict) else dict(code=act)
out = pathlib.Path(os.environ["RERAIL_OUTPUTS"])
out.mkdir(parents=True, exist_ok=True)
for name, text in act.get("write", dict()).items():
    (out / name).write_text(str(text))
if act.get("words"):
    pathlib.Path("/dev/termination-log").write_text(act["words"])
print(step, path, os.environ.get("RERAIL_IMAGE"), os.environ.get("RERAIL_WORKFLOW_STATUS"), flush=True)
time.sleep(act.get("sleep", 0))
sys.exit(act.get("code", 0))
"""


def played(document, image):
    """The same template with its pods played by ``PLAYED``."""
    for template in document["spec"]["templates"]:
        container = template.get("container")
        if container and container["command"] == ["rerail"]:
            container |= {"image": image, "command": ["python3", "-uc", PLAYED]}
            path = {"fieldRef": {"fieldPath": "metadata.annotations['workflows.argoproj.io/node-name']"}}
            container["env"].append({"name": "NODE_NAME", "valueFrom": path})
            container["resources"] = {}
    return document


def objects(text):
    return [one for one in yaml.safe_load_all(text) if one]


def apply(cluster, items, *options):
    everything = {"apiVersion": "v1", "kind": "List", "items": items}
    strict = ("apply", "--server-side", "--validate=strict", *options, "-f", "-")
    return cluster.kubectl(*strict, document=everything)


@pytest.fixture
def library(cluster, argo):
    """The library in the namespace, accounts as they are rendered and steps played."""
    rendered = [one for one in objects(flat(argo.namespace)) if one["kind"] != "CronWorkflow"]
    apply(cluster, [played(one, cluster.image) if one["kind"] == "WorkflowTemplate" else one for one in rendered])
    return argo


def train(argo, *more, **acts):
    control = json.dumps({name.replace("_", "-"): one for name, one in acts.items()})
    return argo.submit_template(TRAIN, parameters=["store=s3://none/none", "image=own", f"control={control}", *more])


def how(word, **more):
    return {"write": {"how": word, "run": "r", "attempt": 1, **more}}


def decide(word):
    return {"write": {"decision": word, "how": "resume", "next-attempt": 2}}


def ended(argo, name, *phases):
    document = argo.wait(name, *phases, deadline_s=400)
    return document, {node["name"].removeprefix(f"{name}."): node for node in argo.whole_nodes(name)}


def phases(nodes, *paths):
    return [nodes[path]["phase"] if path in nodes else None for path in paths]


def test_the_api_server_takes_every_object_as_it_is_rendered(cluster, argo, tmp_path):
    """Against Argo's full definitions, with their rules in CEL, and unknown fields refused."""
    rendered = objects(flat(argo.namespace))
    assert apply(cluster, rendered).count("serverside-applied") == len(rendered)
    write(tmp_path, files(argo.namespace))
    built = objects(cluster.kubectl("kustomize", str(tmp_path / "overlays" / "cluster-wide")))
    assert apply(cluster, built, "--dry-run=server").count("serverside-applied") == len(built)


def test_argo_itself_finds_nothing_wrong(argo):
    for document in documents(all_templates()).values():
        kind = document["kind"]
        path, field = {
            "WorkflowTemplate": ("workflow-templates", "template"),
            "CronWorkflow": ("cron-workflows", "cronWorkflow"),
        }[kind]
        given = {**document, "metadata": {**document["metadata"], "namespace": argo.namespace}}
        argo.call("POST", f"/api/v1/{path}/{argo.namespace}/lint", {"namespace": argo.namespace, field: given})


@full
def test_a_run_that_succeeds_at_once(library):
    name = train(library, resolve=[how("fresh")])
    _, nodes = ended(library, name, "Succeeded")
    paths = ("resolve", "attempt.fresh", "attempt.resume", "attempt.assess", "attempt", "report")
    assert phases(nodes, *paths) == ["Succeeded", "Succeeded", "Skipped", "Omitted", "Succeeded", "Succeeded"]


@full
def test_faults_are_followed_by_nested_attempts_and_the_last_one_decides(library):
    handed = {"code": 10, "words": "xid-79 on node-0 ended attempt 1 at step 61; attempt 2 goes on from step 60"}
    name = train(library, resolve=[how("fresh")], run=[handed, {"code": 10}, {}], assess=[decide("again")])
    _, nodes = ended(library, name, "Succeeded")
    inner = "attempt.next-attempt"
    assert phases(nodes, "attempt.fresh", f"{inner}.resume", f"{inner}.next-attempt.resume") == [
        "Failed",
        "Failed",
        "Succeeded",
    ]
    assert handed["words"] in nodes["attempt.fresh(0)"]["message"]


def test_a_run_that_gives_up_fails_although_its_report_was_written_and_says_why(library):
    why = "run r: 3 attempts without progress; look at the report"
    name = train(
        library,
        resolve=[how("resume")],
        run=[{"code": 11}],
        assess=[decide("give-up")],
        give_up=[{"code": 1, "words": why}],
    )
    _, nodes = ended(library, name, "Failed")
    paths = ("attempt.resume", "attempt.assess", "attempt.next-attempt", "attempt.give-up", "attempt", "report")
    assert phases(nodes, *paths) == ["Failed", "Succeeded", "Skipped", "Failed", "Failed", "Succeeded"]
    assert why in nodes["attempt.give-up"]["message"]


@full
def test_after_twenty_attempts_the_workflow_is_still_small(library):
    """Argo keeps it whole in one object, for which etcd has 1.5 MiB; from 1 MiB on it is packed."""
    name = train(library, resolve=[how("fresh")], run=[*[10] * 19, 0], assess=[decide("again")])
    document = library.wait(name, "Succeeded", deadline_s=400)
    gangs = [node for node in library.whole_nodes(name) if node["displayName"] in ("fresh", "resume")]
    assert [node["phase"] for node in gangs if node["type"] == "Retry"] == ["Failed"] * 19 + ["Succeeded"]
    assert len(json.dumps(document, separators=(",", ":"))) < 300_000, "as the API server keeps it"


@full
def test_a_run_that_is_done_already_trains_nothing(library):
    name = train(library, resolve=[how("done")])
    _, nodes = ended(library, name, "Succeeded")
    assert phases(nodes, "attempt.fresh", "attempt.resume", "report") == ["Skipped", "Skipped", "Succeeded"]


@full
def test_a_blocked_resume_says_why_and_ends_at_once(library):
    name = train(library, resolve=[{"code": 3, "words": "resume blocked: run.json is gone"}])
    _, nodes = ended(library, name, "Failed")
    assert phases(nodes, "resolve", "attempt", "report") == ["Failed", "Omitted", "Omitted"]
    assert "resume blocked: run.json is gone" in nodes["resolve(0)"]["message"]


@full
def test_what_the_infrastructure_broke_is_tried_again_and_what_the_run_says_is_not(cluster, library):
    name = train(library, resolve=[how("fresh")], run=[{"sleep": 8}])
    cluster.wait("the runner runs", lambda: any(one[:2] == ("fresh(0)", "Running") for one in library.nodes(name)))
    lost = library.pod_of(name, "fresh(0)")
    cluster.kubectl("delete", "pod", lost, "-n", library.namespace, "--force", "--grace-period=0", "--wait=false")
    _, nodes = ended(library, name, "Succeeded")
    assert phases(nodes, "attempt.fresh(1)", "attempt.fresh") == ["Succeeded", "Succeeded"]
    assert nodes["attempt.fresh(0)"]["phase"] in ("Error", "Failed")


@full
def test_the_runner_has_time_for_a_save(cluster, library):
    name = train(library, "deadline-s=33", resolve=[how("fresh")])
    ended(library, name, "Succeeded")
    listed = cluster.read("pods", "-n", library.namespace, "-l", f"workflows.argoproj.io/workflow={name}")["items"]
    grace = {
        one["metadata"]["annotations"]["workflows.argoproj.io/node-name"].removeprefix(f"{name}."): one["spec"][
            "terminationGracePeriodSeconds"
        ]
        for one in listed
    }
    assert grace["attempt.fresh(0)"] == 93


@pytest.mark.parametrize("end", ["stop", "terminate"])
@full
def test_a_stop_runs_the_exit_hook_and_a_termination_none(cluster, library, pods, end):
    name = train(library, "deadline-s=1", resolve=[how("fresh")], run=[{"sleep": 600}])
    cluster.wait("the runner runs", lambda: any(one[:2] == ("fresh(0)", "Running") for one in library.nodes(name)))
    getattr(library, end)(name)
    library.wait(name, "Failed")
    hooks = [node for node in library.whole_nodes(name) if ".onExit" in node["name"] and node["type"] == "Pod"]
    assert [node["phase"] for node in hooks] == (["Succeeded"] if end == "stop" else [])
    if hooks:
        assert "Failed" in pods.log(library.pod_of(name, hooks[0]["displayName"]))


# A step that is no gang


MINE = """
import os, sys
sys.exit(0 if "try(%s)" in os.environ["NODE_NAME"] else 1)
"""


def mine(cluster, argo, succeeds_at, kind):
    path = {"fieldRef": {"fieldPath": "metadata.annotations['workflows.argoproj.io/node-name']"}}
    container = {
        "image": cluster.image,
        "command": ["python3", "-uc", MINE % succeeds_at],
        "env": [{"name": "NODE_NAME", "valueFrom": path}],
    }
    templates = [{"name": "work", "serviceAccountName": "rerail-reader", "container": container}]
    if kind == "dag":
        templates.append({"name": "around", "dag": {"tasks": [{"name": "inner", "template": "work"}]}})
    argo.submit(
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "WorkflowTemplate",
            "metadata": {"name": "mine"},
            "spec": {"templates": templates},
        }
    )
    return "around" if kind == "dag" else "work"


def assessing(argo, code, outcome="give-up"):
    """Let the played assessment end like this, and whoever gives up fail; no parameter could tell them."""
    act = {"code": code, "words": "node at fault", "write": {"outcome": outcome, "words": "w"}}
    told = {"name": "RERAIL_CONTROL", "value": json.dumps({"retry-assess": [act], "say": [1]})}
    patch = [{"op": "add", "path": f"/spec/templates/{at}/container/env/-", "value": told} for at in (2, 3)]
    place = ("workflowtemplate", RETRY, "-n", argo.namespace)
    argo.cluster.kubectl("patch", *place, "--type=json", "-p", json.dumps(patch))


@full
@pytest.mark.parametrize("kind", ["container", "dag"])
def test_a_step_on_a_sick_node_runs_again_on_another_one(cluster, library, kind):
    template = mine(cluster, library, 1, kind)
    assessing(library, 86)
    name = library.submit_template(RETRY, parameters=["template-name=mine", f"template={template}"])
    _, nodes = ended(library, name, "Succeeded")
    inner = ".inner" if kind == "dag" else ""
    assert phases(nodes, "try(0)", "try(0).assess", "try(1)", "try", "give-up") == [
        "Failed",
        "Failed",
        "Succeeded",
        "Succeeded",
        "Skipped",
    ]
    first, second = (nodes[f"try({number}).step{inner}"]["hostNodeName"] for number in (0, 1))
    if len(cluster.ready_nodes()) > 1:
        assert first != second


@full
def test_a_step_that_fails_by_itself_is_not_retried(cluster, library):
    mine(cluster, library, 9, "container")
    assessing(library, 0)
    name = library.submit_template(RETRY, parameters=["template-name=mine", "template=work"])
    _, nodes = ended(library, name, "Failed")
    assert phases(nodes, "try(0).step", "try(0).assess", "try(1)", "try", "give-up") == [
        "Failed",
        "Succeeded",
        None,
        "Succeeded",
        "Failed",
    ]


# Rights


def may(cluster, argo, account, verb, what):
    who = f"--as=system:serviceaccount:{argo.namespace}:{account}"
    kind, _, sub = what.partition("/")  # kubectl would take what follows the stroke for a name
    part = [f"--subresource={sub}"] if sub else []
    return cluster.kubectl("auth", "can-i", verb, kind, *part, "-n", argo.namespace, who, check=False).strip() == "yes"


NEEDED = {
    "rerail-launcher": [
        ("create", "workflows.argoproj.io"),
        ("get", "workflowtemplates.argoproj.io"),
        ("get", "pods/log"),
    ],
    "rerail-runner": [
        ("create", "jobs.batch.volcano.sh"),
        ("watch", "podgroups.scheduling.volcano.sh"),
        ("create", "commands.bus.volcano.sh"),
        ("deletecollection", "pods"),
        ("patch", "pods/status"),
        ("patch", "workflows.argoproj.io"),
        ("create", "events"),
        ("create", "workflowtaskresults.argoproj.io"),
    ],
    "rerail-pre-evict": [("create", "pods/eviction"), ("list", "pods")],
    "rerail-reaper": [("create", "commands.bus.volcano.sh"), ("get", "workflows.argoproj.io")],
    "rerail-node-keeper": [("get", "workflows.argoproj.io"), ("get", "deployments.apps"), ("create", "pods/eviction")],
    "rerail-reader": [("patch", "workflowtaskresults.argoproj.io")],
    "rerail-rank": [("patch", "workflowtaskresults.argoproj.io")],
}
NOBODYS = [
    ("get", "secrets"),
    ("create", "pods/exec"),
    ("delete", "namespaces"),
    ("update", "nodes"),
    ("create", "roles"),
]


@pytest.mark.parametrize("account", DUTIES)
def test_each_account_may_do_its_duty_and_nothing_of_others(cluster, library, account):
    for verb, what in NEEDED[account]:
        assert may(cluster, library, account, verb, what), (account, verb, what)
    for verb, what in NOBODYS:
        assert not may(cluster, library, account, verb, what), (account, verb, what)
    others = {one for name, needs in NEEDED.items() if name != account for one in needs} - set(NEEDED[account])
    if account in ("rerail-reader", "rerail-rank"):
        for verb, what in others - {("create", "workflowtaskresults.argoproj.io")}:
            assert not may(cluster, library, account, verb, what), (account, verb, what)
