"""Plain data out of a pickle, without `pickle`: no opcode here names or calls anything.

Opcodes as in CPython's `Lib/pickletools.py`. PyTorch's C++ pickler writes protocol 2, and only what is read here.
Nothing is recursive, and only texts and numbers are keys, so depth costs nothing.
"""

import struct
from collections.abc import Callable
from typing import Any

from c4bench.evidence.limits import LONGEST_TEXT, MOST_BITS, MOST_VALUES, UnreadableError

_FORBIDDEN = {
    ord("c"): "GLOBAL",
    0x93: "STACK_GLOBAL",
    ord("R"): "REDUCE",
    ord("i"): "INST",
    ord("o"): "OBJ",
    ord("b"): "BUILD",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
}
_STOP = ord(".")
_MARK = object()
_MOST_OPCODES = 2 * MOST_VALUES


def plain_data(data: bytes) -> object:
    """What a pickle of dictionaries, lists, tuples, texts and numbers holds.

    Raises UnreadableError for any other pickle, for one that is cut, and for one beyond the bounds of `limits`.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except (struct.error, IndexError, KeyError):
        raise UnreadableError("the pickle is cut or damaged", f"byte {machine.at}") from None
    except UnicodeDecodeError:
        raise UnreadableError("the pickle has a text that is no UTF-8", f"byte {machine.at}") from None


class _Machine:
    """The pickle machine's stack and memo; methods raise IndexError, KeyError or struct.error where bytes lack."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        data, handlers, stack = self.data, _HANDLERS, self.stack
        for _ in range(_MOST_OPCODES):
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self.pop()
            handler = handlers[code]
            if handler is None:
                raise self._refused(code)
            handler(self)
            if len(stack) > MOST_VALUES:
                break
        raise UnreadableError(f"the pickle has more than {MOST_VALUES} values", f"byte {self.at}")

    def _refused(self, code: int) -> UnreadableError:
        if code in _FORBIDDEN:
            reason = f"the pickle wants to run code ({_FORBIDDEN[code]}); nothing of it was run"
        else:
            reason = f"the pickle has opcode {code:#04x}, which no flight recorder writes"
        return UnreadableError(reason, f"byte {self.at - 1}")

    def skip(self, count: int) -> None:
        """Pass over bytes that say nothing here."""
        self.bytes(count)

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        if count > LONGEST_TEXT:
            raise UnreadableError(f"the pickle has a text of {count} bytes", f"byte {self.at}")
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise IndexError
        self.at += count
        return taken

    def number(self, form: struct.Struct) -> int:
        """The next integer of this form."""
        value: int = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def real(self) -> None:
        """A floating-point number."""
        self.stack.append(_F8.unpack_from(self.data, self.at)[0])
        self.at += _F8.size

    def pop(self) -> object:
        """The value on top of the stack."""
        if (value := self.stack.pop()) is _MARK:
            raise IndexError
        return value

    def marked(self) -> list[Any]:
        """Take the values above the last mark off the stack, and the mark."""
        stack, place = self.stack, len(self.stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def append(self, items: list[Any]) -> None:
        """Append to the list on top."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise IndexError
        target += items

    def update(self, items: list[Any]) -> None:
        """Put keys and values into the dictionary on top."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise IndexError
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):
                raise IndexError
            target[key] = value

    def tuple_of(self, count: int) -> None:
        """A tuple of the values on top."""
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def integer(self, count: int) -> None:
        """An integer of so many bytes."""
        if count * 8 > MOST_BITS + 8:
            raise UnreadableError(f"the pickle has an integer of {count * 8} bits", f"byte {self.at}")
        self.stack.append(int.from_bytes(self.bytes(count), "little", signed=True))

    def text(self, count: int) -> None:
        """A text of so many bytes."""
        self.stack.append(self.bytes(count).decode("utf-8", "surrogatepass"))

    def put(self, index: int) -> None:
        """Note the value on top under a number."""
        if self.stack[-1] is _MARK:
            raise IndexError
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        """A value that was noted."""
        self.stack.append(self.memo[index])


_U1, _U2, _U4, _U8 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<Q"))
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_Handler = Callable[[_Machine], None]
_KNOWN: dict[int, _Handler] = {
    0x80: lambda m: m.skip(_U1.size),  # PROTO
    0x95: lambda m: m.skip(_U8.size),  # FRAME
    ord("}"): lambda m: m.stack.append({}),
    ord("]"): lambda m: m.stack.append([]),
    ord(")"): lambda m: m.stack.append(()),
    ord("("): lambda m: m.stack.append(_MARK),
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord("K"): lambda m: m.stack.append(m.number(_U1)),
    ord("M"): lambda m: m.stack.append(m.number(_U2)),
    ord("J"): lambda m: m.stack.append(m.number(_I4)),
    ord("G"): _Machine.real,
    0x8A: lambda m: m.integer(m.number(_U1)),
    0x8C: lambda m: m.text(m.number(_U1)),
    ord("X"): lambda m: m.text(m.number(_U4)),
    0x8D: lambda m: m.text(m.number(_U8)),
    ord("a"): lambda m: m.append([m.pop()]),
    ord("e"): lambda m: m.append(m.marked()),
    ord("s"): lambda m: m.update([m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: m.update(m.marked()),
    ord("t"): lambda m: m.stack.append(tuple(m.marked())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("q"): lambda m: m.put(m.number(_U1)),
    ord("r"): lambda m: m.put(m.number(_U4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("h"): lambda m: m.get(m.number(_U1)),
    ord("j"): lambda m: m.get(m.number(_U4)),
}
_HANDLERS: list[_Handler | None] = [_KNOWN.get(code) for code in range(256)]
