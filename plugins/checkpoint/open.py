"""From the address that a user gives to a store."""

import re
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote

from rerail.plugins.checkpoint.names import check_prefix
from rerail.plugins.checkpoint.store import RunStore, Store
from rerail.policies.addresses import FORMS, shown, split
from rerail.policies.errors import NotFoundError, RefusedError, UsageError
from rerail.policies.keys import check_run_name

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")


def open_store(url: str, *, create: bool = False) -> Store:
    """Open the store at ``url``.

    Args:
        url: ``file:///dir``, ``s3://bucket/prefix``, or a scheme of the entry-point group ``rerail.stores``.
        create: Make a folder that is missing, as the first submission does. Never for a resume: a wrong mount looks
            like an empty store.

    Raises:
        UsageError: The address cannot be used.
        NotFoundError: The folder is missing and ``create`` is not set.
    """
    check_address(url)
    parts = split(url)
    if parts.scheme == "file":
        return _open_folder(unquote(parts.path), create=create)
    if parts.scheme == "s3":
        return _open_bucket(parts.netloc, parts.path.strip("/"))
    (found, *_) = entry_points(group="rerail.stores", name=parts.scheme)
    store: Store = found.load()(url, create=create)
    return store


def check_address(url: str) -> None:
    """Refuse an address that no store here can have; nobody is asked.

    Raises:
        UsageError: Says why, and what an address looks like.
    """
    parts = split(url)
    if parts.query or parts.fragment:
        raise UsageError(f"store address {shown(url)!r} has a '?' or '#', which no store takes; {FORMS}")
    if parts.scheme == "file":
        _check_folder(url, parts.netloc, unquote(parts.path))
        return
    if parts.scheme == "s3":
        _check_bucket(url, parts.netloc, parts.path.strip("/"))
        return
    if entry_points(group="rerail.stores", name=parts.scheme):
        return
    what = f"scheme {parts.scheme!r}" if parts.scheme else "a path without a scheme"
    raise UsageError(f"store address {shown(url)!r} is not usable ({what}); {FORMS}")


def open_run(
    run: str, *, store: str, control: str | None = None, create: bool = False, outside: bool = False
) -> RunStore:
    """Open the two roots of ``run``: shards in ``store``, documents in ``control`` where that is given.

    Args:
        run: Its name.
        store: Address of the shards.
        control: Address of the documents, where it is another one.
        create: As in ``open_store``.
        outside: This is not where ranks run. A folder of shards that is not here is not made then, where documents have
            a store of their own: the run's files are ``away``.

    Raises:
        UsageError: The run's name or an address cannot be used.
        NotFoundError: A folder is missing and ``create`` is not set.
    """
    check_run_name(run)
    if control is None or control == store:
        both = open_store(store, create=create).below(run)
        return RunStore(run, control=both, shards=both)
    parts = split(store)
    away = outside and parts.scheme == "file" and not Path(unquote(parts.path)).is_dir()
    documents = open_store(control, create=create).below(run)
    if not away:
        return RunStore(run, control=documents, shards=open_store(store, create=create).below(run))
    from rerail.plugins.checkpoint.posix import PosixStore

    return RunStore(run, control=documents, shards=PosixStore(unquote(parts.path)).below(run), away=True)


def _check_folder(url: str, host: str, path: str) -> None:
    if host not in {"", "localhost"} or not path.startswith("/"):
        raise UsageError(f"store address {shown(url)!r} is not absolute; three slashes come before the folder: {FORMS}")
    if "\0" in path:
        raise UsageError(f"store address {shown(url)!r} holds a zero character; {FORMS}")


def _open_folder(path: str, *, create: bool) -> Store:
    from rerail.plugins.checkpoint.posix import PosixStore, make_root

    root = Path(path)
    if create:
        make_root(root)
    elif not root.is_dir():
        raise NotFoundError(
            f"the store's folder {root} is not there: mount the volume, or make the folder if this is a new store "
            "(a missing mount looks like an empty store, so Rerail does not make it here)"
        )
    return PosixStore(root)


def _check_bucket(url: str, bucket: str, prefix: str) -> None:
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"store address {shown(url)!r} has no usable bucket name; {FORMS}")
    try:
        check_prefix(prefix)
    except RefusedError as error:
        raise UsageError(f"store address {shown(url)!r} is not usable: {error}; {FORMS}") from error


def _open_bucket(bucket: str, prefix: str) -> Store:
    # boto3 takes a second to import: whoever uses a folder does not pay for it.
    from rerail.plugins.checkpoint.s3 import S3Store

    return S3Store(bucket, f"{prefix}/" if prefix else "")
