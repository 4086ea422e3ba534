import pytest

from rerail.plugins.checkpoint.commit import Blob, confirm, read_entry, write_part
from rerail.plugins.checkpoint.notes import (
    add_report,
    add_request,
    beat,
    create_certificate,
    read_certificate,
    read_heartbeat,
    read_reports,
    read_requests,
)
from rerail.policies import keys
from rerail.policies.documents import Heartbeat, Report
from rerail.policies.errors import (
    CommitExistsError,
    CommitFencedError,
    DamagedError,
    IncompleteStateError,
    NewerFormatError,
    SaveFailedError,
    SupersededError,
    UsageError,
)
from rerail.policies.manifest import CertificateRef, Snapshot

PART = {
    "attempt": 1,
    "step": 100,
    "save_id": "00000abc",
    "values": {"step": 100},
    "snapshot": Snapshot(rank=0, at_s=0.0),
    "state_digest": None,
    "writer": "rank-0-of-it",
}


def test_two_writers_of_one_step_give_one_commit(scene):
    scene.open(1)
    first = scene.save(1, 100)
    with pytest.raises(CommitExistsError, match="committed by another writer"):
        scene.save(1, 100)
    assert scene.resolve().step == 100
    assert confirm(scene.store, attempt=1, step=100, save_id=first.save_id) == first
    with pytest.raises(CommitExistsError):
        confirm(scene.store, attempt=1, step=100, save_id="another0")


def test_the_same_writer_may_commit_again(scene):
    scene.open(1)
    save_id = scene.save_id()
    scene.parts(1, 100, save_id)
    first = scene.finish(1, 100, save_id)
    assert scene.finish(1, 100, save_id) == first


def test_a_zombie_of_an_older_attempt_is_fenced_and_never_chosen(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.open(2)
    with pytest.raises(CommitFencedError, match="not on the chain of attempt 2, which goes on from step 100"):
        scene.save(1, 900)
    scene.save(2, 150)
    assert scene.resolve().step == 150
    assert scene.open(3).load.step == 150


def test_missing_ranks_are_named_and_the_commit_before_stands(scene_of, memory):
    scene = scene_of(memory, world_size=4)
    scene.submit()
    scene.open(1)
    scene.save(1, 100)
    save_id = scene.save_id()
    scene.parts(1, 200, save_id, ranks=[0, 2])
    with pytest.raises(SaveFailedError, match=r"no part record of rank 1, 3 within 0\.02 s"):
        scene.finish(1, 200, save_id, deadline_s=0.02)
    with pytest.raises(SaveFailedError, match="rank 0 did not commit"):
        confirm(scene.store, attempt=1, step=200, save_id=save_id, deadline_s=0.0)
    assert scene.resolve().step == 100


def test_a_missing_part_of_the_state_refuses_the_commit(scene_of, memory):
    scene = scene_of(memory, world_size=1)
    scene.submit()
    scene.open(1)
    blob = Blob("model.bin", "model", 3, (b"abc",))
    write_part(scene.store, rank=0, blobs=[blob], absent={}, **PART)
    with pytest.raises(IncompleteStateError, match="optimizer, scheduler, epoch, rng, scaler, data, distributed, user"):
        scene.finish(1, 100, PART["save_id"])
    assert scene.resolve().decision == "fresh"


def test_ranks_with_different_values_do_not_make_a_commit(scene):
    scene.open(1)
    absent = dict.fromkeys(set(keys_of_parts()) - {"model", "step"}, "not used here")
    for rank in range(2):
        part = PART | {"values": {"step": 100 + rank}, "writer": f"rank-{rank}-of-it"}
        blob = Blob(f"model-{rank}.bin", "model", 3, (b"abc",))
        write_part(scene.store, rank=rank, blobs=[blob], absent=absent, **part)
    with pytest.raises(SaveFailedError, match="part 'step': rank 1 has another value than rank 0"):
        scene.finish(1, 100, PART["save_id"])


def keys_of_parts():
    from rerail.policies.manifest import PARTS

    return PARTS


@pytest.mark.parametrize(
    "blob",
    [
        Blob("../x", "model", 1, (b"a",)),
        Blob("/x", "model", 1, (b"a",)),
        Blob("part-00000.json", "model", 1, (b"a",)),
        Blob("x", "model", 0, ()),
        Blob("x", "modle", 1, (b"a",)),
    ],
)
def test_unusable_files_are_refused_by_name(scene, blob):
    with pytest.raises(UsageError):
        write_part(scene.store, rank=0, blobs=[blob], absent={}, **PART)


def test_a_commit_names_the_certificate_of_its_own_attempt(scene):
    scene.open(1)
    with pytest.raises(UsageError, match="cannot name the certificate of attempt 2"):
        scene.save(1, 100, certificate=CertificateRef(attempt=2, digest="sha256:0"))


def test_an_attempt_number_has_one_certificate(scene):
    scene.open(1)
    cert = read_certificate(scene.store, 1)
    assert create_certificate(scene.store, cert) == cert
    with pytest.raises(SupersededError, match="used once"):
        create_certificate(scene.store, cert.model_copy(update={"writer": "another-group"}))


def test_reading_names_what_is_wrong_with_a_file(scene, memory):
    scene.open(1)
    entry = scene.save(1, 100).files[0]
    key = f"llama/shards/{entry.path}"
    into = memoryview(bytearray(entry.size))
    read_entry(scene.store, entry, into)
    with pytest.raises(UsageError, match="a buffer of 5 bytes"):
        read_entry(scene.store, entry, memoryview(bytearray(5)))
    with pytest.raises(NewerFormatError, match="unknown algorithm"):
        read_entry(scene.store, entry.model_copy(update={"digest": "md6:1"}), into)
    memory.objects[key] = memory.objects[key][::-1]
    with pytest.raises(DamagedError, match=f"is damaged: expected {entry.digest}, found sha256:"):
        read_entry(scene.store, entry, into)
    del memory.objects[key]
    with pytest.raises(DamagedError, match="is missing, expected 6000 bytes"):
        read_entry(scene.store, entry, into)


def test_a_symbolic_link_in_a_save_folder_is_not_followed(scene_of, posix_store, tmp_path):
    scene = scene_of(posix_store)
    scene.submit()
    scene.open(1)
    scene.save(1, 100)
    entry = scene.save(1, 200).files[0]
    (file,) = tmp_path.rglob(f"{entry.path.rsplit('/', 2)[-2]}/{entry.path.rsplit('/', 1)[-1]}")
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    found = scene.resolve()
    assert found.step == 100
    assert entry.path in found.skipped[0].why


def test_requests_and_reports_are_numbered_and_read_on_from_a_key(scene):
    ask = {"attempt": 1, "reason": "maintenance", "within_s": 30.0, "then": "leave"}
    first = add_request(scene.store, **ask, writer="pre-evict", id="r-1")
    assert add_request(scene.store, **ask, writer="pre-evict-again", id="r-1") == first
    add_request(scene.store, **ask, writer="a-person", id="r-2")
    add_request(scene.store, **(ask | {"attempt": 2}), writer="a-person", id="r-3")
    seen = read_requests(scene.store, 1)
    assert [request.id for _, request in seen] == ["r-1", "r-2"]
    assert [request.id for _, request in read_requests(scene.store, 1, after=seen[0][0])] == ["r-2"]
    for pod in ("pod-b", "pod-a"):
        report = Report(writer=f"launch-{pod}", run="llama", attempt=1, gang="llama-a1", pod=pod)
        add_report(scene.store, report)
    reports = read_reports(scene.store, 1)
    assert [report.pod for _, report in reports] == ["pod-b", "pod-a"]
    assert [report.pod for _, report in read_reports(scene.store, 1, after=reports[0][0])] == ["pod-a"]


def test_two_that_ask_at_once_under_one_id_are_one_request(scene, monkeypatch):
    ask = {"attempt": 1, "reason": "maintenance", "within_s": 30.0, "then": "leave", "id": "r-1"}
    listed, page = [], type(scene.store.control).page

    def after_another(store, *args, **more):
        found = page(store, *args, **more)
        if not listed:
            listed.append(found)
            add_request(scene.store, **ask, writer="somebody-else")
        return found

    monkeypatch.setattr(type(scene.store.control), "page", after_another)
    standing = add_request(scene.store, **ask, writer="we-ourselves")
    assert standing.writer == "somebody-else"
    assert [request.writer for _, request in read_requests(scene.store, 1)] == ["somebody-else"]


def test_a_heartbeat_is_a_hint(scene):
    assert read_heartbeat(scene.store) is None
    beat(scene.store, Heartbeat(writer="launch-0", run="llama", attempt=1, step=7, phase="training", at_s=1.0))
    assert read_heartbeat(scene.store).step == 7
    scene.store.control.put(keys.HEARTBEAT, b"{torn")
    assert read_heartbeat(scene.store) is None
