"""A process that is warm, has one thread, and forks children that end by a real SIGKILL. Also what strace watches.

Reads one JSON job per line and answers with one JSON line.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash_disk import Recorder
from crash_points import folder_store, kill_here
from crash_story import BUCKET_OPERATIONS, OPERATIONS, Ack, Process


def in_child(act: Callable[[Callable[[Ack], None]], None]) -> tuple[int, list[Ack]]:
    """Run ``act`` in a forked process; its end as ``waitpid`` tells it, and what it acknowledged before."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        act(lambda ack: os.write(writer, json.dumps(ack).encode() + b"\n") and None)
        kill_here()
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        acks = [Ack(*json.loads(line)) for line in pipe]
    _, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), acks


def kill_in_folder(job: dict[str, Any]) -> tuple[int, list[Ack]]:
    """The operation on a copy of the template, killed before call ``boundary``, or right after its end."""
    root = Path(job["root"])
    shutil.copytree(job["template"], root)

    def act(ack: Callable[[Ack], None]) -> None:
        recorder = Recorder(root, lambda done: kill_here() if done == job["boundary"] else None)
        store = folder_store(root, "act", recorder)
        OPERATIONS[job["operation"]].act(Process(store, "act", job["world_size"], ack))

    return in_child(act)


def kill_in_bucket(job: dict[str, Any]) -> tuple[int, list[Ack]]:
    """The operation on a prefix of a bucket, killed before request ``boundary`` leaves, or right after its end."""
    from rerail.plugins.checkpoint.s3 import Patience, S3Store, connect
    from rerail.plugins.checkpoint.s3_transfer import Tuning

    def act(ack: Callable[[Ack], None]) -> None:
        sent = [0]

        def client(patience: Patience):
            made = connect(patience)

            def sending(**_: object) -> None:
                if sent[0] == job["boundary"]:
                    kill_here()
                sent[0] += 1

            made.meta.events.register("before-send.s3", sending)
            return made

        tuning = Tuning(part_bytes=5 << 20, parallel=1)
        store = S3Store(job["bucket"], client=client, tuning=tuning).below(job["prefix"])
        BUCKET_OPERATIONS[job["operation"]].act(Process(store, "act", job["world_size"], ack))

    return in_child(act)


def plain(job: dict[str, Any]) -> tuple[int, list[Ack]]:
    """The operation with the product's own system calls, nothing in between: for strace."""
    acks: list[Ack] = []
    shutil.copytree(job["template"], job["root"])
    Path(job["root"] + ".begin").touch()  # seen by strace: what comes before is the copying
    OPERATIONS[job["operation"]].act(
        Process(folder_store(Path(job["root"]), "act"), "act", job["world_size"], acks.append)
    )
    Path(job["root"] + ".end").touch()
    return 0, acks


JOBS = {"folder": kill_in_folder, "bucket": kill_in_bucket, "plain": plain}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this ends it, by closing its input
    for line in sys.stdin:
        job = json.loads(line)
        os.environ.update(job["env"])
        ended, acks = JOBS[job["job"]](job)
        sys.stdout.write(json.dumps([ended, acks]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
