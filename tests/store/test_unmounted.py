"""A folder that was there and is gone is an outage; one that never was is a wrong address."""

import pytest

from rerail.plugins.checkpoint.posix import PosixStore
from rerail.policies.errors import NotFoundError, StoreUnreachableError


def test_a_folder_that_goes_away_is_waited_for(tmp_path):
    root, aside = tmp_path / "store", tmp_path / "aside"
    root.mkdir()
    store = PosixStore(root)
    below = store.below("run")
    below.create("a.json", b"x")
    root.rename(aside)
    for use in (
        lambda: store.page("run/"),
        lambda: below.get("a.json"),
        lambda: below.create("b.json", b"x"),
        lambda: below.upload("shards/c", [b"x"], size=1),
    ):
        with pytest.raises(StoreUnreachableError, match="is its volume still mounted"):
            use()
    assert not root.exists(), "nothing was made in its place"
    aside.rename(root)
    assert below.get("a.json") == b"x"


def test_a_folder_that_never_was_there_is_a_wrong_address(tmp_path):
    with pytest.raises(NotFoundError, match="mount the volume"):
        PosixStore(tmp_path / "store").page("run/")
