"""A recovery policy as people write it: a few fields as YAML, over a base."""

from typing import Any

import yaml

from rerail.policies.errors import UsageError
from rerail.policies.recovery import RecoveryPolicy


def parse_policy(text: str, where: str, base: RecoveryPolicy) -> RecoveryPolicy:
    """Read the fields of a policy that differ from a base.

    Args:
        text: YAML; none is the base.
        where: File, option or parameter it came from, for messages.
        base: What counts where nothing is said.

    Raises:
        UsageError: Names the field, the value and the way out.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: no YAML: {' '.join(str(error).split())}") from None
    if content is not None and not isinstance(content, dict):
        raise UsageError(f"{where}: a mapping of policy fields belongs there, for example 'hold_s: 60'")
    chosen: dict[str, Any] = base.model_dump() | (content or {})
    return RecoveryPolicy.from_mapping(chosen, where)
