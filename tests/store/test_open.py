"""Addresses as users write them."""

import re
import subprocess
import sys

import pytest

from rerail.plugins.checkpoint.open import open_run, open_store
from rerail.plugins.checkpoint.store import Created
from rerail.policies.errors import NotFoundError, UsageError


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/mnt/store",
        "store",
        "file:store",
        "file://store/x",
        "file:",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "s3://b",
        "s3://bucket/../x",
        "s3://bucket/a?b=c",
        "s3://bucket/a#b",
        "gs://bucket/x",
        "http://host/x",
        "file:///x%00y",
    ],
)
def test_a_wrong_address_is_named_with_the_way_out(url):
    with pytest.raises(UsageError, match=r"use file:///absolute/folder or s3://bucket/prefix") as caught:
        open_store(url)
    assert repr(re.split(r"[?#]", url)[0]) in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://[bad",
        "s3://[x/p",
        "s3://AKIA:hunter2@bucket/p",
        "http://AKIA:hunter2@[bad",
        "gs://bucket/x?token=hunter2",
        "AKIA:hunter2@bucket",
    ],
)
def test_a_secret_in_an_address_is_not_shown_and_no_address_is_a_traceback(url):
    with pytest.raises(UsageError, match="store address") as caught:
        open_run("run-1", store=url)
    assert "hunter2" not in str(caught.value)


def test_a_missing_folder_is_refused_unless_asked_for(tmp_path):
    url = f"file://{tmp_path}/new/dir"
    with pytest.raises(NotFoundError, match=r"new/dir is not there: mount"):
        open_store(url)
    assert open_store(url, create=True).create("a", b"x") == Created()
    assert open_store(url).get("a") == b"x"
    assert open_store(url, create=True).get("a") == b"x"


def test_spaces_are_percent_encoded(tmp_path):
    store = open_store(f"file://{tmp_path}/with%20space", create=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["with space"]
    assert store.url == f"file://{tmp_path}/with%20space"
    assert open_store(store.url).url == store.url


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "f").touch()
    with pytest.raises(NotFoundError):
        open_store(f"file://{tmp_path}/f")


def test_s3_addresses_keep_bucket_and_prefix():
    assert open_store("s3://bucket/a/b/").url == "s3://bucket/a/b"
    assert open_store("s3://bucket").url == "s3://bucket"


def test_open_run_has_both_roots_below_the_run(tmp_path):
    run = open_run("run-1", store=f"file://{tmp_path}/a", control=f"file://{tmp_path}/b", create=True)
    run.control.create("run.json", b"x")
    run.shards.put("shards/x", b"x")
    assert (tmp_path / "a/run-1/shards/x").exists()
    assert (tmp_path / "b/run-1/run.json").exists()
    same = open_run("run-1", store=f"file://{tmp_path}/a")
    assert same.control is same.shards


def test_files_on_a_volume_that_only_pods_mount_are_away_and_no_folder_is_made_for_them(tmp_path):
    there = {"store": f"file://{tmp_path}/volume", "control": f"file://{tmp_path}/b", "create": True}
    run = open_run("run-1", **there, outside=True)
    assert run.away
    assert not (tmp_path / "volume").exists()
    with pytest.raises(NotFoundError, match="mount the volume"):
        run.shards.page("shards/")
    assert not open_run("run-1", **there).away, "where ranks run, the folder is meant"
    assert not open_run("run-1", **there, outside=True).away, "it is mounted here"
    alone = open_run("run-1", store=f"file://{tmp_path}/new", create=True, outside=True)
    assert not alone.away, "documents have to be here"


def test_open_run_checks_the_name(tmp_path):
    with pytest.raises(UsageError, match="run name"):
        open_run("../x", store=f"file://{tmp_path}")


def test_a_users_scheme_comes_by_entry_point(tmp_path, monkeypatch):
    info = tmp_path / "plug-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rerail.stores]\nplug = plug_store:make\n")
    (tmp_path / "plug_store.py").write_text(
        "from rerail.plugins.checkpoint.posix import PosixStore\n"
        "def make(url, *, create): return PosixStore(url.removeprefix('plug://'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert open_store(f"plug://{tmp_path}").url == f"file://{tmp_path}"


def test_whoever_uses_a_folder_does_not_pay_for_boto3(tmp_path):
    code = (
        "import sys; from rerail.plugins.checkpoint.open import open_store\n"
        "open_store(sys.argv[1]).create('a', b'x'); print('boto3' in sys.modules or 'botocore' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, f"file://{tmp_path}"], check=True, capture_output=True, text=True, timeout=60
    )
    assert found.stdout == "False\n"
