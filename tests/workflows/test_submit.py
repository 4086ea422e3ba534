"""`rerail submit` against the fake API server of tests/kube."""

import importlib.util
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rerail.plugins.cli.main import build, main
from rerail.workflows import submission

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SUPPORT = Path(__file__).parents[1] / "kube" / "support" / "fake_api.py"
NAME = "rerail-train-v0-1"
SIMPLE = ("-p", "image=registry.invalid/train", "-p", "command=python train.py --steps 9", "--store", "s3://bucket/p")
JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: llama}
spec:
  queue: training
  tasks:
  - name: worker
    replicas: 2
    template:
      spec:
        containers: [{name: main, image: registry.invalid/train, command: [train]}]
"""


@pytest.fixture
def argo(library, tmp_path, monkeypatch):
    """An API server with the library's rerail-train; Argo itself is played by the tests."""
    name = "rerail_test_fake_api"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    fake = sys.modules[name]
    fake.KNOWN |= {
        "workflows": ("argoproj.io", "Workflow"),
        "workflowtemplates": ("argoproj.io", "WorkflowTemplate"),
    }
    api, stop = fake.serve()
    (tmp_path / "kubeconfig").write_text(fake.kubeconfig(api.url))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("RERAIL_STORE", raising=False)
    monkeypatch.setattr(submission, "_LOOK_EVERY_S", 0.01)
    template = json.loads(json.dumps(library[NAME]))
    api.put("workflowtemplates", {**template, "metadata": {**template["metadata"], "namespace": "team"}})
    yield api
    stop()


def rerail(*words, code=0, stdin=None):
    done = CliRunner().invoke(build(["submit"]), ["submit", *words], input=stdin)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def parameters(one):
    return {each["name"]: each["value"] for each in one["spec"]["arguments"]["parameters"]}


def test_a_workflow_of_the_template_is_created_with_what_was_given(argo):
    done = rerail(*SIMPLE, "--run", "mine", "-p", "replicas=4", "-o", "json")
    (made,) = argo.find("workflows")
    told = json.loads(done.stdout)
    assert told == {"workflow": made["metadata"]["name"], "namespace": "team", "uid": made["metadata"]["uid"]}
    assert made["metadata"]["name"].startswith("mine-")
    assert made["spec"]["workflowTemplateRef"] == {"name": NAME}
    assert parameters(made) == {
        "image": "registry.invalid/train",
        "command": "python train.py --steps 9",
        "store": "s3://bucket/p",
        "run": "mine",
        "replicas": "4",
    }


def test_a_manifest_is_handed_on_as_it_is_written(argo, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "policy.yaml").write_text("hold_s: 60\n")
    words = ("--store", "s3://bucket/p", "--name", "flow", "--account", "me", "--policy", str(tmp_path / "policy.yaml"))
    rerail(str(tmp_path / "job.yaml"), *words)
    (made,) = argo.find("workflows")
    assert made["metadata"]["name"] == "flow"
    assert made["spec"]["serviceAccountName"] == "me"
    assert parameters(made) == {"manifest": JOB, "policy": "hold_s: 60\n", "store": "s3://bucket/p"}
    rerail("-", "--store", "s3://bucket/p", stdin=JOB)
    assert len(argo.find("workflows")) == 2


def test_the_manifests_control_is_handed_on_also_where_a_store_is_given(argo, tmp_path):
    spec = {"image": "x", "command": ["train"], "replicas": 1, "store": "s3://bucket/p", "control": "s3://bucket/c"}
    whole = {"apiVersion": "rerail.dev/v1alpha1", "kind": "Run", "metadata": {"name": "llama"}, "spec": spec}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(whole))
    rerail(str(tmp_path / "run.yaml"), "--store", "s3://bucket/other")
    told = parameters(argo.find("workflows")[0])
    assert (told["store"], told["control"]) == ("s3://bucket/other", "s3://bucket/c")


def test_a_dry_run_asks_nobody_and_prints_what_kubectl_would_create(argo):
    done = rerail(*SIMPLE, "--dry-run", "--namespace", "other")
    body = yaml.safe_load(done.stdout)
    assert (body["kind"], body["metadata"]["namespace"]) == ("Workflow", "other")
    assert argo.requests == []


def phases(argo, *steps):
    """Play Argo: one phase after the other, each once the one before was seen."""

    def play():
        def change(one, status, metadata):
            one["status"] = status
            one["metadata"].setdefault("annotations", {}).update(metadata)

        for phase, nodes, annotations in steps:
            seen = argo.asked("GET", "/workflows/flow")
            while argo.asked("GET", "/workflows/flow") < seen + 2 and not argo.stopping:
                threading.Event().wait(0.005)
            status = {"phase": phase, "nodes": {str(at): node for at, node in enumerate(nodes)}}
            argo.change("workflows", "team", "flow", lambda one, told=(status, annotations): change(one, *told))

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    return thread


RUN = {"type": "Pod", "displayName": "fresh", "phase": "Failed", "message": "xid-79 on node-0"}


def test_it_waits_for_the_end_and_tells_what_happens_once(argo):
    steps = [
        ("Running", [], {}),
        ("Running", [RUN], {}),
        ("Failed", [RUN], {"rerail.dev/reason": "run mine: 3 attempts committed nothing new"}),
    ]
    thread = phases(argo, *steps)
    argo.fail("GET", "/workflows/flow", 503, times=1)
    done = rerail(*SIMPLE, "--name", "flow", "--wait", "-o", "json", code=1)
    thread.join(10)
    told = json.loads(done.stdout)
    assert (told["phase"], told["reason"]) == ("Failed", "run mine: 3 attempts committed nothing new")
    lines = done.stderr.splitlines()
    assert lines.count("fresh: Failed: xid-79 on node-0") == 1
    assert "workflow is Running" in lines


def test_where_nobody_gave_up_the_reason_is_that_of_the_pod_that_failed_last():
    def pod(message, at, phase="Failed"):
        return {"type": "Pod", "phase": phase, "message": message, "finishedAt": at}

    nodes = {
        "a": pod("handed over", "2026-01-01T00:00:01Z"),
        "b": pod("Bad input: parameter replicas", "2026-01-01T00:00:09Z"),
        "c": pod("late", "2026-01-01T00:00:10Z", "Succeeded"),
        "d": {**pod("child failed", "2026-01-01T00:00:11Z"), "type": "Retry"},
    }
    found = {"metadata": {}, "status": {"phase": "Failed", "nodes": nodes}}
    assert submission.reason_of(found) == "Bad input: parameter replicas"
    found["status"]["message"] = "Stopped with strategy 'Stop'"
    assert submission.reason_of(found) == "Stopped with strategy 'Stop'"
    found["metadata"]["annotations"] = {"rerail.dev/reason": "run r: no progress"}
    assert submission.reason_of(found) == "run r: no progress"
    assert submission.reason_of({"metadata": {}}) == ""


def test_it_waits_for_success(argo):
    thread = phases(argo, ("Succeeded", [], {}))
    done = rerail(*SIMPLE, "--name", "flow", "--wait", "-o", "json")
    thread.join(10)
    assert json.loads(done.stdout)["phase"] == "Succeeded"


def test_an_interrupt_leaves_the_workflow_running(argo):
    def interrupt(method, path):
        if method == "GET" and path.endswith("/workflows/flow"):
            argo.hooks.clear()
            os.kill(os.getpid(), signal.SIGINT)

    argo.hooks.append(interrupt)
    done = rerail(*SIMPLE, "--name", "flow", "--wait", code=130)
    assert "goes on without this command" in done.stderr
    assert len(argo.find("workflows")) == 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((*SIMPLE, "-p", "replica=4"), 2, "no parameter 'replica'; did you mean 'replicas'?"),
        ((*SIMPLE, "-p", "replicas=many"), 2, "parameter replicas = 'many': a whole number from 1"),
        ((*SIMPLE, "-p", "max-attempts=500"), 2, "parameter max-attempts = '500': a whole number from 1 to 80"),
        ((*SIMPLE, "-p", "backend=slurm"), 2, "takes one of vcjob, podgroup"),
        ((*SIMPLE, "-p", "policy=hold: 3"), 2, "unknown field 'hold'"),
        ((*SIMPLE, "-p", "queue={{x}}"), 2, "which Argo reads as a tag"),
        ((*SIMPLE, "-p", "queue"), 2, "is not NAME=VALUE"),
        ((*SIMPLE, "-p", "image=x"), 2, "--param image is given twice"),
        ((*SIMPLE, "--run", "x", "-p", "run=y"), 2, "--run and --param run say the same"),
        ((*SIMPLE, "--run", "No Name"), 2, "run name 'No Name' is not usable"),
        ((*SIMPLE, "-p", f"manifest={JOB}"), 2, "stands beside a manifest"),
        ((*SIMPLE[4:], "-p", f"manifest={JOB}", "-p", "replicas=4"), 2, "--param replicas=4 stands beside a manifest"),
        *(((*SIMPLE[:4], "--store", url), 2, f"store address '{url}'") for url in ("hello", "s3://", "gs://bucket")),
        *(
            ((*SIMPLE, "-p", f"{name}={value}"), 2, f"parameter {name} = '{value}'")
            for name, value in (
                ("queue", "../x"),
                ("priority-class", "Ä"),
                ("guard-namespace", "A B"),
                ("store-secret", "a b"),
                ("store-secret", ""),
                ("rerail-image", ""),
            )
        ),
        ((*SIMPLE[2:], "-p", "image=a b"), 2, "parameter image = 'a b'"),
        (("--store", "s3://bucket/p"), 2, "nothing to run: give a manifest FILE"),
        (SIMPLE[:4], 2, "needs store: pass --param store=VALUE"),
        ((*SIMPLE, "--template", "rerail-train-v9-9"), 4, f"there are {NAME}: name one with --template"),
        (("none.yaml", "--store", "s3://bucket/p"), 2, "none.yaml"),
    ],
)
def test_bad_input_is_named_and_nothing_is_created(argo, words, code, told, capsys):
    with pytest.raises(SystemExit) as left:
        main(["submit", *words])
    assert left.value.code == code
    assert told in capsys.readouterr().err
    assert argo.find("workflows") == []


def test_a_template_that_is_gone_says_how_it_comes(argo, capsys):
    argo.remove("workflowtemplates", "team", NAME)
    with pytest.raises(SystemExit) as left:
        main(["submit", *SIMPLE])
    assert left.value.code == 4
    assert "rerail render --namespace team | kubectl apply -n team -f -" in capsys.readouterr().err


def test_a_cluster_without_argo_says_so(argo, capsys):
    argo.uninstall("argoproj.io")
    with pytest.raises(SystemExit) as left:
        main(["submit", *SIMPLE])
    assert left.value.code == 4
    assert "Argo Workflows's CRDs are not installed" in capsys.readouterr().err
