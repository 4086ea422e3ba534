"""Large objects on S3: parts sent, and ranges fetched, side by side, while one thread hashes in order.

An interrupted upload is aborted by its writer. A killed writer cannot: give the bucket a lifecycle rule that aborts
incomplete multipart uploads after a day, since they cost money and no listing shows them.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from rerail.plugins.checkpoint.dialects import Dialect
from rerail.plugins.checkpoint.hashing import Hasher, check_size, cut, sha256
from rerail.plugins.checkpoint.store import Buffer, Uploaded
from rerail.policies.errors import DamagedError, RerailError, StoreUnreachableError, UsageError
from rerail.policies.units import size_bytes

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

T = TypeVar("T")

TOKEN_NAME = "rerail-token"  # noqa: S105
_MOST_PARTS = 10_000
_PART_BYTES = 16 << 20
_PARALLEL = 8
_LEAST_PART_BYTES = 5 << 20
_MOST_PARALLEL = 256
_SEND_BYTES = 256 << 10
_UPLOAD_TRIES = 3


@dataclass(frozen=True, slots=True)
class Tuning:
    """How large objects are moved.

    Attributes:
        part_bytes: Size of one part or range; smaller objects go in one request. Grows where 10,000 parts are too few.
        parallel: Requests at a time.
    """

    part_bytes: int = _PART_BYTES
    parallel: int = _PARALLEL

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """RERAIL_S3_PART_SIZE (``16MiB``) and RERAIL_S3_PARALLEL (``8``), where they are set.

        Raises:
            UsageError: Names the variable, the value and the forms that work.
        """
        part_bytes, parallel = _PART_BYTES, _PARALLEL
        if "RERAIL_S3_PART_SIZE" in environment:
            part_bytes = size_bytes(environment["RERAIL_S3_PART_SIZE"], "RERAIL_S3_PART_SIZE")
            if part_bytes < _LEAST_PART_BYTES:
                raise UsageError(f"RERAIL_S3_PART_SIZE = {part_bytes} bytes is too small; S3 takes parts from 5MiB on")
        if "RERAIL_S3_PARALLEL" in environment:
            given = environment["RERAIL_S3_PARALLEL"]
            if not given.isdigit() or not 0 < int(given) <= _MOST_PARALLEL:
                raise UsageError(
                    f"RERAIL_S3_PARALLEL = {given!r} is no number of requests; write 1 to {_MOST_PARALLEL}"
                )
            parallel = int(given)
        return cls(part_bytes, parallel)


class UploadGoneError(StoreUnreachableError):
    """The server does not know the multipart upload (any more): the whole upload has to be sent again."""


class Calls(Protocol):
    """Requests to one bucket with retries, as ``s3.py`` makes them."""

    bucket: str

    @property
    def dialect(self) -> Dialect:
        """The dialect that the endpoint speaks."""
        ...

    def call(
        self, action: str, key: str, send: "Callable[[S3Client], T]", settle: Callable[[], T | None] | None = None
    ) -> T:
        """Send until it succeeds, fails for good, or patience ends; ``settle`` looks what an unsure try has done."""
        ...

    def once(self, action: str, key: str, send: "Callable[[S3Client], T]") -> T:
        """Send once."""
        ...


class Body:
    """Pieces as one seekable body, never copied.

    It hands out pieces of a size of its own: botocore asks for 16 KiB, which costs more time in Python than on the
    wire, while all at once would have to pass within one time-out of the socket.
    """

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._pieces = [memoryview(piece) for piece in pieces]
        self._size = sum(map(len, self._pieces))
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def tell(self) -> int:
        """Where the next read starts."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to ``offset`` from the start (0), from here (1) or from the end (2)."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, _size: int = -1) -> memoryview:
        """The next bytes, at most 256 KiB whatever is asked; empty at the end."""
        skip = self._at
        for piece in self._pieces:
            if skip < len(piece):
                found = piece[skip : skip + _SEND_BYTES]
                self._at += len(found)
                return found
            skip -= len(piece)
        return memoryview(b"")

    def integrity(self, dialect: Dialect) -> dict[str, Any]:
        """Arguments that let the server refuse the bytes if they were changed on the way."""
        if dialect.checksums:
            crc = 0
            for piece in self._pieces:
                crc = zlib.crc32(piece, crc)
            return {"ChecksumCRC32": base64.b64encode(crc.to_bytes(4, "big")).decode()}
        md5 = hashlib.md5(usedforsecurity=False)
        for piece in self._pieces:
            md5.update(piece)
        return {"ContentMD5": base64.b64encode(md5.digest()).decode()}


def sent(pieces: Sequence[Buffer]) -> Any:
    """A fresh body of ``pieces``; Any, since the stubs of boto3 ask for more than a request reads."""
    return Body(pieces)


def put_object(calls: Calls, key: str, pieces: Sequence[Buffer]) -> None:
    """Store a small object in one request."""
    where = {"Bucket": calls.bucket, "Key": key, **Body(pieces).integrity(calls.dialect)}
    calls.call("PutObject", key, lambda s3: s3.put_object(**where, Body=sent(pieces)))


def upload(
    calls: Calls, key: str, buffers: Iterable[Buffer], *, size: int, tuning: Tuning, token: Callable[[], str]
) -> Uploaded:
    """Store an object of ``size`` bytes, hashing on the way; sent again as a whole if the server lost its parts."""
    if size <= tuning.part_bytes:
        pieces = list(cut(buffers, tuning.part_bytes))
        check_size(key, sum(map(len, pieces)), size)
        put_object(calls, key, pieces)
        with Hasher(0) as hasher:
            for piece in pieces:
                hasher.update(piece)
            return Uploaded(size, hasher.digest())
    tries = 1 if isinstance(buffers, Iterator) else _UPLOAD_TRIES
    for _ in range(tries - 1):
        with suppress(UploadGoneError):
            return _Upload(calls, key, token(), tuning, size).send(buffers)
    return _Upload(calls, key, token(), tuning, size).send(buffers)


class _Upload:
    """One multipart upload, known by a token in the object's metadata."""

    def __init__(self, calls: Calls, key: str, token: str, tuning: Tuning, size: int) -> None:
        self._calls, self._key, self._token, self._size = calls, key, token, size
        self._part_bytes = max(tuning.part_bytes, -(-size // _MOST_PARTS))
        self._parallel = tuning.parallel
        self._where: dict[str, Any] = {"Bucket": calls.bucket, "Key": key}

    def send(self, buffers: Iterable[Buffer]) -> Uploaded:
        kind: dict[str, Any] = {"ChecksumAlgorithm": "CRC32"} if self._calls.dialect.checksums else {}
        answer = self._calls.call(
            "CreateMultipartUpload",
            self._key,
            lambda s3: s3.create_multipart_upload(**self._where, Metadata={TOKEN_NAME: self._token}, **kind),
        )
        upload_id = answer["UploadId"]
        done = False
        try:
            parts, digest = self._send_parts(upload_id, buffers)
            self._complete(upload_id, parts)
            done = True
        finally:
            if not done:
                self._abort(upload_id)
        return Uploaded(self._size, digest)

    def _send_parts(self, upload_id: str, buffers: Iterable[Buffer]) -> tuple[list[dict[str, Any]], str]:
        sent: list[Future[dict[str, Any]]] = []
        # Bounds what buffers made on the fly may pile up; those in memory already cost nothing more.
        room = BoundedSemaphore(2 * self._parallel)
        with Hasher(self._size) as hasher, ThreadPoolExecutor(self._parallel, "rerail-upload") as pool:
            try:
                written = 0
                for number, pieces in enumerate(_parts(buffers, self._part_bytes), 1):
                    for piece in pieces:
                        hasher.update(piece)
                        written += len(piece)
                    room.acquire()
                    if any(part.done() and part.exception() for part in sent[-2 * self._parallel :]):
                        break
                    part = pool.submit(self._send_part, upload_id, number, pieces)
                    part.add_done_callback(lambda _: room.release())
                    sent.append(part)
                parts = [part.result() for part in sent]
                check_size(self._key, written, self._size)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            return parts, hasher.digest()

    def _send_part(self, upload_id: str, number: int, pieces: list[memoryview]) -> dict[str, Any]:
        checks = Body(pieces).integrity(self._calls.dialect)
        where = {**self._where, "UploadId": upload_id, "PartNumber": number, **checks}
        answer = self._calls.call("UploadPart", self._key, lambda s3: s3.upload_part(**where, Body=sent(pieces)))
        checks.pop("ContentMD5", None)
        return {"PartNumber": number, "ETag": answer["ETag"], **checks}

    def _complete(self, upload_id: str, parts: list[dict[str, Any]]) -> None:
        listed: Any = {"Parts": parts}

        def send(s3: "S3Client") -> bool:
            s3.complete_multipart_upload(**self._where, UploadId=upload_id, MultipartUpload=listed)
            return True

        try:
            self._calls.call("CompleteMultipartUpload", self._key, send, settle=self._is_there)
        except UploadGoneError:
            # An earlier try may have done it and lost its answer.
            if not self._is_there():
                raise

    def _is_there(self) -> bool | None:
        """Whether the object is this very upload, by size and token; None if that is not known."""
        with suppress(RerailError):
            head = self._calls.once("HeadObject", self._key, lambda s3: s3.head_object(**self._where))
            if head["ContentLength"] == self._size and head["Metadata"].get(TOKEN_NAME) == self._token:
                return True
        return None

    def _abort(self, upload_id: str) -> None:
        with suppress(RerailError):
            self._calls.once(
                "AbortMultipartUpload",
                self._key,
                lambda s3: s3.abort_multipart_upload(**self._where, UploadId=upload_id),
            )


def _parts(buffers: Iterable[Buffer], part_bytes: int) -> Iterator[list[memoryview]]:
    """Views that make up one part each; all parts but the last are of equal size, as some vendors want."""
    part: list[memoryview] = []
    room = part_bytes
    for view in cut(buffers, part_bytes):
        rest = view
        while len(rest) >= room:
            part.append(rest[:room])
            yield part
            rest, part, room = rest[room:], [], part_bytes
        if rest:
            part.append(rest)
            room -= len(rest)
    if part:
        yield part


def download(calls: Calls, key: str, into: memoryview, *, tuning: Tuning) -> str:
    """Fill ``into`` with the object and return its digest.

    Raises:
        DamagedError: The object's size is not ``len(into)``.
    """
    size, step = len(into), tuning.part_bytes
    if size <= step:
        calls.call("GetObject", key, lambda s3: _fetch(s3, calls.bucket, key, into, start=0, size=size))
        return sha256(into)
    hashed = hashlib.sha256()
    with ThreadPoolExecutor(tuning.parallel, "rerail-download") as pool:

        def fetch(start: int) -> memoryview:
            part = into[start : start + step]
            calls.call("GetObject", key, lambda s3: _fetch(s3, calls.bucket, key, part, start=start, size=size))
            return part

        try:
            for part in [pool.submit(fetch, start) for start in range(0, size, step)]:
                hashed.update(part.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return f"sha256:{hashed.hexdigest()}"


def _fetch(s3: "S3Client", bucket: str, key: str, into: memoryview, *, start: int, size: int) -> None:
    """Read one range, or the whole where that is all, straight into its place."""
    whole = len(into) == size
    wanted: dict[str, Any] = {} if whole else {"Range": f"bytes={start}-{start + len(into) - 1}"}
    answer = s3.get_object(Bucket=bucket, Key=key, **wanted)
    body: Any = answer["Body"]
    try:
        found = answer["ContentLength"] if whole else int(answer["ContentRange"].rpartition("/")[2])
        if found != size:
            raise DamagedError(f"s3://{bucket}/{key} has {found} bytes, expected {size}")
        done = 0
        while done < len(into):
            read = body.readinto(into[done : done + (1 << 20)])
            if not read:
                raise StoreUnreachableError(
                    f"s3://{bucket}/{key} ended after {start + done} of {size} bytes; try again"
                )
            done += read
    finally:
        body.close()
