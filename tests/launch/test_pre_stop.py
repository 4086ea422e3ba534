"""The preStop hook asks the whole gang, and stays until the ranks of its pod have left; every wait has a bound."""

import os
import secrets
import subprocess
import sys

import pytest

from rerail.plugins.checkpoint.notes import add_report, read_requests
from rerail.plugins.trainer.pre_stop import leave_together
from rerail.plugins.trainer.settings import Settings
from rerail.policies.documents import RankExit, Report
from rerail.policies.errors import StoreUnreachableError

RUN = "run"


def environment(orders, **more):
    return {
        "PATH": os.environ["PATH"],
        "RERAIL_RUN": RUN,
        "RERAIL_STORE": orders.run.shards.url.removesuffix(f"/{RUN}"),
        "RERAIL_GANG": "run-a1",
        "RERAIL_POD": "run-a1-0",
        "RERAIL_LOCAL_RANKS": "2",
        "RERAIL_POLL_S": "0.05",
        **more,
    }


def hook(orders, *words, **more):
    return subprocess.run(
        [sys.executable, "-m", "rerail.plugins.trainer.launch", "--pre-stop", *words],
        env=environment(orders, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Clock:
    """Time that passes by sleeping, with something that happens meanwhile."""

    def __init__(self, *meanwhile):
        self.now_s, self.meanwhile = 0.0, list(meanwhile)

    def sleep(self, seconds):
        self.now_s += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()


def wait(orders, clock, within_s=5.0, store=None):
    said = []
    settings = Settings.from_env(environment(orders))
    code = leave_together(
        store or orders.run, settings, within_s, clock=lambda: clock.now_s, sleep=clock.sleep, log=said.append
    )
    return code, said


def left(orders, *ranks, pod="run-a1-0"):
    exits = tuple(RankExit(rank=rank, exit_code=85) for rank in ranks)
    report = Report(writer=secrets.token_hex(8), run=RUN, attempt=1, gang="run-a1", pod=pod, exits=exits)
    add_report(orders.run, report)


def test_it_asks_once_for_all_pods_and_stays_until_its_own_ranks_left(orders):
    orders.open(1, "run-a1")
    clock = Clock(lambda: left(orders, 2, 3, pod="run-a1-1"), lambda: left(orders, 1), lambda: left(orders, 0))
    code, said = wait(orders, clock)
    assert code == 0
    assert clock.now_s == pytest.approx(0.15), "not when the first one left, nor when those of another pod did"
    assert wait(orders, Clock())[0] == 0, "the hook of another pod of the gang"
    ((_, request),) = read_requests(orders.run, 1)
    assert (request.then, request.id) == ("leave", "pre-stop-run-a1-1")
    assert "run-a1-0 is being stopped" in request.reason
    assert len(said) == 2


def test_ranks_that_do_not_leave_are_waited_for_a_bounded_time(orders):
    orders.open(1, "run-a1")
    clock = Clock()
    code, said = wait(orders, clock, within_s=2.0)
    assert (code, round(clock.now_s, 1)) == (1, 2.0)
    assert "SIGTERM follows" in said[-1]


def test_a_gang_that_another_one_replaced_is_not_asked(orders):
    orders.open(1, "run-a1")
    orders.open(2, "run-a2")
    assert wait(orders, Clock())[0] == 0
    assert read_requests(orders.run, 2) == []


def test_a_store_that_does_not_answer_is_tried_until_the_time_is_over(orders):
    class Down:
        run = RUN

        @property
        def control(self):
            raise StoreUnreachableError("no answer")

    code, said = wait(orders, Clock(), within_s=1.0, store=Down())
    assert code == 1
    assert said[0] == "no answer; trying again"
    assert len(said) == 2


def test_with_a_launch_of_the_gang_it_ends_when_the_ranks_have_saved(launches, orders, wait_for):
    """As in a pod: the ranks here leave at SIGTERM, which stands for their save."""
    orders.open(1, "run-a1")
    pod = launches(plan={})
    pod.up(1, 0), pod.up(1, 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "rerail.plugins.trainer.launch", "--pre-stop", "--within=60s"], env=environment(orders)
    )
    wait_for(lambda: read_requests(orders.run, 1))
    pod.process.terminate()
    assert (pod.code(), process.wait(60)) == (85, 0)


def test_what_cannot_be_used_is_refused_and_where_there_is_no_run_it_says_so(orders):
    assert hook(orders, "--within=soon").returncode == 2
    nowhere = hook(orders, RERAIL_GANG="")
    assert (nowhere.returncode, "RERAIL_GANG is not set" in nowhere.stderr) == (2, True)


def test_the_hook_needs_no_more_than_a_training_pod_has(orders):
    orders.open(1, "run-a1")
    code = (
        "import sys; from rerail.plugins.trainer.launch import main; code = main(['--pre-stop', '--within=0.2s']); "
        "print(sorted({'kubernetes', 'typer', 'rich', 'hera', 'yaml', 'jinja2', 'boto3'} & set(sys.modules))); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(orders), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "[]\n"), done.stderr
