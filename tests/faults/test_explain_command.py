"""``rerail explain`` as a process: one document per line, exit codes, and nothing else on stdout."""

import json
import subprocess
import sys

import pytest

from rerail.plugins.cli.main import main


def _run(*arguments, stdin=b""):
    done = subprocess.run(
        [sys.executable, "-m", "rerail.plugins.cli.main", "explain", *arguments],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def here(capsys):
    """The command in this process: a new interpreter for each code or error would be slow."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["explain", *arguments])
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    return run


@pytest.mark.parametrize(("code", "class_"), [("79", "gpu_lost"), ("sxid:20034", "nvswitch"), ("xid:777", "unknown")])
def test_a_code(code, class_, here):
    rc, out, err = here(code, "--output", "json")
    assert (rc, err) == (0, "")
    assert json.loads(out)["class"] == class_


def test_every_line_of_a_file_gives_one_document_in_order(tmp_path):
    log = tmp_path / "kern.log"
    log.write_bytes(
        b"\n[1.0] NVRM: Xid (PCI:0000:3b:00): 79, x\nnoise\n\xff\xfe[2.0] NVRM: Xid (PCI:0000:3b:00): 48, \xff\n"
        + b"y" * 3_000_000
        + b"\n[3.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=a, x"
    )
    rc, out, _ = _run("--file", str(log), "--output", "jsonl")
    documents = [json.loads(line) for line in out.splitlines()]
    assert rc == 0
    assert [document.get("xid") for document in documents] == [None, 79, None, 48, None, 31]
    assert documents[0] == {"class": "no_match", "scope": None, "action": "none", "quarantine": "none"}


def test_stdin_and_one_document_per_incident():
    lines = b"[1.0] NVRM: Xid (PCI:0000:3b:00): 48, x\n[1.5] NVRM: Xid (PCI:0000:3b:00): 63, x\n[99.0] z\n"
    rc, out, _ = _run("--file", "-", "--correlate", "--output", "jsonl", stdin=lines)
    assert rc == 0
    (document,) = [json.loads(line) for line in out.splitlines()]
    assert (document["xid"], document["action"], document["lines"]) == (48, "reset_gpu", [1, 2])


def test_an_overlay_of_ones_own(tmp_path, here):
    mine = tmp_path / "mine.yaml"
    mine.write_text("format: 1\noverlay: mine\nrules: [{codes: [xid:63], action: reset_gpu, quarantine: node}]")
    rc, out, _ = here("63", "--overlay", str(mine), "-o", "json")
    assert (rc, json.loads(out)["action"]) == (0, "reset_gpu")


@pytest.mark.parametrize(
    ("arguments", "rc"),
    [
        (["xid:abc"], 2),
        ([], 2),
        (["79", "--file", "x"], 2),
        (["79", "--correlate"], 2),
        (["--file", "/no/such"], 4),
        (["--file", "/"], 2),
        (["79", "--overlay", "nope"], 2),
        (["79", "--overlay", "/no/such.yaml"], 4),
    ],
)
def test_errors_have_their_exit_codes_and_say_a_sentence(arguments, rc, here):
    code, out, err = here(*arguments)
    assert (code, out) == (rc, "")
    assert "Traceback" not in err
    assert len(err.split()) > 4


@pytest.mark.parametrize(
    ("code", "load", "move"),
    [
        ("79", "training", "evict-gang"),
        ("79", "inference", "evict-one"),
        ("31", "training", "restart"),
        ("14", "short-job", "none"),
        ("xid:777", "training", "evict-gang"),
    ],
)
def test_a_code_for_one_kind_of_load(code, load, move, here):
    rc, out, _ = here(code, "--load", load, "--output", "json")
    assert rc == 0
    assert json.loads(out)["plan"]["move"] == move
