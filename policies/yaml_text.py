"""YAML that people write, read so that whatever is wrong with it is bad input, told without showing its values."""

from typing import Any, Final

import yaml

from rerail.policies.errors import UsageError

_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError)
"""What PyYAML lets through where a value does not suit its tag, for example in ``!!bool abc``."""


def read_yaml(text: str, where: str, loader: Any = yaml.SafeLoader) -> list[object]:
    """All documents of a text.

    Args:
        text: YAML, or JSON.
        where: File, option or parameter it came from, for messages.
        loader: A safe loader of PyYAML.

    Raises:
        UsageError: It is no YAML; says why and where, and shows no value, since any may be a secret.
    """
    try:
        return list(yaml.load_all(text, Loader=loader))
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: no YAML: {_problem(error)}") from None
    except RecursionError:
        raise UsageError(f"{where}: no YAML: it is nested too deeply; write it with fewer levels") from None
    except _UNREADABLE:
        raise UsageError(
            f"{where}: no YAML: a value does not suit its tag, a number is too long, or a key is no text; "
            "write it in quotes"
        ) from None


def _problem(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return "it holds a character that YAML does not allow"
    mark = error.problem_mark
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return f"{error.problem or error.context}{where}"
