"""The extender's answers over HTTP, with many gangs known, as the scheduler waits for them."""

import importlib.util
import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

from rerail.plugins.evict.extender_service import serving
from rerail.plugins.kube.api import KubeApi
from tests.bench.pairs import Result, Spread, quantile

GANGS, PODS = 100, 8
ASKED_GANGS = 8
"""Of one question: a node's worth of pods, and more than Volcano asks about at once."""


def extender_answer(folder: Path, *, questions: int) -> Iterator[Result]:
    """Time questions about 64 pods with whole specs, of 8 gangs out of 100, while the extender asks those gangs."""
    folder.mkdir(parents=True)
    logging.getLogger("rerail.extender").setLevel(logging.CRITICAL)  # the stores are missing on purpose
    fake = _fake_api()
    cluster, stop = fake.serve()
    try:
        for gang in range(GANGS):
            cluster.put(
                "podgroups", {"metadata": {"name": f"run{gang}-a1", "namespace": "team", "labels": _labels(gang)}}
            )
            for number in range(PODS):
                cluster.put("pods", _pod(gang, number, folder))
        (folder / "kubeconfig").write_text(fake.kubeconfig(cluster.url))
        api = KubeApi.connect(folder / "kubeconfig")
        with closing(api), serving(api, ("127.0.0.1", 0), hold_s=120.0) as server:
            took = [_ask(server.server_address[1], turn) for turn in range(questions + 20)][20:]
    finally:
        stop()
    p99_s = quantile(took, 0.99)
    yield Result(
        name="extender_p99",
        ours=p99_s,
        yardstick=None,
        ratio=Spread(p99_s, quantile(took, 0.5), max(took)),
        pairs=questions,
        unit="s",
        note=f"p99, and in brackets median and worst, of {questions} questions about {ASKED_GANGS * PODS} pods, "
        f"a connection each, with {GANGS} gangs known whose stores do not exist",
    )


def _ask(port: int, turn: int) -> float:
    pods = [_pod((turn + gang) % GANGS, number, Path("/none")) for gang in range(ASKED_GANGS) for number in range(PODS)]
    evictor = {"Job": "team/urgent", "Name": "urgent-0", "Namespace": "team", "UID": "urgent"}
    body = json.dumps({"evictor": evictor, "evictees": [_task(one) for one in pods]}).encode()
    begun_s = time.perf_counter()
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", "/preemptable", body)
        answer = connection.getresponse()
        data = answer.read()
    took_s = time.perf_counter() - begun_s
    assert (answer.status, json.loads(data)["victims"]) == (200, []), data[:200]
    return took_s


def _labels(gang: int) -> dict[str, str]:
    return {"rerail.dev/run": f"run{gang}", "rerail.dev/gang": f"run{gang}-a1", "rerail.dev/attempt": "1"}


def _pod(gang: int, number: int, folder: Path) -> Any:
    variables = {"RERAIL_RUN": f"run{gang}", "RERAIL_STORE": (folder / "missing").as_uri(), "FILLER": "x" * 3000}
    return {
        "metadata": {
            "name": f"run{gang}-a1-{number}",
            "namespace": "team",
            "uid": f"uid-{gang}-{number}",
            "labels": _labels(gang),
            "annotations": {"scheduling.k8s.io/group-name": f"run{gang}-a1"},
        },
        "spec": {"containers": [{"name": "main", "env": [{"name": k, "value": v} for k, v in variables.items()]}]},
        "status": {"phase": "Running"},
    }


def _task(pod: Any) -> Any:
    metadata = pod["metadata"]
    group = f"{metadata['namespace']}/{metadata['annotations']['scheduling.k8s.io/group-name']}"
    names = {"UID": metadata["uid"], "Name": metadata["name"], "Namespace": metadata["namespace"]}
    return {**names, "Job": group, "Status": 32, "Preemptable": True, "Pod": pod}


def _fake_api() -> ModuleType:
    path = Path(__file__).parents[1] / "kube" / "support" / "fake_api.py"
    spec = importlib.util.spec_from_file_location("rerail_bench_fake_api", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
