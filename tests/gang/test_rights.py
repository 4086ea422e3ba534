"""The rights are data: exactly what the backends ask for, and said in full before a run needs them."""

import pytest
import yaml
from typer.testing import CliRunner

from rerail.plugins.cli.main import build
from rerail.plugins.gang.rights import LOOK_AT_QUEUES, OF_BACKEND, refuse_missing
from rerail.plugins.kube.transport import Transport
from rerail.policies.errors import RefusedError, UsageError


@pytest.fixture
def asked(monkeypatch) -> set[tuple[str, str]]:
    """Verb and kind of every request to an API server."""
    found: set[tuple[str, str]] = set()
    for way in ("send", "stream"):
        inner = getattr(Transport, way)

        def record(self, call, *rest, inner=inner, **more):
            found.add((call.verb, call.resource.plural))
            return inner(self, call, *rest, **more)

        monkeypatch.setattr(Transport, way, record)
    return found


@pytest.mark.parametrize("kind", ["vcjob", "podgroup"])
def test_the_whole_life_of_a_gang_asks_for_exactly_these_rights(asked, make_rig, kind):
    rig = make_rig(kind)
    rig.run()
    rig.api.change(rig.plural, "team", "run-a1", lambda one: one["metadata"].update(annotations={}))
    make_rig(kind).backend.submit(rig.spec)  # adopts
    rig.backend.problems(rig.spec)
    rig.backend.end("run-a1", 3.0)
    for name in rig.names:
        rig.api.remove("pods", "team", name)
    rig.phase("Terminated")
    rig.until(lambda: rig.backend.end("run-a1", 3.0))
    wanted = {
        (verb, one.plural) for rights in (OF_BACKEND[kind], LOOK_AT_QUEUES) for one in rights for verb in rights[one]
    }
    assert asked == wanted


@pytest.mark.parametrize("kind", ["vcjob", "podgroup"])
def test_each_missing_right_is_named_before_the_run_begins(make_rig, kind):
    rig = make_rig(kind)
    api = rig.backend.watch.api
    refuse_missing(api, kind, guard_namespace=None)
    for resource, verbs in OF_BACKEND[kind].items():
        for verb in verbs:
            rig.api.denied.clear()
            rig.api.deny(verb, resource.plural)
            with pytest.raises(RefusedError) as caught:
                refuse_missing(api, kind, guard_namespace=None)
            rule = f'- apiGroups: ["{resource.group}"]\n  resources: ["{resource.plural}"]\n  verbs: ["{verb}"]'
            assert str(caught.value).endswith(f"a Role in namespace 'team':\n{rule}")
            assert f"rerail rights --backend {kind} --namespace team" in str(caught.value)


def test_what_is_missing_is_named_all_at_once_with_the_guards(make_rig):
    rig = make_rig("vcjob")
    for verb, plural in (("deletecollection", "pods"), ("create", "commands"), ("create", "configmaps")):
        rig.api.deny(verb, plural)
    with pytest.raises(RefusedError) as caught:
        refuse_missing(rig.backend.watch.api, "vcjob", guard_namespace="guards")
    words = str(caught.value)
    assert "create commands.bus.volcano.sh in namespace 'team'" in words
    assert "deletecollection pods in namespace 'team'" in words
    assert "create configmaps in namespace 'guards'" in words
    asked = [
        body["spec"]["resourceAttributes"]
        for _, path, body in rig.api.bodies
        if path.endswith("accessreviews") and body
    ]
    about = {(one["verb"], one.get("name")) for one in asked if one["resource"] == "configmaps"}
    assert about == {("get", "rerail-guard"), ("update", "rerail-guard"), ("create", None)}, "as its Role allows"
    rig.api.put("configmaps", {"metadata": {"name": "rerail-guard", "namespace": "guards"}})
    with pytest.raises(RefusedError) as caught:
        refuse_missing(rig.backend.watch.api, "vcjob", guard_namespace="guards")
    assert "configmaps" not in str(caught.value), "somebody else made it"


def test_an_api_server_that_does_not_tell_rights_is_no_reason_to_refuse(make_rig):
    rig = make_rig("vcjob")
    rig.api.deny("create", "selfsubjectaccessreviews")
    refuse_missing(rig.backend.watch.api, "vcjob", guard_namespace=None)


def test_the_command_prints_what_kubectl_takes():
    def printed(*options: str) -> list[dict]:
        done = CliRunner().invoke(build(["rights"]), ["rights", *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return list(yaml.safe_load_all(done.output))

    assert [one["kind"] for one in printed()] == ["Role", "Role", "Role", "ClusterRole"]
    bound = printed("--namespace", "team", "--account", "trainer", "--backend", "podgroup", "--guard-namespace", "ops")
    places = {(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")) for one in bound}
    assert places == {
        ("Role", "rerail-run", "team"),
        ("Role", "rerail-run-events", "default"),
        ("Role", "rerail-run-guard", "ops"),
        ("ClusterRole", "rerail-run", None),
        ("RoleBinding", "rerail-run", "team"),
        ("RoleBinding", "rerail-run-events-team-trainer", "default"),
        ("RoleBinding", "rerail-run-guard-team-trainer", "ops"),
        ("ClusterRoleBinding", "rerail-run-team-trainer", None),
    }
    assert {one["subjects"][0]["namespace"] for one in bound if "subjects" in one} == {"team"}
    assert any("services" in rule["resources"] for rule in bound[0]["rules"])
    with pytest.raises(UsageError, match="use one of: vcjob, podgroup"):
        printed("--backend", "local")
