"""A recovery policy as people write it: a few fields as YAML, over a base."""

from typing import Any

from rerail.policies.errors import UsageError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.yaml_text import read_yaml


def parse_policy(text: str, where: str, base: RecoveryPolicy) -> RecoveryPolicy:
    """Read the fields of a policy that differ from a base.

    Args:
        text: YAML; none is the base.
        where: File, option or parameter it came from, for messages.
        base: What counts where nothing is said.

    Raises:
        UsageError: Names the field, the value and the way out.
    """
    documents = read_yaml(text, where)
    content = documents[0] if documents else None
    if len(documents) > 1 or (content is not None and not isinstance(content, dict)):
        raise UsageError(f"{where}: a mapping of policy fields belongs there, for example 'hold_s: 60'")
    chosen: dict[str, Any] = base.model_dump() | (content or {})
    return RecoveryPolicy.from_mapping(chosen, where)
