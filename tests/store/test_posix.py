"""What only a folder can do wrong."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from rerail.plugins.checkpoint.files import Files
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.checkpoint.store import Created, Exists, all_entries
from rerail.policies.errors import (
    DamagedError,
    NotFoundError,
    RefusedError,
    RerailError,
    SaveFailedError,
    StoreFullError,
    StoreRefusedError,
    StoreUnreachableError,
)


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


class Recorder(Files):
    """Real system calls that write down the order of those that make things durable or visible."""

    def __init__(self):
        self.calls = []

    def _name(self, file):
        return Path(f"/proc/self/fd/{file}").readlink().name

    def fsync(self, file):
        self.calls.append(("fsync", self._name(file)))
        super().fsync(file)

    def link(self, source, target, folder):
        self.calls.append(("link", target))
        super().link(source, target, folder)

    def replace(self, source, target, folder):
        self.calls.append(("replace", target))
        super().replace(source, target, folder)


def failing(method, error_number, *, times=1, after=None):
    """System calls of which one fails ``times`` times; ``after=True`` does the work first, as a lost answer does."""
    left = iter(range(times))

    def fail(self, *args):
        if next(left, None) is None:
            return getattr(Files, method)(self, *args)
        if after:
            getattr(Files, method)(self, *args)
        raise OSError(error_number, os.strerror(error_number))

    return type("Failing", (Files,), {method: fail})()


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


def test_url_reads_back(tmp_path):
    root = tmp_path / "with space #1"
    assert unquote(urlsplit(PosixStore(root).url).path) == str(root)


def test_a_document_is_linked_when_it_and_the_folders_above_are_synced(root):
    files = Recorder()
    PosixStore(root, files=files, token=lambda: "t").below("run-1").create("commits/a.json", b"x")
    assert files.calls == [
        ("fsync", ".rerail-t.tmp"),
        ("fsync", "run-1"),  # holds commits
        ("fsync", "store"),  # holds run-1
        ("link", "a.json"),
        ("fsync", "commits"),
    ]


def test_folders_above_are_synced_once_but_the_own_one_always(root):
    files = Recorder()
    store = PosixStore(root, files=files, token=lambda: "t")
    store.create("commits/a.json", b"x")
    files.calls.clear()
    store.create("commits/b.json", b"x")
    assert files.calls == [("fsync", ".rerail-t.tmp"), ("link", "b.json"), ("fsync", "commits")]


def test_a_folder_that_another_process_made_is_synced_too(root):
    (root / "run-1" / "shards").mkdir(parents=True)
    files = Recorder()
    PosixStore(root, files=files, token=lambda: "t").upload("run-1/shards/w", [b"x"], size=1)
    assert files.calls == [
        ("fsync", ".rerail-t.tmp"),
        ("replace", "w"),
        ("fsync", "shards"),
        ("fsync", "run-1"),
        ("fsync", "store"),
    ]


def test_the_loser_syncs_what_it_learns(root):
    PosixStore(root).create("a.json", b"one")
    files = Recorder()
    assert PosixStore(root, files=files).create("a.json", b"two") == Exists(b"one")
    assert files.calls[-1] == ("fsync", "store")


@pytest.mark.parametrize("fails", [errno.EEXIST, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_link_whose_answer_was_lost_is_created(root, fails):
    store = PosixStore(root, files=failing("link", fails, after=True))
    assert store.create("a.json", b"one") == Created()
    assert store.get("a.json") == b"one"
    assert (root / "a.json").stat().st_nlink == 1


def test_a_link_that_failed_is_not_created(root):
    with pytest.raises(StoreUnreachableError, match=r"a\.json"):
        PosixStore(root, files=failing("link", errno.EIO)).create("a.json", b"one")
    assert names_in(root) == []


@pytest.mark.parametrize("fails", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV])
def test_a_volume_without_hard_links_is_refused_with_the_way_out(root, fails):
    with pytest.raises(StoreRefusedError, match=r"hard links.*s3://"):
        PosixStore(root, files=failing("link", fails)).prove()
    assert names_in(root) == []


def test_a_volume_that_overwrites_is_refused(root):
    class Overwrites(Files):
        def link(self, source, target, folder):
            super().replace(source, target, folder)
            super().close(super().open_new(source, folder))

    with pytest.raises(StoreRefusedError, match=r"overwrote.*Use a volume"):
        PosixStore(root, files=Overwrites()).prove()
    assert names_in(root) == []


@pytest.mark.parametrize("fails", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("use", ["create", "upload"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_failed_sync_fails_the_save(root, fails, use, at):
    class Fails(Files):
        count = 0

        def fsync(self, file):
            self.count += 1
            if self.count == at:
                raise OSError(fails, os.strerror(fails))
            super().fsync(file)

    store = PosixStore(root, files=Fails()).below("run-1")
    with pytest.raises(SaveFailedError, match="fsync"):
        store.create("commits/a", b"x") if use == "create" else store.upload("shards/a", [b"x"], size=1)


def test_a_volume_that_cannot_sync_folders_is_refused(root):
    with pytest.raises(StoreRefusedError, match="power cut"):
        PosixStore(root, files=failing("fsync", errno.EINVAL)).create("a", b"x")


def test_a_folder_made_by_another_rank_at_once_is_fine(root):
    # C1-19: mkdir says FileExistsError, and the folder is there afterwards.
    store = PosixStore(root, files=failing("mkdir", errno.EEXIST, times=3, after=True), sleep=lambda _: None)
    store.upload("shards/300.1.abcdef12/w", [b"x"], size=1)
    assert [entry.key for entry in all_entries(store, "")] == ["shards/300.1.abcdef12/w"]


def test_a_folder_that_comes_into_view_late_is_waited_for(root):
    waits = []

    class Late(Files):
        def mkdir(self, name, folder):
            if len(waits) >= 3:
                return super().mkdir(name, folder)
            raise FileExistsError(errno.EEXIST, "late")

    PosixStore(root, files=Late(), sleep=waits.append).create("commits/a", b"x")
    assert len(waits) == 3


@pytest.mark.parametrize("method", ["open_folder", "open_file"])
def test_stale_handles_are_opened_again(root, method):
    PosixStore(root).create("commits/a", b"x")
    assert PosixStore(root, files=failing(method, errno.ESTALE, times=2)).get("commits/a") == b"x"


CODES = [
    (errno.ENOSPC, StoreFullError),
    (errno.EDQUOT, StoreFullError),
    (errno.EIO, StoreUnreachableError),
    (errno.ESTALE, StoreUnreachableError),
    (errno.EROFS, RefusedError),
    (errno.EACCES, RefusedError),
]


@pytest.mark.parametrize(("number", "kind"), CODES, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("method", ["write", "open_new"])
def test_each_errno_has_its_error_which_names_the_file_and_leaves_nothing(root, number, kind, method):
    store = PosixStore(root, files=failing(method, number, times=99))
    for use in (lambda: store.create("a.json", b"x"), lambda: store.upload("a.json", [b"x"], size=1)):
        with pytest.raises(kind, match=r"store/a\.json.*; \w+"):
            use()
    assert names_in(root) == []


def test_a_wrong_mount_does_not_look_like_an_empty_store(tmp_path):
    store = PosixStore(tmp_path / "gone").below("run-1")
    for use in (
        lambda: store.page("commits/"),
        lambda: store.get("run.json"),
        lambda: store.create("a", b"x"),
        store.prove,
    ):
        with pytest.raises(NotFoundError, match=r"gone.*mount"):
            use()
    (tmp_path / "gone").write_text("a file")
    with pytest.raises(NotFoundError, match="gone"):
        store.page("commits/")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_forbidden_names_the_path(root):
    root.chmod(0o755)
    for folder in root.parents:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    PosixStore(root).create("a.json", b"x")
    (root / "a.json").chmod(0o600)
    os.seteuid(65534)
    try:
        with pytest.raises(RefusedError, match=r"b\.json: Permission denied"):
            PosixStore(root).create("b.json", b"x")
        with pytest.raises(RefusedError, match=r"a\.json: Permission denied"):
            PosixStore(root).get("a.json")
    finally:
        os.seteuid(0)


@pytest.fixture
def small_volume(root):
    """A tmpfs of 4 MiB where that is allowed, else a limit on the size of files of this process."""
    if (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", root], check=False, capture_output=True
        ).returncode
        == 0
    ):
        yield root
        subprocess.run(["umount", root], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, before[1]))
    yield root
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_in_mid_write_loses_nothing_acknowledged(small_volume):
    store = PosixStore(small_volume)
    store.create("commits/a.json", b"acknowledged")
    with pytest.raises(StoreFullError, match=r"shards/w.*gc"):
        store.upload("shards/w", [bytes(1 << 20)] * 8, size=8 << 20)
    assert [entry.key for entry in all_entries(store, "")] == ["commits/a.json"]
    assert store.get("commits/a.json") == b"acknowledged"
    store.upload("shards/w", [bytes(1 << 20)], size=1 << 20)  # the room of the failed one is free again


def test_links_out_of_the_store_are_not_followed(root, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s")
    store = PosixStore(root)
    store.create("shards/real", b"r")
    (root / "shards" / "w").symlink_to(secret)
    (root / "out").symlink_to(tmp_path)
    for key in ("shards/w", "out/secret"):
        for use in (lambda key=key: store.get(key), lambda key=key: store.download(key, memoryview(bytearray(1)))):
            with pytest.raises(RefusedError, match="symbolic link"):
                use()
    for use in (
        lambda: store.create("out/new", b"x"),
        lambda: store.page("out/"),
        lambda: store.delete(("out/secret",)),
    ):
        with pytest.raises(RefusedError, match="symbolic link"):
            use()
    assert [entry.key for entry in all_entries(store, "")] == ["out", "shards/real", "shards/w"]
    assert secret.read_bytes() == b"s"


def test_a_root_that_is_a_link_is_the_users_choice(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    PosixStore(tmp_path / "link").create("a", b"x")
    assert (root / "a").read_bytes() == b"x"


def test_a_pipe_in_the_place_of_a_shard_does_not_hang(root):
    os.mkfifo(root / "w")
    with pytest.raises(DamagedError, match="regular"):
        PosixStore(root).download("w", memoryview(bytearray(1)))


def test_a_file_where_a_folder_should_be(root):
    (root / "commits").write_text("")
    store = PosixStore(root)
    with pytest.raises(RefusedError, match="commits"):
        store.create("commits/a", b"x")
    assert store.page("commits/").entries == ()


def test_names_too_long_are_refused(root):
    with pytest.raises(RefusedError, match="shorter"):
        PosixStore(root).create("x" * 300, b"x")


def test_ten_thousand_commits_cost_little(root):
    commits = root / "commits"
    commits.mkdir()
    for number in range(10_000):
        (commits / f"{number:06d}.json").touch()

    class Counts(Files):
        looked = 0

        def status(self, name, folder):
            self.looked += 1
            return super().status(name, folder)

    files = Counts()
    store = PosixStore(root, files=files)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        page = store.page("commits/", limit=2)
        took.append(time.perf_counter() - start)
    assert [entry.key for entry in page.entries] == ["commits/000000.json", "commits/000001.json"]
    assert files.looked == 5 * 3
    assert min(took) < 0.25
    assert len(list(all_entries(store, "commits/"))) == 10_000


def test_folders_and_files_of_near_names_are_in_utf8_order(root):
    keys = sorted(["b", "b.json", "b0", "b-/x", "c/x", "c.json", "c0/y", "c/z/1", "c/z.1", "\U0001f600", "\uffff", "é"])
    store = PosixStore(root)
    for key in keys:
        store.create(key, b"x")
    assert [entry.key for entry in all_entries(store, "")] == sorted(keys, key=str.encode)
    for after in [*keys, "c", "c/", "c/z", "c/z/", "b.", "a"]:
        expected = [key for key in sorted(keys, key=str.encode) if key.encode() > after.encode()]
        assert [entry.key for entry in store.page("", start_after=after).entries] == expected


def test_names_that_are_no_text_are_not_ours(root):
    (root / os.fsdecode(b"bad\xff")).touch()
    assert PosixStore(root).page("").entries == ()


WRITER = """
import os, sys
from rerail.plugins.checkpoint.posix import PosixStore
def pieces():
    yield bytes(1 << 20)
    print("writing", flush=True)
    sys.stdin.read()
PosixStore(sys.argv[1]).upload("shards/1.2.abcdef12/w", pieces(), size=2 << 20)
"""


def test_what_a_killed_writer_leaves_is_hidden_and_goes_with_its_folder(root):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as writer:
        assert writer.stdout.readline() == b"writing\n"
        os.killpg(writer.pid, signal.SIGKILL)
    folder = root / "shards" / "1.2.abcdef12"
    left = names_in(folder)
    assert len(left) == 1
    store = PosixStore(root)
    assert list(all_entries(store, "")) == []
    store.put("shards/1.2.abcdef12/x", b"x")
    store.delete(("shards/1.2.abcdef12/x",))
    assert names_in(folder) == left  # perhaps somebody writes it at this moment
    PosixStore(root, clock=lambda: time.time() + 7 * 3600).delete(("shards/1.2.abcdef12/x",))
    assert names_in(root / "shards") == []


def test_only_emptied_folders_of_saves_are_removed(root):
    store = PosixStore(root)
    full, inner = "shards/1.2.abcdef12/w", "shards/1.2.abcdef12/1.3.abcdef13/w"
    for key in (full, inner, "commits/a"):
        store.put(key, b"x")
    store.delete((full, "commits/a"))
    assert names_in(root) == ["commits", "shards"]
    store.delete((inner,))
    assert names_in(root / "shards") == []


RACER = """
import sys
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.checkpoint.store import Created
store = PosixStore(sys.argv[1])
sys.stdin.readline()
print("".join("1" if store.create(f"commits/{n}", sys.argv[2].encode()) == Created() else "0" for n in range(50)))
"""


def test_exactly_one_of_eight_processes_creates(root):
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, root, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for n in range(8)
    ]
    for racer in racers:
        racer.stdin.write(b"go\n")
        racer.stdin.flush()
    won = [racer.communicate(timeout=120)[0].decode().strip() for racer in racers]
    assert [sum(int(line[n]) for line in won) for n in range(50)] == [1] * 50
    store = PosixStore(root)
    for n in range(50):
        assert won[int(store.get(f"commits/{n}"))][n] == "1"


def test_every_error_is_one_of_ours(root):
    for number in errno.errorcode:
        if number in {errno.EEXIST, errno.ENOENT}:
            continue
        store = PosixStore(root, files=failing("write", number, times=1))
        with pytest.raises(RerailError):
            store.create("a", b"x")
