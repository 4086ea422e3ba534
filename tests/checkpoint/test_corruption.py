"""Every corruption is found, the commit before is taken instead, and intact stores give no alarm."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest

from rerail.plugins.checkpoint import resolve as resolve_module
from rerail.plugins.checkpoint import verify as verify_module
from rerail.plugins.checkpoint.commit import read_entry
from rerail.plugins.checkpoint.notes import mark_commit, unmark_commit
from rerail.plugins.checkpoint.verify import verify
from rerail.policies import keys
from rerail.policies.documents import canonical, digest_of
from rerail.policies.errors import DamagedError, NewerFormatError
from rerail.policies.manifest import Manifest

EVERYTHING = os.environ.get("CI") == "true"
NEWEST, BEFORE = 300, 200
SAMPLE, S3_SAMPLE = 7, 47
PAGE = 512


@dataclass(frozen=True)
class Corruption:
    """One way to damage one key.

    Attributes:
        by_size: Resolve has to find it, since the size or the manifest tells; else verify and loading have to.
    """

    name: str
    key: str
    apply: Callable[[bytes], bytes | None]
    by_size: bool


def flipped(at, bit):
    return lambda data: data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def corruptions(scene):
    """All corruptions of the newest commit of a scene."""
    manifest = Manifest.decode(scene.store.control.get(keys.manifest(1, NEWEST)), "newest")
    older = Manifest.decode(scene.store.control.get(keys.manifest(1, BEFORE)), "before")
    read = {entry.path: scene.store.shards.get(keys.SHARDS + entry.path) for entry in (*manifest.files, *older.files)}
    for entry in manifest.files:
        yield from of_file(keys.SHARDS + entry.path, entry.size)
        for other in (*manifest.files, *older.files):
            if other.size == entry.size and other.digest != entry.digest:
                name = f"swapped with {other.path}"
                yield Corruption(name, keys.SHARDS + entry.path, lambda _, p=other.path: read[p], by_size=False)
    yield from of_manifest(scene, keys.manifest(1, NEWEST))


def of_file(key, size):
    yield Corruption("missing", key, lambda _: None, by_size=True)
    yield Corruption("empty", key, lambda _: b"", by_size=True)
    yield Corruption("one byte more", key, lambda data: data + b"\0", by_size=True)
    for left in sorted({1, size // 2, size - 1, size // PAGE * PAGE - 1}):
        yield Corruption(f"truncated to {left}", key, lambda data, n=left: data[:n], by_size=True)
    for at in range(0, size, PAGE):
        zeroed = lambda data, a=at: (data[:a] + bytes(PAGE) + data[a + PAGE :])[: len(data)]  # noqa: E731
        yield Corruption(f"page at {at} zeroed", key, zeroed, by_size=False)
    for at in sorted({0, 1, size - 1, *range(7, size, max(1, size // 40))}):
        yield Corruption(f"bit {at % 8} of byte {at} flipped", key, flipped(at, at % 8), by_size=False)


def of_manifest(scene, key):
    data = scene.store.control.get(key)
    yield Corruption("missing", key, lambda _: None, by_size=True)
    yield Corruption("empty", key, lambda _: b"", by_size=True)
    for left in range(1, len(data), len(data) // 12):
        yield Corruption(f"truncated to {left}", key, lambda data, n=left: data[:n], by_size=True)
    for at in range(0, len(data), len(data) // 120):
        yield Corruption(f"bit {at % 8} of byte {at} flipped", key, flipped(at, at % 8), by_size=True)
    for other in (100, BEFORE):
        stale = scene.store.control.get(keys.manifest(1, other))
        yield Corruption(f"stale, of step {other}", key, lambda _, s=stale: s, by_size=True)
    for field in sorted(json.loads(data)):
        yield Corruption(f"{field} taken out", key, edited(lambda doc, f=field: doc.pop(f)), by_size=True)
    for name, change in {
        "step raised": lambda doc: doc.update(step=NEWEST + 1),
        "another run": lambda doc: doc.update(run="another"),
        "another loss": lambda doc: doc.update(loss=0.25),
        "a file's size": lambda doc: doc["files"][0].update(size=doc["files"][0]["size"] + 1),
        "a file's digest": lambda doc: doc["files"][0].update(digest=doc["files"][1]["digest"]),
        "a file out": lambda doc: doc["files"].pop(),
        "files swapped": lambda doc: doc["files"].reverse(),
        "final": lambda doc: doc.update(reason="final"),
    }.items():
        yield Corruption(f"edited ({name})", key, edited(change), by_size=True)
        yield Corruption(f"edited with a fitting digest ({name})", key, edited(change, fit=True), by_size=True)


def edited(change, *, fit=False):
    def apply(data):
        doc = json.loads(data)
        change(doc)
        if fit:
            doc.pop("digest", None)
            doc["digest"] = digest_of(canonical(doc))
        return canonical(doc)

    return apply


def prepare(scene):
    """Three commits of attempt 1, the newest of which attempt 2 loads; all digests are in documents by then."""
    scene.submit()
    scene.open(1)
    for step in (100, BEFORE, NEWEST):
        scene.save(1, step)
    scene.open(2)
    return scene


def judged(scene, case):
    """What went wrong in finding one corruption; None if all went right. Leaves the store as it was."""
    store = scene.store.shards if case.key.startswith(keys.SHARDS) else scene.store.control
    intact = store.get(case.key)
    damaged = case.apply(intact)
    if damaged == intact:
        return "this corruption changes nothing"
    if damaged is None:
        store.delete((case.key,))
    else:
        store.put(case.key, damaged)
    try:
        return missed(scene, case)
    finally:
        store.put(case.key, intact)


def missed(scene, case):
    found = scene.resolve()
    if case.by_size and (found.step != BEFORE or [skip.step for skip in found.skipped] != [NEWEST]):
        return f"resolve answers {found.decision} {found.step}"
    if all(verdict.ok for verdict in verify(scene.store, {NEWEST})):
        return "verify finds nothing"
    if not case.by_size:
        if found.step != NEWEST:
            return f"resolve went back without reading: {found}"
        if not damage_met_in_loading(scene):
            return "loading finds nothing"
        mark_commit(scene.store, attempt=1, step=NEWEST, kind="bad", why=case.name, writer="the-rank-that-met-it")
        found = scene.resolve()
        unmark_commit(scene.store, attempt=1, step=NEWEST, kind="bad")
        if found.step != BEFORE:
            return f"resolve does not go back past the mark: {found}"
    if not all(verdict.ok for verdict in verify(scene.store, {BEFORE})):
        return "false alarm on the commit before"
    return None


def damage_met_in_loading(scene):
    manifest = Manifest.decode(scene.store.control.get(keys.manifest(1, NEWEST)), "newest")
    try:
        for entry in manifest.files:
            read_entry(scene.store, entry, memoryview(bytearray(entry.size)))
    except DamagedError:
        return True
    return False


def intact_everywhere(scene):
    return all(verdict.ok for verdict in verify(scene.store)) and scene.resolve().step == NEWEST


def run_matrix(scene, cases):
    wrong = {f"{case.name}: {case.key}": problem for case in cases if (problem := judged(scene, case))}
    assert intact_everywhere(scene), "the matrix left damage behind, or gives a false alarm"
    return wrong


def test_every_corruption_on_a_folder_is_found(scene_of, posix_store):
    scene = prepare(scene_of(posix_store))
    assert intact_everywhere(scene)
    cases = list(corruptions(scene))
    assert len({(case.name, case.key) for case in cases}) == len(cases) >= 500
    chosen = cases if EVERYTHING else cases[::SAMPLE]
    wrong = run_matrix(scene, chosen)
    sys.stdout.write(f"{len(chosen)} of {len(cases)} corruptions (all where CI=true), {len(wrong)} missed\n")
    assert not wrong


def test_a_sample_of_corruptions_on_s3_is_found(scene_of, s3_store):
    scene = prepare(scene_of(s3_store()))
    assert intact_everywhere(scene)
    cases = list(corruptions(scene))
    chosen = cases[:: SAMPLE if EVERYTHING else S3_SAMPLE]
    wrong = run_matrix(scene, chosen)
    sys.stdout.write(f"{len(chosen)} of {len(cases)} corruptions on S3, {len(wrong)} missed\n")
    assert not wrong


def test_damage_in_a_shared_file_is_told_of_every_commit_that_needs_it(scene_of, posix_store):
    scene = scene_of(posix_store)
    scene.submit()
    scene.open(1)
    full = scene.save(1, 100)
    second = scene.save(1, 200, base=full)
    scene.save(1, 300)
    shared = next(entry for entry in second.files if entry in full.files)
    data = scene.store.shards.get(keys.SHARDS + shared.path)
    scene.store.shards.put(keys.SHARDS + shared.path, flipped(5, 1)(data))
    assert {verdict.step: verdict.ok for verdict in verify(scene.store)} == {300: True, 200: False, 100: False}


def test_intact_stores_give_no_alarm(scene_of, memory_type):
    for seed in range(30 if EVERYTHING else 6):
        scene = scene_of(memory_type(), world_size=1 + seed % 3)
        scene.submit()
        steps = count(1)
        for attempt in range(1, 4):
            scene.open(attempt)
            base = None
            for at in range(seed % 4):
                base = scene.save(attempt, next(steps) * 10, base=base if at % 3 else None)
        verdicts = verify(scene.store)
        assert all(verdict.ok for verdict in verdicts), verdicts
        assert not scene.resolve().skipped


def test_a_missing_or_other_certificate_is_damage(scene):
    scene.open(1)
    scene.save(1, 100)
    data = scene.store.control.get(keys.certificate(1))
    scene.rewrite(keys.certificate(1), lambda doc: doc.update(exact=False))
    assert "is not the certificate" in verify(scene.store)[0].problems[0]
    scene.store.control.delete((keys.certificate(1),))
    assert "is missing" in verify(scene.store)[0].problems[0]
    scene.store.control.put(keys.certificate(1), data)
    assert verify(scene.store)[0].ok


def test_a_newer_format_is_an_error_and_not_damage(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.rewrite(keys.manifest(1, 100), lambda doc: doc.update(format=7))
    with pytest.raises(NewerFormatError, match="format 7"):
        verify(scene.store)


# The same matrix on broken code


def test_the_matrix_catches_a_verifier_that_compares_no_digests(scene_of, memory, monkeypatch):
    monkeypatch.setattr(verify_module, "read_entry", lambda *_: None)
    scene = prepare(scene_of(memory))
    wrong = run_matrix(scene, list(corruptions(scene))[::SAMPLE])
    assert sum(problem == "verify finds nothing" for problem in wrong.values()) > 20


def test_the_matrix_catches_a_store_that_says_what_one_wants_to_hear(scene_of, memory_type):
    class Trusting(memory_type):
        """Broken: the digest of what was written once, not of what is read."""

        written = {}  # noqa: RUF012 - shared by all views

        def upload(self, key, buffers, *, size):
            done = super().upload(key, buffers, size=size)
            self.written[key] = done.digest
            return done

        def download(self, key, into):
            super().download(key, into)
            return self.written[key]

    scene = prepare(scene_of(Trusting()))
    wrong = run_matrix(scene, list(corruptions(scene))[::SAMPLE])
    assert len(wrong) > 20


def test_the_matrix_catches_a_resolve_that_looks_at_no_sizes(scene_of, memory, monkeypatch):
    monkeypatch.setattr(resolve_module, "size_problems", lambda *_args, **_how: ())
    scene = prepare(scene_of(memory))
    wrong = run_matrix(scene, list(corruptions(scene))[::SAMPLE])
    assert any(problem == f"resolve answers resume {NEWEST}" for problem in wrong.values())


def test_the_matrix_catches_a_document_that_is_not_held_against_its_digest(scene_of, memory, monkeypatch):
    real = resolve_module.load_manifest
    monkeypatch.setattr(resolve_module, "load_manifest", lambda run, attempt, step, **_: real(run, attempt, step))
    scene = prepare(scene_of(memory))
    wrong = run_matrix(scene, [case for case in corruptions(scene) if "fitting digest" in case.name])
    assert any("another loss" in name for name in wrong)
