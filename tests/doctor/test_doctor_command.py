"""`rerail doctor` on a sound cluster, and on one where each thing in turn is wrong."""

import re

import pytest
from typer.testing import CliRunner

from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.cli.main import build, main
from rerail.policies.errors import StoreRefusedError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def verdicts(found):
    return {check: {one["verdict"] for one in rows} for check, rows in found.items() if check != "exit"}


def test_a_sound_cluster_and_store_have_no_failure_and_no_warning(doctor, tmp_path):
    (tmp_path / "store").mkdir()
    found = doctor("--store", (tmp_path / "store").as_uri())
    assert found["exit"] == 0
    assert set(verdicts(found)) == {
        *("api-server", "clock", "volcano-crds", "argo-crds", "rights", "scheduler", "argo-version", "argo-requeue"),
        *("other-healers", "store", "pause"),
    }
    assert all(told == {"ok"} for told in verdicts(found).values()), found
    assert "v1.36.1" in found["api-server"][0]["found"]
    assert not list((tmp_path / "store").rglob("*.json")), "the proof leaves nothing"


def test_the_table_says_the_way_out_below(cluster):
    cluster.uninstall("bus.volcano.sh")
    done = CliRunner().invoke(build(["doctor"]), ["doctor"])
    assert done.exit_code == 1
    assert re.search(r"fail +volcano-crds +not served: commands.bus.volcano.sh\n +-> Volcano's CRDs", done.stdout)


def test_what_is_not_installed(cluster, doctor):
    for group in ("batch.volcano.sh", "bus.volcano.sh", "scheduling.volcano.sh", "argoproj.io"):
        cluster.uninstall(group)
    found = doctor()
    assert found["exit"] == 1
    assert found["volcano-crds"][0]["verdict"] == "fail"
    assert found["argo-crds"][0]["verdict"] == "warn", "runs go on without Argo"
    assert "scheduler" not in found


def test_rights_that_are_missing_are_named_with_the_command_that_gives_them(cluster, doctor):
    cluster.deny("create", "jobs")
    found = doctor("--namespace", "team", "--account", "runner")
    assert "create jobs.batch.volcano.sh in namespace 'team'" in found["rights"][0]["found"]
    assert "ServiceAccount team/runner may not" in found["rights"][0]["found"]
    assert "rerail rights --backend vcjob --namespace team --account runner" in found["rights"][0]["way_out"]
    asked = [body["spec"] for _, path, body in cluster.bodies if path.endswith("/subjectaccessreviews")]
    assert {one["user"] for one in asked} == {"system:serviceaccount:team:runner"}
    assert "system:serviceaccounts:team" in asked[0]["groups"]


def test_without_rights_on_nodes_it_works_and_is_warned_of(cluster, doctor):
    cluster.deny("patch", "nodes")
    found = doctor()
    assert (found["exit"], found["rights"][0]["verdict"]) == (0, "ok")
    assert "patch nodes" in found["rights-of-nodes"][0]["found"]


def test_what_may_not_be_looked_at_is_skipped_and_said(cluster, doctor):
    for plural in ("deployments", "daemonsets"):
        cluster.deny("list", plural)
    cluster.deny("get", "configmaps")
    found = doctor()
    for check in ("scheduler", "argo-version", "argo-requeue", "other-healers", "pause"):
        assert found[check][0]["verdict"] == "skipped", check
    assert found["exit"] == 0


def test_an_argo_that_is_older_is_known_by_its_crd_where_its_image_says_nothing(cluster, doctor):
    from_image = {"metadata": {"name": "workflow-controller", "namespace": "argo"}}
    containers = [{"name": "c", "image": "mirror.invalid/controller@sha256:00"}]
    cluster.put("deployments", {**from_image, "spec": {"template": {"spec": {"containers": containers}}}})
    assert doctor()["argo-version"][0]["verdict"] == "skipped"
    spec = {"properties": {"schedule": {}, "schedules": {}}}
    version = {"name": "v1alpha1", "schema": {"openAPIV3Schema": {"properties": {"spec": spec}}}}
    cluster.put(
        "customresourcedefinitions",
        {"metadata": {"name": "cronworkflows.argoproj.io"}, "spec": {"versions": [version]}},
    )
    found = doctor()
    assert (found["argo-version"][0]["verdict"], found["exit"]) == ("fail", 1)
    assert found["argo-requeue"][0]["verdict"] == "warn", "not set, which means 10 s"


def test_the_scheduler_of_a_file_is_judged_instead_of_the_clusters(doctor, tmp_path):
    conf = tmp_path / "scheduler.conf"
    conf.write_text("actions: enqueue, allocate, preempt\ntiers: [{plugins: [{name: gang}, {name: proportion}]}]\n")
    found = doctor("--scheduler-conf", str(conf))
    assert found["scheduler-enqueue"][0]["verdict"] == "fail"
    assert found["scheduler-gang-never-leaves"][0]["verdict"] == "warn"
    assert "--scheduler-conf" in found["scheduler-enqueue"][0]["way_out"]
    conf.write_text("actions: [")
    assert doctor("--scheduler-conf", str(conf))["scheduler"][0]["verdict"] == "fail"


def test_other_healers_are_named(cluster, doctor):
    cluster.answers.more_groups |= {"node.healing.tke.cloud.tencent.com"}
    cluster.put("daemonsets", {"metadata": {"name": "kured-x1", "namespace": "kube-system"}})
    found = doctor()
    words = " ".join(one["found"] for one in found["other-healers"])
    assert "Tencent TKE node healing is there (API group node.healing.tke.cloud.tencent.com)" in words
    assert "kured is there (kube-system/kured-x1)" in words
    assert found["exit"] == 0


def test_an_api_server_that_does_not_answer_ends_the_look_at_the_cluster(cluster, doctor, tmp_path):
    cluster.fail("GET", "/version", 503, times=99)
    found = doctor("--store", (tmp_path / "none").as_uri())
    assert verdicts(found) == {"api-server": {"fail"}, "store": {"fail"}}


def test_a_store_that_overwrites_fails(doctor, tmp_path, monkeypatch):
    def prove(_store):
        raise StoreRefusedError("it overwrote an existing document")

    monkeypatch.setattr(PosixStore, "prove", prove)
    found = doctor("--store", tmp_path.as_uri(), "--control", (tmp_path / "other").as_uri())
    assert found["store"][0]["verdict"] == "fail"
    assert "overwrote" in found["store"][0]["found"]
    assert "is not there" in found["control"][0]["found"]
    assert found["exit"] == 1


def test_without_anything_to_look_at_the_way_out_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("RERAIL_STORE", raising=False)
    with pytest.raises(SystemExit) as left:
        main(["doctor"])
    assert left.value.code == 2
    assert "look at a store alone: --store" in capsys.readouterr().err
