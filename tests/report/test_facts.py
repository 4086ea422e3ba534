"""Facts read from a real store: commits and their standing, certificates, notes, and what cannot be read."""

import pytest

from rerail.plugins.checkpoint.attempts import create_run, open_attempt
from rerail.plugins.checkpoint.commit import commit
from rerail.plugins.checkpoint.notes import certificate_ref, create_certificate, mark_commit, read_certificate
from rerail.plugins.checkpoint.parts import Blob, write_part
from rerail.plugins.checkpoint.store import all_entries
from rerail.plugins.report import build_report, read_facts, render
from rerail.policies import keys
from rerail.policies.documents import Certificate, RankCertificate, Rendezvous, RunDoc
from rerail.policies.errors import CommitFencedError
from rerail.policies.manifest import PARTS, Layout, Snapshot
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.state import AttemptRecord, LedgerEntry, RunState

T0 = 1_796_000_000.0
WRITER = "writer-of-test"


def _open(run, attempt):
    start = open_attempt(
        run, attempt=attempt, how="fresh" if attempt == 1 else "new-gang", gang=f"demo-a{attempt}", world_size=1,
        rendezvous=Rendezvous(id=f"r{attempt}", host="127.0.0.1", port=1), writer=f"{WRITER}-{attempt}",
    )  # fmt: skip
    rank = RankCertificate(rank=0, node="node-0", bytes_read=0, files=0, state_digest=None, expected_digest=None)
    certificate = Certificate(
        writer=WRITER, run=run.run, attempt=attempt, loaded=start.load, ok=True, exact=attempt == 1,
        reasons=() if attempt == 1 else ("numpy 2.4.6 became 2.4.7",), ranks=(rank,),
    )  # fmt: skip
    return create_certificate(run, certificate)


def _save(run, certificate, step, at, reason="periodic"):
    save_id = f"{step:08x}{certificate.attempt:08x}"
    write_part(
        run, attempt=certificate.attempt, step=step, save_id=save_id, rank=0,
        blobs=[Blob(name="model.bin", part="model", size=1000, buffers=(bytes(1000),))], values={"step": step},
        absent={part: "not in this test" for part in PARTS if part not in ("model", "step")},
        snapshot=Snapshot(rank=0, at_s=at, node="node-0"), state_digest=None, writer=WRITER,
    )  # fmt: skip
    commit(
        run, attempt=certificate.attempt, step=step, save_id=save_id, world_size=1, reason=reason,
        certificate=certificate_ref(certificate), layout=Layout(world_size=1), writer=WRITER,
    )  # fmt: skip


@pytest.fixture
def run(run_store):
    run = run_store("demo")
    create_run(run, RunDoc(writer=WRITER, run="demo", owner="local/test", created_at_s=T0, world_size=1))
    first = _open(run, 1)
    for step in (20, 40, 60):
        _save(run, first, step, T0 + step / 10)
    mark_commit(run, attempt=1, step=60, kind="suspect", why="gpu_lost on node-0", writer=WRITER)
    mark_commit(run, attempt=1, step=40, kind="bad", why="a flipped bit in model.bin", writer=WRITER)
    second = _open(run, 2)
    _save(run, second, 30, T0 + 11)
    mark_commit(run, attempt=2, step=30, kind="pin", why="for the paper", writer=WRITER)
    _save(run, second, 50, T0 + 12, reason="final")
    for number in range(3):
        state = RunState(run="demo", world_size=1, phase="running", attempt=1)
        entry = LedgerEntry(writer=WRITER, number=number, at_s=T0 + number, note=f"decision {number}", state=state)
        run.control.create(keys.ledger(number), entry.encode())
    return run


def test_commits_come_with_their_standing_and_the_reason(run):
    facts = read_facts(run)
    assert [(fact.attempt, fact.step, fact.state, fact.why) for fact in facts.commits] == [
        (1, 20, "good", ""),
        (1, 40, "bad", "a flipped bit in model.bin"),
        (1, 60, "suspect", "gpu_lost on node-0"),
        (2, 30, "good", ""),
        (2, 50, "good", ""),
    ]
    assert [fact.pinned for fact in facts.commits] == [False, False, False, True, False]
    assert facts.commits[0].at_s == T0 + 2.0
    assert facts.commits[0].size_bytes == 1000
    assert facts.commits[-1].reason == "final"
    assert [certificate.exact for certificate in facts.certificates] == [True, False]
    assert [note.text for note in facts.notes] == ["decision 0", "decision 1", "decision 2"]
    assert (facts.created_at_s, facts.until_s, facts.owner) == (T0, T0 + 2.0, "local/test")
    assert facts.unreadable == ()


def test_what_was_passed_over_is_told_also_when_retention_deleted_it(run, t0):
    run.control.delete((keys.manifest(1, 60), keys.manifest(1, 40)))
    facts = read_facts(run)
    gone = [fact for fact in facts.commits if fact.at_s is None]
    assert [(fact.step, fact.state, fact.reason) for fact in gone] == [
        (40, "bad", "deleted since"),
        (60, "suspect", "deleted since"),
    ]
    record = AttemptRecord(
        n=1, gang="demo-a1", nodes=("node-0",), how="fresh", opened_at_s=t0, started_at_s=t0, started_from_step=0,
        first_step_at_s=t0, last_step=80, ended_at_s=t0 + 8,
    )  # fmt: skip
    state = RunState(run="demo", world_size=1, phase="running", attempt=1, attempts=(record,))
    report = build_report(state, facts, DRILL_POLICY)
    assert {row.step: row.at for row in report.checkpoints if row.at_s is None} == {40: 4.0, 60: 6.0}
    assert "about 6.00 s" in render(report)


def test_what_resolve_found_damaged_itself_is_bad_without_a_mark(run_store):
    run = run_store("torn")
    create_run(run, RunDoc(writer=WRITER, run="torn", owner="local/test", created_at_s=T0, world_size=1))
    first = _open(run, 1)
    for step in (20, 40):
        _save(run, first, step, T0 + step)
    files = [
        entry.key for entry in all_entries(run.shards, keys.SHARDS) if "1.40." in entry.key and "model" in entry.key
    ]
    run.shards.delete(tuple(files))
    _open(run, 2)
    (good, bad) = read_facts(run).commits
    assert (good.step, good.state) == (20, "good")
    assert (bad.step, bad.state) == (40, "bad")
    assert "missing" in bad.why


def test_a_commit_that_a_later_attempt_did_not_build_on_is_off_the_chain(run):
    with pytest.raises(CommitFencedError):
        _save(run, read_certificate(run, 1), 80, T0 + 20)  # a zombie of attempt 1
    fact = next(fact for fact in read_facts(run).commits if fact.step == 80)
    assert (fact.attempt, fact.state) == (1, "off-chain")


def test_damage_is_a_fact_and_no_reason_to_have_no_report(run):
    run.control.delete((keys.RUN, keys.manifest(2, 50), keys.certificate(1)))
    run.control.create(keys.manifest(2, 50), b'{"edited": true}')
    run.control.create(keys.certificate(1), b"")
    facts = read_facts(run)
    assert len(facts.commits) == 4
    assert len(facts.certificates) == 1
    assert len(facts.unreadable) == 3
    state = RunState(run="demo", world_size=1, phase="stopped", attempt=2, reason="see below")
    page = render(build_report(state, facts, DRILL_POLICY))
    assert "Could not be read (3)" in page
    assert "numpy 2.4.6 became 2.4.7" in page


def test_a_run_that_never_opened_an_attempt(run_store):
    facts = read_facts(run_store("empty"))
    assert facts.commits == ()
    assert len(facts.unreadable) == 1  # run.json
