"""The control documents of a run: frozen, self-describing, each with a writer id and a digest of itself.

Encoding is canonical JSON (sorted keys, no blanks, UTF-8). The digest covers everything but itself, unknown fields
included, so an edited or stale document is found without any other source.
"""

import hashlib
import json
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from rerail.policies.errors import DamagedError, NewerFormatError

How = Literal["fresh", "new-gang", "in-place"]

_ALGORITHM = "sha256:"


class Value(BaseModel):
    """A frozen part of a document; unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def digest_of(data: bytes) -> str:
    """Digest of bytes in the form that every document and manifest uses."""
    return _ALGORITHM + hashlib.sha256(data).hexdigest()


def canonical(content: JsonValue | dict[str, Any]) -> bytes:
    """Canonical JSON: the same content gives the same bytes."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Document(Value):
    """Base of all documents in the store.

    Attributes:
        kind: Name of the document's kind; a mismatch is damage.
        format: Version of the kind's format. A newer one blocks; it is never guessed at.
        writer: Random id of this one write; tells an own, retried success from somebody else's.
    """

    KIND: ClassVar[str]
    FORMAT: ClassVar[int] = 1

    writer: str = Field(min_length=8)

    def encode(self) -> bytes:
        """The document's bytes, with kind, format and digest."""
        content = self.model_dump(mode="json", by_alias=True)
        content["kind"] = self.KIND
        content["format"] = self.FORMAT
        content["digest"] = digest_of(canonical(content))
        return canonical(content)

    @classmethod
    def decode(cls, data: bytes, where: str) -> Self:
        """Read a document back.

        Args:
            data: Bytes as stored.
            where: Address of the document, for messages.

        Raises:
            DamagedError: The bytes are not what was written.
            NewerFormatError: Written by a newer Rerail, or with an unknown digest algorithm.
        """
        try:
            content = json.loads(data)
        except ValueError as error:
            raise DamagedError(f"{where}: no JSON document ({len(data)} bytes: {error})") from None
        if not isinstance(content, dict):
            raise DamagedError(f"{where}: not a JSON object")
        said = content.pop("digest", None)
        if not isinstance(said, str):
            raise DamagedError(f"{where}: carries no digest of itself")
        if not said.startswith(_ALGORITHM):
            raise NewerFormatError(
                f"{where}: digest {said.split(':', maxsplit=1)[0]!r} is an unknown algorithm; upgrade Rerail"
            )
        if digest_of(canonical(content)) != said:
            raise DamagedError(f"{where}: its digest does not match its content (edited, or damaged)")
        kind, version = content.pop("kind", None), content.pop("format", None)
        if kind != cls.KIND:
            raise DamagedError(f"{where}: a {kind!r} document where {cls.KIND!r} belongs")
        if not isinstance(version, int) or version > cls.FORMAT:
            raise NewerFormatError(
                f"{where}: format {version!r} is newer than {cls.FORMAT}, the newest this Rerail reads; upgrade Rerail"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise DamagedError(f"{where}: field {field!r}: {first['msg']}") from None


class RunDoc(Document):
    """``run.json``: created exclusively at submission; proves that the store is the run's and not an empty mount.

    Attributes:
        owner: Who drives the run, for example ``workflow/ns/name/uid``; another owner is refused.
        created_at_s: Wall clock, epoch seconds, for people only.
        policy: The recovery policy as given, so that a later supervisor decides by the same rules.
        shards: Address of the store of shards where it differs from the control store.
        forked_from: ``run@step`` where the run began from another run's commit.
        workload: The user's manifest, where gangs are made from one, so that every attempt is made from the same.
    """

    KIND = "rerail.run"

    run: str
    owner: str
    created_at_s: float
    world_size: int = Field(ge=1)
    policy: dict[str, JsonValue] = Field(default_factory=dict)
    shards: str | None = None
    forked_from: str | None = None
    workload: dict[str, JsonValue] | None = None


class Seal(Document):
    """Attempt ``attempt`` is being opened: attempts below are closed for new acknowledgements."""

    KIND = "rerail.seal"

    run: str
    attempt: int = Field(ge=1)
    how: How
    gang: str
    reason: str = ""


class CommitRef(Value):
    """A commit by name: its attempt, its step and its manifest's digest."""

    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    digest: str


class ChainLink(Value):
    """Of ``attempt``, only commits up to ``step`` count; None: none of its commits counts."""

    attempt: int = Field(ge=1)
    step: int | None


class Skipped(Value):
    """A commit that was newer than the chosen one, and why it was not chosen."""

    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    why: str


class Rendezvous(Value):
    """Where the ranks of one attempt meet. The id is fresh for each start, so a zombie cannot join."""

    id: str
    host: str
    port: int = Field(ge=0, le=65535)


class Start(Document):
    """What an attempt runs on and loads. Ranks load what it says and resolve nothing themselves.

    Attributes:
        gang: The only gang that may run this attempt.
        load: The commit to load; None exactly when the attempt is fresh.
        chain: Lineage, newest link first, of which ``load`` is the head; empty when fresh.
    """

    KIND = "rerail.start"

    run: str
    attempt: int = Field(ge=1)
    how: How
    gang: str
    world_size: int = Field(ge=1)
    rendezvous: Rendezvous
    load: CommitRef | None
    chain: tuple[ChainLink, ...] = ()
    skipped: tuple[Skipped, ...] = ()


class Mark(Document):
    """One word about a commit: bad, suspect, doomed or pin.

    ``bad``: damage was met; ``suspect``: a faulty device took part; ``doomed``: retention is about to delete it;
    ``pin``: never delete it.

    Marks are documents of their own; manifests never change.
    """

    KIND = "rerail.mark"

    run: str
    attempt: int
    step: int
    mark: Literal["bad", "doomed", "pin", "suspect"]
    why: str


class RankCertificate(Value):
    """What one rank loaded, held against the manifest.

    Attributes:
        bytes_read: Bytes read and hashed from the store.
        files: Number of files whose digest was compared.
        state_digest: Digest of the restored state as the process holds it; None where no adapter can give it.
        expected_digest: The same as the manifest has it.
        problems: Everything that did not match, in words.
    """

    rank: int = Field(ge=0)
    node: str = ""
    bytes_read: int = Field(ge=0)
    files: int = Field(ge=0)
    state_digest: str | None
    expected_digest: str | None
    problems: tuple[str, ...] = ()


class Certificate(Document):
    """What all ranks of an attempt found when they loaded, written by rank 0 before the first step.

    Attributes:
        ok: No rank found a problem. A certificate that is not ok lets no commit follow.
        exact: Nothing that bitwise equality rests on changed since the commit was written.
        reasons: Why ``exact`` is false.
        environment: What exactness rests on: Python, framework, BLAS, threads, CPU kernel, GPU.
    """

    KIND = "rerail.certificate"

    run: str
    attempt: int
    loaded: CommitRef | None
    ok: bool
    exact: bool
    reasons: tuple[str, ...] = ()
    ranks: tuple[RankCertificate, ...]
    environment: dict[str, str] = Field(default_factory=dict)


class Request(Document):
    """Asks all ranks of an attempt to save. Time runs on the reader's own clock from first sight.

    Attributes:
        within_s: Seconds from first sight after which an answer is of no use.
        then: ``stay`` goes on training after the save, ``leave`` exits with 85.
    """

    KIND = "rerail.request"

    run: str
    attempt: int
    id: str
    reason: str
    within_s: float = Field(gt=0)
    then: Literal["stay", "leave"]


class RankExit(Value):
    """How one rank's process ended.

    Attributes:
        exit_code: As the shell gives it; ``128 + n`` for signal ``n``.
        error: ``Type: message`` of an exception that the training client saw, else empty.
        step: The last step that the rank finished, as far as known.
    """

    rank: int
    exit_code: int
    error: str = ""
    step: int | None = None


class Report(Document):
    """What launch tells about an attempt: ranks that ended, or that it is ready for an in-place start.

    Attributes:
        pod: The launch that reports (one per pod).
        ready_for: Attempt for whose in-place start this launch has ended and reaped its ranks.
    """

    KIND = "rerail.report"

    run: str
    attempt: int
    gang: str
    pod: str
    node: str = ""
    exits: tuple[RankExit, ...] = ()
    ready_for: int | None = None


class Pause(Document):
    """A person holds the run: faults are noted, and nothing is recovered until the document is taken away.

    Attributes:
        reason: Why, for people.
        at_s: Wall clock of whoever asked, epoch seconds.
    """

    KIND = "rerail.pause"

    run: str
    reason: str
    at_s: float


class Heartbeat(Document):
    """A hint about progress from rank 0's launch; never truth.

    Attributes:
        step: Newest finished step.
        phase: What the ranks are doing: loading, warm-up, training, evaluation, saving.
        at_s: Writer's wall clock, epoch seconds.
        step_time_s: Recent median time of one step.
        started_from_step: The step that the attempt loaded; the first step must be the one after it.
        first_step: The first step that the attempt reported, None before it.
        saving_s: Seconds of training time spent in saves in this attempt.
        save_s: The longest time from a save's snapshot to its commit in this attempt, seconds; None before the first.
        total_steps: Steps of the whole training; None where nobody said.
    """

    KIND = "rerail.heartbeat"

    run: str
    attempt: int
    step: int
    phase: str
    at_s: float
    step_time_s: float | None = None
    started_from_step: int = 0
    first_step: int | None = None
    first_step_at_s: float | None = None
    loaded_at_s: float | None = None
    saving_s: float = 0.0
    save_s: float | None = None
    total_steps: int | None = None
