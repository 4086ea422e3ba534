"""The server does it and the reply is lost: the store settles what happened, once, and does it no second time."""

import pytest

from rerail.plugins.checkpoint.s3_transfer import Tuning
from rerail.plugins.checkpoint.store import Created, Exists, Uploaded
from rerail.policies.documents import digest_of

FIVE_MIB = 5 << 20
LARGE = bytes(range(256)) * (2 * FIVE_MIB // 256) + b"and a rest"


@pytest.fixture
def proxy(s3_proxy):
    return s3_proxy()


@pytest.fixture
def behind(s3_store, proxy):
    return s3_store(endpoint=proxy.endpoint, tuning=Tuning(part_bytes=FIVE_MIB, parallel=2))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_create_whose_replies_are_lost_is_ours_and_stands(behind, proxy, times):
    proxy.drop_reply("PutObject", times=times)
    assert behind.create("a", b"mine") == Created()
    assert behind.create("a", b"other") == Exists(b"mine")
    assert behind.get("a") == b"mine"


def test_a_create_that_lost_the_race_and_the_reply_says_whose_it_is(behind, proxy):
    behind.create("a", b"first")
    proxy.drop_reply("PutObject")
    assert behind.create("a", b"second") == Exists(b"first")


def test_a_create_whose_reply_and_first_look_are_lost_is_settled_by_the_next_try(behind, proxy):
    left = iter(["PutObject", "GetObject"])
    awaited = [next(left)]

    def on_reply(request, _):
        if awaited and request.operation == awaited[0]:
            awaited[:] = [operation] if (operation := next(left, None)) else []
            raise proxy.drop

    proxy.on_reply = on_reply
    assert behind.create("a", b"mine") == Created()
    assert proxy.operations() == ["PutObject", "GetObject", "PutObject", "GetObject"]


def test_an_upload_whose_reply_is_lost_is_sent_again(behind, proxy):
    proxy.drop_reply("PutObject")
    assert behind.upload("f", [b"some", b"bytes"], size=9) == Uploaded(9, digest_of(b"somebytes"))
    assert behind.get("f") == b"somebytes"


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
def test_an_upload_in_parts_survives_the_loss_of_any_reply(behind, proxy, operation):
    proxy.drop_reply(operation)
    assert behind.upload("f", [LARGE], size=len(LARGE)) == Uploaded(len(LARGE), digest_of(LARGE))
    into = bytearray(len(LARGE))
    assert behind.download("f", memoryview(into)) == digest_of(LARGE)
    assert into == LARGE


def test_a_completion_whose_reply_is_lost_is_found_done_by_a_look(behind, proxy):
    proxy.drop_reply("CompleteMultipartUpload")
    behind.upload("f", [LARGE], size=len(LARGE))
    after = proxy.operations()[proxy.operations().index("CompleteMultipartUpload") :]
    assert after == ["CompleteMultipartUpload", "HeadObject"]


def test_a_delete_whose_reply_is_lost_is_done(behind, proxy):
    behind.create("a", b"x")
    proxy.drop_reply("DeleteObjects")
    behind.delete(("a", "never-there"))
    assert behind.page("").entries == ()
