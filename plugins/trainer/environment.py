"""What the process is told (``RERAIL_*``, ``RANK`` ...) and what exactness rests on (versions, BLAS, CPU, GPU)."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerail.policies.errors import UsageError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of one rank, checked.

    Attributes:
        run: Run name.
        store: Address of the store.
        control: Address of the control store where it differs.
        attempt: The attempt that this process belongs to.
        gang: Name of the gang; a start of another gang is not ours.
        node: Name of the node.
        pod: Name of the pod.
        rank: Global rank.
        world_size: Number of ranks.
        report: File for launch, None without one.
        poll_s: Seconds between looks at requests and seals.
        grace_s: Seconds between SIGTERM and SIGKILL, None where unknown.
        devices: GPUs of this rank.
        boot_id: Boot of the node's kernel.
        argo_progress: Argo's progress file, None outside Argo.
    """

    run: str
    store: str
    control: str | None
    attempt: int
    gang: str
    node: str
    pod: str
    rank: int
    world_size: int
    report: Path | None
    poll_s: float
    grace_s: float | None
    devices: tuple[str, ...]
    boot_id: str
    argo_progress: Path | None


def read_environment(environ: Mapping[str, str]) -> RankEnvironment | None:
    """Read what launch told this process.

    Returns:
        None without ``RERAIL_RUN`` and ``RERAIL_STORE``: the script runs without Rerail.

    Raises:
        UsageError: Only a part of it is there, or a value cannot be right.
    """
    run, store = environ.get("RERAIL_RUN", ""), environ.get("RERAIL_STORE", "")
    if not run and not store:
        return None
    for name in ("RERAIL_RUN", "RERAIL_STORE", "RERAIL_ATTEMPT", "RERAIL_GANG"):
        if not environ.get(name):
            raise UsageError(
                f"{name} is not set although other RERAIL_* variables are: start the script by `rerail-launch -- ...` "
                "(or `rerail run`), or unset RERAIL_RUN and RERAIL_STORE to run without Rerail"
            )
    rank = _number(environ, "RANK", 0, least=0)
    world_size = _number(environ, "WORLD_SIZE", 1, least=1)
    if rank >= world_size:
        raise UsageError(f"RANK={rank} is not below WORLD_SIZE={world_size}: both come from launch or torchrun")
    visible = environ.get("RERAIL_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES") or ""
    return RankEnvironment(
        run=run,
        store=store,
        control=environ.get("RERAIL_CONTROL") or None,
        attempt=_number(environ, "RERAIL_ATTEMPT", 0, least=1),
        gang=environ["RERAIL_GANG"],
        node=environ.get("RERAIL_NODE") or platform.node(),
        pod=environ.get("RERAIL_POD", ""),
        rank=rank,
        world_size=world_size,
        report=_path(environ, "RERAIL_RANK_REPORT"),
        poll_s=_seconds(environ, "RERAIL_POLL_S") or 1.0,
        grace_s=_seconds(environ, "RERAIL_GRACE_S"),
        devices=tuple(one for one in visible.split(",") if one),
        boot_id=environ.get("RERAIL_BOOT_ID") or _first_line(Path("/proc/sys/kernel/random/boot_id")),
        argo_progress=_path(environ, "ARGO_PROGRESS_FILE"),
    )


def _number(environ: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise UsageError(f"{name}={text!r}: a whole number of at least {least} is needed; launch sets it")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{name}={text!r}: seconds above 0 are needed, for example {name}=1.5")
    return value


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return ""


def describe(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What bitwise equality rests on in this process. Looks only at libraries that are loaded already.

    Keys: ``python``, ``machine``, ``cpu``, ``numpy``, ``torch``, ``blas``, ``blas_kernel``, ``blas_threads``, ``gpu``;
    those of things that are not there are left out.
    """
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "blas_threads": " ".join(f"{name}={environ[name]}" for name in THREAD_VARIABLES if environ.get(name)),
        "gpu": _gpu_names(),
    }
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        found["numpy"] = str(numpy.__version__)
        found |= _numpy_blas(numpy)
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return {key: value for key, value in sorted(found.items()) if value}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _numpy_blas(numpy: Any) -> dict[str, str]:
    config: dict[str, Any] = getattr(numpy.__config__, "CONFIG", {})
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return {"blas": f"{blas.get('name', '')} {blas.get('version', '')}".strip(), "blas_kernel": _openblas_kernel(numpy)}


def _openblas_kernel(numpy: Any) -> str:
    """The kernel that OpenBLAS chose for this CPU: two machines with different ones give different sums."""
    import ctypes

    for library in sorted(Path(numpy.__file__).parent.parent.glob("numpy.libs/*openblas*")):
        handle = ctypes.CDLL(str(library))  # loaded already; this only finds it
        for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
            function = getattr(handle, name, None)
            if function is not None:
                function.restype = ctypes.c_char_p
                return bytes(function() or b"").decode(errors="replace")
    return ""


def _gpu_names() -> str:
    names = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        text = information.read_text(errors="replace") if information.is_file() else ""
        names += [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model:")]
    return ", ".join(sorted(set(names)))


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What changed between two environments, in words; each is a reason why equality is not exact."""
    return tuple(
        f"{key}: {before.get(key, 'unknown')} -> {now.get(key, 'unknown')}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    )
