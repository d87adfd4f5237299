"""Walk a pickle without executing it: what it holds, and at which byte every number stands.

Nothing named in the pickle is ever imported or called: a class or function is a `Global`, its call a `Call`.
All protocols, 0 to 5. Source of the opcodes: CPython's `Lib/pickletools.py`.
"""

from __future__ import annotations

import codecs
import gc
import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from ops.checkpoints.opcodes import SIZED
from ops.checkpoints.symbols import Blob, Call, Float, Global, Int, Persistent, Text

Buffer = bytes | mmap.mmap
_f8, _u4, _u2, _i4 = (struct.Struct(code).unpack_from for code in (">d", "<I", "<H", "<i"))
_MALFORMED = (
    IndexError, KeyError, TypeError, AttributeError, struct.error, OverflowError, RecursionError, MemoryError,
)  # fmt: skip
_KEPT = 4096  # a longer byte string is only located, not copied


class Walked(Struct, frozen=True):
    """The tree, the byte of the buffer after STOP, and where FRAME opcodes stand in the file."""

    tree: Any
    end: int
    frames: tuple[int, ...]


def walk(
    data: Buffer,
    at: int = 0,
    *,
    base: int = 0,
    persistent: Callable[[Any], Any] = Persistent,
    call: Callable[[Any, Any], Any] = Call,
) -> Walked:
    """The pickle that begins at byte `at` of `data`, as containers, located numbers and symbols.

    Numbers and frames are located from `base`, the place of `data` in its file.
    `persistent` and `call` may give a persistent id or a call a better form; they see symbols only.
    Raises ValueError when the bytes are no complete pickle.
    """
    machine = _Machine(data, base, persistent, call)
    collecting = gc.isenabled()
    gc.disable()  # a tree of a million new objects has no garbage, and looking for it takes most of the time
    try:
        end = machine.run(at)
        return Walked(machine.stack.pop(), end, tuple(machine.frames))
    except _MALFORMED as error:
        raise ValueError(f"not a well-formed pickle ({type(error).__name__}: {error})") from error
    finally:
        if collecting:
            gc.enable()


class _Machine:
    """The pickle virtual machine: a stack, the heights of its MARKs, and the memo."""

    def __init__(
        self, data: Buffer, base: int, persistent: Callable[[Any], Any], call: Callable[[Any, Any], Any]
    ) -> None:
        self.data, self.base, self.persistent, self.call = data, base, persistent, call
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.frames: list[int] = []

    def run(self, at: int) -> int:
        """Execute from `at` up to and including STOP; the byte after it."""
        data, end, stack, memo, marks = self.data, len(self.data), self.stack, self.memo, self.marks
        steps = {code: getattr(self, name) for code, name in _OPCODES.items()}
        while at < end:
            code = data[at]
            # The commonest opcodes are spelled out here, for an optimizer's pickle has millions of them.
            if code == 0x72:  # LONG_BINPUT
                memo[_u4(data, at + 1)[0]] = stack[-1]
                at += 5
            elif code == 0x71:  # BINPUT
                memo[data[at + 1]] = stack[-1]
                at += 2
            elif code == 0x68:  # BINGET
                stack.append(memo[data[at + 1]])
                at += 2
            elif code == 0x28:  # MARK
                marks.append(len(stack))
                at += 1
            elif code == 0x2E:  # STOP
                return at + 1
            elif code in steps:
                at = steps[code](at)
            else:
                raise ValueError(f"unknown pickle opcode 0x{code:02x} at byte {at}")
        raise ValueError("the pickle is cut off")

    def popped(self) -> list[Any]:
        """All that was pushed since the last MARK."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    # -- values ------------------------------------------------------------------------------------------

    def binfloat(self, at: int) -> int:
        return self.place(Float(_f8(self.data, at + 1)[0]), at, at + 9)

    def binint1(self, at: int) -> int:
        return self.place(Int(self.data[at + 1]), at, at + 2)

    def binint2(self, at: int) -> int:
        return self.place(Int(_u2(self.data, at + 1)[0]), at, at + 3)

    def binint(self, at: int) -> int:
        return self.place(Int(_i4(self.data, at + 1)[0]), at, at + 5)

    def long(self, at: int) -> int:
        body, end = self.sized(at)
        return self.place(Int(int.from_bytes(body, "little", signed=True)), at, end)

    def text(self, at: int) -> int:
        body, end = self.sized(at)
        return self.place(Text(body.decode("utf-8", "surrogatepass")), at, end)

    def blob(self, at: int) -> int:
        start, end = self.extent(at)
        return self.place(Blob(self.data[start:end] if end - start <= _KEPT else b""), at, end)

    def line_of(self, at: int) -> tuple[bytes, int]:
        """The text after the opcode at `at`, as protocol 0 has it, and where the next opcode stands."""
        end = self.data.find(b"\n", at + 1)
        if end < 0:
            raise ValueError("the pickle is cut off")
        return self.data[at + 1 : end], end + 1

    def float_line(self, at: int) -> int:
        body, end = self.line_of(at)
        return self.place(Float(body), at, end)

    def int_line(self, at: int) -> int:
        body, end = self.line_of(at)
        if body in (b"00", b"01"):
            self.stack.append(body == b"01")
            return end
        return self.place(Int(body.removesuffix(b"L")), at, end)

    def text_line(self, at: int) -> int:
        body, end = self.line_of(at)
        return self.place(Text(body.decode("raw-unicode-escape")), at, end)

    def quoted(self, at: int) -> int:
        """A string of Python 2, as its repr."""
        body, end = self.line_of(at)
        if len(body) < 2 or body[:1] != body[-1:] or body[:1] not in b"'\"":
            raise ValueError(f"a string without quotes at byte {at}")
        return self.place(_text_or_bytes(codecs.escape_decode(body[1:-1])[0]), at, end)

    def old_string(self, at: int) -> int:
        """The same as its bytes."""
        start, end = self.extent(at)
        return self.place(_text_or_bytes(self.data[start:end]) if end - start <= _KEPT else Blob(), at, end)

    def place(self, value: Float | Int | Text | Blob, at: int, end: int) -> int:
        value.at, value.end = self.base + at, self.base + end
        self.stack.append(value)
        return end

    def fresh(self, at: int) -> int:
        self.stack.append(_FRESH[self.data[at]]())
        return at + 1

    def extent(self, at: int) -> tuple[int, int]:
        """Start and end of the bytes after the opcode and length at `at`."""
        width = SIZED[self.data[at : at + 1]]
        start = at + 1 + width
        end = start + int.from_bytes(self.data[at + 1 : start], "little")
        if end > len(self.data):
            raise ValueError("the pickle is cut off")
        return start, end

    def sized(self, at: int) -> tuple[bytes, int]:
        start, end = self.extent(at)
        return self.data[start:end], end

    # -- containers --------------------------------------------------------------------------------------

    def pop(self, at: int) -> int:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()
        return at + 1

    def pop_mark(self, at: int) -> int:
        self.popped()
        return at + 1

    def dup(self, at: int) -> int:
        self.stack.append(self.stack[-1])
        return at + 1

    def closed(self, at: int) -> int:
        items = self.popped()
        self.stack.append(_CLOSED[self.data[at]](items))
        return at + 1

    def tuple_n(self, at: int) -> int:
        count = self.data[at] - 0x84  # TUPLE1 is 0x85
        if len(self.stack) < count:
            raise ValueError("a tuple of fewer items than it has")
        self.stack[-count:] = [tuple(self.stack[-count:])]
        return at + 1

    def append(self, at: int) -> int:
        self.extend([self.stack.pop()])
        return at + 1

    def appends(self, at: int) -> int:
        self.extend(self.popped())
        return at + 1

    def setitem(self, at: int) -> int:
        value, key = self.stack.pop(), self.stack.pop()
        self.update([key, value])
        return at + 1

    def setitems(self, at: int) -> int:
        self.update(self.popped())
        return at + 1

    def additems(self, at: int) -> int:
        items, top = self.popped(), self.stack[-1]
        (top.items.extend if isinstance(top, Call) else top.update)(items)
        return at + 1

    def extend(self, items: list[Any]) -> None:
        top = self.stack[-1]
        (top.items if isinstance(top, Call) else top).extend(items)

    def update(self, items: list[Any]) -> None:
        top = self.stack[-1]
        if isinstance(top, Call):
            top.items.extend(_pairs(items))
        else:
            top.update(_pairs(items))

    # -- memo and symbols --------------------------------------------------------------------------------

    def memoize(self, at: int) -> int:
        self.memo[len(self.memo)] = self.stack[-1]
        return at + 1

    def get4(self, at: int) -> int:
        self.stack.append(self.memo[_u4(self.data, at + 1)[0]])
        return at + 5

    def put_line(self, at: int) -> int:
        key, end = self.line_of(at)
        self.memo[int(key)] = self.stack[-1]
        return end

    def get_line(self, at: int) -> int:
        key, end = self.line_of(at)
        self.stack.append(self.memo[int(key)])
        return end

    def named(self, at: int) -> tuple[Global, int]:
        module, name_at = self.line_of(at)
        name, end = self.line_of(name_at - 1)
        return Global(module.decode(), name.decode()), end

    def global_(self, at: int) -> int:
        named, end = self.named(at)
        self.stack.append(named)
        return end

    def instance(self, at: int) -> int:
        cls, end = self.named(at)
        self.stack.append(self.call(cls, tuple(self.popped())))
        return end

    def object_(self, at: int) -> int:
        cls, *args = self.popped()
        self.stack.append(self.call(cls, tuple(args)))
        return at + 1

    def persid_line(self, at: int) -> int:
        pid, end = self.line_of(at)
        self.stack.append(self.persistent(pid.decode()))
        return end

    def stack_global(self, at: int) -> int:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(Global(str(module), str(name)))
        return at + 1

    def extension(self, at: int) -> int:
        width = {0x82: 1, 0x83: 2, 0x84: 4}[self.data[at]]
        code = int.from_bytes(self.data[at + 1 : at + 1 + width], "little")
        self.stack.append(Global("copyreg extension", str(code)))
        return at + 1 + width

    def persid(self, at: int) -> int:
        self.stack.append(self.persistent(self.stack.pop()))
        return at + 1

    def reduce(self, at: int) -> int:
        args, func = self.stack.pop(), self.stack.pop()
        self.stack.append(self.call(func, args))
        return at + 1

    def newobj_ex(self, at: int) -> int:
        kwargs, args, cls = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.stack.append(Call(cls, args, items=list(kwargs.items())))
        return at + 1

    def build(self, at: int) -> int:
        state, top = self.stack.pop(), self.stack[-1]
        if isinstance(top, Call):
            top.state = state
        return at + 1

    def proto(self, at: int) -> int:
        if self.data[at + 1] > 5:
            raise ValueError(f"pickle protocol {self.data[at + 1]} is not one of 0 to 5")
        return at + 2

    def frame(self, at: int) -> int:
        self.frames.append(self.base + at)
        return at + 9

    def readonly(self, at: int) -> int:
        return at + 1


def _text_or_bytes(body: bytes) -> Text | Blob:
    """A string of Python 2 may be either."""
    try:
        return Text(body.decode())
    except UnicodeDecodeError:
        return Blob(body)


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


_FRESH: dict[int, Callable[[], Any]] = {
    0x4E: lambda: None, 0x88: lambda: True, 0x89: lambda: False,
    0x7D: dict, 0x5D: list, 0x29: tuple, 0x8F: set,
}  # fmt: skip
_CLOSED: dict[int, Callable[[list[Any]], Any]] = {
    0x74: tuple, 0x6C: list, 0x64: lambda items: dict(_pairs(items)), 0x91: frozenset,
}  # fmt: skip
_OPCODES = {
    code: name
    for codes, name in {
        b"G": "binfloat", b"K": "binint1", b"M": "binint2", b"J": "binint", b"\x8a\x8b": "long",
        b"F": "float_line", b"IL": "int_line", b"V": "text_line", b"S": "quoted", b"UT": "old_string",
        b"p": "put_line", b"g": "get_line", b"P": "persid_line", b"i": "instance", b"o": "object_",
        b"\x8cX\x8d": "text", b"CB\x8e\x96": "blob", b"N\x88\x89}])\x8f": "fresh", b"tld\x91": "closed",
        b"0": "pop", b"1": "pop_mark", b"2": "dup", b"\x85\x86\x87": "tuple_n",
        b"a": "append", b"e": "appends", b"s": "setitem", b"u": "setitems", b"\x90": "additems",
        b"\x94": "memoize", b"j": "get4",
        b"c": "global_", b"\x93": "stack_global", b"\x82\x83\x84": "extension", b"Q": "persid",
        b"R\x81": "reduce", b"\x92": "newobj_ex", b"b": "build",
        b"\x80": "proto", b"\x95": "frame", b"\x98": "readonly",
    }.items()
    for code in codes
}  # fmt: skip
