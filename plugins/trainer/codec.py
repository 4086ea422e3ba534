"""One part of the training state as one file, without pickle.

The file has the layout of safetensors: 8 bytes little-endian header length, a JSON header, then the arrays' raw
little-endian data without gaps. Everything that is no array (numbers, strings, bytes, None, the shape of the tree)
stands as JSON in the header's ``__metadata__``. So any safetensors reader can open the arrays, and reading a file can
run no code.

A value outside JSON is tagged: ``{"~np": name}`` an array of the file, ``{"~t": [...]}`` a tuple, ``{"~b": base64}``
bytes, ``{"~i": digits}`` an integer beyond 2**53, ``{"~f": "nan"}``, and ``{"~d": [[key, value], ...]}`` a dict whose
keys are not plain strings.
"""

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import JsonValue

from rerail.plugins.checkpoint.store import Buffer
from rerail.plugins.trainer.arrays import Leaf, as_leaf, item_size, rebuild
from rerail.policies.documents import digest_of
from rerail.policies.errors import DamagedError, UsageError

FORMAT = "rerail-arrays"

_METADATA = "__metadata__"
_ALIGNMENT = 64  # of the data within the file, so that arrays over a loaded file are aligned
_EXACT_INTEGER = 2**53
_HEADER_LIMIT = 100_000_000  # as the safetensors library has it


class Encoded(NamedTuple):
    """A part's state, described but not copied.

    Attributes:
        tree: The state as JSON, arrays by name.
        header: The file's first bytes, up to the data.
        leaves: Arrays by name, in the order of the file.
        size: Bytes of the whole file.
    """

    tree: JsonValue
    header: bytes
    leaves: tuple[tuple[str, Leaf], ...]
    size: int

    def buffers(self) -> tuple[Buffer, ...]:
        """The file's bytes in order, by reference to the arrays' own memory where it is contiguous."""
        return (self.header, *(leaf.view() for _, leaf in self.leaves if leaf.size))

    def copy_into(self, buffer: memoryview) -> memoryview:
        """Copy the whole file into ``buffer`` and return the part of it that was used."""
        buffer[: len(self.header)] = self.header
        at = len(self.header)
        for _, leaf in self.leaves:
            leaf.copy(buffer[at : at + leaf.size])
            at += leaf.size
        return buffer[:at]


@dataclass(slots=True)
class _Walk:
    """Collects the arrays of one tree."""

    ordered: bool
    leaves: dict[str, Leaf] = field(default_factory=dict)

    def add(self, path: str, leaf: Leaf) -> JsonValue:
        name, again = path or "value", 1
        while name in self.leaves or name == _METADATA:
            again += 1
            name = f"{path}#{again}"
        self.leaves[name] = leaf
        return {f"~{leaf.kind}": name, "order": "F"} if leaf.fortran else {f"~{leaf.kind}": name}

    def encode(self, value: Any, path: str, part: str) -> JsonValue:  # one branch per type
        if value is None or type(value) is bool or type(value) is str:
            return value
        if type(value) is int:
            return value if abs(value) <= _EXACT_INTEGER else {"~i": str(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {"~f": repr(value)}
        leaf = as_leaf(value, f"part {part!r} at {path or 'its top'!r}")
        if leaf is not None:
            return self.add(path, leaf)
        return self.encode_nested(value, path, part)

    def encode_nested(self, value: Any, path: str, part: str) -> JsonValue:
        def below(item: Any, key: object) -> JsonValue:
            if type(item) is int and abs(item) <= _EXACT_INTEGER:  # long lists of numbers are common: no path for each
                return item
            return self.encode(item, f"{path}.{key}" if path else str(key), part)

        if type(value) is list:
            return [below(item, index) for index, item in enumerate(value)]
        if type(value) is tuple:
            return {"~t": [below(item, index) for index, item in enumerate(value)]}
        if type(value) in (bytes, bytearray):
            return {"~b": base64.b64encode(value).decode()}
        if isinstance(value, dict):
            plain = all(type(key) is str and not key.startswith("~") for key in value)
            keys = list(value)
            if self.ordered and (not plain or keys != sorted(keys)):
                plain = False
            if plain:
                return {key: below(item, key) for key, item in value.items()}
            return {"~d": [[self.encode(key, f"{path}.<key>", part), below(item, key)] for key, item in value.items()]}
        raise UsageError(
            f"part {part!r} at {path or 'its top'!r}: a {type(value).__name__} cannot be saved. Known are dicts, "
            "lists, tuples, numbers, strings, bytes, None, numpy arrays and torch tensors; give the part a "
            "state_dict() that is made of these"
        )


def encode(state: Any, part: str) -> Encoded:
    """Describe a state as a file. Reads no array yet; numbers and strings are taken now.

    Args:
        state: Nested dicts, lists and tuples of arrays, numbers, strings, bytes and None.
        part: Name of the part, for messages.

    Raises:
        UsageError: Something in it cannot be saved; names the part and the place.
    """
    walk = _Walk(ordered=False)
    tree = walk.encode(state, "", part)
    # Largest elements first: then every array is aligned to its element without gaps, which the format forbids.
    leaves = sorted(walk.leaves.items(), key=lambda item: (-item_size(item[1].dtype), item[0]))
    text = json.dumps(tree, separators=(",", ":"), allow_nan=False)
    content: dict[str, Any] = {_METADATA: {"format": f"{FORMAT}/1", "part": part, "tree": text}}
    at = 0
    for name, leaf in leaves:
        content[name] = {"dtype": leaf.dtype, "shape": leaf.shape, "data_offsets": [at, at + leaf.size]}
        at += leaf.size
    header = json.dumps(content, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    return Encoded(tree, len(header).to_bytes(8, "little") + header, tuple(leaves), 8 + len(header) + at)


def inline(state: Any, part: str, *, limit_bytes: int = 4096) -> JsonValue:
    """A small state without arrays as a JSON value that keeps its order when keys are sorted; None if it is none."""
    walk = _Walk(ordered=True)
    tree = walk.encode(state, "", part)
    small = not walk.leaves and len(json.dumps(tree, allow_nan=False)) <= limit_bytes
    return tree if small else None


def decode_inline(value: JsonValue, part: str) -> Any:
    """The state that ``inline`` wrote."""
    return _revive(value, {}, part)


def decode(data: memoryview, part: str) -> Any:
    """The state in a file's bytes; its arrays live in ``data``'s own memory, which has to be writable.

    Raises:
        DamagedError: The bytes are no such file.
    """
    try:
        length = _header_length(data)
        content = json.loads(bytes(data[8 : 8 + length]))
        tree = json.loads(content.pop(_METADATA)["tree"])
        body = data[8 + length :]
        arrays = {name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in content.items()}
        return _revive(tree, arrays, part)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"part {part!r}: not a {FORMAT} file: {type(error).__name__}: {error}") from None


def _header_length(data: memoryview) -> int:
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(_HEADER_LIMIT, data.nbytes - 8):
        raise ValueError(f"header of {length} bytes in a file of {data.nbytes}")
    return length


def _revive(tree: Any, arrays: dict[str, tuple[Any, memoryview]], part: str) -> Any:
    if isinstance(tree, list):
        return [_revive(item, arrays, part) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if not tag.startswith("~"):
        return {key: _revive(item, arrays, part) for key, item in tree.items()}
    content: Any = tree[tag]
    match tag:
        case "~t":
            return tuple(_revive(item, arrays, part) for item in content)
        case "~b":
            return base64.b64decode(content)
        case "~i":
            return int(content)
        case "~f":
            return float(content)
        case "~d":
            return {_revive(key, arrays, part): _revive(item, arrays, part) for key, item in content}
        case "~np" | "~np0" | "~torch":
            entry, data = arrays[content]
            kind: Any = tag[1:]
            return rebuild(kind, entry["dtype"], tuple(entry["shape"]), tree.get("order") == "F", data)
        case _:
            raise ValueError(f"unknown tag {tag!r}; written by a newer Rerail?")


def leaf_digests(state: Any, part: str) -> dict[str, str]:
    """Digest of each value of a state by its place, whatever the order of dict keys: finds what differs."""
    return dict(_digests(state, "", part))


def _digests(value: Any, path: str, part: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _digests(item, f"{path}.{key}" if path else str(key), part)
        if value:
            return
    elif type(value) in (list, tuple) and value:
        for index, item in enumerate(value):
            yield from _digests(item, f"{path}.{index}" if path else str(index), part)
        return
    encoded = encode(value, part)
    yield path or "value", digest_of(b"".join(encoded.buffers()))
