import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agrpo import codec

int32 = st.integers(-(2**31), 2**31 - 1)
float32 = st.floats(width=32)


@given(st.lists(int32))
def test_whole_numbers_come_back(values):
    decoded = codec.decode_ints(codec.encode_ints(values))
    assert decoded.dtype == np.int32
    assert decoded.tolist() == values


@given(st.lists(float32))
def test_numbers_come_back_bit_for_bit(values):
    decoded = codec.decode_floats(codec.encode_floats(values))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, np.array(values, dtype=np.float32))


@given(st.lists(st.lists(int32)))
def test_lists_of_whole_numbers_come_back(parts):
    assert [part.tolist() for part in codec.decode_ragged_ints(codec.encode_ragged_ints(parts))] == parts


@given(st.lists(st.lists(float32)))
def test_lists_of_numbers_come_back(parts):
    decoded = codec.decode_ragged_floats(codec.encode_ragged_floats(parts))
    assert len(decoded) == len(parts)
    for got, given_part in zip(decoded, parts, strict=True):
        np.testing.assert_array_equal(got, np.array(given_part, dtype=np.float32))


def test_the_bytes_are_these():
    """The format is a promise to databases that exist: little-endian after one letter."""
    assert codec.encode_ints([1, 258]) == b"i" + bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert codec.encode_floats([1.0]) == b"f" + bytes([0, 0, 0x80, 0x3F])
    assert codec.encode_ragged_ints([[7], []]) == b"r" + bytes([2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0])
    assert codec.encode_ints([]) == b"i"


def test_long_repetitive_data_is_compressed_and_random_data_is_not():
    mask = codec.encode_ints([1] * 10_000)
    assert mask[:1] == b"I" and len(mask) < 500
    noise = np.random.default_rng(0).integers(-(2**31), 2**31, 1000)
    assert len(codec.encode_ints(noise)) == 1 + 4 * 1000
    assert codec.decode_ints(mask).tolist() == [1] * 10_000


def test_decoded_arrays_may_be_written_to():
    codec.decode_ints(codec.encode_ints([1, 2]))[0] = 3


def test_an_id_beyond_32_bits_is_refused():
    with pytest.raises(ValueError, match="must fit in 32 bits, got values from 1 to 4294967296"):
        codec.encode_ints([1, 2**32])


@pytest.mark.parametrize("data", [b"", b"x1234", codec.encode_floats([1.0])])
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="expected 'i'"):
        codec.decode_ints(data)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_shared_prefix_is_the_longest(held, prompt):
    shared = codec.num_shared(held, prompt)
    assert held[:shared] == prompt[:shared]
    assert shared in (len(held), len(prompt)) or held[shared] != prompt[shared]
