"""Hand-made runs: states as the supervisor leaves them, with commits at known times."""

from collections.abc import Callable
from typing import Any

import pytest

from rerail.plugins.report import Report, RunFacts, build_report
from rerail.policies.documents import Certificate, CommitRef, RankCertificate
from rerail.policies.recovery import DRILL_POLICY, RecoveryPolicy
from rerail.policies.supervisor.state import AttemptRecord, Incident, RunState
from rerail.policies.worktime import CommitFact

T0 = 1_796_000_000.0


def _attempt(n: int, opened: float, **more: Any) -> AttemptRecord:
    values: dict[str, Any] = {
        "gang": f"demo-a{n}",
        "nodes": ("node-0", "node-1"),
        "how": "fresh" if n == 1 else "new-gang",
    }
    for name in ("started_at_s", "loaded_at_s", "first_step_at_s", "ended_at_s"):
        if name in more:
            more[name] = T0 + more[name]
    return AttemptRecord(n=n, opened_at_s=T0 + opened, **{**values, **more})


def _incident(attempt: int, *, detected: float, decided: float, **more: Any) -> Incident:
    values: dict[str, Any] = {
        "class_name": "gpu_lost",
        "scope": "device",
        "action": "reboot_node",
        "cause": "hardware",
        "codes": ("xid:79",),
        "node": "node-0",
        "device": "0000:3b:00",
    }
    for name in tuple(more):
        if name.endswith("_at_s") or name == "first_sign_s":
            more[name] = T0 + more[name]
    return Incident(
        id=f"demo-a{attempt}",
        attempt=attempt,
        detected_at_s=T0 + detected,
        decided_at_s=T0 + decided,
        **{**values, **more},
    )


def _commit(attempt: int, step: int, at: float, **more: Any) -> CommitFact:
    values: dict[str, Any] = {"reason": "periodic", "size_bytes": 6_400_000, "save_s": 0.1}
    return CommitFact(attempt=attempt, step=step, at_s=T0 + at, **{**values, **more})


@pytest.fixture
def t0() -> float:
    return T0


@pytest.fixture
def attempt() -> Callable[..., AttemptRecord]:
    return _attempt


@pytest.fixture
def incident() -> Callable[..., Incident]:
    return _incident


@pytest.fixture
def commit() -> Callable[..., CommitFact]:
    return _commit


@pytest.fixture
def gpu_state() -> RunState:
    """One GPU is lost: 10 steps a second from 1 s on, fault at 7.5 s after step 65, resumed from 40, 2 s later."""
    return RunState(
        run="demo",
        world_size=4,
        phase="done",
        attempt=2,
        attempts=(
            _attempt(
                1,
                0.0,
                started_at_s=0.2,
                started_from_step=0,
                loaded_at_s=0.5,
                first_step_at_s=1.0,
                last_step=65,
                last_commit_step=60,
                saving_s=0.5,
                step_time_s=0.1,
                ended_at_s=8.5,
                end_cause="gpu_lost: the kernel log of node-0 reports XID 79",
                charged_to="hardware",
                exit_codes={"rank-0": 137, "rank-1": 1, "rank-2": 143, "rank-3": 143},
            ),
            _attempt(
                2,
                8.6,
                nodes=("node-1", "node-2"),
                started_at_s=8.8,
                started_from_step=40,
                skipped=("step 60 of attempt 1: suspect: gpu_lost on node-0",),
                loaded_at_s=9.1,
                first_step_at_s=9.5,
                last_step=100,
                last_commit_step=100,
                saving_s=0.4,
                step_time_s=0.1,
                ended_at_s=16.0,
                end_cause="done",
                exit_codes={f"rank-{rank}": 0 for rank in range(4)},
            ),
        ),
        incidents=(
            _incident(
                1,
                detected=7.8,
                decided=7.9,
                first_sign_s=7.6,
                ended_at_s=8.5,
                started_at_s=8.8,
                loaded_at_s=9.1,
                recovered_at_s=9.5,
                lost_from_step=63,
                trusted=False,
                evidence=("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "rank 0 ended with 137"),
            ),
        ),
        finished_at_s=T0 + 16.0,
    )


@pytest.fixture
def gpu_commits() -> tuple[CommitFact, ...]:
    return (
        _commit(1, 20, 3.0),
        _commit(1, 40, 5.0),
        _commit(1, 60, 7.0, state="suspect", why="gpu_lost on node-0"),
        _commit(2, 60, 11.6),
        _commit(2, 80, 13.7),
        _commit(2, 100, 15.8, reason="final"),
    )


@pytest.fixture
def gpu_certificates() -> tuple[Certificate, ...]:
    def ranks(size: int) -> tuple[RankCertificate, ...]:
        digest = "sha256:" + "ab" * 32 if size else None
        return tuple(
            RankCertificate(
                rank=rank,
                node=f"node-{1 + rank // 2}",
                bytes_read=size,
                files=2 if size else 0,
                state_digest=digest,
                expected_digest=digest,
            )
            for rank in range(4)
        )

    environment = {"python": "3.11.9", "numpy": "2.4.6", "blas_threads": "1"}
    return (
        Certificate(
            writer="writer-1",
            run="demo",
            attempt=1,
            loaded=None,
            ok=True,
            exact=True,
            ranks=ranks(0),
            environment=environment,
        ),
        Certificate(
            writer="writer-2",
            run="demo",
            attempt=2,
            loaded=CommitRef(attempt=1, step=40, digest="sha256:" + "cd" * 32),
            ok=True,
            exact=True,
            ranks=ranks(6_400_000),
            environment=environment,
        ),
    )


@pytest.fixture
def gpu_report(gpu_state, gpu_commits, gpu_certificates) -> Report:
    facts = RunFacts(
        created_at_s=T0 - 0.1, owner="local/test", until_s=T0 + 16.0, commits=gpu_commits, certificates=gpu_certificates
    )
    return build_report(
        gpu_state.model_copy(update={"quarantined": {"node-0": "gpu_lost in attempt 1"}}),
        facts,
        DRILL_POLICY,
        scenario="gpu",
        verdict="pass",
        reason="every parameter, every loss and the list of samples are bitwise identical to the uninterrupted run",
        identical=True,
        fault_at_s={"demo-a1": T0 + 7.5},
    )


@pytest.fixture
def calm_report() -> Report:
    """One attempt, nothing happened."""
    one = _attempt(
        1,
        0.0,
        started_at_s=0.2,
        started_from_step=0,
        loaded_at_s=0.3,
        first_step_at_s=0.9,
        last_step=100,
        ended_at_s=11.0,
        end_cause="done",
    )
    commits = (_commit(1, 50, 5.0), _commit(1, 100, 10.5, reason="final"))
    state = RunState(run="calm", world_size=4, phase="done", attempt=1, attempts=(one,), finished_at_s=T0 + 11.0)
    return build_report(state, RunFacts(created_at_s=T0, commits=commits), RecoveryPolicy())


@pytest.fixture
def long_report() -> Report:
    """Twenty attempts on seven nodes over a day, nineteen incidents, more than a hundred checkpoints."""
    attempts, incidents, commits = [], [], []
    at, step = 0.0, 0
    for n in range(1, 21):
        length, from_step = 600.0 + 397.0 * (n * 7 % 11), step // 20 * 20
        step, fault = from_step + int(length / 15), at + 120 + length
        nodes = tuple(f"gpu-node-{(n + index) % 7:02d}" for index in range(4))
        attempts.append(
            _attempt(
                n,
                at,
                nodes=nodes,
                started_at_s=at + 20,
                started_from_step=from_step,
                loaded_at_s=at + 70,
                first_step_at_s=at + 120,
                last_step=step,
                saving_s=length / 100,
                step_time_s=15.0,
                ended_at_s=fault + 40,
                end_cause="done" if n == 20 else "ecc: a double-bit error",
                exit_codes={f"rank-{rank}": 137 for rank in range(16)},
            )
        )
        commits += [
            _commit(
                n,
                k,
                at + 120 + (k - from_step) * 15,
                state=("good", "good", "good", "suspect", "bad", "off-chain")[k % 6],
            )
            for k in range(from_step + 20, step + 1, 20)
        ]
        if n < 20:
            incidents.append(
                _incident(
                    n,
                    detected=fault + 5,
                    decided=fault + 6,
                    first_sign_s=fault,
                    ended_at_s=fault + 40,
                    started_at_s=fault + 90,
                    loaded_at_s=fault + 140,
                    recovered_at_s=fault + 190,
                    lost_from_step=step,
                    codes=(("xid:79", "xid:48", "sxid:20034", "name:oom_kill")[n % 4],),
                    node=nodes[0],
                    evidence=("an-unbroken-line-" * 20,),
                )
            )
        at = fault + 70
    state = RunState(
        run="a-run-with-a-rather-long-name-that-has-52-characters",
        world_size=16,
        phase="done",
        attempt=20,
        attempts=tuple(attempts),
        incidents=tuple(incidents),
        finished_at_s=T0 + at,
    )
    return build_report(state, RunFacts(created_at_s=T0 - 1800, commits=tuple(commits)), RecoveryPolicy())


@pytest.fixture
def stopped_report() -> Report:
    """The application fails the same way again; its words are hostile to a page."""
    one = _attempt(
        1,
        0.0,
        started_at_s=0.2,
        started_from_step=0,
        loaded_at_s=0.4,
        first_step_at_s=0.9,
        last_step=33,
        ended_at_s=5.0,
        end_cause="app: <img src=x onerror=alert(1)>",
        charged_to="application",
        exit_codes={"rank-1": 1},
    )
    app = _incident(
        1,
        detected=4.5,
        decided=4.6,
        class_name="app",
        scope="process",
        action="restart_app",
        cause="application",
        codes=(),
        node='<b>"n"</b>',
        device="",
        evidence=("ValueError: <script>alert(1)</script> & more",),
    )
    state = RunState(
        run="app-error",
        world_size=4,
        phase="stopped",
        attempt=1,
        attempts=(one,),
        incidents=(app,),
        reason="the same ValueError at step 33 on different nodes; fix the code, then go on with --from app-error@20",
        finished_at_s=T0 + 6.0,
    )
    facts = RunFacts(created_at_s=T0, commits=(_commit(1, 20, 3.0),), unreadable=("marks/x: <i>damaged</i>",))
    return build_report(
        state, facts, DRILL_POLICY, scenario="app-error", verdict="fail", reason="should have stopped at 30"
    )
