"""Measure transfers from every NIC to every other, one at a time on each NIC: the baseline of a fabric."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from c4bench.errors import C4Error, UnhealthyError
from c4bench.verbs.transport import PROFILES, Connection
from c4bench.wire.messages import JobSpec
from c4bench.workload.context import RankContext
from c4bench.workload.link import End, Offer, send

_PROBE_BYTES = 8


class Transfer(msgspec.Struct, frozen=True):
    """From one NIC to another, by a source port; 0 leaves the path to ECMP."""

    source: str
    destination: str
    source_port: int = 0


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of transfers, with no NIC twice in a step; each is `probes` small writes, then `messages` of `size_bytes`.

    With `gap_s` messages are sent one by one with that gap, and the fastest counts: the rate of an idle path. The
    transfers of a step are staggered within the gap, since two of them may share a link.
    """

    steps: tuple[tuple[Transfer, ...], ...]
    size_bytes: int = 1 << 20
    messages: int = 8
    probes: int = 32
    window: int = 4
    gap_s: float = 0.0
    profile: str = "patient"


class PairResult(msgspec.Struct, frozen=True):
    """The result of a transfer: shortest round trip of small writes (s) and rate in bit/s; or a `problem`."""

    source: str
    destination: str
    round_trip_s: float = 0.0
    rate_bps: float = 0.0
    problem: str = ""
    source_port: int = 0


def run(context: RankContext) -> None:
    """Report `pairs`: the result of each transfer that this rank sent, in the order of the steps."""
    parameters = context.parameters(Pairs)
    own = {nic.name: nic for nic in context.job.nics if nic.name in context.job.members[context.rank].nics}
    found = []
    with ExitStack() as undo:
        ends = {name: End(nic, parameters.size_bytes, undo) for name, nic in own.items()}
        for number, step in enumerate(parameters.steps):
            found += _run_step(context, parameters, ends, number, step)
    context.report("pairs", found=msgspec.to_builtins(found))


def _run_step(
    context: RankContext, parameters: Pairs, ends: Mapping[str, End], number: int, step: Sequence[Transfer]
) -> list[PairResult]:
    """Run this rank's ends of a step's transfers; the results of those that it sends.

    All ranks probe before any of them sends messages: the acknowledgements of a probe take a path of ECMP's, and behind
    the packets of another transfer each of them would be late.
    """

    def wait_all(key: str) -> None:
        context.exchange(f"step{number}/{key}", context.rank, context.size)

    with ExitStack() as undo:
        sides = [
            _TransferSide(context, parameters, ends, f"step{number}", transfer, undo)
            for transfer in step
            if transfer.source in ends or transfer.destination in ends
        ]
        senders = [side for side in sides if side.sends]
        for side in senders:
            side.probe()
        wait_all("probed")
        for side in senders:
            time.sleep(parameters.gap_s * step.index(side.transfer) / len(step))
            side.fill()
        wait_all("sent")
    return [side.result for side in senders]


def _seat(job: JobSpec, nic: str) -> int:
    """The rank that has a NIC."""
    return next(rank for rank, member in enumerate(job.members) if nic in member.nics)


class _TransferSide:
    """The sending or receiving side of a transfer, connected; a failure is the `result`, since others go on."""

    def __init__(
        self,
        context: RankContext,
        parameters: Pairs,
        ends: Mapping[str, End],
        step: str,
        transfer: Transfer,
        undo: ExitStack,
    ) -> None:
        self.transfer, self._parameters = transfer, parameters
        self.sends = transfer.source in ends
        self._end = ends[transfer.source if self.sends else transfer.destination]
        self._connection = self._end.device.connection(
            PROFILES[parameters.profile], sends=parameters.window, receives=1
        )
        undo.callback(self._connection.close)
        self.result = PairResult(transfer.source, transfer.destination, source_port=transfer.source_port)

        seats = [_seat(context.job, nic) for nic in (transfer.source, transfer.destination)]

        def exchange(key: str, payload: bytes) -> list[bytes]:
            return context.gather(f"{step}/{transfer.source}/{key}", 0 if self.sends else 1, seats, payload)

        self._connect(exchange)

    def _connect(self, exchange: Callable[[str, bytes], list[bytes]]) -> None:
        remote = msgspec.structs.replace(self._end.device.here(), qp=self._connection.qp_num)
        payloads = exchange("offer", msgspec.msgpack.encode(Offer(remote, self._end.place)))
        far = msgspec.msgpack.decode(payloads[1 if self.sends else 0], type=Offer)
        self._far = far.place.address, far.place.rkey
        problem = ""
        try:
            self._connection.connect(far.remote, self.transfer.source_port if self.sends else 0)
        except C4Error as error:
            problem = str(error)
        # A dead path is a result as well, and the far end must not wait for it.
        if any(exchange("connected", problem.encode())):
            self._fail(problem or "the far end cannot connect")

    def _fail(self, problem: str) -> None:
        self.result = msgspec.structs.replace(self.result, round_trip_s=0.0, rate_bps=0.0, problem=problem)

    def probe(self) -> None:
        """Measure the round trip of small writes, unless the transfer has failed."""
        end = self._end

        def trip_s() -> float:
            began, ended = send(self._connection, end.waiter, end.local, self._far, _PROBE_BYTES, 1, 1)
            return ended - began

        # The shortest: what delays some of the probes is not the path.
        self._measure(lambda: {"round_trip_s": min(trip_s() for _ in range(self._parameters.probes))})

    def fill(self) -> None:
        """Measure the rate, unless the transfer has failed."""
        measured_s = _alone_s if self._parameters.gap_s else _filled_s
        bits = 8 * self._parameters.size_bytes
        self._measure(lambda: {"rate_bps": bits / measured_s(self._end, self._connection, self._far, self._parameters)})

    def _measure(self, measured: Callable[[], dict[str, float]]) -> None:
        if self.result.problem:
            return
        try:
            self.result = msgspec.structs.replace(self.result, **measured())
        except UnhealthyError as error:
            self._fail(str(error))


def _filled_s(end: End, connection: Connection, far: tuple[int, int], parameters: Pairs) -> float:
    """The time of one message among many that saturate the path, in s."""
    began, ended = send(
        connection, end.waiter, end.local, far, parameters.size_bytes, parameters.messages, parameters.window
    )
    return (ended - began) / parameters.messages


def _alone_s(end: End, connection: Connection, far: tuple[int, int], parameters: Pairs) -> float:
    """The time of the fastest single message, including its acknowledgement, in s."""
    took_s = []
    for _ in range(parameters.messages):
        time.sleep(parameters.gap_s)
        began, ended = send(connection, end.waiter, end.local, far, parameters.size_bytes, 1, 1)
        took_s.append(ended - began)
    return min(took_s)
