"""A recorder that records nothing, to measure what recording costs."""

from c4bench.collective import ring_layout as layout
from c4bench.collective.nic_clock import NicClock
from c4bench.collective.recorder import ArrivalWriter, ConnWriter, OpWriter
from c4bench.collective.ring_entries import ConnName
from c4bench.model.telemetry import CommRecord

_NOWHERE = layout.Slot(memoryview(bytearray(2 * layout.OP_BYTES)), 0, layout.OP_BYTES)


class _NullOp(OpWriter):
    __slots__ = ()

    def awaiting(self, peer: int, *, still: bool) -> None:
        pass

    def start(self, now_ns: int) -> None:
        pass

    def finish(self, now_ns: int) -> None:
        pass

    def store(self) -> None:
        pass


class _NullConn(ConnWriter):
    __slots__ = ()

    def post(self, now_ns: int) -> None:
        pass

    def acknowledge(self, size_bytes: int, now_ns: int) -> None:
        pass

    def move(self, source_port: int) -> None:
        pass

    def set_state(self, state: str, outstanding: int, owed: int, now_ns: int) -> None:
        pass


class _NullArrivals(ArrivalWriter):
    __slots__ = ()

    def arrived(self, now_ns: int) -> None:
        pass

    def store(self) -> None:
        pass


class NullRecorder:
    """Has the interface of a Recorder."""

    def communicator(self, record: CommRecord, rank: int) -> int:  # noqa: ARG002  (a recorder's signature)
        """Record nothing."""
        return 0

    def release(self, comm: int) -> None:
        """Release nothing."""

    def operation(
        self,
        comm: int,  # noqa: ARG002
        seq: int,
        kind: str,
        algorithm: str,
        dtype: str,
        size_bytes: int,
        now_ns: int,
    ) -> OpWriter:
        """A writer that writes nothing."""
        return _NullOp(_NOWHERE, seq, kind, algorithm, dtype, size_bytes, now_ns)

    def connection(self, name: ConnName, source_port: int, now_ns: int) -> ConnWriter:  # noqa: ARG002
        """A writer that writes nothing."""
        return _NullConn(_NOWHERE, source_port, now_ns, NicClock())

    def arrivals(self, name: ConnName) -> ArrivalWriter:  # noqa: ARG002
        """A writer that writes nothing."""
        return _NullArrivals(_NOWHERE)
