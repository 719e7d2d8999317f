"""Windows as they are sent and recorded: names once, and numbers in every window.

Whoever encodes remembers what names of a host have gone out, and adds those that are new; whoever decodes remembers
them. An agent begins again with each connection, and a recording with its first line.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from c4bench.budget import WINDOW, Account, OverBudgetError
from c4bench.model.telemetry import CommRecord, NicRecord, RankRecord
from c4bench.model.window import ARRIVAL, CONN, NUMBERS_AT_MOST, OP, Caller, CallName, EndName, HostNames, Window

# Another number for every other meaning of the bytes.
FORMAT = 2
_SAME = ("host", "sequence", "start_s", "end_s", "ranks", "op_table", "awaits", "conn_table", "arrival_table", "nics")
_SIZES = {"op_table": OP.size, "conn_table": CONN.size, "arrival_table": ARRIVAL.size}


_Name = TypeVar("_Name")
# A longer array is refused by its length, before any of its items is decoded.
_Listed = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=WINDOW.records)]
_Numbered = Annotated[tuple[tuple[int, _Name | None], ...], msgspec.Meta(max_length=WINDOW.names)]


class NamesChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Numbers with what they stand for from now on; None for those that are free."""

    comms: _Numbered[CommRecord] = ()
    callers: _Numbered[Caller] = ()
    sends: _Numbered[EndName] = ()
    receives: _Numbered[EndName] = ()
    calls: _Numbered[CallName] = ()


class EncodedWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `Window` of this `format`, and how its names differ from those of the host's window before."""

    format: int
    host: str
    sequence: int
    start_s: float
    end_s: float
    names: NamesChange = NamesChange()
    ranks: _Listed[RankRecord] = ()
    op_table: bytes = b""
    awaits: bytes = b""
    conn_table: bytes = b""
    arrival_table: bytes = b""
    nics: _Listed[NicRecord] = ()


class Format(msgspec.Struct):
    """The format of what may be a window."""

    format: int | None = None


# A member of a communicator has about 50 bytes in a message, and 250 in memory.
_BYTES_IN_MEMORY = 5
_NO_CHANGE, _NO_NAMES = NamesChange(), HostNames()
_SORTS = HostNames.__struct_fields__
_messages = msgspec.msgpack.Decoder(EncodedWindow)


class WindowEncoder:
    """Encodes the windows of hosts, each host's in order."""

    def __init__(self) -> None:
        self._known: dict[str, HostNames] = {}

    def encode(self, window: Window) -> EncodedWindow:
        """The window, with the names that the host's windows before did not have."""
        before = self._known.get(window.host, _NO_NAMES)
        self._known[window.host] = window.names
        change = _NO_CHANGE if window.names is before else _difference(before, window.names)
        return EncodedWindow(FORMAT, names=change, **{name: getattr(window, name) for name in _SAME})

    def copy(self) -> "WindowEncoder":
        """One that knows the same names."""
        other = WindowEncoder()
        other._known.update(self._known)
        return other


class WindowDecoder:
    """Decodes what a `WindowEncoder` has encoded, in the same order.

    Names that are known at once are counted in an `account`, if there is one, with about the bytes that they take.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._account = account
        self._known: dict[str, HostNames] = {}

    def decode(self, encoded: EncodedWindow) -> Window:
        """The window. Raises msgspec.ValidationError for another format, and for lengths or numbers that cannot be.

        Raises OverBudgetError for more names than the account has; the host's names stand for nothing from then on.
        """
        check_format(encoded.format)
        for name, size in _SIZES.items():
            if length := len(getattr(encoded, name)) % size:
                raise msgspec.ValidationError(f"{name}: {length} bytes are left of rows of {size} bytes")
        names = self._known.get(encoded.host, _NO_NAMES)
        if encoded.names != _NO_CHANGE:
            names = self._known[encoded.host] = self._counted(encoded.host, names, encoded.names)
        return Window(names=names, **{name: getattr(encoded, name) for name in _SAME})

    def _counted(self, host: str, names: HostNames, change: NamesChange) -> HostNames:
        after = _changed(names, change)
        if self._account is not None:
            replaced, fresh = _replaced(names, change), [name for sort in _SORTS for _, name in getattr(change, sort)]
            try:
                self._account.spend(bytes=_size_bytes(fresh) - _size_bytes(replaced), names=len(fresh) - len(replaced))
            except OverBudgetError:
                self._known[host] = _NO_NAMES
                raise
        return after


def from_message(body: bytes) -> EncodedWindow:
    """The window in a message's body. Raises msgspec.DecodeError, also for another format."""
    try:
        return _messages.decode(body)
    except msgspec.ValidationError:
        check_format(msgspec.msgpack.decode(body, type=Format).format)
        raise


def check_format(number: int | None) -> None:
    """Raise msgspec.ValidationError for another format than this; None is one before they were numbered."""
    if number != FORMAT:
        own = "of an older c4bench" if number is None else f"of format {number}"
        raise msgspec.ValidationError(f"a window {own}; this c4bench reads format {FORMAT}: use the one that wrote it")


def _replaced(names: HostNames, change: NamesChange) -> list[Any]:
    """What the numbers that change have stood for."""
    return [
        known[number]
        for sort in _SORTS
        for known in (getattr(names, sort),)
        for number, _ in getattr(change, sort)
        if number < len(known)
    ]


def _size_bytes(names: Sequence[Any]) -> int:
    """About the memory that names take."""
    return _BYTES_IN_MEMORY * sum(len(msgspec.msgpack.encode(name)) for name in names)


def _difference(before: HostNames, after: HostNames) -> NamesChange:
    return NamesChange(*(_fresh(getattr(before, sort), getattr(after, sort)) for sort in _SORTS))


def _fresh(before: Sequence[object], after: Sequence[object]) -> Any:  # noqa: ANN401  (of each sort its own)
    if before is after:
        return ()
    changed = (number for number, (old, new) in enumerate(zip(before, after, strict=False)) if old != new)
    return (*((number, after[number]) for number in changed), *enumerate(after[len(before) :], start=len(before)))


def _changed(names: HostNames, change: NamesChange) -> HostNames:
    return HostNames(*(_with(getattr(names, sort), getattr(change, sort)) for sort in _SORTS))


def _with(names: tuple[Any, ...], fresh: Sequence[tuple[int, Any]]) -> tuple[Any, ...]:
    """The names with those that have changed. A number comes after all that are smaller."""
    if not fresh:
        return names
    listed = list(names)
    for number, name in fresh:
        if not 0 <= number <= len(listed) or number >= NUMBERS_AT_MOST:
            raise msgspec.ValidationError(f"number {number} of a name, where {len(listed)} are known")
        listed[number : number + 1] = [name]
    return tuple(listed)
