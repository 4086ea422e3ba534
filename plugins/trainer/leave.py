"""How a training process leaves when Rerail says so: one exception with an exit code that launch understands."""

from rerail.policies.errors import DAMAGE_MET, DO_NOT_RETRY, LEFT_UNSAVED, SAVED_AND_LEFT

_MEANING = {
    SAVED_AND_LEFT: "saved and left",
    LEFT_UNSAVED: "left without saving",
    DO_NOT_RETRY: "do not retry",
    DAMAGE_MET: "damaged checkpoint met",
}


class Left(SystemExit):
    """Ends the process with one of the exit codes 85 to 88 (it is a ``SystemExit``, so ``finally`` blocks run).

    Attributes:
        code: 85 saved and left, 86 left without saving, 87 do not retry, 88 damaged checkpoint met.
        reason: Why, in words; also written to stderr and to the rank's report.
    """

    code: int

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code)
        self.reason = reason

    def __str__(self) -> str:
        return f"exit {self.code} ({_MEANING.get(self.code, 'unknown')}): {self.reason}"
