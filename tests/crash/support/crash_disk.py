"""Every system call of the POSIX store that changes anything, recorded; and what a power cut leaves of them.

``Recorder`` stands in for the store's ``Files``. ``Disk`` replays what it recorded and keeps two pictures: what running
processes see, and what is durable by the letter of POSIX: bytes by fsync of the file, names by fsync of the folder.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rerail.plugins.checkpoint.files import Files
from rerail.plugins.checkpoint.store import Buffer

Tree = dict[str, bytes | None]
"""A folder's content by relative path; None is a folder."""


class Event(NamedTuple):
    """One call that changes, or makes durable, something below the store's root. Paths are relative to the root."""

    call: str
    path: str
    other: str = ""
    data: bytes = b""
    ok: bool = True

    @property
    def effect(self) -> tuple[str, str, str, int, bool]:
        """What strace can see of it."""
        return self.call, self.path, self.other, len(self.data), self.ok


LOST_REPLY = {
    # What a file server's second try answers when it did the first and its answer was lost; where a second try of the
    # client is no use, the error that the process gets.
    "creat": errno.EEXIST,
    "mkdir": errno.EEXIST,
    "link": errno.EEXIST,
    "replace": errno.ENOENT,
    "unlink": errno.ENOENT,
    "rmdir": errno.ENOENT,
    "write": errno.EIO,
    "fsync": errno.EIO,
}


class Recorder(Files):
    """The real system calls, each one that changes something noted.

    Args:
        root: The store's folder.
        before: Called before each such call with the number of those that succeeded until then: a crash point.
        lose: Number of the call that is done but answered with an error.
    """

    def __init__(self, root: Path, before: Callable[[int], None] = lambda _: None, lose: int | None = None) -> None:
        self.root = str(root)
        self.before = before
        self.lose = lose
        self.events: list[Event] = []
        self.done = 0
        self._paths: dict[int, str] = {}
        self._folders: set[int] = set()

    def _at(self, folder: int, name: str) -> str:
        return f"{self._paths[folder]}/{name}".lstrip("/")

    def _note(self, event: Event, call: Callable[[], int | None], *, undo: Callable[[int], None] | None = None) -> int:
        self.before(self.done)
        try:
            result = call()
        except OSError:
            self.events.append(event._replace(ok=False))
            raise
        if event.call == "write":
            event = event._replace(data=event.data[:result])
        self.events.append(event)
        self.done += 1
        if self.lose == self.done - 1:
            if undo and result is not None:
                undo(result)
            raise OSError(LOST_REPLY[event.call], os.strerror(LOST_REPLY[event.call]))
        return result or 0

    def open_root(self, path: str) -> int:
        return self._known(super().open_root(path), "", folder=True)

    def open_folder(self, name: str, folder: int) -> int:
        return self._known(super().open_folder(name, folder), self._at(folder, name), folder=True)

    def _known(self, file: int, path: str, *, folder: bool = False) -> int:
        self._paths[file] = path
        if folder:
            self._folders.add(file)
        else:
            self._folders.discard(file)
        return file

    def mkdir(self, name: str, folder: int) -> None:
        self._note(Event("mkdir", self._at(folder, name)), lambda: super(Recorder, self).mkdir(name, folder))

    def open_new(self, name: str, folder: int) -> int:
        path = self._at(folder, name)
        opened = self._note(Event("creat", path), lambda: super(Recorder, self).open_new(name, folder), undo=os.close)
        return self._known(opened, path)

    def open_file(self, name: str, folder: int) -> int:
        return self._known(super().open_file(name, folder), self._at(folder, name))

    def write(self, file: int, data: Buffer) -> int:
        event = Event("write", self._paths[file], data=bytes(data))
        return self._note(event, lambda: super(Recorder, self).write(file, data))

    def fsync(self, file: int) -> None:
        self._note(Event("fsync", self._paths[file]), lambda: super(Recorder, self).fsync(file))

    def link(self, source: str, target: str, folder: int) -> None:
        event = Event("link", self._at(folder, source), self._at(folder, target))
        self._note(event, lambda: super(Recorder, self).link(source, target, folder))

    def replace(self, source: str, target: str, folder: int) -> None:
        event = Event("replace", self._at(folder, source), self._at(folder, target))
        self._note(event, lambda: super(Recorder, self).replace(source, target, folder))

    def unlink(self, name: str, folder: int) -> None:
        self._note(Event("unlink", self._at(folder, name)), lambda: super(Recorder, self).unlink(name, folder))

    def rmdir(self, name: str, folder: int) -> None:
        self._note(Event("rmdir", self._at(folder, name)), lambda: super(Recorder, self).rmdir(name, folder))


@dataclass(eq=False)
class Inode:
    """A file: its bytes, and those that an fsync covered (None: never synced)."""

    data: bytes = b""
    synced: bytes | None = None

    def read(self, unsynced: str) -> bytes:
        """The bytes after a crash, with ``unsynced`` ones kept, gone, cut short or zero."""
        if self.synced == self.data or unsynced == "kept":
            return self.data
        safe = self.synced or b""
        if unsynced == "zero":
            return safe + bytes(len(self.data) - len(safe))
        if unsynced == "short":
            return self.data[: max(len(safe), len(self.data) // 2)]
        return safe


@dataclass
class Folder:
    """A folder's names: as processes see them, and as an fsync covered them."""

    names: dict[str, "Inode | Folder"] = field(default_factory=dict)
    synced: dict[str, "Inode | Folder"] = field(default_factory=dict)


class Disk:
    """Replays recorded calls."""

    def __init__(self) -> None:
        self.root = Folder()
        self._files: dict[str, Inode] = {}

    def _folder(self, path: str) -> tuple[Folder, str]:
        *inside, name = path.split("/")
        at = self.root
        for part in inside:
            found = at.names[part]
            assert isinstance(found, Folder), path
            at = found
        return at, name

    def apply(self, event: Event) -> None:
        """Do what the call did. An open file is known by the name it was created under."""
        if not event.ok:
            return
        if event.call == "write":
            self._files[event.path].data += event.data
            return
        folder, name = self._folder(event.path)
        if event.call == "mkdir":
            folder.names[name] = Folder()
        elif event.call == "creat":
            folder.names[name] = self._files[event.path] = Inode()
        elif event.call in {"link", "replace"}:
            target, other = self._folder(event.other)
            target.names[other] = folder.names[name]
            if event.call == "replace":
                del folder.names[name]
        elif event.call in {"unlink", "rmdir"}:
            del folder.names[name]
        elif event.call == "fsync":
            self._sync(event.path)
        else:
            raise AssertionError(event)

    def _sync(self, path: str) -> None:
        if path in self._files:
            self._files[path].synced = self._files[path].data
            return
        folder: Inode | Folder = self.root
        for name in path.split("/") if path else ():
            assert isinstance(folder, Folder), path
            folder = folder.names[name]
        assert isinstance(folder, Folder), path
        folder.synced = dict(folder.names)

    def tree(self, *, unsynced: str = "kept", names: str = "kept", flip: tuple[str, str] | None = None) -> Tree:
        """The folder after a crash. ``flip`` names one pending entry that goes the other way than ``names`` says."""
        found: Tree = {}

        def walk(folder: Folder, path: str) -> None:
            entries = dict(folder.names if names == "kept" else folder.synced)
            if flip and flip[0] == path:
                source = folder.synced if names == "kept" else folder.names
                entries.pop(flip[1], None)
                if flip[1] in source:
                    entries[flip[1]] = source[flip[1]]
            for name, entry in entries.items():
                inside = f"{path}/{name}".lstrip("/")
                if isinstance(entry, Folder):
                    found[inside] = None
                    walk(entry, inside)
                else:
                    found[inside] = entry.read(unsynced)

        walk(self.root, "")
        return found

    def _pending(self) -> Iterator[tuple[str, str]]:
        def walk(folder: Folder, path: str) -> Iterator[tuple[str, str]]:
            for name in sorted({*folder.names, *folder.synced}):
                if folder.names.get(name) is not folder.synced.get(name):
                    yield path, name
            for name, entry in folder.names.items():
                if isinstance(entry, Folder):
                    yield from walk(entry, f"{path}/{name}".lstrip("/"))

        return walk(self.root, "")

    def after_power_cut(self) -> dict[str, Tree]:
        """What may be left when the power goes now: each different from what processes saw, and from each other."""
        ways: dict[str, Tree] = {"all un-synced lost": self.tree(unsynced="gone", names="lost")}
        for unsynced in ("gone", "zero", "short"):
            ways[f"names kept, bytes {unsynced}"] = self.tree(unsynced=unsynced)
        for folder, name in self._pending():
            ways[f"only {folder}/{name} kept"] = self.tree(unsynced="gone", names="lost", flip=(folder, name))
            ways[f"only {folder}/{name} lost"] = self.tree(unsynced="gone", flip=(folder, name))
        seen = [self.tree()]
        different = {}
        for way, tree in ways.items():
            if tree not in seen:
                seen.append(tree)
                different[way] = tree
        return different


def plant(tree: Tree, root: Path) -> Path:
    """Make the folder ``root`` with this content."""
    root.mkdir(parents=True)
    for path, data in tree.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)
    return root


def read_tree(root: Path) -> Tree:
    """The content of a folder."""
    found: Tree = {}
    for folder, folders, files in os.walk(root):
        inside = Path(folder).relative_to(root)
        found.update({str(inside / name): None for name in folders})
        with suppress(FileNotFoundError):
            found.update({str(inside / name): Path(folder, name).read_bytes() for name in files})
    return found
