"""A new run that begins from another run's commit. Its files are copied, so neither run depends on the other."""

import secrets
from pathlib import PurePosixPath

from rerail.plugins.checkpoint.attempts import seal_attempt, start_attempt
from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.notes import certificate_ref
from rerail.plugins.checkpoint.resolve import resolve
from rerail.plugins.checkpoint.store import Exists, RunStore
from rerail.policies import keys
from rerail.policies.documents import Certificate, Rendezvous, Seal
from rerail.policies.errors import DamagedError, ResumeBlockedError
from rerail.policies.manifest import FileEntry, Manifest

FORK_ATTEMPT = 1
"""The attempt that holds the copied commit; nothing ever runs in it."""


def fork_commit(source: RunStore, target: RunStore, *, step: int) -> Manifest:
    """Copy one commit of ``source`` into ``target``, whose ``run.json`` exists, as its attempt 1.

    May be repeated after it was cut off; a copy that stands is left as it is.

    Args:
        source: The run to fork from.
        target: The new run.
        step: The step to take; it must be on the source's chain and good.

    Returns:
        The commit in the new run.

    Raises:
        NotFoundError: The source has no such step, or is not there.
        ResumeBlockedError: The step cannot be used.
        DamagedError: A file's bytes are not what its manifest says.
    """
    key = keys.manifest(FORK_ATTEMPT, step)
    if any(entry.key == key for entry in target.control.page(keys.manifests_of(FORK_ATTEMPT)).entries):
        return read_manifest(target, FORK_ATTEMPT, step)
    found = resolve(source, step=step)
    if found.decision != "resume" or found.attempt is None:
        raise ResumeBlockedError(f"run {source.run!r} at step {step}: {found.reason}")
    original = read_manifest(source, found.attempt, step)
    save_id = secrets.token_hex(8)
    folder = keys.folder(FORK_ATTEMPT, step, save_id)
    copied = {
        entry.path: _copy(source, target, entry, f"{folder}{number:05d}-{PurePosixPath(entry.path).name}")
        for number, entry in enumerate(original.files)
    }
    certificate = _open(target, source.run, step, world_size=original.layout.world_size)
    parts = {
        name: part.model_copy(update={"files": tuple(copied[path].path for path in part.files)})
        for name, part in original.parts.items()
    }
    manifest = original.model_copy(
        update={
            "writer": secrets.token_hex(8),
            "run": target.run,
            "attempt": FORK_ATTEMPT,
            "save_id": save_id,
            "folder": folder,
            "reason": "periodic",
            "temporary": False,
            "parts": parts,
            "files": tuple(copied.values()),
            "certificate": certificate_ref(certificate),
            "answers": (),
            "base": None,
            "full": True,
        }
    )
    outcome = target.control.create(key, manifest.encode())
    return read_manifest(target, FORK_ATTEMPT, step) if isinstance(outcome, Exists) else manifest


def _copy(source: RunStore, target: RunStore, entry: FileEntry, to: str) -> FileEntry:
    content = bytearray(entry.size)
    digest = source.shards.download(keys.SHARDS + entry.path, memoryview(content))
    if digest != entry.digest:
        raise DamagedError(f"{entry.path} of run {source.run!r}: digest {digest}, its manifest says {entry.digest}")
    target.shards.upload(to, [content], size=entry.size)
    return entry.model_copy(update={"path": to.removeprefix(keys.SHARDS)})


def _open(target: RunStore, source: str, step: int, *, world_size: int) -> Certificate:
    """Seal and start the attempt that nothing runs in, and give the certificate that its commit names."""
    gang = f"{target.run}-fork"
    why = f"holds step {step} of run {source!r}"
    seal_attempt(
        target,
        Seal(writer=secrets.token_hex(8), run=target.run, attempt=FORK_ATTEMPT, how="fresh", gang=gang, reason=why),
    )
    start = start_attempt(
        target,
        attempt=FORK_ATTEMPT,
        how="fresh",
        gang=gang,
        world_size=world_size,
        rendezvous=Rendezvous(id=secrets.token_hex(8), host="none", port=0),
        writer=secrets.token_hex(8),
    )
    certificate = Certificate(
        writer=start.writer,
        run=target.run,
        attempt=FORK_ATTEMPT,
        loaded=None,
        ok=True,
        exact=True,
        reasons=(why,),
        ranks=(),
    )
    key = keys.certificate(FORK_ATTEMPT)
    outcome = target.control.create(key, certificate.encode())
    if isinstance(outcome, Exists):
        return Certificate.decode(outcome.data, f"{target.control.url}: {key}")
    return certificate
