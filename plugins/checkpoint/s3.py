"""A store on S3, or on a server that speaks it. The one module that imports boto3.

Endpoint, region and credentials come by the usual AWS variables and profiles. Retries are made here, not by botocore:
only here is it known how the unsure outcome of an exclusive create is settled.
"""

import os
import random
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore import exceptions as boto_errors
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)

from rerail.plugins.checkpoint import s3_transfer
from rerail.plugins.checkpoint.dialects import EXISTS_CODES, STANDARD_HEADER, Dialect, find_dialect
from rerail.plugins.checkpoint.names import HIDDEN, PROOFS, Requests, check_key, check_prefix
from rerail.plugins.checkpoint.proof import prove_exclusive, prove_once
from rerail.plugins.checkpoint.s3_transfer import Body, Tuning, UploadGoneError, sent
from rerail.plugins.checkpoint.store import Buffer, Created, Entry, Exists, Page, Uploaded
from rerail.policies.addresses import shown, split
from rerail.policies.errors import (
    DamagedError,
    NotFoundError,
    RefusedError,
    RerailError,
    StoreFullError,
    StoreRefusedError,
    StoreUnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

T = TypeVar("T")

_UNSIGNED = Config(s3={"payload_signing_enabled": False})
_RANDOM = random.SystemRandom()
_BATCH = 1000
_AGAIN_STATUSES = frozenset({408, 409, 425, 429})
_AGAIN_CODES = frozenset({"SlowDown", "RequestTimeout", "Throttling", "BadDigest", "XAmzContentSHA256Mismatch"})
_FULL_CODES = frozenset(
    {"QuotaExceeded", "QuotaExceededException", "InsufficientStorage", "XMinioStorageFull", "InsufficientCapacity"}
)
_REGION_CODES = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_TRANSPORT = (HTTPClientError, boto_errors.ConnectionError, IncompleteReadError, CredentialRetrievalError)
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "[Errno 2]")  # the second: there is no such file of certificates
_WAY_OUT = (
    "If the vendor spells this in a way of its own, set RERAIL_S3_DIALECT (aws, gcs, oss or cos); on OSS and COS turn "
    "bucket versioning off; else keep control documents elsewhere (--control file:///shared/folder)"
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request is tried.

    Attributes:
        tries: Most tries.
        within_s: No new try starts later than this, in seconds.
        first_pause_s: Pause before the second try; doubles each time, and up to all of it is left out at random.
        longest_pause_s: No pause is longer.
        connect_s: Time-out of connecting.
        read_s: Time-out between two pieces of an answer.
    """

    tries: int = 6
    within_s: float = 60.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    connect_s: float = 5.0
    read_s: float = 30.0


def connect(patience: Patience, *, endpoint: str | None = None) -> "S3Client":
    """A client by the usual AWS variables and profiles; ``endpoint`` stands in for AWS_ENDPOINT_URL."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=patience.connect_s,
            read_timeout=patience.read_s,
            max_pool_connections=32,
            tcp_keepalive=True,
            # The defaults of newer botocore add trailing checksums that other vendors refuse; ours are added by hand.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class S3Store:
    """The ``Store`` protocol on a bucket.

    Args:
        bucket: The bucket's name.
        prefix: The view's prefix, ending in '/', or empty.
        client: Makes the client, at the first request.
        patience: How long one request is tried.
        tuning: How large objects are moved.
        dialect: Name of the vendor's dialect; None looks at RERAIL_S3_DIALECT, then at the endpoint's host.
        clock: Monotonic clock in seconds.
        sleep: Waits for so many seconds.
        jitter: Random number from 0 to 1.
        token: Random text.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        client: "Callable[[Patience], S3Client]" = connect,
        patience: Patience | None = None,
        tuning: Tuning | None = None,
        dialect: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = _RANDOM.random,
        token: Callable[[], str] = lambda: secrets.token_hex(16),
        shares: "_Bucket | None" = None,
    ) -> None:
        self._prefix = check_prefix(prefix)
        self._bucket = shares or _Bucket(
            bucket=bucket,
            top=self._prefix,
            make_client=client,
            patience=patience or Patience(),
            tuning=tuning or Tuning.from_environment(os.environ),
            dialect_name=dialect if dialect is not None else os.environ.get("RERAIL_S3_DIALECT"),
            clock=clock,
            sleep=sleep,
            jitter=jitter,
            token=token,
        )

    @property
    def url(self) -> str:
        """Address as a user gives it."""
        return f"s3://{self._bucket.bucket}/{self._prefix}".rstrip("/")

    @property
    def requests(self) -> int:
        """Requests sent so far, over all views of this store."""
        return self._bucket.requests.made

    def below(self, prefix: str) -> "S3Store":
        """The same bucket, seen from ``prefix``."""
        inside = check_key(prefix.rstrip("/"))
        return S3Store(self._bucket.bucket, f"{self._prefix}{inside}/", shares=self._bucket)

    def prove(self) -> None:
        """Prove once per process and address that the store creates exclusively.

        Raises:
            StoreRefusedError: It overwrites, or does not know the header.
        """
        bucket = self._bucket
        address = f"{bucket.endpoint}/{bucket.bucket}/{bucket.top}:{bucket.dialect.name}"
        prove_once(address, self._prove)

    def _prove(self) -> None:
        token = self._bucket.token()
        key = f"{self._bucket.top}{PROOFS}{token}"
        try:
            prove_exclusive(
                lambda data: self._create(key, data),
                lambda: self._get(key),
                token=token,
                store=f"{self.url} ({shown(self._bucket.endpoint)}, dialect {self._bucket.dialect.name})",
                way_out=_WAY_OUT,
            )
        finally:
            with suppress(RerailError):
                self._delete_one(key)

    def create(self, key: str, data: bytes) -> Created | Exists:
        """Create a document exclusively, or say what is there. One PutObject; more only if its outcome is unsure."""
        return self._create(self._prefix + check_key(key), data)

    def _create(self, key: str, data: bytes) -> Created | Exists:
        bucket = self._bucket
        where: dict[str, Any] = {"Bucket": bucket.bucket, "Key": key, **Body([data]).integrity(bucket.dialect)}

        def look() -> Created | Exists | None:
            try:
                found = bucket.once("GetObject", key, lambda s3: _body(s3, bucket.bucket, key))
            except (NotFoundError, StoreUnreachableError):
                return None
            return Created() if found == data else Exists(found)

        def send(s3: "S3Client") -> Created | Exists:
            try:
                s3.put_object(**where, Body=sent([data]), IfNoneMatch="*")
            except ClientError as error:
                if not _says_exists(error):
                    raise
                # The server may have done an earlier try whose answer was lost: the bytes tell whose it is.
                outcome = look()
                if outcome is None:
                    raise StoreUnreachableError(f"s3://{bucket.bucket}/{key} exists but cannot be read yet") from error
                return outcome
            return Created()

        return bucket.call("PutObject", key, send, settle=look)

    def put(self, key: str, data: bytes) -> None:
        """Overwrite a hint."""
        s3_transfer.put_object(self._bucket, self._prefix + check_key(key), [data])

    def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            NotFoundError: There is none.
        """
        return self._get(self._prefix + check_key(key))

    def _get(self, key: str) -> bytes:
        return self._bucket.call("GetObject", key, lambda s3: _body(s3, self._bucket.bucket, key))

    def page(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Page:
        """One page of keys in UTF-8 order: one ListObjectsV2.

        Raises:
            StoreRefusedError: The server lists in another order, on which resolving cannot rest.
        """
        full, cut_off = self._prefix + check_prefix(prefix), len(self._prefix)
        wanted: dict[str, Any] = {"Bucket": self._bucket.bucket, "Prefix": full, "MaxKeys": limit}
        if start_after:
            wanted["StartAfter"] = self._prefix + start_after
        answer = self._bucket.call("ListObjectsV2", full, lambda s3: s3.list_objects_v2(**wanted))
        listed = answer.get("Contents", [])
        names = [one["Key"] for one in listed]
        if any(second <= first for first, second in zip([wanted.get("StartAfter", ""), *names], names, strict=False)):
            raise StoreRefusedError(
                f"s3://{self._bucket.bucket}/{full} is not listed in UTF-8 order of keys, so the newest checkpoint "
                "cannot be found by a short listing; use a general purpose bucket (directory buckets do not order keys)"
            )
        if answer.get("IsTruncated") and not names:
            raise StoreUnreachableError(
                f"s3://{self._bucket.bucket}/{full} answered an empty page that is not the last"
            )
        entries = (
            Entry(one["Key"][cut_off:], one["Size"])
            for one in listed
            if not one["Key"].endswith("/") and f"/{HIDDEN}" not in f"/{one['Key']}"
        )
        return Page(tuple(entries), names[-1][cut_off:] if answer.get("IsTruncated") else None)

    def upload(self, key: str, buffers: Iterable[Buffer], *, size: int) -> Uploaded:
        """Store a large object, in parts sent side by side, hashing on the way.

        Raises:
            UsageError: The buffers do not add up to ``size``.
        """
        full = self._prefix + check_key(key)
        return s3_transfer.upload(
            self._bucket, full, buffers, size=size, tuning=self._bucket.tuning, token=self._bucket.token
        )

    def download(self, key: str, into: memoryview) -> str:
        """Fill ``into`` from ranges fetched side by side, and return the digest.

        Raises:
            DamagedError: The object's size is not ``len(into)``.
        """
        return s3_transfer.download(
            self._bucket, self._prefix + check_key(key), into.cast("B"), tuning=self._bucket.tuning
        )

    def delete(self, keys: tuple[str, ...]) -> None:
        """Delete objects, a thousand per request where the vendor can; one that is gone already is no error."""
        full = [self._prefix + check_key(key) for key in keys]
        if not self._bucket.dialect.checksums:
            for key in full:
                self._delete_one(key)
            return
        for start in range(0, len(full), _BATCH):
            self._delete_batch(full[start : start + _BATCH])

    def _delete_batch(self, keys: list[str]) -> None:
        name = self._bucket.bucket
        wanted: Any = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._bucket.call("DeleteObjects", keys[0], lambda s3: s3.delete_objects(Bucket=name, Delete=wanted))
        for failed in answer.get("Errors", []):
            said = f"cannot delete s3://{name}/{failed.get('Key')}: {failed.get('Code')}: {failed.get('Message')}"
            if failed.get("Code") in {"AccessDenied", "Forbidden"}:
                raise RefusedError(f"{said}; allow s3:DeleteObject")
            raise StoreUnreachableError(f"{said}; try again")

    def _delete_one(self, key: str) -> None:
        name = self._bucket.bucket
        with suppress(NotFoundError):
            self._bucket.call("DeleteObject", key, lambda s3: s3.delete_object(Bucket=name, Key=key))


@dataclass(kw_only=True, eq=False)
class _Bucket:
    """Requests to one bucket: the client, retries, and what the answers mean. Shared by all views of a store."""

    bucket: str
    top: str
    make_client: "Callable[[Patience], S3Client]"
    patience: Patience
    tuning: Tuning
    dialect_name: str | None
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    jitter: Callable[[], float]
    token: Callable[[], str]
    requests: Requests = field(default_factory=Requests)
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._client: S3Client | None = None
        self._dialect = find_dialect("", self.dialect_name)

    def _connected(self) -> "S3Client":
        with self.lock:
            if self._client is None:
                try:
                    client = self.make_client(self.patience)
                except (BotoCoreError, ValueError) as error:
                    raise UsageError(
                        f"the AWS settings cannot be used: {shown(str(error))}; check AWS_* and the profile"
                    ) from error
                host = split(client.meta.endpoint_url).hostname or ""
                self._dialect = find_dialect(host, self.dialect_name)
                client.meta.events.register("before-sign.s3.PutObject", self._before_sign)
                client.meta.events.register("before-sign.s3.UploadPart", self._before_sign_part)
                self._client = client
            return self._client

    @property
    def dialect(self) -> Dialect:
        """The dialect that the endpoint speaks."""
        self._connected()
        return self._dialect

    @property
    def endpoint(self) -> str:
        """The server's address."""
        return self._connected().meta.endpoint_url

    def _before_sign(self, request: Any, **_: object) -> None:
        """Speak the dialect, and send without asking first, which costs a round trip."""
        headers = request.headers
        if STANDARD_HEADER in headers and self._dialect.header != STANDARD_HEADER:
            del headers[STANDARD_HEADER]
            headers[self._dialect.header] = self._dialect.value
        del headers["Expect"]

    def _before_sign_part(self, request: Any, **_: object) -> None:
        """Leave the body out of the signature: a part has a checksum, and the manifest the digest of the whole."""
        del request.headers["Expect"]
        request.context["client_config"] = _UNSIGNED

    def once(self, action: str, key: str, send: "Callable[[S3Client], T]") -> T:
        """Send once; every failure comes as its typed error."""
        self.requests.count()
        client = self._connected()
        try:
            return send(client)
        except (ClientError, BotoCoreError) as error:
            raise self._explain(error, action, key) from error

    def call(
        self, action: str, key: str, send: "Callable[[S3Client], T]", settle: Callable[[], T | None] | None = None
    ) -> T:
        """Send until it succeeds, fails for good, or patience ends; ``settle`` looks what an unsure try has done."""
        give_up_at = self.clock() + self.patience.within_s
        pause_s = self.patience.first_pause_s
        for tries_left in reversed(range(self.patience.tries)):
            try:
                return self.once(action, key, send)
            except UploadGoneError:
                raise
            except StoreUnreachableError as error:
                done = settle() if settle else None
                if done is not None:
                    return done
                if not tries_left or self.clock() >= give_up_at:
                    raise
                self.sleep(max(error.retry_after_s or 0.0, pause_s * self.jitter()))
                pause_s = min(2 * pause_s, self.patience.longest_pause_s)
        raise AssertionError(action)

    def _explain(self, error: ClientError | BotoCoreError, action: str, key: str) -> RerailError:
        said = f"{action} of s3://{self.bucket}/{key} at {shown(f'{self.endpoint}: {error}')}"
        if isinstance(error, ClientError):
            return self._explain_answer(error, action, said)
        if isinstance(error, boto_errors.SSLError) and any(sign in str(error) for sign in _UNTRUSTED):
            return RefusedError(
                f"{said}; set AWS_CA_BUNDLE to the file with the certificate of the server's authority (it is "
                f"{os.environ.get('AWS_CA_BUNDLE') or 'not set'} now)"
            )
        if isinstance(error, _TRANSPORT):
            return StoreUnreachableError(f"{said}; check AWS_ENDPOINT_URL, the network and the server, then try again")
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return RefusedError(
                f"{said}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role of the pod"
            )
        return UsageError(f"{said}; check the AWS_* variables, the profile and the address")

    def _explain_answer(self, error: ClientError, action: str, said: str) -> RerailError:
        status, code = _status(error), _code(error)
        if code in {"NoSuchUpload", "NoSuchBucket", "RequestTimeTooSkewed", *_FULL_CODES, *_REGION_CODES}:
            return self._explain_code(code, said)
        if status == HTTPStatus.NOT_FOUND:
            return NotFoundError(f"{said}; list what is there with `rerail ckpt ls`")
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return DamagedError(f"{said}; the object is shorter than expected")
        if status == HTTPStatus.NOT_IMPLEMENTED:
            return StoreRefusedError(f"{said}; the server does not know what Rerail needs. {_WAY_OUT}")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _AGAIN_STATUSES or code in _AGAIN_CODES:
            return StoreUnreachableError(f"{said}; try again later", retry_after_s=_retry_after_s(error))
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return RefusedError(
                f"{said}; allow s3:{action} on this bucket and key, check the credentials, and allow s3:ListBucket "
                "(without it S3 says 403 for a key that is not there)"
            )
        return RefusedError(f"{said}; the server refuses this request for good")

    def _explain_code(self, code: str, said: str) -> RerailError:
        if code == "NoSuchUpload":
            return UploadGoneError(f"{said}; the upload is sent again")
        if code == "NoSuchBucket":
            return NotFoundError(
                f"{said}; create the bucket {self.bucket!r}, or correct its name in the store's address"
            )
        if code == "RequestTimeTooSkewed":
            return RefusedError(f"{said}; this machine's clock is off, a pod's is its node's: let NTP or chrony set it")
        if code in _REGION_CODES:
            return UsageError(f"{said}; set AWS_REGION to the bucket's region")
        return StoreFullError(f"{said}; free space, raise the quota or lower retention (`rerail ckpt gc`)")


def _body(s3: "S3Client", bucket: str, key: str) -> bytes:
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _says_exists(error: ClientError) -> bool:
    return _status(error) == HTTPStatus.PRECONDITION_FAILED or _code(error) in EXISTS_CODES


def _retry_after_s(error: ClientError) -> float | None:
    """The server's own wish, in seconds, at most a minute; dates are not read."""
    wish = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return min(float(wish), 60.0) if wish.isdigit() else None
