"""The certificate finds every part that did not come back, or came back from another step, before the first step.

``test_local_gang_parts.py`` shows that each of these would have been another run.
"""

import secrets
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rerail.examples.local_gang import train
from rerail.plugins.checkpoint.attempts import create_run, open_attempt
from rerail.plugins.checkpoint.manifests import read_entry, read_manifest
from rerail.plugins.checkpoint.notes import read_certificate
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.resolve import resolve
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer import Checkpointer
from rerail.plugins.trainer.codec import decode, decode_inline
from rerail.policies.documents import Rendezvous, RunDoc
from rerail.policies.errors import DO_NOT_RETRY
from rerail.policies.manifest import PARTS

RUN = "alone"
STEPS, CUT, EPOCH_END = 30, 28, 26
OPTIONS = ["--steps", str(STEPS), "--batch", "8", "--samples", "100", "--save-every", "1"]


def open_and_train(
    root: Path, attempt: int, monkeypatch: pytest.MonkeyPatch, *, load: int | None = None, client: Any = Checkpointer
) -> None:
    """One attempt of a single rank, in this process."""
    open_attempt(
        open_run(RUN, store=root.as_uri()),
        attempt=attempt,
        how="new-gang" if attempt > 1 else "fresh",
        gang=f"{RUN}-a{attempt}",
        world_size=1,
        rendezvous=Rendezvous(id=secrets.token_hex(8), host="127.0.0.1", port=0),
        writer=secrets.token_hex(8),
        step=load,
    )
    told = {"RUN": RUN, "STORE": root.as_uri(), "ATTEMPT": str(attempt), "GANG": f"{RUN}-a{attempt}"}
    for name in ("RANK", "WORLD_SIZE", "RERAIL_TRACE", "RERAIL_CONTROL", "RERAIL_RANK_REPORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(f"RERAIL_{name}", value)
    monkeypatch.setattr(train, "Checkpointer", client)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the client hooks it for the life of a process
    train.main(OPTIONS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a commit of every step."""
    root = tmp_path_factory.mktemp("store")
    run = open_run(RUN, store=root.as_uri())
    create_run(run, RunDoc(writer=secrets.token_hex(8), run=RUN, owner="test", created_at_s=0, world_size=1))
    with pytest.MonkeyPatch.context() as monkeypatch:
        open_and_train(root, 1, monkeypatch)
    assert resolve(run).step == STEPS
    return root


def read_part(run: RunStore, step: int, part: str) -> Any:
    manifest = read_manifest(run, 1, step)
    stored = manifest.parts[part]
    if not stored.files:
        return decode_inline(stored.value, part)
    (entry,) = [entry for entry in manifest.files if entry.path == stored.files[0]]
    data = memoryview(bytearray(entry.size))
    read_entry(run, entry, data)
    return decode(data, part)


def sabotaged(part: str, how: str, run: RunStore, cut: int) -> Any:
    """A client in which one part's setter does nothing, or takes the state of one step earlier."""

    def spoil(holder: Any) -> Any:
        get, take = holder if isinstance(holder, tuple) else (holder.state_dict, holder.load_state_dict)
        if how == "one_step_back":
            return get, lambda _: take(read_part(run, cut - 1, part))
        return get, lambda _: None

    def from_env(*, shared: dict[str, Any], per_rank: dict[str, Any], **rest: Any) -> Any:
        for holders in (shared, per_rank):
            if part in holders:
                holders[part] = spoil(holders[part])
        client = Checkpointer.from_env(shared=shared, per_rank=per_rank, **rest)
        if part == "step":
            restore = client.restore
            client.restore = lambda: restore() and (cut - 1 if how == "one_step_back" else 0)  # type: ignore[method-assign]
        return client

    return SimpleNamespace(from_env=from_env)


@pytest.mark.parametrize("how", ["left_out", "one_step_back"])
@pytest.mark.parametrize("part", PARTS)
def test_certificate_is_refused_and_names_the_part(
    part: str, how: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    shutil.copytree(saved, root)
    run = open_run(RUN, store=root.as_uri())
    cut = EPOCH_END if part == "epoch" else CUT
    with pytest.raises(SystemExit) as left:
        open_and_train(root, 2, monkeypatch, load=cut, client=sabotaged(part, how, run, cut))
    assert left.value.code == DO_NOT_RETRY
    certificate = read_certificate(run, 2)
    if part == "step":  # its bytes came back; that the loop does not go on from them shows at the first step
        wrong = cut if how == "one_step_back" else 1
        assert f"{wrong}" in str(left.value)
        assert f"{cut + 1}" in str(left.value)
    else:
        assert not certificate.ok
        assert not certificate.exact
        (rank,) = certificate.ranks
        assert rank.state_digest != rank.expected_digest
        assert [problem.split(":")[0] for problem in rank.problems] == [part]
    assert resolve(run).attempt == 1  # and nothing was committed over the run


def test_untouched_parts_are_certified(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    shutil.copytree(saved, root)
    run = open_run(RUN, store=root.as_uri())
    open_and_train(root, 2, monkeypatch, load=CUT)
    certificate = read_certificate(run, 2)
    assert (certificate.ok, certificate.exact) == (True, True)
    before, after = read_manifest(run, 1, STEPS), read_manifest(run, 2, STEPS)
    assert before.state_digests == after.state_digests
    assert {entry.digest for entry in before.files} == {entry.digest for entry in after.files}
    assert before.parts["epoch"].value == after.parts["epoch"].value


def test_parts_are_the_ten_and_small_ones_stand_in_the_manifest(saved: Path) -> None:
    manifest = read_manifest(open_run(RUN, store=saved.as_uri()), 1, CUT)
    assert set(manifest.parts) == set(PARTS)
    assert all(part.absent is None for part in manifest.parts.values())
    assert manifest.parts["step"].value == CUT
    assert [path.rsplit("/", 1)[-1] for path in manifest.parts["epoch"].files] == ["epoch.safetensors"]
