"""The tail of a kernel log: growing, rotated, truncated, half-written; stamps by the node's clock."""

import os

import pytest

from rerail.plugins.faults.kernlog import KernelLog, read_lines

FAULT = "NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=a, x\n"
NOW = 1_790_000_000.0


def _codes(signals):
    return [signal.codes[0] for signal in signals]


@pytest.fixture
def log(tmp_path):
    tail = KernelLog(tmp_path / "kern.log", "n1", clock=lambda: NOW, boot_at_s=NOW - 1000)
    yield tail
    tail.close()


def _write(log, *codes, text=None, mode="a"):
    with log.path.open(mode) as file:
        file.write(text if text is not None else "".join(FAULT.format(code=code) for code in codes))


def test_a_log_that_is_not_there_yet_is_read_when_it_comes(log):
    assert log.poll() == ()
    _write(log, 79)
    assert _codes(log.poll()) == ["xid:79"]
    assert log.poll() == ()


def test_a_line_counts_once_and_only_when_it_is_whole(log):
    _write(log, text="noise\nNVRM: Xid (PCI:0000:3b:00): 7")
    assert log.poll() == ()
    _write(log, text="9, x\nNVRM: Xid")
    (found,) = log.poll()
    assert found.codes == ("xid:79",)
    assert found.raw_ref == f"{log.path}:6"


def test_rotation_loses_and_repeats_nothing(log):
    _write(log, 48)
    assert _codes(log.poll()) == ["xid:48"]
    _write(log, 95)
    log.path.rename(log.path.with_suffix(".1"))
    _write(log, 79)
    assert _codes(log.poll()) == ["xid:95", "xid:79"]
    log.path.unlink()
    assert log.poll() == ()
    _write(log, 64)
    assert _codes(log.poll()) == ["xid:64"]


def test_the_last_line_of_a_rotated_log_counts_without_its_end(log):
    _write(log, text="NVRM: Xid (PCI:0000:3b:00): 79, x")
    assert log.poll() == ()
    log.path.rename(log.path.with_suffix(".1"))
    _write(log, 48)
    assert _codes(log.poll()) == ["xid:79", "xid:48"]


def test_truncation_in_place_is_a_new_beginning(log):
    _write(log, 48, 48, 48)
    assert len(log.poll()) == 3
    _write(log, 79, mode="w")
    assert _codes(log.poll()) == ["xid:79"]


def test_a_line_without_an_end_does_not_fill_the_memory(log):
    _write(log, text="x" * 2_000_000)
    assert log.poll() == ()
    assert len(log._pending) == 0
    _write(log, text="\n")
    _write(log, 79)
    (found,) = log.poll()
    assert found.raw_ref == f"{log.path}:2000001"


def test_reading_may_begin_at_the_end(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text(FAULT.format(code=48))
    tail = KernelLog(path, "n1", from_start=False)
    assert tail.poll() == ()
    with path.open("a") as file:
        file.write(FAULT.format(code=79))
    assert _codes(tail.poll()) == ["xid:79"]
    tail.close()


def test_garbage_is_passed_over(log):
    log.path.write_bytes(os.urandom(4096) + b"\n" + FAULT.format(code=79).encode() + b"\x00\xff\n")
    assert _codes(log.poll()) == ["xid:79"]


@pytest.mark.parametrize(
    ("stamp", "first_seen_s", "exact"),
    [
        ("", NOW, False),
        ("[  990.500000] ", NOW - 9.5, True),
        ("2026-09-21T14:13:10.5+00:00 n1 kernel: ", 1_790_000_000.0 - 9.5, True),
        ("2026-09-21T16:13:10.5+02:00 n1 kernel: ", 1_790_000_000.0 - 9.5, True),
        ("2026-09-21 14:13:10 n1 kernel: ", 1_790_000_000.0 - 10, True),
        ("Sep 21 14:13:10 n1 kernel: ", 1_790_000_000.0 - 10, True),
        (
            "Sep 22 18:00:00 n1 kernel: ",
            1_758_564_000.0,
            True,
        ),  # not in the future: last year
        ("1999-01-01T00:00:00Z n1 kernel: ", NOW, False),
        ("2099-01-01T00:00:00Z n1 kernel: ", NOW, False),
        ("2026-13-45T99:99:99Z n1 kernel: ", NOW, False),
        ("Feb 30 14:13:10 n1 kernel: ", NOW, False),
    ],
)
def test_first_seen_is_the_stamp_where_it_can_be_true(stamp, first_seen_s, exact):
    (found,) = read_lines(
        (stamp + FAULT.format(code=79)).encode(), node="n1", path="k", read_at_s=NOW, boot_at_s=NOW - 1000
    )
    assert found.first_seen_s == pytest.approx(first_seen_s, abs=0.01)
    assert ("stamped_at_reading" not in found.details) is exact


def test_the_node_is_the_logs_not_the_texts():
    (found,) = read_lines(b"Sep 21 14:13:10 other kernel: " + FAULT.format(code=79).encode(), node="n1", path="k")
    assert found.node == "n1"
