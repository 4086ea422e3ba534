"""The tree of errors. The type carries the retry decision, the headline and the exit code of ``rerail``.

RerailError                      anything that Rerail itself reports
 ├─ PermanentError               trying again changes nothing
 │   ├─ UsageError               2  the caller's input: names the thing, the value and the way out
 │   │   └─ InvalidObjectError   2  the cluster does not accept an object as it stands
 │   ├─ NotFoundError            4  the run, checkpoint, key or object is not there
 │   │   └─ NotInstalledError    4  the cluster does not know the kind: its CRDs are not installed
 │   ├─ RefusedError             5  rights, a guard, or another owner
 │   │   ├─ StoreRefusedError    5  the store does not keep a promise that commits rest on
 │   │   └─ ForbiddenError       5  the cluster's rules do not allow the request; names the rule that is missing
 │   ├─ AlreadyExistsError       5  another object has this name
 │   ├─ ConditionError           1  an object came into a state from which the awaited one is not reached
 │   ├─ DamagedError             1  bytes differ from what a manifest or a document's own digest says
 │   ├─ ResumeBlockedError       3  no checkpoint may be used now; says what to do
 │   │   └─ NewerFormatError     3  written by a newer Rerail, or with an unknown algorithm
 │   ├─ CommitFencedError        5  the commit is not on the chain of a newer attempt
 │   ├─ CommitExistsError        5  another writer committed this step of this attempt
 │   ├─ SupersededError          5  a newer attempt was opened; this gang has to leave
 │   ├─ IncompleteStateError     2  a part of the training state is missing without a reason
 │   └─ SaveFailedError          1  a save did not become a commit
 └─ TransientError               try again after ``retry_after_s``
     ├─ StoreUnreachableError    3  the store did not answer, or answered 5xx, 409 or 429
     ├─ StoreFullError           3  no space or quota is left; what was acknowledged stands
     ├─ ClusterUnreachableError  3  the API server did not answer, or answered 5xx or 429
     ├─ ConflictError            3  the object changed meanwhile: read it again
     ├─ ExpiredError             3  the API server no longer has this point in its history: list again (410)
     ├─ QuotaExceededError       5  a quota of the namespace is used up
     ├─ DisruptionBudgetError    5  a PodDisruptionBudget lets no pod go now
     └─ DeadlineError            3  what was awaited did not come in time
"""

from typing import ClassVar


class RerailError(Exception):
    """Root of everything that Rerail raises itself.

    Attributes:
        headline: A short human title of the class of error.
        exit_code: What ``rerail`` exits with: 1 verdict, 2 usage, 3 blocked, 4 not found, 5 refused.
    """

    headline: ClassVar[str] = "Rerail failed"
    exit_code: ClassVar[int] = 1


class PermanentError(RerailError):
    """Trying again changes nothing."""


class TransientError(RerailError):
    """Trying again later may work.

    Attributes:
        retry_after_s: Seconds to wait before the next try; None leaves it to the caller's back-off.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UsageError(PermanentError):
    """The caller's input cannot be used."""

    headline = "Bad input"
    exit_code = 2


class NotFoundError(PermanentError):
    """The named thing does not exist."""

    headline = "Not found"
    exit_code = 4


class RefusedError(PermanentError):
    """Rights, a guard or an owner forbid it."""

    headline = "Refused"
    exit_code = 5


class InvalidObjectError(UsageError):
    """The cluster does not accept an object as it stands: schema, strict field validation or an admission webhook."""

    headline = "Object not accepted"


class NotInstalledError(NotFoundError):
    """The cluster does not know the kind of object at all."""

    headline = "Not installed"


class ForbiddenError(RefusedError):
    """The cluster's access rules, or an admission plugin, do not allow the request.

    Attributes:
        rule: The RBAC rule that would allow it, as YAML; None where no rule would help.
    """

    headline = "Not allowed"

    def __init__(self, message: str, *, rule: str | None = None) -> None:
        super().__init__(message)
        self.rule = rule


class AlreadyExistsError(PermanentError):
    """Another object has this name."""

    headline = "Name taken"
    exit_code = 5


class ConditionError(PermanentError):
    """An object came into a state from which the awaited one is not reached."""

    headline = "Condition not reached"
    exit_code = 1


class StoreRefusedError(RefusedError):
    """The store failed the proof that it can create exclusively, so no commit on it could be trusted."""

    headline = "Store refused"


class DamagedError(PermanentError):
    """Bytes differ from what a manifest, or a document's own digest, says."""

    headline = "Damage found"
    exit_code = 1


class ResumeBlockedError(PermanentError):
    """No checkpoint may be used now. Never answered by a silent fresh start."""

    headline = "Resume blocked"
    exit_code = 3


class NewerFormatError(ResumeBlockedError):
    """A document was written in a format, or with an algorithm, that this Rerail does not know."""

    headline = "Newer format"


class CommitFencedError(PermanentError):
    """The manifest was written, but a newer attempt was opened without it: it does not count."""

    headline = "Commit fenced"
    exit_code = 5


class CommitExistsError(PermanentError):
    """Another writer already committed this step of this attempt."""

    headline = "Commit exists"
    exit_code = 5


class SupersededError(PermanentError):
    """A newer attempt was opened, or the start names another gang: this process has to leave with 86."""

    headline = "Superseded"
    exit_code = 5


class IncompleteStateError(PermanentError):
    """A part of the training state is neither saved nor explicitly declared absent."""

    headline = "Incomplete state"
    exit_code = 2


class SaveFailedError(PermanentError):
    """A save did not become a commit. Training may go on; the newest commit before it stands."""

    headline = "Save failed"
    exit_code = 1


class StoreUnreachableError(TransientError):
    """The store did not answer, or answered that it cannot now."""

    headline = "Store unreachable"
    exit_code = 3


class StoreFullError(TransientError):
    """No space or quota is left. Training may go on: space can be freed, and the next save tries again."""

    headline = "Store full"
    exit_code = 3


class ClusterUnreachableError(TransientError):
    """The API server did not answer, or answered that it cannot now.

    Attributes:
        outcome_unknown: Whether the request may have been carried out all the same.
    """

    headline = "Cluster unreachable"
    exit_code = 3

    def __init__(self, message: str, *, retry_after_s: float | None = None, outcome_unknown: bool = False) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.outcome_unknown = outcome_unknown


class ConflictError(TransientError):
    """The object changed, or was replaced, since it was read: read it again and decide anew."""

    headline = "Object changed"
    exit_code = 3


class ExpiredError(TransientError):
    """The API server no longer holds this point of its history (410): list again."""

    headline = "History expired"
    exit_code = 3


class QuotaExceededError(TransientError):
    """A ResourceQuota of the namespace leaves no room now."""

    headline = "Quota used up"
    exit_code = 5


class DisruptionBudgetError(TransientError):
    """A PodDisruptionBudget does not let the pod go now; it may once others are ready."""

    headline = "Disruption budget"
    exit_code = 5


class DeadlineError(TransientError):
    """What was awaited did not come in time."""

    headline = "Deadline passed"
    exit_code = 3


# Exit codes of training processes and of launch (0 is done).
DONE = 0
SAVED_AND_LEFT = 85
LEFT_UNSAVED = 86
DO_NOT_RETRY = 87
DAMAGE_MET = 88
NVRX_TERMINAL = 93  # terminal: NVRx says so
