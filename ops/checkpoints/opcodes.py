"""A number as bytes: as the opcode of a pickle, of the kind and width that stands there, or as an element of a tensor.

Source: CPython's `Lib/pickle.py` (which opcode is written for what) and `Lib/pickletools.py`.
"""

from __future__ import annotations

from struct import pack, unpack

FORMATS = {"float64": "<d", "float32": "<f", "float16": "<e", "bfloat16": "<f"}
SIZED = {
    b"\x8a": 1, b"\x8b": 4, b"C": 1, b"B": 4, b"\x8e": 8, b"\x96": 8, b"U": 1, b"T": 4,
    b"\x8c": 1, b"X": 4, b"\x8d": 8,
}  # fmt: skip
"""Opcodes that a length of so many bytes follows."""
LINES = (b"F", b"I", b"L", b"S", b"V")
"""Opcodes of protocol 0, which a line of text follows."""
LONGEST_LINE = 256
_PLAIN = {b"G": 9, b"K": 2, b"M": 3, b"J": 5}
_INTS = {b"K": (1, False), b"M": (2, False), b"J": (4, True)}
_ESCAPED = {code: f"\\u{code:04x}" for code in b"\\\0\n\r\x1a"}


def opcode_end(data: bytes) -> int:
    """The length of the number, string or byte-string opcode at the start of `data`."""
    code = data[:1]
    if code in _PLAIN:
        return _PLAIN[code]
    if code in SIZED:
        width = SIZED[code]
        return 1 + width + int.from_bytes(data[1 : 1 + width], "little")
    if code in LINES and b"\n" in data:
        return data.index(b"\n") + 1
    raise ValueError(f"opcode {code!r} holds no value")


def encoded(kind: str, value: float, old: bytes) -> bytes:
    """The bytes of a site of that kind that hold `value`: of the opcode and width of `old` where it fits.

    A count takes the shortest opcode, as pickle writes it.
    """
    if kind.startswith("tensor-"):
        return packed(kind, value)
    if kind.startswith("numpy-"):
        return _blob(old[:1], packed(kind, value))
    if kind in ("int", "count") and value == int(value):
        return _int(int(value), old[:1] if kind == "int" or old[:1] in LINES else b"")
    return b"F%r\n" % float(value) if old[:1] in LINES else b"G" + pack(">d", value)


def packed(kind: str, value: float) -> bytes:
    """Little-endian bytes of the value in its type, rounded to nearest even as torch does."""
    dtype = kind.rpartition("-")[2]
    try:
        body = pack(FORMATS[dtype], value)
    except OverflowError as error:
        raise ValueError(f"{value:g} does not fit {dtype}") from error
    if dtype != "bfloat16":
        return body
    bits = unpack("<I", body)[0]
    return pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def unpacked(kind: str, body: bytes) -> float:
    """The value that these bytes of a tensor or numpy scalar are."""
    dtype = kind.rpartition("-")[2]
    return float(unpack(FORMATS[dtype], b"\0\0" + body if dtype == "bfloat16" else body)[0])


def _int(value: int, like: bytes) -> bytes:
    """An int opcode: the one there is, else the shortest, as pickle writes it."""
    if like in LINES:
        return b"I%d\n" % value if -1 << 31 <= value < 1 << 31 else b"L%dL\n" % value
    for code in (like, *_INTS):
        width, signed = _INTS.get(code, (0, False))
        if width and -signed << 8 * width - 1 <= value < 1 << 8 * width - signed:
            return code + value.to_bytes(width, "little", signed=signed)
    body = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(body)]) + body


def _blob(code: bytes, payload: bytes) -> bytes:
    """A byte string; up to protocol 2 it travels as Latin-1 text, in UTF-8 or in escapes."""
    if code == b"V":
        return b"V" + payload.decode("latin1").translate(_ESCAPED).encode("raw-unicode-escape") + b"\n"
    body = payload.decode("latin1").encode() if code in (b"X", b"\x8c") else payload
    return code + len(body).to_bytes(4 if code in (b"X", b"B") else 1, "little") + body
