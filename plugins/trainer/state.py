"""The user's objects as parts of the training state, and the proof that none of the ten parts is forgotten."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rerail.plugins.trainer.arrays import copy_in_place
from rerail.policies.errors import IncompleteStateError, UsageError
from rerail.policies.manifest import PARTS

OWN_PARTS = ("step", "epoch", "distributed")
"""Parts whose value the client gives itself unless the user hands an object for them."""


@runtime_checkable
class Stateful(Protocol):
    """An object that can give and take its state, as torch's modules, optimizers and schedulers do."""

    def state_dict(self) -> Any:
        """The whole state, of nested dicts, lists, tuples, arrays, numbers, strings, bytes and None."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a state that ``state_dict`` gave. It may keep the arrays that it is handed."""
        ...


State = Stateful | tuple[Callable[[], Any], Callable[[Any], Any]] | dict[str, Any]
"""An object, a pair (get, set) of callables, or a dict whose arrays are changed in place."""


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """One part of the state.

    Attributes:
        part: One of the ten parts.
        shared: The same on all ranks: rank 0 writes it, all read it. Else each rank has its own.
        get: Gives the state.
        set: Takes a state.
        reseed: Starts it from a seed where a checkpoint knows nothing about this rank; None where it cannot.
    """

    part: str
    shared: bool
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    reseed: Callable[[int], Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """All parts of the state of one process.

    Attributes:
        handles: Parts with an object behind them, in the order of the ten parts.
        absent: Parts without one, each with the reason.
        forgotten: Those of ``absent`` that nobody gave a reason for (only where that is allowed).
    """

    handles: tuple[Handle, ...]
    absent: Mapping[str, str]
    forgotten: tuple[str, ...]


def collect(
    *, shared: Mapping[str, State], per_rank: Mapping[str, State], absent: Mapping[str, str], strict: bool
) -> TrainingState:
    """Bring the user's objects into order.

    Raises:
        UsageError: An unknown part, a part given twice, an object without state.
        IncompleteStateError: Parts without an object and without a reason, in strict mode.
    """
    given = [*shared, *per_rank, *absent]
    for part in given:
        if part not in PARTS:
            raise UsageError(
                f"unknown part {part!r}: the parts are {', '.join(PARTS)}; put things of your own in 'user'"
            )
        if given.count(part) > 1:
            raise UsageError(f"part {part!r} is given twice: it is shared, or per_rank, or absent")
    for part, reason in absent.items():
        if not reason.strip():
            raise UsageError(f"absent part {part!r} has no reason: say in a few words why nothing of it is kept")
        if part == "step":
            raise UsageError("part 'step' cannot be absent: it is what a checkpoint is of")
    forgotten = tuple(part for part in PARTS if part not in given and part not in OWN_PARTS)
    if forgotten and strict:
        raise IncompleteStateError(
            f"the training state lacks {', '.join(forgotten)}: what resumes without that is another training. "
            " Give each as shared={...} or per_rank={...}, or say why there is none, as in "
            f"absent={{{forgotten[0]!r}: 'not used here'}}; strict=False only warns"
        )
    handles = {part: _handle(part, state, shared=True) for part, state in shared.items()}
    handles |= {part: _handle(part, state, shared=False) for part, state in per_rank.items()}
    return TrainingState(
        handles=tuple(handles[part] for part in PARTS if part in handles),
        absent={**absent, **dict.fromkeys(forgotten, "nothing was given for it (strict=False)")},
        forgotten=forgotten,
    )


def _handle(part: str, state: Any, *, shared: bool) -> Handle:
    reseed = getattr(state, "reseed", None)
    if isinstance(state, Stateful):
        return Handle(part, shared, state.state_dict, state.load_state_dict, reseed)
    if isinstance(state, tuple) and len(state) == 2 and callable(state[0]) and callable(state[1]):  # noqa: PLR2004
        return Handle(part, shared, state[0], state[1], None)
    if isinstance(state, dict):
        return Handle(part, shared, lambda: state, lambda saved: update_in_place(state, saved), None)
    raise UsageError(
        f"part {part!r}: a {type(state).__name__} has no state_dict() and load_state_dict(); give such an object, a "
        "pair (get, set) of functions, or a dict of arrays"
    )


def update_in_place(target: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Make ``target`` equal to ``saved``, in the memory of the arrays that it has where they fit."""
    for key in [key for key in target if key not in saved]:
        del target[key]
    for key, value in saved.items():
        mine = target.get(key)
        if isinstance(mine, dict) and isinstance(value, Mapping):
            update_in_place(mine, value)
        elif isinstance(mine, list) and isinstance(value, list) and len(mine) == len(value):
            _update_list(mine, value)
        elif not copy_in_place(mine, value):
            target[key] = value


def _update_list(target: list[Any], saved: list[Any]) -> None:
    for index, value in enumerate(saved):
        mine = target[index]
        if isinstance(mine, dict) and isinstance(value, Mapping):
            update_in_place(mine, value)
        elif not copy_in_place(mine, value):
            target[index] = value
