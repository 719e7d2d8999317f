"""The ends of connections in a rank's telemetry file, as rows of its host's window."""

from collections.abc import Mapping
from itertools import chain
from struct import Struct

from c4bench.collective import ring_layout as layout
from c4bench.collective.latency_sums import roundest
from c4bench.collective.ring_entries import CommEntry, ConnName
from c4bench.collective.table_reader import TableReader
from c4bench.model.numbering import Numbers
from c4bench.model.window import EndName

# What stands before and after a record's numbers in a row.
_END, _MARK = Struct("<Q"), Struct("<2Q")
_NO_MARK = bytes(_MARK.size)


class Ends:
    """The sending or the receiving ends of connections: a table of names, and one of numbers that end in a tally.

    `names` are the ends by place, and `renamed` says whether the last reading may have changed them. `row` is a row of
    the window's table.
    """

    def __init__(
        self, names: TableReader[ConnName], numbers: TableReader[bytes], host: Numbers[EndName], row: Struct
    ) -> None:
        self._table, self._numbers, self._host = names, numbers, host
        self._width = row.size - _END.size - _MARK.size
        self.names: list[EndName | None] = []
        self.renamed = False
        self._prefixes: list[bytes] = []
        # By place: the count of messages, and what has been written since it was listed.
        self._counted: dict[int, int] = {}
        self._written: set[int] = set()

    def read(self, comms: Mapping[int, CommEntry], *, changed: bool) -> bytes:
        """The rows of ends that belong to these communicators; `changed` if those may differ from before."""
        self.renamed = bool(self._table.read()) or changed
        if self.renamed:
            self.names = [_end(name, comms) for name in self._table.values]
            self._prefixes = [b"" if name is None else _END.pack(self._host.number(name)) for name in self.names]
        self._written.update(self._numbers.read())
        width, numbers = self._width, zip(self._prefixes, self._numbers.values, strict=False)
        rows = [
            (prefix, raw[:width], self._mark(place, raw))
            for place, (prefix, raw) in enumerate(numbers)
            if prefix and raw is not None
        ]
        return b"".join(chain.from_iterable(rows))

    def _mark(self, place: int, raw: bytes) -> bytes:
        """The roundest count since the place was listed last, with its sum; zeros if no message has come."""
        if place not in self._written:
            return _NO_MARK
        self._written.discard(place)
        counted, *sums = layout.TALLY.unpack_from(raw, len(raw) - layout.TALLY.size)
        before = self._counted.get(place, 0)
        if counted == before:
            return _NO_MARK
        self._counted[place] = counted
        # A slot that was released and reused counts from 0 again.
        return _MARK.pack(*roundest(before if counted > before else 0, counted, sums))


def _end(name: ConnName | None, comms: Mapping[int, CommEntry]) -> EndName | None:
    if name is None or name.comm not in comms:
        return None
    entry = comms[name.comm]
    return EndName(entry.record.comm, entry.rank, name.peer, name.source, name.destination, name.qp)
