"""The matrix can fail: each store that is broken in one way is caught, by the kind of loss that it causes."""

import re

import pytest
from crash_broken import (
    ACK_BEFORE_LOOK,
    CONFIRM_WHAT_IS_SEEN,
    LIST_BEFORE_SEAL,
    MANIFEST_BEFORE_PARTS,
    NoFileSync,
    NoFolderSync,
    Overwriting,
    Unproven,
)
from crash_points import KILL, POWER

from rerail.policies.errors import StoreRefusedError

TORN = r"torn: \d+\.\d+|DamagedError|is another one now"
LOST = r"was acknowledged and is gone|although .* was acknowledged|older than .* was acknowledged"
REPLACED = r"is another one now|holds the bytes of another save"
SAME_STEP = "overtaken: the same step by another group"

FOLDER = {
    "no fsync of files": ("commit", POWER, {"recorder": NoFileSync}, TORN),
    "no fsync of folders": ("commit", POWER, {"recorder": NoFolderSync}, LOST),
    "overwrites a commit": ("commit", SAME_STEP, {"recorder": Overwriting, "trust": Unproven}, REPLACED),
    "overwrites a start": (
        "open_attempt",
        "overtaken: another opener",
        {"recorder": Overwriting, "trust": Unproven},
        REPLACED,
    ),
    "overwrites a decision": (
        "ledger append",
        "overtaken: another supervisor",
        {"recorder": Overwriting, "trust": Unproven},
        REPLACED,
    ),
    "lists before it seals": ("open_attempt", "overtaken: the old gang commits", {"code": LIST_BEFORE_SEAL}, LOST),
    "writes the manifest before the parts": ("incremental save", KILL, {"code": MANIFEST_BEFORE_PARTS}, TORN),
    "acknowledges before it looks for seals": ("commit", "overtaken: a new attempt", {"code": ACK_BEFORE_LOOK}, LOST),
    "confirms what is seen and not durable": (
        "commit",
        "overtaken: rank 1 confirms",
        {"code": CONFIRM_WHAT_IS_SEEN},
        LOST,
    ),
}
BUCKET = {
    "overwrites a commit": ("commit", SAME_STEP, {"trust": Unproven}, REPLACED),
    "lists before it seals": ("open_attempt", "overtaken: the old gang commits", {"code": LIST_BEFORE_SEAL}, LOST),
    "writes the manifest before the parts": ("incremental save", KILL, {"code": MANIFEST_BEFORE_PARTS}, TORN),
    "acknowledges before it looks for seals": ("commit", "overtaken: a new attempt", {"code": ACK_BEFORE_LOOK}, LOST),
}


def first_violation(lab, mode, kind):
    """Go through the points, the last boundary first, until one shows what is looked for."""
    for point in sorted(lab.points(), key=lambda point: -point.boundary):
        if point.mode == mode:
            wrong = [text for text in lab.carry_out(point).wrong if re.search(kind, text)]
            if wrong:
                print(f"{point}: {wrong[0]}")
                return wrong[0]
    return None


@pytest.mark.parametrize("how", FOLDER)
def test_the_matrix_catches_a_folder_store_that(folder_lab, how):
    operation, mode, broken, kind = FOLDER[how]
    assert first_violation(folder_lab(operation, **broken), mode, kind)


@pytest.mark.parametrize("how", BUCKET)
def test_the_matrix_catches_an_s3_store_that(bucket_lab, how):
    operation, mode, broken, kind = BUCKET[how]
    set_up = (lambda proxy: proxy.ignore_conditions()) if "trust" in broken else (lambda _: None)
    assert first_violation(bucket_lab(operation, set_up=set_up, **broken), mode, kind)


def test_the_proof_refuses_a_store_that_overwrites_before_the_matrix_has_to(folder_lab):
    with pytest.raises(StoreRefusedError, match="cannot create exclusively"):
        folder_lab("commit", recorder=Overwriting)
