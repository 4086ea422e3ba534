import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rerail.plugins.trainer import farewell
from rerail.plugins.trainer.launch import Launch, exit_code_of
from rerail.plugins.trainer.processes import stat_of
from rerail.plugins.trainer.settings import Settings
from rerail.policies.documents import RankExit


def dead(pid: int) -> bool:
    found = stat_of(pid)
    return found is None or found.state in "ZX"


def test_all_ranks_done_is_0_and_the_environment_is_what_the_start_says(launches, orders):
    pod = launches(plan={"1.0": [], "1.1": []})
    orders.open(1, "run-a1")
    assert pod.code() == 0
    said = pod.up(1, 1)
    assert said["RANK"] == said["LOCAL_RANK"] == "1"
    assert (said["WORLD_SIZE"], said["LOCAL_WORLD_SIZE"]) == ("2", "2")
    assert (said["MASTER_ADDR"], said["MASTER_PORT"], said["RERAIL_RENDEZVOUS"]) == ("127.0.0.1", "1001", "meet-1")
    assert (said["PET_NNODES"], said["PET_NODE_RANK"], said["PET_MAX_RESTARTS"]) == ("2", "1", "0")
    assert (said["PET_MASTER_ADDR"], said["PET_MASTER_PORT"]) == ("127.0.0.1", "1001")
    assert (said["RERAIL_ATTEMPT"], said["RERAIL_NODE"]) == ("1", "n1")
    assert (said["OMP_NUM_THREADS"], said["MKL_NUM_THREADS"], said["PYTHONHASHSEED"]) == ("1", "1", "0")
    assert pod.farewell["exit_code"] == 0
    assert pod.farewell["exits"] == {"0": 0, "1": 0}
    assert orders.reports(1) == []


def test_what_the_user_sets_about_threads_stands(launches, orders):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.0": [], "1.1": []}, environment={"OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "9"})
    assert pod.code() == 0
    assert (pod.up(1, 0)["OMP_NUM_THREADS"], pod.up(1, 0)["PYTHONHASHSEED"]) == ("3", "9")


def test_sigterm_reaches_every_rank_once_and_all_85_is_85(launches, orders):
    orders.open(1, "run-a1")
    pod = launches(plan={})
    pod.up(1, 0), pod.up(1, 1)
    pod.process.terminate()
    pod.process.terminate()
    assert pod.code() == 85
    assert [(pod.folder / f"1.{rank}.term").read_text() for rank in (0, 1)] == ["x", "x"]
    assert [(end.rank, end.exit_code) for end in sorted(orders.reports(1)[0].exits, key=lambda end: end.rank)] == [
        (0, 85),
        (1, 85),
    ]
    assert launches.left(pod) == []


def test_a_rank_that_fails_is_reported_at_once_with_its_error_and_the_others_go_on(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.1": ["report", "3"]})
    pod.up(1, 0), pod.up(1, 1)
    reports = wait_for(lambda: orders.reports(1))
    assert reports[0].exits == (RankExit(rank=1, exit_code=3, error="ValueError: planned", step=7),)
    assert (reports[0].pod, reports[0].node, reports[0].ready_for) == ("run-a1-0", "n1", None)
    assert not dead(int(pod.up(1, 0)["pid"]))
    pod.go(1, 0)
    helper = int(pod.up(1, 1)["helper"])
    wait_for(lambda: dead(helper))  # what a dead rank started would go on using its devices


def test_killed_rank_is_137_in_the_report(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.0": ["-9"]})
    pod.up(1, 0)
    reports = wait_for(lambda: orders.reports(1))
    assert reports[0].exits[0].exit_code == 137


def test_without_orders_it_leaves_after_hold_s_with_the_first_abnormal_code(launches, orders):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.1": ["3"], "1.0": ["hang", "ignore-term"]}, environment={"RERAIL_HOLD_S": "0.5"})
    assert pod.code() == 3
    assert launches.left(pod) == []
    assert "no orders" in pod.farewell["why"]


def test_without_a_start_it_leaves_with_86(launches):
    pod = launches(environment={"RERAIL_HOLD_S": "0.3"})
    assert pod.code() == 86
    assert "no start" in pod.farewell["why"]


def test_do_not_retry_leaves_at_once(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.0": ["87"], "1.1": ["hang"]})
    wait_for(lambda: orders.reports(1))
    pod.go(1, 1)
    assert pod.code() == 87


def test_in_place_the_same_pod_runs_the_next_attempt(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.1": ["3"], "1.0": ["hang", "ignore-term"], "2.0": [], "2.1": []})
    old = pod.up(1, 0)
    wait_for(lambda: orders.reports(1))
    orders.seal(2, "run-a1", "in-place")
    ready = wait_for(lambda: orders.reports(2))
    assert [(report.pod, report.ready_for) for report in ready] == [("run-a1-0", 2)]
    assert dead(int(old["pid"]))
    assert dead(int(old["helper"])), "ready means that nothing of the old ranks is left"
    assert not (pod.folder / "1.0.term").exists(), "a sealed attempt is not asked to save"
    orders.start(2, "run-a1", "in-place")
    assert pod.code() == 0
    assert pod.up(2, 0)["RERAIL_RENDEZVOUS"] == "meet-2"
    assert pod.farewell["attempt"] == 2
    assert [end.rank for report in orders.reports(1) for end in report.exits] == [1], "killed ranks are no failures"


def test_after_a_rank_failed_orders_are_looked_for_more_often(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.1": ["3"]}, environment={"RERAIL_POLL_S": "20"})
    pod.up(1, 0)
    wait_for(lambda: orders.reports(1))
    orders.seal(2, "run-a1", "in-place")
    wait_for(lambda: orders.reports(2), within_s=16)  # 20 s without the hurry


class SlowToDie:
    """Two ranks: the follower ended at once, the one that broke the group is still saying why."""

    def __init__(self, orders):
        self.orders, self.running, self.looks, self.killed = orders, (), 0, False

    def start(self, _start):
        self.running = (1,)
        self.orders.seal(2, "run-a1", "in-place")

    def reap(self):
        self.looks += 1
        if self.looks == 1:
            return (RankExit(rank=0, exit_code=1, error="ConnectionError: a rank closed its connection", step=7),)
        if self.looks == 40:
            self.running = ()
            return (RankExit(rank=1, exit_code=1, error="ValueError: bad batch", step=7),)
        return ()

    def kill(self):
        self.running = ()
        if not self.killed:
            self.orders.open(3, "run-a3")
        self.killed = True
        return True


def test_in_place_the_rank_that_broke_the_group_may_say_why_before_it_is_ended(orders):
    names = {"RERAIL_RUN": "run", "RERAIL_STORE": "unused", "RERAIL_GANG": "run-a1", "RERAIL_POLL_S": "0.01"}
    orders.open(1, "run-a1")
    slowed = Launch(Settings.from_env(names), orders.run, SlowToDie(orders), clock=lambda: time.monotonic() / 100)
    assert slowed.live() == 86
    said = [end.error for report in orders.reports(1) for end in report.exits]
    assert said == ["ConnectionError: a rank closed its connection", "ValueError: bad batch"]


def test_in_place_prepared_but_started_elsewhere_leaves_with_86(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches()
    pod.up(1, 0), pod.up(1, 1)
    orders.seal(2, "run-a1", "in-place")
    wait_for(lambda: orders.reports(2))
    orders.start(2, "run-a2", "new-gang")
    assert pod.code() == 86
    assert "run-a2" in pod.farewell["why"]


@pytest.mark.parametrize("started", [False, True], ids=["sealed", "started"])
def test_a_newer_attempt_of_another_gang_ends_the_ranks_and_leaves_with_86(launches, orders, started):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.0": ["hang", "ignore-term"]})
    pod.up(1, 0), pod.up(1, 1)
    (orders.open if started else orders.seal)(2, "run-a2")
    assert pod.code() == 86
    assert launches.left(pod) == []


def test_a_late_launch_of_an_older_gang_leaves_with_86_without_starting_anything(launches, orders):
    orders.open(1, "run-a1")
    orders.open(2, "run-a2")
    pod = launches(gang="run-a1")
    assert pod.code() == 86
    assert not (pod.folder / "1.0.up").exists()


def test_a_launch_that_comes_before_its_seal_waits(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches(gang="run-a2", plan={"2.0": [], "2.1": []})
    wait_for(pod.log.exists)
    orders.open(2, "run-a2")
    assert pod.code() == 0


def test_sigkill_of_launch_leaves_no_rank(launches, orders, wait_for):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.0": ["hang", "ignore-term"]})
    ranks = [int(pod.up(1, rank)["pid"]) for rank in (0, 1)]
    pod.process.kill()
    pod.process.wait()
    wait_for(lambda: all(dead(pid) for pid in ranks))
    assert not pod.farewell_path.exists()


def test_rank_output_goes_to_a_file_per_attempt_and_rank(launches, orders, tmp_path):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.0": [], "1.1": []}, environment={"RERAIL_LOG_DIR": str(tmp_path / "logs")})
    assert pod.code() == 0
    assert (tmp_path / "logs/1/1.log").read_text() == "rank 1.1 is up\n"


def test_a_command_that_does_not_exist_is_127_and_reported(launches, orders):
    orders.open(1, "run-a1")
    pod = launches(command=["/no/such/command"], environment={"RERAIL_HOLD_S": "0.3"})
    assert pod.code() == 127
    assert "FileNotFoundError" in orders.reports(1)[0].exits[0].error


def test_only_the_first_process_that_claims_a_pod_is_it(launches, orders, tmp_path):
    orders.open(1, "run-a1")
    claim = {"RERAIL_CLAIM": str(tmp_path / "claim.json")}
    pods = [launches(plan={"1.0": [], "1.1": []}, environment=claim) for _ in range(3)]
    assert [pod.code() for pod in pods] == [0, 0, 0]
    assert sum((pod.folder / "1.0.up").exists() for pod in pods) == 1
    assert sum(pod.farewell_path.exists() for pod in pods) == 1


def test_a_termination_log_that_cannot_be_replaced_is_written_in_place(tmp_path):
    log = tmp_path / "log"
    log.write_text("what stood there before, and it is longer than the farewell" * 9)
    inode = log.stat().st_ino
    (tmp_path / f".log.{os.getpid()}").mkdir()  # as in a container, where the log is a mount: no replacement
    farewell.say(log, run="run", attempt=1, gang="run-a1", pod="p", exit_code=3, exits={0: 3}, why="")
    assert json.loads(log.read_text())["exit_code"] == 3
    assert log.stat().st_ino == inode


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RERAIL_RUN", "", "RERAIL_RUN is not set"),
        ("RERAIL_LOCAL_RANKS", "none", "RERAIL_LOCAL_RANKS='none'"),
        ("RERAIL_LOCAL_RANKS", "0", "at least 1"),
        ("RERAIL_HOLD_S", "2 minutes", "number of seconds"),
        ("RERAIL_STORE", "/tmp/x", "file:///"),
        ("RERAIL_STORE", "file:///no/such/folder", "/no/such/folder"),
        ("RERAIL_RUN", "Not_A_Name", "lower-case"),
    ],
)
def test_a_wrong_environment_is_named_with_the_way_out(launches, name, value, says):
    pod = launches(environment={name: value})
    assert pod.code() in (2, 4)
    assert says in pod.log.read_text()
    assert "Traceback" not in pod.log.read_text()


def test_no_command_is_a_usage_error():
    found = subprocess.run(
        [sys.executable, "-m", "rerail.plugins.trainer.launch", "--"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "no COMMAND" in found.stderr


def test_launch_imports_the_core_only():
    code = (
        "import sys, rerail.plugins.trainer.launch\n"
        "print([n for n in ('hera','kubernetes','rich','typer','boto3','numpy','yaml') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([85, 85], 85),
        ([0, 85], 85),
        ([85, 86], 86),
        ([3, 137, 85], 3),
        ([137, 3], 137),
        ([3, 87], 87),
        ([87, 3, 88], 88),
        ([86, 93], 93),
        ([], 86),
    ],
)
def test_one_code_for_all_ranks(codes, expected):
    assert exit_code_of([RankExit(rank=rank, exit_code=code) for rank, code in enumerate(codes)]) == expected


def test_sigint_is_forwarded_as_it_is(launches, orders):
    orders.open(1, "run-a1")
    pod = launches()
    pod.up(1, 0), pod.up(1, 1)
    os.kill(pod.process.pid, signal.SIGINT)
    assert pod.code() == 85
    assert Path(pod.folder / "1.0.term").exists()


def test_an_order_that_cannot_be_read_ends_no_training(launches, orders, wait_for, tmp_path):
    orders.open(1, "run-a1")
    pod = launches(plan={"1.0": ["hang"], "1.1": ["hang"]})
    pod.up(1, 0), pod.up(1, 1)
    (tmp_path / "store/run/commits/999997.0.seal.json").write_text("{")
    wait_for(lambda: "no orders" in pod.log.read_text())
    pod.go(1, 0), pod.go(1, 1)
    assert pod.code() == 0
