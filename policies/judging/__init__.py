"""Answers to described situations: the decisions of this project, asked about a listing, a trace or an ending.

``answer`` takes the ``input`` of a case (its ``kind`` says what it describes) and gives a document of decisions. The
rules are the ones that the product decides by; nothing here knows a particular case.
"""

from collections.abc import Callable
from typing import Final

from rerail.policies.errors import UsageError
from rerail.policies.judging import endings, listings, state_rules, topology, uploads
from rerail.policies.judging.reading import Answer, Case

_BY_KIND: Final[dict[str, Callable[[Case], Answer]]] = {
    "async_save": state_rules.answer_async_save,
    "checkpoint_listing": listings.answer_listing,
    "distributed": state_rules.answer_distributed,
    "evict": endings.answer_evict,
    "fault_injection": uploads.answer_fault_injection,
    "pod_status": endings.answer_pod_status,
    "progress": endings.answer_progress,
    "resume_request": topology.answer_resume_request,
    "retention": listings.answer_retention,
    "s3_fault": uploads.answer_s3_fault,
    "train_trace": state_rules.answer_train_trace,
    "two_stores": topology.answer_two_stores,
}

KINDS: Final = tuple(_BY_KIND)
"""The kinds of input that ``answer`` understands."""


def answer(case_input: Case) -> Answer:
    """Judge one described situation.

    Args:
        case_input: The situation; ``kind`` names what it describes, the other keys depend on it.

    Returns:
        The decisions, as a JSON document.

    Raises:
        UsageError: The kind is unknown, or a key that it needs is missing or of the wrong type.
    """
    kind = case_input.get("kind")
    if not isinstance(kind, str) or kind not in _BY_KIND:
        raise UsageError(f"input kind {kind!r} is not one that is judged here; use one of {', '.join(KINDS)}")
    try:
        return _BY_KIND[kind](case_input)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"input of kind {kind!r} has a value that cannot be used ({said}); give it as other cases of its kind do"
        ) from error
