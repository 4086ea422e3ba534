"""Rules that every template keeps: each is a trap of Argo 4.0.5 or of Hera, told in the notes on them."""

import re

from argo_documents import depended_on, inputs_of, leaves, outputs_of, references, spec_of, tasks_of

ONLY_SAY = {"give-up"}
"""Steps that only fail with a reason: the message of a Retry node would be Argo's own, not theirs."""

THE_USERS = {"rank"}
"""Pods of ranks: as the user would have them without Argo, and never tried again."""

GLOBALS = {"workflow.name", "workflow.uid", "workflow.namespace", "workflow.status"}


def test_each_container_has_a_command_or_the_controller_would_ask_the_registry(templates):
    for owner, template in templates:
        if "container" in template:
            assert template["container"]["command"], (owner, template["name"])


def test_each_step_runs_rerail_and_holds_no_source(templates):
    for owner, template in templates:
        if "container" in template and template["name"] not in {"verify", *THE_USERS}:
            assert template["container"]["command"] == ["rerail"], (owner, template["name"])
        assert "script" not in template
        assert len(str(template)) < 20_000


def test_each_retry_has_a_limit_and_no_policy_that_its_expression_contradicts(templates):
    for owner, template in templates:
        retry = template.get("retryStrategy")
        if "container" in template:
            assert bool(retry) is (template["name"] not in ONLY_SAY | THE_USERS), (owner, template["name"])
        if retry:
            assert retry["limit"], (owner, template["name"])
            assert retry["retryPolicy"] == "Always"
            assert retry["backoff"]["duration"]


def test_a_step_that_ends_with_a_code_of_its_own_is_not_tried_again(templates):
    for _, template in templates:
        if "container" in template and template["name"] not in ONLY_SAY | THE_USERS:
            codes = re.findall(r"'(-?\d+)'", template["retryStrategy"]["expression"])
            assert set(codes) == {"-1", "64", "137", "143"}


def test_each_output_has_a_default_or_a_lost_pod_would_be_waited_for_without_end(templates):
    for owner, template in templates:
        for name, output in outputs_of(template).items():
            supplied = "supplied" in output["valueFrom"]
            fallback = inputs_of(template)[name]["default"] if supplied else output["valueFrom"]["default"]
            assert fallback is not None, (owner, template["name"], name)


def test_what_a_condition_compares_is_quoted(templates):
    for owner, template in templates:
        for task in tasks_of(template):
            if "when" in task:
                parts = re.split(r"\s*(?:==|!=|&&|\|\|)\s*", task["when"])
                assert all(re.fullmatch(r"'[^']*'", part) for part in parts), (owner, task["when"])


def test_no_dag_ends_all_its_children_with_the_first_that_fails(templates):
    for owner, template in templates:
        if "dag" in template:
            assert template["failFast"] is False, (owner, template["name"])
            assert template["dag"]["failFast"] is False


def test_only_inputs_reach_a_template(templates):
    for owner, template in templates:
        outputs = {f"tasks.{task['name']}.{kind}" for task in tasks_of(template) for kind in ("id", "status")}
        for found in references(template):
            if found in GLOBALS | outputs | ({"item"} if "withSequence" in str(template) else set()):
                continue
            known = re.fullmatch(
                r"inputs\.parameters\.([a-z-]+)|asInt\(inputs\.parameters\['([a-z-]+)'\]\)(?: \+ \d+)?", found
            )
            if known:
                assert (known[1] or known[2]) in inputs_of(template), (owner, template["name"], found)
            else:
                assert re.fullmatch(r"tasks\.[a-z-]+\.outputs\.parameters\.[a-z-]+", found), (
                    owner,
                    template["name"],
                    found,
                )


def test_what_a_form_says_is_not_put_into_a_patch_as_it_is(templates):
    """Text could end its quotes and add fields to a pod; only what a step wrote is JSON, or a name of ours."""
    of_steps = {"priority-class", "grace-s", "affinity", "command", "resources", "gang", "index"}
    for owner, template in templates:
        for found in references(template.get("podSpecPatch", "")):
            plain = re.fullmatch(r"inputs\.parameters\.([a-z-]+)", found)
            assert plain is None or (template["name"] == "rank" and plain[1] in of_steps), (owner, found)


def test_outputs_of_tasks_are_there_and_their_task_is_waited_for(templates):
    by_name = {(owner, template["name"]): template for owner, template in templates}
    for owner, template in templates:
        tasks = {task["name"]: task for task in tasks_of(template)}
        for task in tasks.values():
            for name, output in re.findall(r"\{\{tasks\.([a-z-]+)\.outputs\.parameters\.([a-z-]+)\}\}", str(task)):
                assert name in depended_on(task), (owner, task["name"], name)
                assert output in outputs_of(by_name[owner, tasks[name]["template"]]), (owner, name, output)


def test_what_hangs_on_outputs_runs_only_where_they_were_reported(templates):
    """A Failed or Errored task may have reported none, and a reference to them is waited for without end."""
    for owner, template in templates:
        for task in tasks_of(template):
            for name in set(re.findall(r"\{\{tasks\.([a-z-]+)\.outputs", str(task))):
                results = set(re.findall(rf"\b{name}\b(?:\.(\w+))?", task["depends"]))
                alone = task["depends"].startswith(f"{name}.Succeeded && ")
                assert alone or results <= {"Succeeded", "Skipped", ""}, (owner, task["name"], task["depends"])


def test_each_task_gives_what_its_template_needs_and_nothing_else(templates):
    by_name = {(owner, template["name"]): template for owner, template in templates}
    for owner, template in templates:
        for task in tasks_of(template):
            if "template" not in task:
                continue
            wanted = inputs_of(by_name[owner, task["template"]])
            given = {one["name"] for one in (task.get("arguments") or {}).get("parameters") or []}
            needed = {name for name, one in wanted.items() if "default" not in one and "value" not in one}
            assert given <= set(wanted), (owner, task["name"], given - set(wanted))
            assert needed <= given, (owner, task["name"], needed - given)


def test_the_form_offers_what_the_entrypoint_takes_and_explains_it(library):
    for name, document in library.items():
        spec = spec_of(document)
        entry = next(one for one in spec["templates"] if one["name"] == spec["entrypoint"])
        arguments = {one["name"]: one for one in spec["arguments"]["parameters"]}
        assert set(arguments) == set(inputs_of(entry)), name
        for one in arguments.values():
            assert one["description"].endswith((".", ")")), (name, one)
            assert "enum" not in one or one["value"] in one["enum"]
            assert inputs_of(entry)[one["name"]].get("default") == one.get("value"), (name, one["name"])


def test_objects_say_what_they_are(library):
    for name, document in library.items():
        annotations = document["metadata"]["annotations"]
        for key in ("title", "description", "maintainer", "tags"):
            assert annotations[f"workflows.argoproj.io/{key}"], name
        assert re.fullmatch(r"rerail-[a-z-]+-v\d+-\d+", name)
        assert document["metadata"]["labels"]["app.kubernetes.io/version"] == "0.1.0"


def test_pods_are_locked_down_and_each_has_an_account_of_ours(library, templates):
    from rerail.workflows.rbac import DUTIES

    for owner, template in templates:
        if "container" not in template:
            continue
        assert template["serviceAccountName"] in DUTIES, (owner, template["name"])
        if template["name"] in THE_USERS:
            continue
        security = template["container"]["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        if template["name"] != "verify":
            assert security["readOnlyRootFilesystem"] is True
            assert security["runAsNonRoot"] is True
    assert all(spec_of(document)["serviceAccountName"] in DUTIES for document in library.values())


def test_an_image_of_the_users_gets_no_right_but_to_tell_its_outputs(templates):
    for owner, template in templates:
        if "container" in template and template["container"]["command"] != ["rerail"]:
            assert template["serviceAccountName"] in ("rerail-reader", "rerail-rank"), (owner, template["name"])


def test_no_secret_and_no_registry_stands_in_a_template(library):
    for document in library.values():
        for found in re.findall(r"[\w.-]+/[\w./-]+:[\w.-]+", str(document)):
            assert not found.startswith(("docker.", "ghcr.", "quay.")), found
        assert not re.search(r"(?i)(secret|password|token)_?(access_?)?key['\"]?: ['\"]?\w{8}", str(document))


def test_a_failed_attempt_fails_the_workflow_although_a_report_was_written(library):
    """Argo's verdict is that of the leaves, or of the targets where they are named; the report is the only leaf."""
    train = template_of(library, "rerail-train-v0-1", "train")
    assert leaves(train) == {"report"}
    assert train["dag"]["target"] == "attempt report"


def test_an_attempt_that_gives_up_ends_in_a_task_that_fails(library):
    attempt = template_of(library, "rerail-train-v0-1", "attempt")
    assert leaves(attempt) == {"next-attempt", "give-up"}
    assert "target" not in attempt["dag"]


def test_nested_attempts_carry_no_manifest(library):
    attempt = template_of(library, "rerail-train-v0-1", "attempt")
    (nested,) = [task for task in tasks_of(attempt) if task["name"] == "next-attempt"]
    assert nested["template"] == "attempt"
    given = {one["name"] for one in nested["arguments"]["parameters"]}
    assert not given & {"manifest", "policy", "image", "command", "replicas", "gpus-per-replica", "queue"}
    assert "priority-class" in given, "no document has it, where there is a manifest"


def test_descriptions_stand_only_where_people_see_them(library):
    """Inputs are copied into the status of each node with all that they say."""
    for document in library.values():
        spec = spec_of(document)
        for template in spec["templates"]:
            if template["name"] != spec["entrypoint"]:
                inputs = inputs_of(template).values()
                assert template.get("suspend") is not None or not any("description" in one for one in inputs)


def template_of(library, owner, name):
    (found,) = [one for one in library[owner]["spec"]["templates"] if one["name"] == name]
    return found
