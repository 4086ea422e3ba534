"""The file format: everything comes back bitwise, nothing unknown goes in, nothing broken comes out."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rerail.plugins.trainer.codec import decode, decode_inline, encode, inline, leaf_digests
from rerail.policies.errors import DamagedError, UsageError

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"]


def file_of(state, part="model"):
    encoded = encode(state, part)
    data = b"".join(encoded.buffers())
    assert len(data) == encoded.size
    return data


def back(state):
    return decode(memoryview(bytearray(file_of(state))), "model")


def same(one, two):
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            type(one) is type(two)
            and one.dtype == two.dtype
            and one.shape == two.shape
            and one.tobytes() == two.tobytes()
        )
    if isinstance(one, dict):
        return type(two) is dict and list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float):
        return type(two) is float and ((math.isnan(one) and math.isnan(two)) or repr(one) == repr(two))
    return type(one) is type(two) and one == two


arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
states = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(states)
@settings(max_examples=120, deadline=None)
def test_every_state_comes_back_bitwise_with_its_types_and_order(state):
    assert same(state, back(state))


@given(states)
@settings(max_examples=50, deadline=None)
def test_a_copied_snapshot_is_the_same_file(state):
    encoded = encode(state, "model")
    room = memoryview(bytearray(encoded.size + 5))
    assert bytes(encoded.copy_into(room)) == b"".join(encoded.buffers())


@given(states)
@settings(max_examples=50, deadline=None)
def test_a_small_value_survives_json_with_sorted_keys(state):
    value = inline(state, "scheduler")
    if value is not None:
        assert same(state, decode_inline(json.loads(json.dumps(value, sort_keys=True, allow_nan=False)), "scheduler"))


@given(states, st.data())
@settings(max_examples=80, deadline=None)
def test_broken_bytes_are_damage_or_another_state_but_never_another_error(state, data):
    content = bytearray(file_of(state))
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode(memoryview(content), "model")
    except DamagedError as error:
        assert "model" in str(error)  # noqa: PT017


@pytest.mark.parametrize("view", ["fortran", "strided", "reversed", "transposed", "read-only"])
def test_arrays_of_any_memory_order(view):
    base = np.arange(24, dtype="f4").reshape(4, 6)
    array = {
        "fortran": np.asfortranarray(base),
        "strided": base[::2, ::3],
        "reversed": base[::-1],
        "transposed": base.T,
        "read-only": np.broadcast_to(base, (4, 6)),
    }[view]
    restored = back({"a": array})["a"]
    np.testing.assert_array_equal(restored, array)
    # The memory order decides which BLAS kernel runs, and so the last bits of a product.
    assert restored.flags.f_contiguous == array.flags.f_contiguous or view in ("strided", "reversed")
    assert restored.flags.writeable


def test_the_file_is_safetensors_by_its_published_layout():
    data = file_of({"layer": {"w": np.arange(6, dtype="f4").reshape(2, 3), "flag": np.array([True])}, "lr": 0.1})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert all(isinstance(value, str) for value in header.pop("__metadata__").values())
    assert header == {
        "layer.w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "layer.flag": {"dtype": "BOOL", "shape": [1], "data_offsets": [24, 25]},
    }
    assert (8 + length) % 8 == 0
    assert len(data) == 8 + length + 25


def test_large_contiguous_arrays_are_not_copied():
    array = np.zeros(1000)
    view = encode({"a": array}, "model").buffers()[1]
    array[0] = 7.0
    assert np.frombuffer(view)[0] == 7.0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, "set"),
        (object(), "object"),
        (np.array([object()]), "|O"),
        (np.array(["text"]), "<U4"),
        (np.arange(3, dtype=">i4"), ">i4"),
        (np.zeros(2, "c16"), "c16"),
        (np.ma.array([1.0]), "MaskedArray"),
        (np.zeros(2, [("a", "i4")]), "V4"),
        (lambda: None, "function"),
        (1j, "complex"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_part_place_and_type(value, said):
    with pytest.raises(UsageError) as caught:
        encode({"groups": [{"bad": value}]}, "optimizer")
    assert "'optimizer'" in str(caught.value)
    assert "groups.0.bad" in str(caught.value)
    assert said in str(caught.value)


def test_names_that_collide_stay_apart():
    state = {"a.b": np.zeros(1), "a": {"b": np.ones(1)}, "__metadata__": np.full(1, 2.0)}
    assert same(state, back(state))


def test_differences_are_named_by_place_whatever_the_order_of_keys():
    one = {"m": {"w1": np.zeros(3), "w2": np.ones(2)}, "t": 4}
    two = {"t": 4, "m": {"w2": np.ones(2), "w1": np.zeros(3)}}
    assert leaf_digests(one, "optimizer") == leaf_digests(two, "optimizer")
    two["m"]["w1"][1] = 5
    changed = [
        place
        for place, digest in leaf_digests(one, "optimizer").items()
        if leaf_digests(two, "optimizer")[place] != digest
    ]
    assert changed == ["m.w1"]


def test_torch_tensors_come_back_bitwise():
    torch = pytest.importorskip("torch")
    state = {
        "bf16": torch.randn(3, 4).to(torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "bool": torch.tensor([True, False]),
        "strided": torch.arange(12).reshape(3, 4).t(),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    encoded = encode(state, "model")
    data = bytearray(b"".join(encoded.buffers()))
    assert bytes(encoded.copy_into(memoryview(bytearray(encoded.size)))) == bytes(data)
    restored = decode(memoryview(data), "model")
    for name, tensor in state.items():
        assert restored[name].dtype == tensor.dtype
        assert torch.equal(restored[name], tensor.detach())
    with pytest.raises(UsageError, match="sparse"):
        encode(torch.eye(3).to_sparse(), "model")
