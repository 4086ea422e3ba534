import json
import subprocess
import sys

import pytest
import yaml

from rerail.plugins.cli.main import main
from rerail.policies import keys


@pytest.fixture
def there(scene_of, posix_store, capsys):
    """A run in a real folder, and the command over it: returns exit code, stdout, stderr."""
    scene = scene_of(posix_store)
    scene.submit()
    scene.open(1)
    for step in (100, 200, 300):
        scene.save(1, step, loss=1.0 / step)

    def rerail(*arguments, run="llama", store=posix_store.url):
        with pytest.raises(SystemExit) as ended:
            main(["ckpt", *arguments, "--run", run, "--store", store])
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return scene, rerail


def test_as_a_process_of_its_own(there):
    _, rerail = there
    command = [sys.executable, "-m", "rerail.plugins.cli.main", "ckpt", "resolve", "--output", "json"]
    env = {"PATH": "", "RERAIL_RUN": "llama", "RERAIL_STORE": rerail.__kwdefaults__["store"]}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["step"] == 300


def test_ls_shows_every_checkpoint_in_every_form(there):
    _, rerail = there
    code, out, _ = rerail("ls", "--output", "json")
    assert code == 0
    assert [row["step"] for row in json.loads(out)] == [300, 200, 100]
    _, lines, _ = rerail("ls", "--output", "jsonl")
    assert [json.loads(line)["on_chain"] for line in lines.splitlines()] == [True] * 3
    _, text, _ = rerail("ls", "--output", "yaml")
    assert yaml.safe_load(text) == json.loads(out)
    code, table, _ = rerail("ls")
    assert code == 0
    assert "STEP" in table
    assert "\x1b" not in table


def test_resolve_has_the_keys_that_scripts_rely_on(there):
    scene, rerail = there
    code, out, err = rerail("resolve", "--output", "json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    wanted = {"run", "decision", "step", "attempt", "manifest", "chain", "skipped", "requests"}
    assert wanted <= set(answer)
    assert (answer["decision"], answer["step"], answer["requests"]) == ("resume", 300, 5)
    scene.store.shards.delete((keys.SHARDS + scene.save(1, 400).files[0].path,))
    _, out, _ = rerail("resolve", "--output", "json")
    skipped = json.loads(out)["skipped"]
    assert set(skipped[0]) == {"step", "attempt", "why"}


def test_exit_codes(there):
    scene, rerail = there
    code, out, err = rerail("resolve", "--step", "250")
    assert (code, out) == (4, "")
    assert err.startswith("Not found: step 250 not found (have 100, 200, 300)")
    assert rerail("ls", run="lama")[0] == 4
    assert rerail("ls", run="No/Such")[0] == 2
    assert rerail("ls", store="ftp://x")[0] == 2
    code, out, _ = rerail("resolve", "--world-size", "24", "--output", "json")
    assert code == 3
    assert json.loads(out)["options"][0] == "wait for 2 GPUs"
    assert rerail("verify")[0] == 0
    entry = scene.store.shards
    path = keys.SHARDS + scene.save(1, 400).files[0].path
    entry.put(path, entry.get(path)[::-1])
    code, out, _ = rerail("verify", "--output", "json")
    assert code == 1
    assert [(row["step"], row["ok"]) for row in json.loads(out)] == [
        (400, False),
        (300, True),
        (200, True),
        (100, True),
    ]


def test_pin_and_gc(there):
    _, rerail = there
    assert rerail("gc")[0] == 2
    assert rerail("pin", "100", "--why", "paper")[0] == 0
    keep = ("gc", "--keep-last", "1", "--output", "json", "--keep-clean-s", "1e12")
    dry = json.loads(rerail(*keep, "--dry-run")[1])
    assert dry["deleted"] == ["1.200"]
    assert json.loads(rerail(*keep)[1])["deleted"] == ["1.200"]
    assert json.loads(rerail("pin", "100", "--remove", "--output", "json")[1])["pinned"] is False
    assert json.loads(rerail(*keep)[1])["deleted"] == ["1.100"]
    assert rerail("pin", "999")[0] == 4


def test_show(there):
    _, rerail = there
    shown = json.loads(rerail("show", "200", "--output", "json")[1])
    assert shown["step"] == 200
    assert set(shown["parts"]) >= {"model", "optimizer", "rng"}


def test_help_reads_well(there):
    _, rerail = there
    code, out, _ = rerail("ls", "--help")
    assert code == 0
    assert "List the checkpoints of a run, newest first." in out
