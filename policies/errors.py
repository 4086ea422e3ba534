"""The tree of errors. The type carries the retry decision, the headline and the exit code of ``rerail``.

RerailError                      anything that Rerail itself reports
 ├─ PermanentError               trying again changes nothing
 │   ├─ UsageError               2  the caller's input: names the thing, the value and the way out
 │   ├─ NotFoundError            4  the run, checkpoint or key is not there
 │   ├─ RefusedError             5  rights, a guard, or another owner
 │   │   └─ StoreRefusedError    5  the store does not keep a promise that commits rest on
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
     └─ StoreFullError           3  no space or quota is left; what was acknowledged stands
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


# Exit codes of training processes and of launch (0 is done).
DONE = 0
SAVED_AND_LEFT = 85
LEFT_UNSAVED = 86
DO_NOT_RETRY = 87
DAMAGE_MET = 88
NVRX_TERMINAL = 93  # terminal: NVRx says so
