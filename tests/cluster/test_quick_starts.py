"""The README's quick starts with Argo, done as it says by somebody new: from Argo's page, from Git, from Python.

Replaced is only what names things of a user's own: namespace, images, store, and the size and queue of the gang.
"""

import json
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from rig import newcomer, readme
from rig.access import Cluster
from rig.argo import Argo
from rig.gangs import full
from rig.layout import CHECKOUT

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.drill.identical import final_commit
from rerail.workflows.rbac import DUTIES

pytestmark = full

EXAMPLES = CHECKOUT / "examples"
SECTION = readme.section("Recovery as Argo templates")
ONCE, REST = SECTION.split("**From Argo's page.**")
PAGE, REST = REST.split("**From Git.**")
GIT, PYTHON = REST.split("**From Python**")
TRAIN = "rerail-train-v0-1"


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    """Somebody's own code, and rerail."""
    if cluster.volcano == "none" or not cluster.ours:
        pytest.skip("needs the nodes of our own cluster, with Volcano")
    return newcomer.load(cluster)


@dataclass
class Newcomer:
    """Somebody who reads the README.

    Attributes:
        instead: What is theirs, by what stands in the README for it.
        folder: Where they type.
    """

    argo: Argo
    image: str
    store: str
    folder: Path
    instead: dict[str, str] = field(default_factory=dict)

    def types(self, command: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Type a command as it stands in the README."""
        return readme.typed(command, self.instead, self.folder, code=code)

    def installs(self, *, library: bool = True) -> None:
        """What is done once per namespace; from Git the library comes otherwise."""
        render, secret, _ = readme.commands(ONCE)
        if library:
            assert self.types(render).stdout.count("created") > len(DUTIES)
        assert "secret/rerail-store created" in self.types(secret).stdout

    def asks_the_doctor(self) -> None:
        """Nothing fails, and all that the templates need is there."""
        *_, doctor = readme.commands(ONCE)
        told = self.types(doctor).stdout
        for check in ("rights", "store", "argo-crds", "volcano-crds", "clock"):
            assert re.search(rf"^ok +{check} ", told, re.MULTILINE), told
        assert "rights-of-nodes" not in told, told

    def ended(self, workflow: str, run: str = "") -> list[str]:
        """Wait for a workflow's good end; returns its nodes that ran."""
        self.argo.wait(workflow, "Succeeded", deadline_s=240)
        if run:
            assert final_commit(open_run(run, store=self.store)) is not None
        return [node.name for node in self.argo.nodes(workflow) if node.phase == "Succeeded"]


@pytest.fixture
def new(cluster: Cluster, argo: Argo, image: str, s3: None, tmp_path: Path) -> Iterator[Newcomer]:
    assert s3 is None
    store = f"s3://{cluster.bucket}/{argo.namespace}"
    literals = " ".join(f"--from-literal={name}={shlex.quote(value)}" for name, value in cluster.s3_env.items())
    yield Newcomer(
        argo,
        image,
        store,
        tmp_path,
        {
            "-n team": f"-n {argo.namespace}",
            "registry.example/rerail:0.1.0": cluster.image,
            "registry.example/llama:1": image,
            "s3://checkpoints/runs": store,
            "--from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=...": literals,
        },
    )
    made = cluster.kubectl("get", "clusterrolebindings", "-o", "name").split()
    for binding in made:
        if binding.endswith(f"-{argo.namespace}"):
            cluster.kubectl("delete", binding, "--wait=false")


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[str]:
    """A queue of one's own, where the examples name one."""
    name = f"rerail-quick-{secrets.token_hex(3)}"
    body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": {}}
    cluster.kubectl("create", "-f", "-", document=body)
    cluster.wait(
        "the queue is open", lambda: cluster.read("queue", name).get("status", {}).get("state") == "Open"
    )  # fmt: skip
    yield name
    cluster.kubectl("delete", "queue", name, "--wait=false")


def form(argo: Argo) -> Mapping[str, Mapping[str, object]]:
    """The fields of the submit form by name, as the server gives them to the page."""
    answer = argo.call("GET", f"/api/v1/workflow-templates/{argo.namespace}/{TRAIN}")
    template = json.loads(answer.body)
    annotations = template["metadata"]["annotations"]
    title = annotations["workflows.argoproj.io/title"]
    assert title in PAGE, "by this title the README tells to find it"
    assert annotations["workflows.argoproj.io/description"]
    return {one["name"]: one for one in template["spec"]["arguments"]["parameters"]}


def test_from_argos_page(new: Newcomer):
    new.installs()
    (nodes,) = re.findall(r"`(rerail render -n team --nodes)`", ONCE)
    new.types(f"{nodes} | kubectl apply -f -")
    new.asks_the_doctor()
    fields = form(new.argo)
    for name, one in fields.items():
        assert str(one.get("description", "")).endswith("."), f"{name} does not explain itself"
    assert [name for name, one in fields.items() if "value" not in one] == ["store"], "all but the store have a value"
    told = re.findall(r"`([a-z-]+)`", PAGE.split("fill in")[1].split("or paste")[0])
    assert told == ["store", "image", "command", "replicas", "gpus-per-replica"]
    given = (new.store, new.image, "python train.py", "2", "0")
    chosen = [f"{name}={value}" for name, value in zip(told, given, strict=True)]
    name = new.argo.submit_template(TRAIN, parameters=chosen)
    steps = new.ended(name, run=name)
    shown = [step for step in steps if "(" not in step and not step.endswith(".onExit")]
    assert shown == [name, "resolve", "attempt", "fresh", "report"]
    assert new.argo.node(name, "fresh(0)")["progress"] == "20/20"
    page = new.argo.artifact(name, new.argo.node(name, "report(0)")["id"], "report")
    assert b"<svg" in page.body


def test_the_same_without_a_page(new: Newcomer):
    new.installs()
    (command,) = readme.commands(PAGE)
    small = command.replace("-p replicas=4", "-p replicas=2 -p gpus-per-replica=0")
    assert small != command
    told = new.types(f"{small} --output json").stdout
    name = json.loads(told)["workflow"]
    assert "fresh" in new.ended(name, run=name)


def test_from_git(new: Newcomer, queue: str):
    write, check, apply, submit = readme.commands(GIT)
    new.installs(library=False)
    run = yaml.safe_load(readme.block(readme.section("Gangs in a cluster"), "yaml"))
    run["spec"] |= {"image": new.image, "replicas": 2, "gpusPerReplica": 0, "queue": queue, "store": new.store}
    assert run["spec"]["envFrom"] == [{"secretRef": {"name": "rerail-store"}}], "the Secret that the README makes"
    (new.folder / "train.yaml").write_text(yaml.safe_dump(run))
    new.types(write)
    new.types(check)
    new.types(apply)
    told = new.types(submit)
    assert "fresh(0): Succeeded" in told.stderr
    assert final_commit(open_run(run["metadata"]["name"], store=new.store)) is not None

    template = new.folder / f"rerail/base/templates/{TRAIN}.yaml"
    template.write_text(template.read_text().replace("serviceAccountName: rerail-runner", "serviceAccountName: mine"))
    assert "+  serviceAccountName: rerail-runner" in new.types(check, code=1).stdout
    new.types(write)
    new.types(check)


def test_from_python(new: Newcomer, queue: str):
    new.installs()
    text = (EXAMPLES / "02-sdk/pipeline.py").read_text()
    sizes = {"replicas=4": "replicas=2", "gpus_per_replica=8": "gpus_per_replica=0", '"default"': f'"{queue}"'}
    for old, mine in {**new.instead, **sizes}.items():
        text = text.replace(old, mine)
    assert all(mine in text for mine in sizes.values())
    (new.folder / "pipeline.py").write_text(text)
    *_, command = readme.commands((EXAMPLES / "02-sdk/README.md").read_text())
    told = new.types(f"{command.partition('#')[0]} -o name").stdout
    name = told.strip().partition("/")[2]
    steps = new.ended(name)
    for step in ("prepare", "resolve", "fresh", "report", "score", "step"):
        assert step in steps, steps
    pod = new.argo.pod_of(name, "step")
    said = new.argo.cluster.kubectl("logs", pod, "-n", new.argo.namespace, "-c", "main")
    assert f"evaluated {name} of {new.store}" in said
