"""What the API server would refuse in a document by its kind's schema, and what it would silently drop.

Covers types, required and unknown fields, enums, patterns and bounds. Not covered: CEL rules; the templates' rules that
stand there are held by ``test_library.py``.
"""

import re

BOUNDS = {
    "minLength": lambda value, bound: len(value) >= bound,
    "maxLength": lambda value, bound: len(value) <= bound,
    "minItems": lambda value, bound: len(value) >= bound,
    "maxItems": lambda value, bound: len(value) <= bound,
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "pattern": lambda value, bound: re.search(bound, value) is not None,
    "enum": lambda value, bound: value in bound,
}
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def problems(value, schema, path=""):
    """Every problem of a value, each with the path of its field."""
    if value is None:
        yield f"{path}: null"
        return
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool):
            yield f"{path}: {value!r} is neither a whole number nor text"
        return
    wanted = schema.get("type")
    if wanted and (not isinstance(value, TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")):
        yield f"{path}: {value!r} is no {wanted}"
        return
    for name, holds in BOUNDS.items():
        if name in schema and not holds(value, schema[name]):
            yield f"{path}: {value!r} breaks {name} {schema[name]!r}"
    if isinstance(value, dict):
        yield from of_mapping(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            yield from problems(item, schema["items"], f"{path}[{position}]")


def of_mapping(value, schema, path):
    known, more = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: missing"
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        if name in known:
            yield from problems(item, known[name], here)
        elif isinstance(more, dict):
            yield from problems(item, more, here)
        elif not more and not schema.get("x-kubernetes-preserve-unknown-fields") and path != "metadata" and known:
            yield f"{here}: unknown field"
