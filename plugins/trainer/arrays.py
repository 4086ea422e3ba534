"""Arrays as bytes and back: numpy and torch, through their memory, without importing either on our own account.

A process that has no numpy array in its state never loads numpy here, and the same for torch.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from rerail.policies.errors import UsageError

Kind = Literal["np", "np0", "torch"]
"""``np`` an array, ``np0`` a numpy scalar (such as ``np.float64(1)``), ``torch`` a dense tensor."""

_NUMPY = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
_TORCH = _NUMPY | {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
_SIZES = {"C64": 8, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}


def item_size(dtype: str) -> int:
    """Bytes of one element of a dtype by its safetensors name."""
    return _SIZES.get(dtype) or int(dtype[1:]) // 8


class Leaf(NamedTuple):
    """One array of a state, not yet copied.

    Attributes:
        kind: Which library it belongs to.
        dtype: Name as safetensors writes it.
        shape: As stored: C order; ``fortran`` says that it is the reverse of the array's own.
        size: Bytes.
        view: Its bytes: the array's own memory where that is contiguous, else a copy.
        copy: Writes its bytes to a buffer of ``size`` bytes (one pass, also from a GPU).
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    size: int
    view: Callable[[], memoryview]
    copy: Callable[[memoryview], None]


def as_leaf(value: Any, where: str) -> Leaf | None:
    """Describe ``value`` if it is an array; None if it is none.

    Args:
        value: Anything.
        where: Its place in the state, for messages.

    Raises:
        UsageError: An array that cannot be written as plain bytes (objects, sparse, quantized, big-endian ...).
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.generic):
            return _numpy_leaf(numpy, numpy.asarray(value), "np0", where)
        if isinstance(value, numpy.ndarray):
            return _numpy_leaf(numpy, value, "np", where)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_leaf(torch, value, where)
    return None


def _numpy_leaf(numpy: Any, array: Any, kind: Kind, where: str) -> Leaf:
    dtype = _NUMPY.get(array.dtype.name)
    if dtype is None or not (array.dtype.isnative and sys.byteorder == "little"):
        raise UsageError(
            f"{where}: a numpy array of dtype {array.dtype.str!r} cannot be saved as plain little-endian numbers; "
            f"convert it in state_dict() (known: {', '.join(_NUMPY)})"
        )
    if type(array) is not numpy.ndarray:
        raise UsageError(f"{where}: a {type(array).__name__} is more than its numbers; save numpy.asarray() of it")
    fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
    plain = array.T if fortran else array

    def view() -> memoryview:
        flat = numpy.ascontiguousarray(plain).reshape(-1)
        return memoryview(flat.view(numpy.uint8).data).toreadonly() if flat.size else memoryview(b"")

    def copy(into: memoryview) -> None:
        if plain.size:
            numpy.copyto(numpy.frombuffer(into, dtype=plain.dtype).reshape(plain.shape), plain)

    return Leaf(kind, dtype, tuple(map(int, plain.shape)), fortran, int(array.nbytes), view, copy)


def _torch_leaf(torch: Any, tensor: Any, where: str) -> Leaf:
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = _TORCH.get(name)
    plain = type(tensor).__name__ in ("Tensor", "Parameter") and tensor.layout == torch.strided
    if dtype is None or not plain or tensor.device.type == "meta" or sys.byteorder != "little":
        raise UsageError(
            f"{where}: a {type(tensor).__name__} of {name}, {tensor.layout}, on {tensor.device} has no plain bytes "
            "of its own; convert it in state_dict(), or save it with the framework's adapter"
        )
    tensor = tensor.detach()
    size = int(tensor.numel()) * item_size(dtype)

    def view() -> memoryview:
        if not size:
            return memoryview(b"")
        host = tensor.resolve_conj().cpu().contiguous() if tensor.is_complex() else tensor.cpu().contiguous()
        import ctypes

        # The array type keeps no reference to the tensor, so the tensor is hung onto it.
        block: Any = type("TensorBytes", (ctypes.c_ubyte * size,), {"_type_": ctypes.c_ubyte, "_length_": size})
        data = block.from_address(host.data_ptr())
        data.owner = host
        return memoryview(data).cast("B").toreadonly()

    def copy(into: memoryview) -> None:
        if size:
            torch.frombuffer(into, dtype=tensor.dtype).reshape(tensor.shape).copy_(tensor)

    return Leaf("torch", dtype, tuple(map(int, tensor.shape)), fortran=False, size=size, view=view, copy=copy)


def rebuild(kind: Kind, dtype: str, shape: tuple[int, ...], fortran: bool, data: memoryview) -> Any:
    """An array over ``data``'s own memory (writable, so that a state may keep it)."""
    if kind == "torch":
        torch: Any = importlib.import_module("torch")
        names = {short: name for name, short in _TORCH.items()}
        wanted = getattr(torch, names[dtype])
        return torch.frombuffer(data, dtype=wanted).reshape(shape) if data.nbytes else torch.empty(shape, dtype=wanted)
    numpy: Any = importlib.import_module("numpy")
    names = {short: name for name, short in _NUMPY.items()}
    array = numpy.frombuffer(data, dtype=names[dtype]).reshape(shape)
    if kind == "np0":
        return array[()]
    return array.T if fortran else array


def copy_in_place(target: Any, source: Any) -> bool:
    """Copy ``source`` over ``target`` where both are arrays of one kind, dtype and shape; False where they are not."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(target, numpy.ndarray) and isinstance(source, numpy.ndarray):
        if target.dtype != source.dtype or target.shape != source.shape or not target.flags.writeable:
            return False
        numpy.copyto(target, source)
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Tensor) and isinstance(source, torch.Tensor):
        if target.dtype != source.dtype or target.shape != source.shape:
            return False
        target.detach().copy_(source)
        return True
    return False
