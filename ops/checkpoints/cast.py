"""Floating-point numbers of one type as those of another, as torch rounds them. By numpy if it is there, else without.

bfloat16 is the upper half of a float32, rounded to the nearest, ties to even. Without numpy a whole buffer becomes one
long integer, so that each step of the rounding is one operation for all numbers in it. Source: pytorch
`c10/util/BFloat16.h` (round_to_nearest_even; NaN is 0x7FC0).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import unpack
from typing import Any

Cast = Callable[[bytearray], bytes]
_NUMPY = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}


def cast(source: str, target: str) -> Cast | None:
    """What turns little-endian numbers of type `source` into `target` (float32, bfloat16); None if they are the same."""
    if source == target:
        return None
    numpy = _numpy()
    widened = None if source == "float32" else _widening(source, numpy)
    if target == "float32":
        return widened
    if target != "bfloat16":
        raise ValueError(f"no cast from {source} to {target}")
    narrowed = _narrowing(numpy)
    return narrowed if widened is None else lambda data: narrowed(bytearray(widened(data)))


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _widening(source: str, numpy: Any) -> Cast:
    if source == "bfloat16":
        return _upper_halves
    if numpy is None:
        code, size = {"float16": ("e", 2), "float64": ("d", 8)}[source]
        return lambda data: array("f", unpack(f"<{len(data) // size}{code}", data)).tobytes()

    def widen(data: bytearray) -> bytes:
        with numpy.errstate(over="ignore"):
            wide: bytes = numpy.frombuffer(data, _NUMPY[source]).astype("<f4").tobytes()
        return wide

    return widen


def _upper_halves(data: bytearray) -> bytes:
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return bytes(wide)


def _narrowing(numpy: Any) -> Cast:
    if numpy is None:
        return _narrowed_as_integer

    def narrow(data: bytearray) -> bytes:
        bits = numpy.frombuffer(data, "<u4")
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        halves = rounded.view("<u2")[1::2]
        nan = numpy.isnan(numpy.frombuffer(data, "<f4"))
        if nan.any():
            halves[nan] = 0x7FC0
        narrowed: bytes = halves.tobytes()
        return narrowed

    return narrow


def _narrowed_as_integer(data: bytearray) -> bytes:
    count = len(data) // 4
    ones = int.from_bytes(b"\1\0\0\0" * count, "little")
    bits = int.from_bytes(data, "little")
    nan = ((bits & ones * 0x7FFFFFFF) + ones * 0x007FFFFF) & ones << 31
    if nan:
        mask = (nan >> 31) * 0xFFFFFFFF
        bits = (bits | mask) ^ mask | (nan >> 31) * 0x7FC00000
    rounded = bits + (bits >> 16 & ones) + ones * 0x7FFF
    wide = rounded.to_bytes(4 * count, "little")
    halves = bytearray(2 * count)
    halves[0::2], halves[1::2] = wide[2::4], wide[3::4]
    return bytes(halves)
