"""Unsure writes: what a failed or unanswered upload, or a folder created by many hosts at once, really means."""

import re
from typing import Any, Final, Literal, NamedTuple

from rerail.policies.errors import UsageError
from rerail.policies.judging.reading import Answer, Case, need, sub_cases

Completion = Literal["done", "error", "gone", "unsure"]

_CLEANUP: Final = "AbortMultipartUpload for own uploads; bucket lifecycle rule documented"
_ALREADY: Final = ("fileexistserror", "eexist", "file exists")
_DELAYED: Final = ("estale", "stale file handle", "filenotfounderror", "enoent", "eintr", "eagain", "interrupted")
_NO_FOLDER = re.compile(
    r"(is|still|remains)?\s*\b(absent|missing|gone|not there|not a directory|a (plain |regular )?file|does not exist)",
    re.IGNORECASE,
)


class Settled(NamedTuple):
    """Whether an upload became an object, and what to do if it did not."""

    committed: bool | None
    again: Literal["nothing", "completion", "upload", "look"]


def read_completion(text: str) -> Completion:
    """What the reply to CompleteMultipartUpload says by itself.

    A 200 may carry an error in its body; an upload that is gone was either completed before or aborted.
    """
    lowered = text.lower()
    if "nosuchupload" in lowered:
        return "gone"
    if "error" in lowered and "200" in lowered:
        return "error"
    if re.search(r"\b(ok|200|success|succeeded)\b", lowered):
        return "done"
    return "unsure"


def settle_upload(completion: Completion, *, head: Literal["same", "other", "absent"] | None) -> Settled:
    """Settle an upload by what HEAD of its key finds; the reply alone proves only success.

    Args:
        completion: What the reply said.
        head: ``same``: an object with our token and size; ``other``: an object that is not ours; None: not asked.
    """
    if head == "same" or (completion == "done" and head is None):
        return Settled(committed=True, again="nothing")
    if head is None and completion in ("unsure", "gone"):
        return Settled(committed=None, again="look")
    if completion == "gone" or head == "other":
        return Settled(committed=False, again="upload")
    return Settled(committed=False, again="completion")


def _head(case: Case) -> Literal["same", "other", "absent"] | None:
    head: Any = case.get("head")
    if head is None:
        return None
    if not isinstance(head, dict):
        return "absent"
    same_size = case.get("expected_size") is None or head.get("size") == case["expected_size"]
    same_token = case.get("token") is None or head.get("metadata_token") == case["token"]
    return "same" if same_size and same_token else "other"


_WORDS: Final[dict[str, str]] = {
    "nothing": "committed",
    "completion": "not committed, retry",
    "upload": "not committed, retry the upload",
    "look": "unsure, HEAD the key first",
}


def answer_s3_fault(case: Case) -> Answer:
    """Answer an ``s3_fault``: for each reply, whether the object is committed."""
    results = [
        _WORDS[settle_upload(read_completion(str(need(one, "complete"))), head=_head(one)).again]
        for one in (sub_cases(case) or [case])
    ]
    return {"results": results, "cleanup": _CLEANUP}


class FolderVerdict(NamedTuple):
    """Whether creating a folder counts as done, and whether looking or trying again can change that."""

    succeeded: bool
    retry: bool


def after_folder_error(error: str, *, is_dir_after: bool) -> FolderVerdict:
    """Judge an error of creating a folder that many hosts create at once.

    Shared file systems answer from stale attribute caches, so the error is not the truth: whether the folder is there
    afterwards is. A full disk, missing rights or a file in its place do not go away by trying again.

    Args:
        error: The error's class name or errno name, for example ``FileExistsError`` or ``ESTALE``.
        is_dir_after: Whether the path is a folder when looked at after the error.
    """
    lowered = error.lower()
    transient = any(word in lowered for word in _DELAYED)
    if any(word in lowered for word in _ALREADY) or transient:
        return FolderVerdict(succeeded=is_dir_after or transient, retry=is_dir_after or transient)
    return FolderVerdict(succeeded=False, retry=False)


def answer_fault_injection(case: Case) -> Answer:
    """Answer a ``fault_injection`` into the creation of a folder or the publishing of a name.

    Raises:
        UsageError: The operation is neither.
    """
    operation, injected = str(need(case, "op")), str(need(case, "inject"))
    if re.match(r"\s*(mkdir|makedirs)\b", operation):
        check = "isdir after the error"
    elif re.match(r"\s*(rename|replace|link|commit)\b", operation):
        check = "own writer id under the final name after the error"
    else:
        raise UsageError(f"op {operation!r} is not judged here; use mkdir, rename or link")
    verdict = after_folder_error(injected, is_dir_after=not _NO_FOLDER.search(injected))
    return {"result": "save succeeds" if verdict.succeeded else "save fails", "retry": verdict.retry, "check": check}
