"""The rig's Argo is the real one: steps from our image, results, artifacts, and what its users take for granted."""

import signal
import urllib.error
import urllib.request

import pytest
from rig.argo import Node, RefusedError, start_argo, stop_argo
from rig.argo_control import ADDRESS
from rig.gangs import full

NOBODY = {
    "runAsUser": 65534,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
CSP = "sandbox allow-same-origin; base-uri 'none'; default-src 'none'; img-src 'self'; style-src 'self' 'unsafe-inline'"


def step(name, image, code, **fields):
    """A template that runs Python code as nobody, on a root that cannot be written."""
    container = {
        "image": image,
        "command": ["python3", "-uc", code],
        "securityContext": NOBODY,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {"name": name, "container": container, "volumes": [{"name": "tmp", "emptyDir": {}}], **fields}


def workflow(*templates, entrypoint, **spec):
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "smoke-"},
        "spec": {
            "entrypoint": entrypoint,
            "podSpecPatch": "terminationGracePeriodSeconds: 1",
            "templates": list(templates),
            **spec,
        },
    }


MAKE = """
import pathlib
pathlib.Path("/tmp/word").write_text("from {{inputs.parameters.who}}")
pathlib.Path("/tmp/report.html").write_text("<p>ended at step 60</p>")
"""


def pages(image):
    """A template: one step makes a word and a page, another one reads the word, a third one runs our command."""
    who, word = {"name": "who"}, {"name": "word"}
    outputs = {
        "parameters": [{"name": "word", "valueFrom": {"path": "/tmp/word", "default": ""}}],
        "artifacts": [{"name": "report", "path": "/tmp/report.html", "archive": {"none": {}}}],
    }
    outputs["artifacts"][0]["s3"] = {"key": "argo/{{workflow.namespace}}/{{workflow.name}}/report.html"}
    make = step("make", image, MAKE, inputs={"parameters": [who]}, outputs=outputs)
    read = step("read", image, "print('read: {{inputs.parameters.word}}')", inputs={"parameters": [word]})
    ours = step("ours", image, "")
    ours["container"] |= {"command": ["rerail"], "args": ["--help"]}
    given = {"name": "who", "value": "{{inputs.parameters.who}}"}
    made = {"name": "word", "value": "{{tasks.make.outputs.parameters.word}}"}
    tasks = [
        {"name": "make", "template": "make", "arguments": {"parameters": [given]}},
        {"name": "read", "template": "read", "depends": "make.Succeeded", "arguments": {"parameters": [made]}},
        {"name": "ours", "template": "ours"},
    ]
    main = {"name": "main", "inputs": {"parameters": [who]}, "dag": {"tasks": tasks}}
    document = workflow(main, make, read, ours, entrypoint="main", arguments={"parameters": [{**who, "value": "a"}]})
    return document | {"kind": "WorkflowTemplate", "metadata": {"name": "pages"}}


def test_a_dag_passes_a_word_and_its_page_opens_as_argo_serves_it(cluster, argo, pods):
    argo.submit(pages(cluster.image))
    name = argo.submit_template("pages", parameters=["who=the form"], labels="rerail.test=yes")
    ended = argo.wait(name, "Succeeded")

    assert ended["metadata"]["labels"]["rerail.test"] == "yes"
    assert ended["status"]["progress"] == "3/3"
    assert {node[:2] for node in argo.nodes(name)} >= {(task, "Succeeded") for task in ("make", "read", "ours")}
    assert "read: from the form" in pods.log(argo.pod_of(name, "read"))
    assert "Usage: rerail" in pods.log(argo.pod_of(name, "ours"))
    page = argo.artifact(name, argo.node(name, "make")["id"], "report")
    assert page.body == b"<p>ended at step 60</p>"
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"] == CSP


def test_the_server_refuses_who_has_no_token_and_what_the_user_may_not(argo):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        opener.open(f"{ADDRESS}/api/v1/workflows/{argo.namespace}", timeout=10)
    refused.value.close()
    with pytest.raises(RefusedError) as elsewhere:
        argo.call("GET", "/api/v1/workflows/default")
    assert elsewhere.value.code == 403


def test_a_workflow_that_is_wrong_is_refused_with_the_reason(cluster, argo):
    wrong = workflow(step("work", cluster.image, ""), entrypoint="nowhere")
    with pytest.raises(RefusedError, match="nowhere") as refused:
        argo.submit(wrong)
    assert refused.value.code == 400


@pytest.mark.alone
def test_a_controller_that_is_killed_loses_nothing_and_doubles_nothing(cluster, argo):
    first = step("first", cluster.image, "import time; time.sleep(30); open('/tmp/word', 'w').write('kept')")
    first["outputs"] = {"parameters": [{"name": "word", "valueFrom": {"path": "/tmp/word"}}]}
    second = step("second", cluster.image, "", inputs={"parameters": [{"name": "word"}]})
    made = {"name": "word", "value": "{{tasks.first.outputs.parameters.word}}"}
    tasks = [
        {"name": "first", "template": "first"},
        {"name": "second", "template": "second", "depends": "first", "arguments": {"parameters": [made]}},
    ]
    name = argo.submit(workflow({"name": "main", "dag": {"tasks": tasks}}, first, second, entrypoint="main"))
    cluster.wait("the first step runs", lambda: Node("first", "Running", "") in argo.nodes(name))
    pod = argo.pod_of(name, "first")

    def finished():
        return cluster.read("pod", pod, "-n", argo.namespace)["status"]["phase"] == "Succeeded"

    stop_argo(signal.SIGKILL)
    try:
        cluster.wait("the first step ends without Argo", finished)
        assert argo.node(name, "first")["phase"] == "Running"
    finally:
        start_argo()
    argo.wait(name, "Succeeded")

    assert [node[:2] for node in argo.nodes(name)][1:] == [("first", "Succeeded"), ("second", "Succeeded")]
    assert argo.node(name, "second")["inputs"]["parameters"] == [{"name": "word", "value": "kept"}]
    assert len(cluster.read("pods", "-n", argo.namespace)["items"]) == 2


@full
def test_a_pod_that_is_deleted_by_force_is_retried(cluster, argo):
    code = "import sys, time; sys.exit() if '{{retries}}' != '0' else time.sleep(600)"
    infrastructure = {
        "limit": "2",
        "retryPolicy": "Always",
        "expression": "lastRetry.status == 'Error' || lastRetry.exitCode in ['-1', '64', '137', '143']",
    }
    name = argo.submit(workflow(step("work", cluster.image, code, retryStrategy=infrastructure), entrypoint="work"))
    cluster.wait("the step runs", lambda: any(node[1:] == ("Running", "") for node in argo.nodes(name)[1:]))
    lost = argo.pod_of(name, f"{name}(0)")
    cluster.kubectl("delete", "pod", lost, "-n", argo.namespace, "--force", "--grace-period=0", "--wait=false")
    argo.wait(name, "Succeeded")

    assert argo.node(name, f"{name}(0)")["phase"] in {"Error", "Failed"}
    assert argo.node(name, f"{name}(1)")["phase"] == "Succeeded"


@full
@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_a_workflow_that_is_ended_by_a_person_ends_its_pods(cluster, argo, how):
    work, after = step("work", cluster.image, "import time; time.sleep(600)"), step("after", cluster.image, "")
    document = workflow(work, after, entrypoint="work", hooks={"exit": {"template": "after"}})
    name = argo.submit(document)
    cluster.wait("the step runs", lambda: argo.nodes(name) == [Node(name, "Running", "")])
    getattr(argo, how)(name)
    ended = argo.wait(name, "Failed")

    assert ended["spec"]["shutdown"] == how.capitalize()
    hooks = [node for node in argo.nodes(name) if node.name.endswith(".onExit")]
    assert [node.phase for node in hooks] == (["Succeeded"] if how == "stop" else [])
