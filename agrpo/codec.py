"""Arrays as the store keeps them: one format byte, then little-endian numbers, compressed where it pays.

The format byte is a letter: i (int32), f (float32), r (ragged int32), g (ragged float32); a capital says that zlib
follows. A ragged array is the number of its parts, their lengths, then all their numbers.
"""

import zlib
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

_MIN_GAIN = 0.9
"""Compressed data is kept when it is at most this share of the raw size."""
_LEVEL = 1
"""Token ids shrink by half at zlib's quickest level and hardly more at any other."""


def encode_ints(values: ArrayLike) -> bytes:
    """Bytes of whole numbers [n]. Raises ValueError for one that int32 cannot hold."""
    return _pack("i", _int32(values).tobytes())


def decode_ints(data: bytes) -> Ints:
    """The numbers that `encode_ints` was given, int32 [n]."""
    return _numbers(_unpack("i", data), "<i4")


def encode_floats(values: ArrayLike) -> bytes:
    """Bytes of numbers [n], rounded to float32; NaN is kept."""
    return _pack("f", np.asarray(values, dtype="<f4").tobytes())


def decode_floats(data: bytes) -> Floats:
    """The numbers that `encode_floats` was given, float32 [n]."""
    return _numbers(_unpack("f", data), "<f4")


def encode_ragged_ints(parts: Sequence[Collection[int]]) -> bytes:
    """Bytes of lists of whole numbers [n][any length]."""
    return _pack_ragged("r", parts, _int32(list(chain.from_iterable(parts))))


def decode_ragged_ints(data: bytes) -> list[Ints]:
    """The lists that `encode_ragged_ints` was given, int32 [n][any length]."""
    return _unpack_ragged("r", data, "<i4")


def encode_ragged_floats(parts: Sequence[Collection[float]]) -> bytes:
    """Bytes of lists of numbers [n][any length], rounded to float32."""
    return _pack_ragged("g", parts, np.fromiter(chain.from_iterable(parts), dtype="<f4"))


def decode_ragged_floats(data: bytes) -> list[Floats]:
    """The lists that `encode_ragged_floats` was given, float32 [n][any length]."""
    return _unpack_ragged("g", data, "<f4")


def num_entries(data: bytes) -> int:
    """How many numbers or lists an array of any kind holds; ValueError when its bytes are none of `encode_*`."""
    letter = data[:1].decode("latin-1").lower()
    if letter not in "ifrg" or not letter:
        raise ValueError(f"stored array has format {letter!r}, expected one of i, f, r, g")
    try:
        raw = _unpack(letter, data)
    except zlib.error as error:
        raise ValueError(f"stored array does not decompress: {error}") from error
    numbers = len(raw) // 4
    if len(raw) % 4 or (letter in "rg" and not numbers):
        raise ValueError(f"stored array has {len(raw)} bytes, expected whole numbers of 4 bytes")
    if letter in "if":
        return numbers
    num_parts = int(_numbers(raw[:4], "<i4")[0])
    lengths = _numbers(raw[4 : 4 * (1 + num_parts)], "<i4")
    if len(lengths) != num_parts or 1 + num_parts + int(lengths.sum()) != numbers:
        raise ValueError(f"stored ragged array has {numbers} numbers, which its {num_parts} lengths do not add up to")
    return num_parts


def num_shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Length of the prefix that a prompt shares with the tokens already held: only the rest needs storing."""
    length = min(len(held), len(prompt))
    differs = np.flatnonzero(np.asarray(held[:length]) != np.asarray(prompt[:length]))
    return int(differs[0]) if len(differs) else length


def _int32(values: ArrayLike) -> Ints:
    wide = np.asarray(values, dtype=np.int64)
    narrow = wide.astype("<i4")
    if not np.array_equal(wide, narrow):
        raise ValueError(f"token ids must fit in 32 bits, got values from {wide.min()} to {wide.max()}")
    return narrow


def _pack(letter: str, raw: bytes) -> bytes:
    small = zlib.compress(raw, _LEVEL)
    if len(small) <= _MIN_GAIN * len(raw):
        return letter.upper().encode() + small
    return letter.encode() + raw


def _unpack(letter: str, data: bytes) -> bytes:
    found = data[:1].decode("latin-1")
    if found == letter:
        return data[1:]
    if found == letter.upper():
        return zlib.decompress(data[1:])
    raise ValueError(f"stored array has format {found!r}, expected {letter!r}: the row is damaged, or of a newer agrpo")


def _numbers(raw: bytes, dtype: str) -> NDArray[Any]:
    native = np.dtype(dtype).newbyteorder("=")
    return np.frombuffer(raw, dtype=dtype).astype(native)


def _pack_ragged(letter: str, parts: Sequence[Collection[Any]], numbers: NDArray[Any]) -> bytes:
    head = np.array([len(parts), *map(len, parts)], dtype="<i4")
    return _pack(letter, head.tobytes() + numbers.tobytes())


def _unpack_ragged(letter: str, data: bytes, dtype: str) -> list[NDArray[Any]]:
    raw = _unpack(letter, data)
    num_parts = int(_numbers(raw[:4], "<i4")[0])
    body = 4 * (1 + num_parts)
    lengths = _numbers(raw[4:body], "<i4")
    return np.split(_numbers(raw[body:], dtype), np.cumsum(lengths)[:-1]) if num_parts else []
