"""What strace saw below a folder, in the recorder's own words."""

import re
from collections.abc import Iterator

CALLS = (
    "open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,sendfile,copy_file_range,splice,ftruncate,truncate,"
    "fallocate,fsync,fdatasync,sync,syncfs,sync_file_range,msync,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,"
    "mkdirat,mknod,mknodat,rmdir,rename,renameat,renameat2,chmod,fchmod,fchmodat,chown,fchown,fchownat,utimensat,"
    "setxattr,fsetxattr,ioctl"
)

_LINE = re.compile(r"\d+\s+(\w+)\((.*)\)\s+= (-?\d+)(?:<.*>)?(?: \w+ \(.*\))?")
_FOLDER = r'\d+<([^>]*)>, "([^"]*)"'
_SHAPES = (
    ("openat", re.compile(_FOLDER + r", (.*)"), "creat"),
    ("mkdirat", re.compile(_FOLDER + r", \d+"), "mkdir"),
    ("linkat", re.compile(f"{_FOLDER}, {_FOLDER}, 0"), "link"),
    ("renameat", re.compile(f"{_FOLDER}, {_FOLDER}"), "replace"),
    ("renameat2", re.compile(f"{_FOLDER}, {_FOLDER}, 0"), "replace"),
    ("unlinkat", re.compile(_FOLDER + ", 0"), "unlink"),
    ("unlinkat", re.compile(_FOLDER + ", AT_REMOVEDIR"), "rmdir"),
    ("fsync", re.compile(r"\d+<([^>]*)>()"), "fsync"),
    ("write", re.compile(r"\d+<([^>]*)>(), .*"), "write"),
)

Effect = tuple[str, str, str, int, bool]


def effects(trace: str, root: str) -> list[Effect]:
    """Everything that changed something below ``root``, or made it durable; what is not understood comes as it is."""
    return [effect for line in trace.splitlines() if root in line for effect in _effect(line, root)]


def _effect(line: str, root: str) -> Iterator[Effect]:
    found = _LINE.fullmatch(line.strip())
    if not found:
        yield line, "", "", 0, False
        return
    call, args, result = found[1], found[2], int(found[3])
    if call in {"open", "openat"} and not re.search(r"O_(CREAT|TRUNC|APPEND)", args):
        return  # to read, or a folder: nothing changes
    for name, shape, meaning in _SHAPES:
        match = shape.fullmatch(args)
        if call == name and match:
            paths = list(zip(match.groups()[:4:2], match.groups()[1:4:2], strict=False))
            where = [
                _inside(folder, entry, root) for folder, entry in paths if folder is not None and entry is not None
            ]
            size = result if meaning == "write" and result > 0 else 0
            yield meaning, where[0], where[1] if len(where) > 1 else "", size, result >= 0
            return
    yield line, "", "", 0, False


def _inside(folder: str, name: str, root: str) -> str:
    return f"{folder}/{name}".rstrip("/").removeprefix(root).lstrip("/")
