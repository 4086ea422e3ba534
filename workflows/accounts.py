"""Names of the ServiceAccounts, one for each duty; ``rbac`` has their rights."""

from typing import Final

LAUNCHER: Final = "rerail-launcher"
RUNNER: Final = "rerail-runner"
PRE_EVICT: Final = "rerail-pre-evict"
REAPER: Final = "rerail-reaper"
NODE_KEEPER: Final = "rerail-node-keeper"
READER: Final = "rerail-reader"
RANK: Final = "rerail-rank"
