"""Rights: one account for each duty, and of them only what its code is known to use."""

import pytest
import yaml

from rerail.plugins.gang.rights import WITH_GROUPS, WITH_JOBS
from rerail.plugins.nodes.rights import LOOK_AND_MARK
from rerail.workflows.rbac import DUTIES, IN_CLUSTER, IN_NAMESPACE, accounts, cluster_rights, united

DOCUMENTS = [*accounts(), *cluster_rights()]


def rules_of(kind, name):
    (found,) = [one for one in DOCUMENTS if one["kind"] == kind and one["metadata"]["name"] == name]
    return found["rules"]


def allowed(kind, name):
    """(group, resource, verb) of every rule."""
    return {
        (group, resource, verb)
        for rule in rules_of(kind, name)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("account", DUTIES)
def test_each_duty_has_an_account_a_role_and_a_binding(account):
    kinds = [one["kind"] for one in DOCUMENTS if one["metadata"]["name"] == account]
    assert kinds[:3] == ["ServiceAccount", "Role", "RoleBinding"]
    assert (kinds[3:] == ["ClusterRole", "ClusterRoleBinding"]) is (account in IN_CLUSTER)


@pytest.mark.parametrize("account", sorted(set(DUTIES) - {"rerail-launcher"}))
def test_each_pod_may_tell_the_controller_its_outputs(account):
    results = {("argoproj.io", "workflowtaskresults", verb) for verb in ("create", "patch")}
    assert results <= allowed("Role", account)


def test_nobody_may_do_everything_read_secrets_or_change_rights():
    for one in DOCUMENTS:
        for rule in one.get("rules", []):
            assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
            assert not {"secrets", "roles", "rolebindings", "serviceaccounts"} & set(rule["resources"])


def test_only_the_runner_the_reaper_and_nobody_else_make_gangs():
    makers = {account for account in DUTIES if ("batch.volcano.sh", "jobs", "create") in allowed("Role", account)}
    assert makers == {"rerail-runner", "rerail-reaper"}


def test_only_who_supervises_gangs_or_keeps_nodes_changes_them():
    changers = {name for name in IN_CLUSTER if ("", "nodes", "patch") in allowed("ClusterRole", name)}
    assert changers == {"rerail-runner", "rerail-reaper", "rerail-node-keeper"}


def test_the_reader_may_do_nothing_else():
    assert allowed("Role", "rerail-reader") == {
        ("argoproj.io", "workflowtaskresults", "create"),
        ("argoproj.io", "workflowtaskresults", "patch"),
    }


def test_the_runner_may_do_what_both_backends_need():
    mine = allowed("Role", "rerail-runner")
    for rights in (WITH_JOBS, WITH_GROUPS):
        for kind, verbs in rights.items():
            assert {(kind.group, kind.plural, verb) for verb in verbs} <= mine
    nodes = {("", "nodes", verb) for verbs in LOOK_AND_MARK.values() for verb in verbs}
    assert nodes <= allowed("ClusterRole", "rerail-runner")


def test_the_guard_is_bound_to_its_name():
    for account in ("rerail-runner", "rerail-reaper", "rerail-node-keeper"):
        rules = [rule for rule in rules_of("Role", account) if rule["resources"] == ["configmaps"]]
        assert {tuple(rule["verbs"]): rule.get("resourceNames") for rule in rules} == {
            ("get", "update"): ["rerail-guard"],
            ("create",): None,
        }


def test_rights_are_united_by_kind_and_each_verb_stands_once():
    for verbs in [*IN_NAMESPACE.values(), *IN_CLUSTER.values(), united(WITH_JOBS, WITH_JOBS)]:
        for allowed_verbs in verbs.values():
            assert len(set(allowed_verbs)) == len(allowed_verbs)


def test_no_namespace_stands_in_the_base_or_kustomize_would_leave_it():
    assert "namespace" not in yaml.safe_dump(DOCUMENTS)
