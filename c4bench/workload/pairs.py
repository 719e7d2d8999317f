"""Measure transfers from every NIC to every other, one at a time on each NIC: the baseline of a fabric."""

import mmap
import time
from collections.abc import Mapping
from contextlib import ExitStack

import msgspec
import numpy as np

from c4bench.errors import C4Error, UnhealthyError
from c4bench.model.fabric import Nic
from c4bench.verbs.device import Device
from c4bench.verbs.transport import PROFILES, Connection
from c4bench.verbs.waiting import Waiter, waiter
from c4bench.workload.context import RankContext
from c4bench.workload.link import Offer, Place, send

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
        ends = {name: End(nic, parameters, undo) for name, nic in own.items()}
        for number, step in enumerate(parameters.steps):
            context.meet(context.job.id, f"step{number}", context.rank, context.size)
            for position, transfer in enumerate(step):
                found += _run_transfer(
                    context, parameters, ends, number, transfer, parameters.gap_s * position / len(step)
                )
    context.report("pairs", found=msgspec.to_builtins(found))


def _run_transfer(
    context: RankContext, parameters: Pairs, ends: Mapping[str, "End"], number: int, transfer: Transfer, later_s: float
) -> list[PairResult]:
    """Run this rank's end of a transfer, `later_s` after the step begins; the result if it is the sender."""
    side = next((side for side, name in enumerate((transfer.source, transfer.destination)) if name in ends), None)
    if side is None:
        return []
    end = ends[transfer.destination if side else transfer.source]
    place = f"{context.job.id}/{number}/{transfer.source}"

    def meet(key: str, payload: bytes = b"") -> list[bytes]:
        return context.meet(place, key, side, 2, payload)

    with ExitStack() as undo:
        connection = end.device.connection(PROFILES[parameters.profile], sends=parameters.window, receives=1)
        undo.callback(connection.close)
        remote = msgspec.structs.replace(end.device.here(), qp=connection.qp_num)
        payloads = meet("offer", msgspec.msgpack.encode(Offer(remote, end.place)))
        far = msgspec.msgpack.decode(payloads[1 - side], type=Offer)
        problem = ""
        try:
            connection.connect(far.remote, transfer.source_port if side == 0 else 0)
        except C4Error as error:
            problem = str(error)
        # A dead path is a result as well, and the far end must not wait for it.
        broken = any(meet("connected", problem.encode()))
        result = _failed(transfer, problem or "the far end cannot connect")
        if side == 0 and not broken:
            time.sleep(later_s)
            try:
                result = _timed(end, connection, far.place, parameters, transfer)
            except UnhealthyError as error:
                result = _failed(transfer, str(error))
        meet("done")
    return [result] if side == 0 else []


def _failed(transfer: Transfer, problem: str) -> PairResult:
    return PairResult(transfer.source, transfer.destination, problem=problem, source_port=transfer.source_port)


def _timed(end: "End", connection: Connection, place: Place, parameters: Pairs, transfer: Transfer) -> PairResult:
    far = place.address, place.rkey
    probes = [send(connection, end.waiter, end.local, far, _PROBE_BYTES, 1, 1) for _ in range(parameters.probes)]
    # The shortest, since another pair's traffic may delay most probes, but a late path delays all.
    trips_s = [ended - began for began, ended in probes]
    transfer_s = (
        _alone_s(end, connection, far, parameters) if parameters.gap_s else _filled_s(end, connection, far, parameters)
    )
    rate_bps = 8 * parameters.size_bytes / transfer_s
    trip_s = min(trips_s)
    return PairResult(transfer.source, transfer.destination, trip_s, rate_bps, source_port=transfer.source_port)


def _filled_s(end: "End", connection: Connection, far: tuple[int, int], parameters: Pairs) -> float:
    """The time of one message among many that saturate the path, in s."""
    began, ended = send(
        connection, end.waiter, end.local, far, parameters.size_bytes, parameters.messages, parameters.window
    )
    return (ended - began) / parameters.messages


def _alone_s(end: "End", connection: Connection, far: tuple[int, int], parameters: Pairs) -> float:
    """The time of the fastest single message, including its acknowledgement, in s."""
    took_s = []
    for _ in range(parameters.messages):
        time.sleep(parameters.gap_s)
        began, ended = send(connection, end.waiter, end.local, far, parameters.size_bytes, 1, 1)
        took_s.append(ended - began)
    return min(took_s)


class End:
    """An opened NIC, with memory that others may write to."""

    def __init__(self, nic: Nic, parameters: Pairs, undo: ExitStack) -> None:
        self.device = undo.enter_context(Device(nic.device, nic.address))
        self._memory = mmap.mmap(-1, parameters.size_bytes)
        array = np.frombuffer(self._memory, np.uint8)
        region = self.device.register(array.ctypes.data, parameters.size_bytes)
        undo.callback(region.close)
        self.local = array.ctypes.data, region.lkey
        self.place = Place(array.ctypes.data, region.rkey)
        self.waiter: Waiter = waiter("events", [self.device])
