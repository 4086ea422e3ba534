"""Hand-made runs: states as the supervisor leaves them, with commits at known times."""

from collections.abc import Callable
from typing import Any

import pytest
from rerail.policies.documents import Certificate, CommitRef, RankCertificate
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
