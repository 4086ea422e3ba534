"""What exit codes alone say about an attempt: never more than a process, and never who ended it."""

from collections.abc import Mapping, Sequence
from typing import Final

from rerail.policies import errors
from rerail.policies.documents import RankExit
from rerail.policies.faults import Action, Diagnosis

_SIGKILL, _SIGTERM = 137, 143
_CONFIDENCE: Final = 0.6
_MEANS: Final[Mapping[int, tuple[str, Action, str]]] = {
    errors.SAVED_AND_LEFT: ("left_saved", "none", "left as asked, saved"),
    errors.LEFT_UNSAVED: ("left_unsaved", "none", "left as asked, without saving"),
    errors.DO_NOT_RETRY: ("do_not_retry", "none", "says that trying again is useless"),
    errors.NVRX_TERMINAL: ("do_not_retry", "none", "NVRx decided not to restart"),
    errors.DAMAGE_MET: ("damage_met", "restart_app", "met a damaged checkpoint, which the next attempt passes over"),
    _SIGKILL: ("killed", "restart_app", "ended by SIGKILL: memory, a person or the node; the code does not tell"),
    _SIGTERM: ("terminated", "restart_app", "ended by SIGTERM; the code does not tell by whom"),
}
_FIRST: Final = (errors.DO_NOT_RETRY, errors.NVRX_TERMINAL, errors.DAMAGE_MET)


def diagnose_exits(exits: Sequence[RankExit]) -> Diagnosis | None:
    """The diagnosis of exits that no signal explains; None if all ranks ended well.

    ``policies.endings`` joins a code with what pod and node say, which tells infrastructure from application.
    """
    bad = [end for end in exits if end.exit_code != errors.DONE]
    if not bad:
        return None
    root = min(bad, key=_weight)
    why = root.error or "the application failed"
    class_, action, why = _MEANS.get(root.exit_code, ("app", "restart_app", why))
    at = "" if root.step is None else f" after step {root.step}"
    return Diagnosis(
        class_=class_,
        scope="process",
        action=action,
        evidence=(f"rank {root.rank} ended with exit code {root.exit_code}{at}: {why}",),
        confidence=_CONFIDENCE,
        trust="exit_code",
    )


def _weight(end: RankExit) -> tuple[int, int]:
    """Codes that end the run come first, then an error of the application's own, then other ends; lowest rank first."""
    if end.exit_code in _FIRST:
        return _FIRST.index(end.exit_code), end.rank
    own = bool(end.error) and end.exit_code not in _MEANS
    return len(_FIRST) + (0 if own else 1 if end.exit_code not in _MEANS else 2), end.rank
