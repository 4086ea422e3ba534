"""The report as a document: the drill document of the interface, and what explains it. Frozen; its JSON is the twin."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rerail.plugins.report.facts import RunFacts
from rerail.policies.documents import How, RankCertificate, Value
from rerail.policies.metric_table import METRICS, MetricDefinition
from rerail.policies.metrics import IncidentMetrics, Metrics, Phases, measure
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.state import Incident, RunState
from rerail.policies.worktime import CommitFact

Verdict = Literal["pass", "fail"]
EventKind = Literal[
    "attempt", "fault", "detect", "decide", "save", "end", "start", "load", "step", "commit", "done", "note"
]


class AttemptRow(Value):
    """One attempt; times are seconds since ``begun_at_s``."""

    n: int
    gang: str
    nodes: tuple[str, ...]
    how: How
    started_from_step: int | None
    last_step: int | None
    end_cause: str
    exit_codes: dict[str, int]
    charged_to: str | None = None
    skipped: tuple[str, ...] = ()
    opened_s: float
    started_s: float | None = None
    loaded_s: float | None = None
    first_step_s: float | None = None
    ended_s: float | None = None
    trained_until_s: float | None = Field(None, description="the fault, or the last snapshot after it, or the end")
    saving_s: float = 0.0
    step_time_s: float | None = None
    lost_from_step: int | None = Field(None, description="steps after this one were run again; None: none were")
    lost_from_s: float | None = None


class IncidentRow(BaseModel):
    """One incident; ``*_s`` that name a moment are seconds since ``begun_at_s``, ``t_detect_s`` is since the fault."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    id: str
    class_: Annotated[str, Field(alias="class")]
    scope: str
    codes: tuple[str, ...]
    node: str
    device: str
    action: str
    t_detect_s: float
    attempt: int
    cause: str
    confidence: float
    trusted: bool
    evidence: tuple[str, ...]
    save_asked: bool
    fault_s: float
    detected_s: float
    recovered_s: float | None
    mttr_s: float | None
    phases_s: Phases | None
    slowest_phase: str | None
    run_again_s: float
    rpo_steps: int
    rpo_s: float


class CertificateRow(Value):
    """One attempt's certificate: what its ranks loaded, and whether that rests on the same ground as before."""

    attempt: int
    exact: bool
    ok: bool
    loaded: str | None = Field(None, description="the commit, None when the attempt was fresh")
    bytes_read: int = 0
    reasons: tuple[str, ...] = ()
    ranks: tuple[RankCertificate, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


class CheckpointRow(CommitFact):
    """One commit.

    Attributes:
        at: Seconds since ``begun_at_s``; where ``at_s`` is None it is reckoned from the step.
    """

    at: float


class Event(Value):
    """One line of the timeline; ``t_s`` is seconds since ``begun_at_s``."""

    t_s: float
    kind: EventKind
    attempt: int | None
    text: str


class Report(Value):
    """The drill document of interfaces.md, and for people all that it rests on.

    Attributes:
        scenario: Name of the drill; None for a run.
        verdict: None for a run, which nobody judges.
        identical: Bitwise equal to the uninterrupted run; None where there is no such comparison.
        outcome: The run's phase: done, stopped, or still in one of the others.
        metrics: Everything measured; the interface's scalars stand beside it.
    """

    run: str
    scenario: str | None
    verdict: Verdict | None
    reason: str
    identical: bool | None
    outcome: str
    outcome_reason: str
    world_size: int
    attempts: tuple[AttemptRow, ...]
    incidents: tuple[IncidentRow, ...]
    mttd_s: float | None
    mttr_s: float | None
    mttr_phases_s: Phases | None
    rpo_steps: int | None
    rpo_s: float | None
    lost_steps: int
    gpu_waste_ratio: float | None
    ettr_run: float | None
    ettr_job: float | None
    restarts: int
    resumed_from_step: int | None
    certificates: tuple[CertificateRow, ...]
    report_html: str = ""
    report_json: str = ""
    saving_overhead_percent: float | None
    begun_at_s: float
    elapsed_s: float
    checkpoints: tuple[CheckpointRow, ...]
    timeline: tuple[Event, ...]
    metrics: Metrics
    definitions: tuple[MetricDefinition, ...]
    policy: RecoveryPolicy
    quarantined: dict[str, str]
    owner: str = ""
    forked_from: str | None = None
    unreadable: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The report as JSON values, with the interface's key names."""
        return self.model_dump(mode="json", by_alias=True)


def build_report(
    state: RunState,
    facts: RunFacts,
    policy: RecoveryPolicy,
    *,
    scenario: str | None = None,
    verdict: Verdict | None = None,
    reason: str = "",
    identical: bool | None = None,
    fault_at_s: Mapping[str, float] | None = None,
) -> Report:
    """Make the report of a run.

    Args:
        state: The newest ledger entry's state.
        facts: What the store says beside it.
        policy: The policy that the run recovered by; printed.
        scenario: The drill's name.
        verdict: The drill's verdict.
        reason: Why, in one sentence.
        identical: What the comparison with the uninterrupted run found.
        fault_at_s: Incident id to the wall time at which its fault was injected.
    """
    found = measure(state, facts.commits, created_at_s=facts.created_at_s, until_s=facts.until_s, fault_at_s=fault_at_s)
    begun = _begun(state, facts, found)
    by_id = {item.id: item for item in found.incidents}
    incidents = tuple(_incident(item, by_id[item.id], begun) for item in state.incidents)
    until = begun + found.elapsed_job_s
    attempts = _attempts(
        state, facts.commits, {item.attempt: item.fault_at_s for item in found.incidents}, begun, until
    )
    return Report(
        run=state.run,
        scenario=scenario,
        verdict=verdict,
        reason=reason,
        identical=identical,
        outcome=state.phase,
        outcome_reason=state.reason,
        world_size=state.world_size,
        attempts=attempts,
        incidents=incidents,
        **{name: _rounded(getattr(found, name)) for name in _SHARED},
        certificates=tuple(
            CertificateRow(
                attempt=item.attempt,
                exact=item.exact,
                ok=item.ok,
                loaded=f"step {item.loaded.step} of attempt {item.loaded.attempt}" if item.loaded else None,
                bytes_read=sum(rank.bytes_read for rank in item.ranks),
                reasons=item.reasons,
                ranks=item.ranks,
                environment=item.environment,
            )
            for item in facts.certificates
        ),
        begun_at_s=begun,
        elapsed_s=found.elapsed_job_s,
        checkpoints=tuple(
            CheckpointRow(**commit.model_dump(), at=_moment(commit, attempts, begun)) for commit in facts.commits
        ),
        timeline=_timeline(state, attempts, incidents, facts, begun),
        metrics=found,
        definitions=tuple(METRICS.values()),
        policy=policy,
        quarantined=state.quarantined,
        owner=facts.owner,
        forked_from=facts.forked_from,
        unreadable=facts.unreadable,
    )


_SHARED = (
    "mttd_s",
    "mttr_s",
    "mttr_phases_s",
    "rpo_steps",
    "rpo_s",
    "lost_steps",
    "gpu_waste_ratio",
    "ettr_run",
    "ettr_job",
    "restarts",
    "resumed_from_step",
    "saving_overhead_percent",
)


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _begun(state: RunState, facts: RunFacts, found: Metrics) -> float:
    opened = [record.opened_at_s for record in state.attempts]
    submitted = [] if facts.created_at_s is None else [facts.created_at_s]
    return min([*opened, *submitted, *(item.fault_at_s for item in found.incidents)], default=0.0)


def _since(begun: float, moment: float | None) -> float | None:
    return None if moment is None else round(moment - begun, 3)


def _attempts(
    state: RunState, commits: tuple[CommitFact, ...], faults: Mapping[int, float], begun: float, until: float
) -> tuple[AttemptRow, ...]:
    at = {(commit.attempt, commit.step): commit.at_s for commit in commits}
    rows = []
    for index, record in enumerate(state.attempts):
        later = [
            other.started_from_step for other in state.attempts[index + 1 :] if other.started_from_step is not None
        ]
        kept = min(later, default=None)
        lost = kept is not None and record.last_step is not None and record.last_step > kept
        ended = until if record.ended_at_s is None else record.ended_at_s
        snapshots = [commit.at_s for commit in commits if commit.attempt == record.n and commit.at_s is not None]
        trained = min(ended, max([faults.get(record.n, ended), *snapshots]))
        rows.append(
            AttemptRow(
                n=record.n,
                gang=record.gang,
                nodes=record.nodes,
                how=record.how,
                started_from_step=record.started_from_step,
                last_step=record.last_step,
                end_cause=record.end_cause,
                exit_codes=record.exit_codes,
                charged_to=record.charged_to,
                skipped=record.skipped,
                opened_s=round(record.opened_at_s - begun, 3),
                started_s=_since(begun, record.started_at_s),
                loaded_s=_since(begun, record.loaded_at_s),
                first_step_s=_since(begun, record.first_step_at_s),
                ended_s=_since(begun, record.ended_at_s),
                trained_until_s=None if record.first_step_at_s is None else round(trained - begun, 3),
                saving_s=record.saving_s,
                step_time_s=record.step_time_s,
                lost_from_step=kept if lost else None,
                lost_from_s=_since(begun, at.get((record.n, kept))) if lost and kept is not None else None,
            )
        )
    return tuple(rows)


def _moment(commit: CommitFact, attempts: tuple[AttemptRow, ...], begun: float) -> float:
    if commit.at_s is not None:
        return round(commit.at_s - begun, 3)
    row = next((row for row in attempts if row.n == commit.attempt), None)
    if row is None or row.first_step_s is None or row.trained_until_s is None:
        return 0.0 if row is None else row.opened_s
    first = row.started_from_step or 0
    share = (commit.step - first) / max(1, (row.last_step or commit.step) - first)
    return round(row.first_step_s + min(1.0, max(0.0, share)) * (row.trained_until_s - row.first_step_s), 3)


def _incident(item: Incident, measured: IncidentMetrics, begun: float) -> IncidentRow:
    recovered = None if measured.recover_s is None else measured.fault_at_s + measured.recover_s
    return IncidentRow(
        id=item.id,
        class_=item.class_name,
        scope=item.scope,
        codes=item.codes,
        node=item.node,
        device=item.device,
        action=item.action,
        t_detect_s=round(measured.detect_s, 3),
        attempt=item.attempt,
        cause=item.cause,
        confidence=item.confidence,
        trusted=item.trusted,
        evidence=item.evidence,
        save_asked=item.save_asked_at_s is not None,
        fault_s=round(measured.fault_at_s - begun, 3),
        detected_s=round(item.detected_at_s - begun, 3),
        recovered_s=_since(begun, recovered),
        mttr_s=measured.recover_s,
        phases_s=measured.phases,
        slowest_phase=measured.phases.slowest if measured.phases else None,
        run_again_s=measured.run_again_s,
        rpo_steps=measured.rpo_steps,
        rpo_s=measured.rpo_s,
    )


def _at(step: int | None) -> str:
    return "before its first step" if step is None else f"at step {step}"


def _timeline(
    state: RunState,
    attempts: tuple[AttemptRow, ...],
    incidents: tuple[IncidentRow, ...],
    facts: RunFacts,
    begun: float,
) -> tuple[Event, ...]:
    events: list[Event] = []

    def add(t_s: float | None, kind: EventKind, attempt: int | None, text: str) -> None:
        if t_s is not None:
            events.append(Event(t_s=round(t_s, 3), kind=kind, attempt=attempt, text=text))

    for row in attempts:
        where = ", ".join(row.nodes) or "wherever the scheduler put it"
        add(row.opened_s, "attempt", row.n, f"attempt {row.n} is opened ({row.how}) on {where}")
        loads = "begins afresh" if row.how == "fresh" else f"loads step {row.started_from_step}"
        over = f", passing over {'; '.join(row.skipped)}" if row.skipped else ""
        add(row.started_s, "start", row.n, f"start of attempt {row.n} is written: it {loads}{over}")
        add(row.loaded_s, "load", row.n, "all ranks have loaded, and compared what they loaded with the manifest")
        if row.first_step_s is not None:
            add(row.first_step_s, "step", row.n, f"first step: {(row.started_from_step or 0) + 1}")
        add(row.ended_s, "end", row.n, f"the gang is gone {_at(row.last_step)}: {row.end_cause or 'no cause known'}")
    for item in incidents:
        what = ", ".join(item.codes) or item.class_
        add(item.fault_s, "fault", item.attempt, f"{what} on {item.node}" if item.node else what)
        add(item.detected_s, "detect", item.attempt, f"detected: {item.class_}, scope {item.scope}")
        add(item.recovered_s, "step", item.attempt + 1, "first step that the run had not made before")
    for record in state.incidents:
        add(_since(begun, record.save_asked_at_s), "save", record.attempt, "the ranks are asked to save")
        add(_since(begun, record.saved_at_s), "save", record.attempt, "the save was answered")
    for commit in facts.commits:
        text = f"commit of step {commit.step} ({commit.reason})" + (
            "" if commit.state == "good" else f": {commit.state}"
        )
        add(_since(begun, commit.at_s), "commit", commit.attempt, text)
    for note in facts.notes:
        add(note.at_s - begun, "note", None, note.text)
    add(
        _since(begun, state.finished_at_s),
        "done",
        None,
        f"the run is {state.phase}" + (f": {state.reason}" * bool(state.reason)),
    )
    return tuple(sorted(events, key=lambda event: event.t_s))
