"""What is wrong with a job before it is sent."""

import pytest

from rerail.plugins.volcano import check_job


def told(job) -> str:
    return "\n".join(map(str, check_job(job)))


def test_a_good_job_has_no_problem(make_job):
    assert check_job(make_job()) == ()


def test_a_pods_name_that_is_too_long_says_by_how_much(make_job):
    assert "shorten the job's or the task's name by 2" in told(make_job("a" * 56))
    assert check_job(make_job("a" * 54)) == ()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"min_available": 3}, "error: spec.minAvailable: 3 is more than the 2 replicas"),
        ({"min_available": None}, "warning: spec.minAvailable: write 2"),
        ({"scheduler_name": None}, "write 'volcano'"),
        ({"tasks": []}, "at least one task"),
        ({"plugins": {"pytorch": []}}, "'pytorch' needs 'svc'"),
        ({"max_retry": 0}, "0 becomes 3"),
        ({"policies": [{"event": "PodRunning", "action": "RestartJob"}]}, "rejected by Volcano's webhook"),
        ({"policies": [{"event": "PodPending", "action": "RestartJob", "timeout": "5m"}]}, "restart a healthy job"),
        ({"policies": [{"event": "*", "action": "RestartJob"}]}, "includes TaskCompleted"),
        ({"policies": [{"events": ["PodFailed"], "action": "RestartTask"}]}, "cannot join a gang"),
        ({"policies": [{"exit_code": 0, "action": "AbortJob"}]}, "0 is success"),
        ({"policies": [{"exit_code": 3, "event": "PodFailed"}]}, "both an event and an exitCode"),
        ({"policies": [{"action": "AbortJob"}]}, "neither an event nor an exitCode"),
    ],
)
def test_each_problem_names_its_field_and_way_out(make_job, spec, words):
    assert words in told(make_job(**spec))


def test_problems_of_tasks(make_job):
    job = make_job()
    task = job.spec.tasks[0]
    task.min_available = 5
    task.max_retry = 0
    task.template = {"spec": {}}
    task.partition_policy = {"total_partitions": 2, "partition_size": 4}
    text = told(job)
    for words in ("more than its 2 replicas", "at least one container", "write Never", "2 partitions of 4"):
        assert words in text
    task.name = "Not A Label"
    job.spec.tasks.append(task)
    text = told(job)
    assert "no DNS label" in text
    assert "2 tasks are called" in text
    task.name = None
    assert "spec.tasks[0].name: is missing" in told(job)
    job.metadata.name = "UPPER"
    assert "is no name" in told(job)
    job.metadata.name = None
    assert "metadata.name: is missing" in told(job)
