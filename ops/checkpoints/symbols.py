"""What a pickle says, without being executed: numbers and texts that know their place, and symbols for all it would call."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Float(float):
    """A float. Its opcode and value are the bytes `at` to `end` of the file."""

    at: int
    end: int


class Int(int):
    """An int. Its opcode and value are the bytes `at` to `end` of the file."""

    at: int
    end: int


class Text(str):
    """A string. Its opcode and content are the bytes `at` to `end` of the file."""

    at: int
    end: int


class Blob(bytes):
    """A byte string. Its opcode, length and bytes are the bytes `at` to `end` of the file.

    One longer than 4096 bytes is only located: here it is empty.
    """

    at: int
    end: int


class Global(Struct, frozen=True):
    """A class or function the pickle names. Only its name is known; it was not imported."""

    module: str
    name: str


class Call(Struct, eq=False):
    """What the pickle would have built by calling `func(*args)`; it was not called."""

    func: Any
    args: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)


class Persistent(Struct, frozen=True):
    """An object the pickle keeps elsewhere, under the identity `pid`."""

    pid: Any
