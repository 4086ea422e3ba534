"""All ranks of an attempt load together and certify what they found, before the first step."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rerail.plugins.checkpoint.attempts import newest_opening
from rerail.plugins.checkpoint.manifests import load_manifest
from rerail.plugins.checkpoint.notes import certificate_ref, create_certificate, mark_commit
from rerail.plugins.checkpoint.resolve import read_start
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer.agree import Group
from rerail.plugins.trainer.environment import RankEnvironment
from rerail.plugins.trainer.leave import Left
from rerail.plugins.trainer.loading import Loader, RankLoad, certify
from rerail.plugins.trainer.state import TrainingState
from rerail.policies.documents import Certificate, Start
from rerail.policies.errors import (
    DAMAGE_MET,
    DO_NOT_RETRY,
    LEFT_UNSAVED,
    DamagedError,
    NotFoundError,
    PermanentError,
    RerailError,
    SupersededError,
    TransientError,
)
from rerail.policies.manifest import CertificateRef, Manifest

log = logging.getLogger("rerail.trainer")


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """What training goes on from.

    Attributes:
        step: Completed optimizer steps; 0 for a fresh start.
        epoch: As it was told then.
        counters: As they were told then.
        final: The commit that was loaded is the end of the run already.
        start_writer: Random id of the attempt's start; save ids derive from it.
        certificate: What the ranks found (complete on rank 0 and on all others).
        certificate_ref: How commits name it.
    """

    step: int = 0
    epoch: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    final: bool = False
    start_writer: str = ""
    certificate: Certificate | None = None
    certificate_ref: CertificateRef | None = None


def restore(
    run: RunStore,
    told: RankEnvironment,
    state: TrainingState,
    *,
    group: Group,
    seed: int | None,
    environment: dict[str, str],
    asked_to_leave: Callable[[], bool],
    new_id: Callable[[], str],
) -> Restored:
    """Load what the start says and certify it. Called by all ranks; two exchanges through the group.

    Raises:
        Left: With the same code on all ranks, unless this rank may not run the attempt at all.
    """
    found = RankLoad(told.rank, told.node, environment)
    start = _own_start(run, told)
    manifest = _load(run, told=told, start=start, state=state, seed=seed, found=found)
    found.leave = asked_to_leave()
    loads = [RankLoad.decode(payload) for payload in group.all_gather(found.encode())]
    verdict = _judge(run, start, manifest, loads, new_id) if told.rank == 0 else {}
    verdict = json.loads(group.all_gather(json.dumps(verdict).encode())[0])
    if verdict["code"]:
        raise Left(verdict["code"], verdict["reason"])
    certificate = Certificate.decode(verdict["certificate"].encode(), "the certificate that rank 0 sent")
    if told.rank == 0 and not certificate.exact:
        log.warning("rerail: the resume is not exact: %s", "; ".join(certificate.reasons))
    epoch = manifest.parts["epoch"].value if manifest else None
    return Restored(
        step=manifest.step if manifest else 0,
        epoch=epoch if isinstance(epoch, int) else None,
        counters=dict(manifest.counters) if manifest else {},
        final=manifest is not None and manifest.reason == "final",
        start_writer=start.writer,
        certificate=certificate,
        certificate_ref=certificate_ref(certificate),
    )


def _own_start(run: RunStore, told: RankEnvironment) -> Start:
    """The start of this attempt, if it is ours to run."""
    try:
        start = read_start(run, told.attempt)
        sealed = newest_opening(run).sealed
    except NotFoundError as error:
        raise Left(LEFT_UNSAVED, f"{error}; ranks are started after the start is written") from None
    except RerailError as error:
        raise Left(LEFT_UNSAVED, f"{type(error).__name__}: {error}") from None
    if start.gang != told.gang:
        raise Left(
            LEFT_UNSAVED, f"attempt {told.attempt} belongs to gang {start.gang!r}, this process to {told.gang!r}"
        )
    if sealed is not None and sealed > told.attempt:
        raise Left(LEFT_UNSAVED, f"attempt {sealed} was opened; attempt {told.attempt} is over")
    if start.world_size != told.world_size:
        raise Left(
            DO_NOT_RETRY,
            f"WORLD_SIZE={told.world_size}, but the start of attempt {told.attempt} says {start.world_size} ranks",
        )
    return start


def _load(
    run: RunStore, *, told: RankEnvironment, start: Start, state: TrainingState, seed: int | None, found: RankLoad
) -> Manifest | None:
    """Load this rank's state; problems go to ``found``, so that no rank leaves the others waiting in an exchange."""
    if start.load is None:
        return None
    try:
        stored = load_manifest(run, start.load.attempt, start.load.step)
    except (DamagedError, NotFoundError) as error:
        found.damage.append(str(error))
        return None
    except TransientError as error:
        found.unreachable.append(str(error))
        return None
    except PermanentError as error:
        found.mismatch.append(str(error))
        return None
    if stored.ref.digest != start.load.digest:
        found.damage.append(
            f"the manifest of step {start.load.step} has digest {stored.ref.digest}, "
            f"the start names {start.load.digest}"
        )
        return None
    loader = Loader(run, stored.manifest, state, told.rank, told.world_size, seed)
    loader.load(found)
    return stored.manifest


def _judge(
    run: RunStore, start: Start, manifest: Manifest | None, loads: list[RankLoad], new_id: Callable[[], str]
) -> dict[str, object]:
    """Rank 0's verdict for all: a certificate, or the code that all leave with."""
    if any(load.leave for load in loads):
        return _left(LEFT_UNSAVED, "asked to leave while loading; nothing new to save")
    unreachable = _told(loads, "unreachable")
    if unreachable:
        return _left(LEFT_UNSAVED, f"the store did not give the checkpoint: {unreachable}")
    certificate = certify(
        loads,
        run=run.run,
        attempt=start.attempt,
        loaded=start.load,
        saved_environment=manifest.environment if manifest else None,
        writer=new_id(),
    )
    try:
        certificate = create_certificate(run, certificate)
        damage = _told(loads, "damage")
        if damage and start.load:
            mark_commit(run, attempt=start.load.attempt, step=start.load.step, kind="bad", why=damage, writer=new_id())
    except SupersededError as error:
        return _left(LEFT_UNSAVED, str(error))
    except RerailError as error:
        return _left(LEFT_UNSAVED, f"the certificate could not be written: {error}")
    if damage:
        return _left(DAMAGE_MET, f"the checkpoint of step {start.load.step if start.load else 0} is damaged: {damage}")
    if not certificate.ok:
        return _left(DO_NOT_RETRY, f"the certificate is refused: {_told(loads, 'mismatch')}")
    return {"code": 0, "certificate": certificate.encode().decode()}


def _left(code: int, reason: str) -> dict[str, object]:
    return {"code": code, "reason": reason}


def _told(loads: list[RankLoad], kind: str) -> str:
    problems = {f"rank {load.rank}: {problem}" for load in loads for problem in getattr(load, kind)}
    return "; ".join(sorted(problems))
