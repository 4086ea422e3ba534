"""What runs inside the training process: the client of a training script, and launch. Needs pydantic and boto3 only.

Its import is paid by every rank (``tests/bench`` holds it against pydantic and boto3). So here and in ``checkpoint``
small records are named tuples, which take an eighth of a frozen dataclass's time to define, and what is compared by
identity defines no ``__eq__``.
"""

from rerail.plugins.trainer.agree import Agreement, Group, KeyValueAgreement, KeyValueGroup, Solo, Wish
from rerail.plugins.trainer.checkpointer import Checkpointer
from rerail.plugins.trainer.kvstore import KeyValueClient, KeyValueServer
from rerail.plugins.trainer.leave import Left
from rerail.plugins.trainer.requests import Miss, RequestBook
from rerail.plugins.trainer.rng import RandomState, derived_seed
from rerail.plugins.trainer.state import State, Stateful
from rerail.policies.cadence import Every, YoungDaly, daly_s, young_s

__all__ = [
    "Agreement",
    "Checkpointer",
    "Every",
    "Group",
    "KeyValueAgreement",
    "KeyValueClient",
    "KeyValueGroup",
    "KeyValueServer",
    "Left",
    "Miss",
    "RandomState",
    "RequestBook",
    "Solo",
    "State",
    "Stateful",
    "Wish",
    "YoungDaly",
    "daly_s",
    "derived_seed",
    "young_s",
]
