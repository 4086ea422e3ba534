"""How fast kernel lines are diagnosed, in the event mix of a fleet monitor: 64 % ordinary lines, 24 % information, 8 %
XID 79, 4 % fatal NVSwitch errors."""

import json
import random
import time
from collections.abc import Iterator

from rerail.plugins.faults.kernlog import read_lines
from rerail.policies.catalog import load_catalogue
from rerail.policies.faults.explain import explain_line
from tests.bench.pairs import Arm, Result, interleave, quantile, spread

_HEALTHY = (
    "[{at:.6f}] systemd[1]: Started Session {n} of User root.",
    "[{at:.6f}] EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: (null)",
    "[{at:.6f}] IPv6: ADDRCONF(NETDEV_CHANGE): cali{n}: link becomes ready",
    "[{at:.6f}] nvidia-nvlink: Nvlink Core is being initialized, major device number {n}",
)
_INFORMATION = (
    "[{at:.6f}] NVRM: Xid (PCI:0000:3b:00): 63, pid=2107, name=python3, Row Remapper: new row marked for remapping",
    "[{at:.6f}] NVRM: Xid (PCI:0000:3b:00): 43, pid={n}, name=python3, Ch 00000010",
    "[{at:.6f}] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22013, Non-fatal, Link {n} Minion Link DLREQ interrupt",
)
_FATAL = ("[{at:.6f}] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",)
_SWITCH = ("[{at:.6f}] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",)
_MIX = ((64, _HEALTHY), (24, _INFORMATION), (8, _FATAL), (4, _SWITCH))


def log_of(count: int, *, seed: int = 7) -> list[str]:
    """Lines of the mix, shuffled."""
    chance = random.Random(seed)
    kinds = chance.choices([forms for _, forms in _MIX], [share for share, _ in _MIX], k=count)
    return [chance.choice(forms).format(at=1000 + n / 100, n=n % 5000) for n, forms in enumerate(kinds)]


def lines_per_s(count: int, *, pairs: int) -> Iterator[Result]:
    """Each line alone, to its whole document (class, scope, action); beside it the node's watcher, and json.loads."""
    lines = log_of(count)
    catalogue = load_catalogue()
    data = "\n".join([*lines, ""]).encode()
    encoded = [json.dumps({"line": line, "node": "gpu-node-a", "severity": "err"}) for line in lines]

    def diagnosed() -> None:
        for line in lines:
            explain_line(line, catalogue)

    def watched() -> None:
        for _ in read_lines(data, node="n", path="kern.log", catalogue=catalogue, read_at_s=time.time(), boot_at_s=0.0):
            pass

    def decoded() -> None:
        for line in encoded:
            json.loads(line)

    watcher = "the node's watcher, to signals"
    seconds = interleave([Arm("ours", diagnosed), Arm(watcher, watched), Arm("json.loads", decoded)], pairs)
    rates = {name: [count / took for took in all_of_it] for name, all_of_it in seconds.items()}
    found = spread(rates["ours"])
    yield Result(
        name="lines_per_s",
        ours=found.median,
        yardstick=None,
        ratio=found,
        pairs=pairs,
        unit="lines/s",
        arms={
            name: (value, value / found.median)
            for name in rates
            if name != "ours" and (value := quantile(rates[name], 0.5))
        },
        note="rates of the others are given as multiples of ours",
    )
