"""What only a bucket can do wrong; every fault is on the wire, before a real server."""

import datetime as dt
import hashlib
import os
import ssl
import threading

import botocore.auth
import pytest
import trustme

from rerail.plugins.checkpoint.dialects import DIALECTS, find_dialect
from rerail.plugins.checkpoint.open import open_store
from rerail.plugins.checkpoint.s3 import Patience
from rerail.plugins.checkpoint.s3_transfer import Tuning
from rerail.plugins.checkpoint.store import Created, Exists, all_entries
from rerail.policies.errors import (
    DamagedError,
    NotFoundError,
    RefusedError,
    StoreFullError,
    StoreRefusedError,
    StoreUnreachableError,
    UsageError,
)

MIB = 1 << 20
FIVE_MIB = 5 * MIB  # the smallest part that servers take
SMALL_PARTS = Tuning(part_bytes=FIVE_MIB, parallel=4)


@pytest.fixture
def proxy(s3_proxy):
    return s3_proxy()


@pytest.fixture
def behind(s3_store, proxy):
    return s3_store(endpoint=proxy.endpoint, prefix="p", tuning=SMALL_PARTS)


@pytest.fixture(autouse=True)
def _fresh_prefix(request):
    if "behind" in request.fixturenames:
        store = request.getfixturevalue("behind")
        store._prefix = f"{os.urandom(6).hex()}/"


def test_the_usual_variables_reach_the_server(s3_env):
    store = open_store(f"s3://{s3_env.bucket}/{os.urandom(4).hex()}")
    store.prove()
    assert store.create("a", b"x") == Created()
    store._bucket._client.close()


def test_an_authority_of_ones_own_is_trusted_where_it_is_named(s3_store, s3_proxy, tmp_path, monkeypatch):
    own = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.issue_cert("127.0.0.1").configure_cert(tls)
    proxy = s3_proxy(tls=tls)
    endpoint = proxy.endpoint
    with pytest.raises(RefusedError, match="AWS_CA_BUNDLE") as untrusted:
        s3_store(endpoint=endpoint, prefix="p").prove()
    assert proxy.requests == []
    assert "CERTIFICATE_VERIFY_FAILED" in str(untrusted.value)
    bundle = tmp_path / "ca.crt"
    own.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    store = s3_store(endpoint=endpoint, prefix="p")
    store.prove()
    assert store.create("a", b"x") == Created()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "missing.crt"))
    with pytest.raises(RefusedError, match=r"it is .*missing\.crt now"):
        s3_store(endpoint=endpoint, prefix="q").prove()


def test_create_is_one_conditional_put(behind, proxy):
    behind.create("a", b"x")
    assert [(request.operation, request.conditional) for request in proxy.requests] == [("PutObject", True)]
    assert behind.requests == 1


@pytest.mark.parametrize("name", ["gcs", "oss", "cos"])
def test_dialects_create_exclusively_by_their_own_header(s3_store, proxy, name):
    dialect = DIALECTS[name]
    exists = {"gcs": (412, "PreconditionFailed")}.get(name, (409, "FileAlreadyExists"))
    proxy.translate(dialect.header, dialect.value, status=exists[0], code=exists[1])
    store = s3_store(endpoint=proxy.endpoint, dialect=name, tuning=SMALL_PARTS)
    store.prove()
    assert store.create("a", b"one") == Created()
    assert store.create("a", b"two") == Exists(b"one")
    store.put("b", b"x")
    store.upload("w", [bytes(6 * MIB)], size=6 * MIB)
    store.delete(("a", "b", "w", "never"))
    assert store.page("").entries == ()
    assert "DeleteObjects" not in proxy.operations()


def test_the_wrong_dialect_is_refused_with_the_way_out(s3_store, proxy):
    proxy.translate("x-goog-if-generation-match", "0")
    with pytest.raises(StoreRefusedError, match=r"overwrote.*RERAIL_S3_DIALECT \(aws, gcs, oss or cos\)"):
        s3_store(endpoint=proxy.endpoint).prove()


def test_a_store_that_overwrites_is_refused_every_time(behind, proxy, s3_store):
    proxy.ignore_conditions()
    for _ in range(2):
        with pytest.raises(StoreRefusedError, match=r"overwrote.*--control"):
            behind.prove()
    proxy.on_request = lambda _: None
    behind.prove()
    assert list(all_entries(s3_store(prefix=behind._prefix.rstrip("/")), "")) == []


def test_a_server_that_does_not_know_the_header_is_refused(behind, proxy):
    proxy.answer(501, "NotImplemented", times=99)
    with pytest.raises(StoreRefusedError, match="RERAIL_S3_DIALECT"):
        behind.prove()


def test_dialect_by_host_or_name():
    assert find_dialect("storage.googleapis.com", None).name == "gcs"
    assert find_dialect("bucket.oss-cn-hangzhou.aliyuncs.com", None).name == "oss"
    assert find_dialect("cos.ap-guangzhou.myqcloud.com", None).name == "cos"
    assert find_dialect("minio.example", None).name == "aws"
    assert find_dialect("notaliyuncs.com", None).name == "aws"
    assert find_dialect("storage.googleapis.com", "aws").name == "aws"


def test_an_unknown_dialect_lists_the_known(monkeypatch):
    monkeypatch.setenv("RERAIL_S3_DIALECT", "gsc")
    with pytest.raises(UsageError, match=r"'gsc' is not known; use one of aws, cos, gcs, oss"):
        open_store("s3://bucket/x")


def test_a_put_whose_reply_is_lost_is_created_once(behind, proxy, s3_store):
    proxy.drop_reply("PutObject")
    assert behind.create("a", b"one") == Created()
    assert proxy.operations() == ["PutObject", "GetObject"]
    assert [entry.key for entry in behind.page("").entries] == ["a"]
    assert s3_store(prefix=behind._prefix.rstrip("/")).get("a") == b"one"


def test_a_lost_reply_to_the_loser_is_still_exists(behind, proxy):
    behind.create("a", b"one")
    proxy.drop_reply("PutObject")
    assert behind.create("a", b"two") == Exists(b"one")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (429, "TooMany"), (409, "ConditionalRequestConflict")],
)
def test_busy_answers_are_tried_again(behind, proxy, status, code, times):
    proxy.answer(status, code, operation="PutObject", times=times)
    assert behind.create("a", b"one") == Created()
    assert behind.create("a", b"two") == Exists(b"one")


def test_a_server_that_never_answers_well_is_unreachable(behind, proxy):
    proxy.answer(503, "SlowDown", times=999)
    for use in (
        lambda: behind.create("a", b"x"),
        lambda: behind.get("a"),
        lambda: behind.page(""),
        lambda: behind.upload("w", [bytes(MIB)], size=MIB),
        lambda: behind.upload("w", [bytes(12 * MIB)], size=12 * MIB),
        lambda: behind.download("w", memoryview(bytearray(12 * MIB))),
        lambda: behind.delete(("a",)),
    ):
        with pytest.raises(StoreUnreachableError, match="SlowDown"):
            use()


def test_a_server_that_is_not_there_is_unreachable(s3_store):
    store = s3_store(endpoint="http://AKIA:hunter2@127.0.0.1:9", patience=Patience(tries=2, first_pause_s=0.01))
    with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.1:9.*AWS_ENDPOINT_URL") as caught:
        store.create("a", b"x")
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_silent_is_given_up(s3_store, proxy):
    release = threading.Event()
    proxy.on_request = lambda _: release.wait(30) and None
    store = s3_store(endpoint=proxy.endpoint, patience=Patience(tries=2, first_pause_s=0.01, read_s=0.3))
    try:
        with pytest.raises(StoreUnreachableError, match="try again"):
            store.create("a", b"x")
    finally:
        release.set()


def test_patience_ends_by_the_clock_and_pauses_grow(s3_store, proxy):
    proxy.answer(503, "SlowDown", times=99)
    now, pauses = [0.0], []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    patience = Patience(tries=99, within_s=20.0, first_pause_s=1.0, longest_pause_s=4.0)
    store = s3_store(endpoint=proxy.endpoint, patience=patience, clock=lambda: now[0], sleep=sleep, jitter=lambda: 1.0)
    with pytest.raises(StoreUnreachableError):
        store.get("a")
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0]


def test_the_servers_wish_for_a_pause_is_kept(s3_store, proxy):
    pauses = []
    busy = proxy.reply(503, "SlowDown")
    busy.headers["Retry-After"] = "7"
    proxy.on_request = lambda _: busy
    store = s3_store(endpoint=proxy.endpoint, patience=Patience(tries=2), sleep=pauses.append)
    with pytest.raises(StoreUnreachableError) as caught:
        store.get("a")
    assert pauses == [7.0]
    assert caught.value.retry_after_s == 7.0


def test_a_wrong_secret_names_bucket_key_and_action(s3_store, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = s3_store(prefix="forbidden")
    with pytest.raises(RefusedError, match=r"PutObject of s3://rerail/forbidden/a .*allow s3:PutObject"):
        store.create("a", b"x")
    with pytest.raises(RefusedError, match=r"GetObject of s3://rerail/forbidden/a"):
        store.get("a")


def test_no_credentials_say_how_to_give_them(s3_store, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(RefusedError, match="AWS_ACCESS_KEY_ID"):
        s3_store().get("a")


def test_an_unknown_profile_is_usage(s3_store, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        s3_store().get("a")


def test_a_missing_bucket_is_named(s3_store):
    store = s3_store(bucket="no-such-bucket")
    for use in (lambda: store.create("a", b"x"), lambda: store.page(""), lambda: store.upload("a", [b"x"], size=1)):
        with pytest.raises(NotFoundError, match=r"create the bucket 'no-such-bucket'"):
            use()


def test_a_full_server_is_full(behind, proxy):
    proxy.answer(507, "InsufficientStorage", times=99)
    with pytest.raises(StoreFullError, match="ckpt gc"):
        behind.upload("w", [bytes(12 * MIB)], size=12 * MIB)


def big(size=17 * MIB):
    data = os.urandom(size)
    return data, f"sha256:{hashlib.sha256(data).hexdigest()}"


def assert_whole(store, data, digest):
    into = bytearray(len(data))
    assert store.download("w", memoryview(into)) == digest
    assert into == data


def open_uploads(store):
    bucket = store._bucket
    listed = bucket._client.list_multipart_uploads(Bucket=bucket.bucket)
    return [one["Key"] for one in listed.get("Uploads", []) if one["Key"].startswith(store._prefix)]


def test_large_objects_go_in_parts_with_checksums(behind, proxy):
    data, digest = big()
    assert behind.upload("w", [data], size=len(data)).digest == digest
    assert sorted(proxy.operations()) == ["CompleteMultipartUpload", "CreateMultipartUpload", *["UploadPart"] * 4]
    parts = [request for request in proxy.requests if request.operation == "UploadPart"]
    assert all(part.headers["x-amz-checksum-crc32"] for part in parts)
    assert_whole(behind, data, digest)


def test_a_part_changed_on_the_way_is_sent_again(behind, proxy):
    data, digest = big()
    left = iter(range(2))

    def flip(request):
        if request.operation == "UploadPart" and next(left, None) is not None:
            request.body = request.body[:-1] + bytes([request.body[-1] ^ 1])

    proxy.on_request = flip
    behind.upload("w", [data], size=len(data))
    assert proxy.operations().count("UploadPart") == 6
    assert_whole(behind, data, digest)


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
def test_an_upload_survives_lost_replies_and_busy_answers(behind, proxy, operation):
    data, digest = big()
    proxy.drop_reply(operation)
    behind.upload("w", [data], size=len(data))
    proxy.on_reply = lambda _request, _reply: None
    proxy.answer(503, "SlowDown", operation=operation, times=2)
    behind.upload("v", [data], size=len(data))
    assert_whole(behind, data, digest)


def test_c1_22_complete_times_out_but_the_object_is_there(behind, proxy):
    data, digest = big()
    proxy.drop_reply("CompleteMultipartUpload")
    behind.upload("w", [data], size=len(data))
    assert proxy.operations()[-2:] == ["CompleteMultipartUpload", "HeadObject"]
    assert proxy.operations().count("CreateMultipartUpload") == 1
    assert_whole(behind, data, digest)


def test_c1_22_the_upload_is_gone_and_nothing_is_there(behind, proxy):
    data, digest = big()
    proxy.answer(404, "NoSuchUpload", operation="CompleteMultipartUpload")
    behind.upload("w", [data], size=len(data))
    assert proxy.operations().count("CreateMultipartUpload") == 2
    assert proxy.operations().count("AbortMultipartUpload") == 1
    assert open_uploads(behind) == []
    assert_whole(behind, data, digest)


def test_c1_22_somebody_elses_object_of_the_same_size_is_not_ours(behind, proxy):
    data, digest = big()
    behind.upload("w", [bytes(len(data))], size=len(data))
    proxy.answer(404, "NoSuchUpload", operation="CompleteMultipartUpload")
    behind.upload("w", [data], size=len(data))
    assert_whole(behind, data, digest)


def test_c1_22_two_hundred_with_an_error_inside_is_not_committed(behind, proxy):
    data, digest = big()
    left = iter(range(1))

    def on_request(request):
        if request.operation == "CompleteMultipartUpload" and next(left, None) is not None:
            return type(proxy.reply(200, ""))(200, b"<Error><Code>InternalError</Code><Message>x</Message></Error>")
        return None

    proxy.on_request = on_request
    behind.upload("w", [data], size=len(data))
    assert proxy.operations().count("CompleteMultipartUpload") == 2
    assert_whole(behind, data, digest)


def test_a_failed_upload_is_aborted_and_buffers_made_on_the_fly_are_not_sent_twice(behind, proxy):
    data, _ = big()
    proxy.answer(404, "NoSuchUpload", operation="CompleteMultipartUpload")
    with pytest.raises(StoreUnreachableError):
        behind.upload("w", iter([data]), size=len(data))
    proxy.answer(403, "AccessDenied", operation="UploadPart", times=99)
    with pytest.raises(RefusedError, match="s3:UploadPart"):
        behind.upload("w", [data], size=len(data))
    assert proxy.operations().count("AbortMultipartUpload") == 2
    assert open_uploads(behind) == []
    assert behind.page("").entries == ()


def test_ranges_cut_short_are_fetched_again(behind, proxy):
    data, digest = big()
    behind.upload("w", [data], size=len(data))
    left = iter(range(2))

    def cut(request, _):
        if request.operation == "GetObject" and next(left, None) is not None:
            return proxy.reply(500, "InternalError")
        return None

    proxy.on_reply = cut
    assert_whole(behind, data, digest)


def test_an_object_replaced_by_a_shorter_one_is_damage(behind):
    behind.upload("w", [bytes(MIB)], size=MIB)
    with pytest.raises(DamagedError, match=r"/w"):
        behind.download("w", memoryview(bytearray(17 * MIB)))


def test_a_listing_out_of_order_is_refused(behind, proxy):
    for key in ("a", "b"):
        behind.put(key, b"x")

    def swap(request, reply):
        if request.operation == "ListObjectsV2":
            body = reply.body.replace(b"/a</Key>", b"/c</Key>")
            return type(reply)(reply.status, body, reply.headers)
        return None

    proxy.on_reply = swap
    with pytest.raises(StoreRefusedError, match="UTF-8 order"):
        behind.page("")


def test_delete_goes_in_thousands(behind, proxy):
    proxy.on_request = lambda request: (
        type(proxy.reply(200, ""))(200, b"<DeleteResult/>") if request.operation == "DeleteObjects" else None
    )
    behind.delete(tuple(f"k{number}" for number in range(2500)))
    assert proxy.operations() == ["DeleteObjects"] * 3


def test_a_forbidden_delete_is_refused(behind, proxy):
    body = b"<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    proxy.on_request = lambda _: type(proxy.reply(200, ""))(200, body)
    with pytest.raises(RefusedError, match="s3:DeleteObject"):
        behind.delete(("k",))


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_off_is_told_with_the_way_out(s3_env, monkeypatch, hours):
    now = botocore.auth.get_current_datetime
    wrong = dt.timedelta(hours=hours)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *given: now(*given) + wrong)
    store = open_store(f"s3://{s3_env.bucket}/{os.urandom(4).hex()}")
    with pytest.raises(RefusedError, match=r"RequestTimeTooSkewed.*clock is off, a pod's is its node's"):
        store.prove()
    store._bucket._client.close()
