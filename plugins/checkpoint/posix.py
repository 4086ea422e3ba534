"""A store on a POSIX folder: a local disk, or a shared volume with hard links.

A document appears whole by link(2) of a synced temporary file, and is acknowledged when every folder that got an entry
is synced, from the leaf to the root. No folder is ever renamed, and no symbolic link below the root is followed.
"""

import errno
import heapq
import os
import re
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from rerail.plugins.checkpoint.files import Files
from rerail.plugins.checkpoint.hashing import Hasher, check_size, cut
from rerail.plugins.checkpoint.names import HIDDEN, PROOFS, Requests, check_key, check_prefix
from rerail.plugins.checkpoint.oserrors import NO_HARD_LINKS, explain_sync, explained
from rerail.plugins.checkpoint.proof import prove_exclusive, prove_once
from rerail.plugins.checkpoint.store import Buffer, Created, Entry, Exists, Page, Uploaded
from rerail.policies.errors import (
    DamagedError,
    NotFoundError,
    RefusedError,
    StoreRefusedError,
    StoreUnreachableError,
)
from rerail.policies.keys import parse_shard

_PIECE_BYTES = 8 << 20
_VIEW_TRIES = 20
_VIEW_PAUSE_S = 0.1
_LEFTOVER_AGE_S = 6 * 3600.0
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_WAY_OUT = "Use a volume with hard links and close-to-open consistency (ext4, xfs, NFSv4, Lustre, CephFS), or s3://."


def _new_token() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True)
class _Volume:
    """What all views of one root share."""

    root: str
    files: Files
    token: Callable[[], str]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    requests: Requests = field(default_factory=Requests)
    anchored: set[tuple[str, int, int]] = field(default_factory=set)
    """Folders whose entry in their parent is known to be synced, by path and inode."""
    met: set[str] = field(default_factory=set)
    """The root, once it was there: from then on its absence is an outage, not a wrong address."""


def make_root(root: Path) -> None:
    """Make a store's root folder durably; one that is there already is fine."""
    with explained("create", str(root)):
        missing = [folder for folder in (root, *root.parents) if not folder.exists()]
        root.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)


class PosixStore:
    """The ``Store`` protocol on a folder.

    Args:
        root: The store's folder. It has to exist: a wrong mount must not look like an empty store.
        prefix: The view's prefix below it, ending in '/', or empty.
        files: The system calls.
        token: Makes names of temporary files.
        clock: Wall clock in seconds, only to tell that a temporary file was left hours ago.
        sleep: Waits for another host's new folder to come into view.
    """

    def __init__(
        self,
        root: Path | str,
        prefix: str = "",
        *,
        files: Files | None = None,
        token: Callable[[], str] = _new_token,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        volume: _Volume | None = None,
    ) -> None:
        self._volume = volume or _Volume(os.path.abspath(root), files or Files(), token, clock, sleep)  # noqa: PTH100
        self._prefix = check_prefix(prefix)
        self._files = self._volume.files

    @property
    def url(self) -> str:
        """Address as a user gives it."""
        return f"file://{quote(self._path('').rstrip('/') or '/')}"

    @property
    def requests(self) -> int:
        """Operations so far, over all views of this root."""
        return self._volume.requests.made

    def below(self, prefix: str) -> "PosixStore":
        """The same folder, seen from ``prefix``."""
        inside = check_key(prefix.rstrip("/"))
        return PosixStore(self._volume.root, f"{self._prefix}{inside}/", volume=self._volume)

    def prove(self) -> None:
        """Prove once per process that the volume creates exclusively, by hard links.

        Raises:
            StoreRefusedError: It does not.
        """
        with self._chain("") as (root,), explained("look at", self._volume.root):
            known = self._files.status_of(root)
        prove_once(f"file:{self._volume.root}:{known.st_dev}:{known.st_ino}", self._prove)

    def _prove(self) -> None:
        top, token = PosixStore(self._volume.root, volume=self._volume), self._volume.token()
        key = f"{PROOFS}{token}"
        try:
            prove_exclusive(
                lambda data: top._create(key, data),
                lambda: top._get(key),
                token=token,
                store=top.url,
                way_out=_WAY_OUT,
            )
        finally:
            with suppress(OSError, NotFoundError), self._chain("") as (root,):
                self._files.unlink(key, root)

    def create(self, key: str, data: bytes) -> Created | Exists:
        """Create a document exclusively and durably, or say what is there.

        Raises:
            StoreFullError: No space is left.
            SaveFailedError: A sync failed.
            StoreRefusedError: The volume has no hard links.
        """
        return self._create(self._prefix + check_key(key), data)

    def _create(self, key: str, data: bytes) -> Created | Exists:
        self._volume.requests.count()
        folder, _, name = key.rpartition("/")
        path = self._volume_path(key)
        with explained("create", path), self._chain(folder, make=True) as chain:
            with self._temporary(chain[-1]) as (temporary, file):
                self._write(file, data)
                self._sync(file, path)
                self._anchor(folder, chain)
                there = self._link(temporary, name, chain[-1], file, path)
            # Also for the loser: what it acts on must not vanish with the winner's power.
            self._sync(chain[-1], os.path.dirname(path))  # noqa: PTH120
            if not there:
                return Created()
        try:
            found = self._get(key)
        except NotFoundError:  # deleted since
            return self._create(key, data)
        return Created() if found == data else Exists(found)

    def _link(self, temporary: str, name: str, folder: int, file: int, path: str) -> bool:
        """Link the temporary file to its name; True if something else has the name."""
        try:
            self._files.link(temporary, name, folder)
        except OSError as error:
            # A file server may do the link, lose its answer, and fail the second try: the count of names tells.
            if self._files.status_of(file).st_nlink > 1:
                return False
            if error.errno == errno.EEXIST:
                return True
            if error.errno in NO_HARD_LINKS:
                raise StoreRefusedError(
                    f"the volume of {path} has no hard links ({os.strerror(error.errno or 0)}), on which exclusive "
                    f"creation rests. {_WAY_OUT}"
                ) from error
            raise
        return False

    def put(self, key: str, data: bytes) -> None:
        """Overwrite a hint. It appears whole, but is not synced: nothing rests on it."""
        self._volume.requests.count()
        key = self._prefix + check_key(key)
        folder, _, name = key.rpartition("/")
        with (
            explained("write", self._volume_path(key)),
            self._chain(folder, make=True) as chain,
            self._temporary(chain[-1]) as (temporary, file),
        ):
            self._write(file, data)
            self._files.replace(temporary, name, chain[-1])

    def get(self, key: str) -> bytes:
        """The whole document.

        Raises:
            NotFoundError: There is none.
        """
        return self._get(self._prefix + check_key(key))

    def _get(self, key: str) -> bytes:
        self._volume.requests.count()
        with self._opened(key) as (file, size):
            into = bytearray(size)
            return bytes(into[: self._read(file, memoryview(into))])

    def upload(self, key: str, buffers: Iterable[Buffer], *, size: int) -> Uploaded:
        """Write a large file durably, hashing beside the disk. The buffers must not change meanwhile.

        Raises:
            StoreFullError: No space is left; nothing of the file stays.
            SaveFailedError: A sync failed.
            UsageError: The buffers do not add up to ``size``.
        """
        self._volume.requests.count()
        inside = self._prefix + check_key(key)
        folder, _, name = inside.rpartition("/")
        path = self._volume_path(inside)
        with (
            explained("write", path),
            self._chain(folder, make=True) as chain,
            self._temporary(chain[-1]) as (temporary, file),
            Hasher(size) as hasher,
        ):
            written = 0
            for piece in cut(buffers, _PIECE_BYTES):
                hasher.update(piece)
                written += self._write(file, piece)
                if size >= _PIECE_BYTES:  # so that the disk works while the next piece is copied
                    self._files.begin_sync(file, written - len(piece), len(piece))
            check_size(key, written, size)
            self._sync(file, path)
            self._files.replace(temporary, name, chain[-1])
            self._sync(chain[-1], os.path.dirname(path))  # noqa: PTH120
            self._anchor(folder, chain)
            return Uploaded(written, hasher.digest())

    def download(self, key: str, into: memoryview) -> str:
        """Fill ``into`` from the file, hashing beside the disk, and return the digest.

        Raises:
            DamagedError: The file's size is not ``len(into)``, or it is no regular file.
        """
        self._volume.requests.count()
        inside, target = self._prefix + check_key(key), into.cast("B")
        with self._opened(inside) as (file, size), Hasher(size) as hasher:
            done = 0
            while size == len(target) and done < size:
                read = self._files.read_into(file, target[done : done + _PIECE_BYTES])
                if not read:
                    break
                hasher.update(target[done : done + read])
                done += read
            if done != len(target) or size != done:
                raise DamagedError(f"{self._volume_path(inside)} has {size} bytes, expected {len(target)}")
            return hasher.digest()

    def page(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Page:
        """One page of keys in UTF-8 order. Reads only folders that it touches, and looks only at files it returns.

        Raises:
            NotFoundError: The store's folder itself is gone.
        """
        self._volume.requests.count()
        full, cut_off = self._prefix + check_prefix(prefix), len(self._prefix)
        folder = full.rpartition("/")[0]
        found: list[Entry] = []
        inside = f"{folder}/" if folder else ""
        with (
            explained("list", self._volume_path(full)),
            suppress(FileNotFoundError, NotADirectoryError),
            self._chain(folder) as chain,
        ):
            for key, size in self._walk(chain[-1], inside, full, self._prefix + start_after):
                if len(found) == limit:
                    return Page(tuple(found), found[-1].key)
                found.append(Entry(key[cut_off:], size))
        return Page(tuple(found), None)

    def _walk(self, folder: int, path: str, prefix: str, after: str) -> Iterator[tuple[str, int]]:
        """Keys below an open folder and their sizes, lazily and in order; a folder's name counts with its '/'."""
        wanted: list[tuple[str, str, bool]] = []
        for name, is_folder in self._files.names(folder):
            key = f"{path}{name}/" if is_folder else path + name
            if name.startswith(HIDDEN) or not key.startswith(prefix):
                continue
            if key > after or (is_folder and after.startswith(key)):
                wanted.append((key, name, is_folder))
        heapq.heapify(wanted)
        while wanted:
            key, name, is_folder = heapq.heappop(wanted)
            if not key.isprintable() and _NOT_UTF8.search(key):
                continue  # not ours
            with suppress(FileNotFoundError):  # deleted since the folder was read
                if is_folder:
                    with self._files.closing(self._files.open_folder(name, folder)) as inner:
                        yield from self._walk(inner, key, prefix, after)
                else:
                    yield key, self._files.status(name, folder).st_size

    def delete(self, keys: tuple[str, ...]) -> None:
        """Delete files durably; one that is gone already is no error. Emptied folders of saves go too."""
        by_folder: dict[str, list[str]] = defaultdict(list)
        for key in keys:
            folder, _, name = (self._prefix + check_key(key)).rpartition("/")
            by_folder[folder].append(name)
        for folder, names in by_folder.items():
            self._volume.requests.count()
            path = self._volume_path(folder)
            with explained("delete in", path), suppress(FileNotFoundError), self._chain(folder) as chain:
                for name in names:
                    with suppress(FileNotFoundError):
                        self._files.unlink(name, chain[-1])
                self._sync(chain[-1], path)
                self._prune(folder, chain)

    def _prune(self, folder: str, chain: list[int]) -> None:
        """Remove emptied folders of saves. Only these: their names hold a fresh id, so nobody makes them again."""
        names = folder.split("/")
        while names and parse_shard(f"{names[-1]}/"):
            inner, outer, name = chain[len(names)], chain[len(names) - 1], names.pop()
            left = [entry for entry, _ in self._files.names(inner)]
            if not all(entry.startswith(HIDDEN) for entry in left):
                return
            for entry in left:  # what killed writers left
                if self._files.status(entry, inner).st_mtime < self._volume.clock() - _LEFTOVER_AGE_S:
                    self._files.unlink(entry, inner)
            try:
                self._files.rmdir(name, outer)
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}:
                    return
                raise
            self._sync(outer, folder)

    def _volume_path(self, key: str) -> str:
        return os.path.join(self._volume.root, key)  # noqa: PTH118

    def _path(self, key: str) -> str:
        return self._volume_path(self._prefix + key)

    @contextmanager
    def _chain(self, folder: str, *, make: bool = False) -> Iterator[list[int]]:
        """Open every folder from the root to ``folder``, none through a symbolic link."""
        with ExitStack() as stack:
            try:
                root = self._files.open_root(self._volume.root)
            except (FileNotFoundError, NotADirectoryError) as error:
                gone = f"the store's folder {self._volume.root} is not there ({error.strerror})"
                if self._volume.met:
                    raise StoreUnreachableError(f"{gone} any more: is its volume still mounted?") from error
                raise NotFoundError(f"{gone}: mount the volume, or make the folder if this is a new store") from error
            self._volume.met.add(self._volume.root)
            chain = [stack.enter_context(self._files.closing(root))]
            done = self._volume.root
            for name in folder.split("/") if folder else ():
                done = f"{done}/{name}"
                chain.append(stack.enter_context(self._files.closing(self._enter(name, chain[-1], done, make=make))))
            yield chain

    def _enter(self, name: str, parent: int, path: str, *, make: bool) -> int:
        for tries_left in reversed(range(_VIEW_TRIES)):
            try:
                return self._files.open_folder(name, parent)
            except OSError as error:
                if error.errno in {errno.ENOTDIR, errno.ELOOP}:
                    self._refuse_link(name, parent, path)
                again = error.errno == errno.ESTALE or (make and error.errno == errno.ENOENT)
                if not again or not tries_left:
                    raise
            if make:
                # Many ranks make one folder at once, and a shared volume shows it to some late: go on until it opens.
                try:
                    self._files.mkdir(name, parent)
                except FileExistsError:
                    self._volume.sleep(0 if tries_left == _VIEW_TRIES - 1 else _VIEW_PAUSE_S)
        raise AssertionError(path)

    def _refuse_link(self, name: str, parent: int, path: str) -> None:
        if stat.S_ISLNK(self._files.status(name, parent).st_mode):
            raise RefusedError(
                f"{path} is a symbolic link, and none is followed inside a store; put the real one there"
            )

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """Open a regular file for reading; yields it and its size."""
        folder, _, name = key.rpartition("/")
        path = self._volume_path(key)
        with explained("read", path), self._chain(folder) as chain:
            for tries_left in reversed(range(_VIEW_TRIES)):
                try:
                    file = self._files.open_file(name, chain[-1])
                    break
                except OSError as error:
                    if error.errno == errno.ELOOP:
                        self._refuse_link(name, chain[-1], path)
                    if error.errno != errno.ESTALE or not tries_left:
                        raise
            with self._files.closing(file):
                known = self._files.status_of(file)
                if not stat.S_ISREG(known.st_mode):
                    raise DamagedError(f"{path} is not a regular file: something else was put in its place")
                yield file, known.st_size

    @contextmanager
    def _temporary(self, folder: int) -> Iterator[tuple[str, int]]:
        """A new hidden file; its temporary name goes at the end. A killed writer's stays, hidden and harmless."""
        name = f"{HIDDEN}{self._volume.token()}.tmp"
        with self._files.closing(self._files.open_new(name, folder)) as file:
            try:
                yield name, file
            finally:
                with suppress(OSError):
                    self._files.unlink(name, folder)

    def _write(self, file: int, data: Buffer) -> int:
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += self._files.write(file, view[done:])
        return done

    def _read(self, file: int, into: memoryview) -> int:
        done = 0
        while done < len(into) and (read := self._files.read_into(file, into[done:])):
            done += read
        return done

    def _sync(self, file: int, path: str) -> None:
        try:
            self._files.fsync(file)
        except OSError as error:
            raise explain_sync(error, path) from error

    def _anchor(self, folder: str, chain: list[int]) -> None:
        """Sync the parents of folders not known to be durable, leaf to root, whoever made them."""
        names = folder.split("/") if folder else []
        for depth in range(len(names), 0, -1):
            path = "/".join(names[:depth])
            known = self._files.status_of(chain[depth])
            mark = (path, known.st_dev, known.st_ino)
            if mark not in self._volume.anchored:
                self._sync(chain[depth - 1], self._volume_path("/".join(names[: depth - 1])))
                self._volume.anchored.add(mark)
