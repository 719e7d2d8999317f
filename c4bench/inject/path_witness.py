"""Witnesses on the path of the data: a queue pair between NICs of two hosts, whose packets cross the faulty port.

They see faults of ports of switches, and of what a NIC receives: what the kernel of the target sends, or the switch
says of itself, does not show these. The controller has both ends, each a console on its host
(`verbs.endpoint_console`), and measures beside the witness on the target; what this one sees decides.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import C4Error, UnhealthyError
from c4bench.inject.protocol import Healed
from c4bench.inject.witness.base import RDMA, Aftermath, Compared, Evidence, Values, Witness
from c4bench.inject.witness.echo import plausible
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, FaultSpec, WitnessReport
from c4bench.remote.protocol import Connection

_ANSWER_S = 30.0
_MESSAGE_BYTES, _MESSAGES_MIN, _MESSAGES_MAX, _LOSSES_EXPECTED = 256, 40, 5_000, 20
# Of what a fault loses, this share may still be lost after it: packets on their way when it ended.
_RESIDUAL_LOSS = 0.05
# Long beside a shaper's burst, short beside its queue; of so many writes the fastest counts, as jobs are in their way.
_RATE_BYTES, _RATE_WRITES = 1 << 20, 6
_TOLERANCE = 1.1
# More than a round trip; an unacknowledged write may be retried by then.
_ACKNOWLEDGED_S = 0.1


class Crossing(msgspec.Struct, frozen=True):
    """Packets from one NIC to another that cross a port, in the direction that a fault hurts.

    They have `source_port`, and those in the other direction `back_port`, 0 for any. `rate_bps` is the rate of what the
    fault limits, 0 where it is not known.
    """

    source: Nic
    target: Nic
    source_port: int = 0
    back_port: int = 0
    rate_bps: float = 0.0

    @property
    def acknowledging(self) -> "Crossing":
        """The same packets as acknowledgements of data in the other direction."""
        return Crossing(self.target, self.source, self.back_port, self.source_port, self.rate_bps)


# Where a fault's packets cross its target; None where that is not known.
Crossings = Callable[[FaultRequest], Crossing | None]


class Consoles(Protocol):
    """The two ends of a queue pair."""

    def near(self, do: str, **arguments: object) -> Any:  # noqa: ANN401  (a command's own answer)
        """Have the sender do something. Raises UnhealthyError where it cannot."""

    def far(self, do: str, **arguments: object) -> Any:  # noqa: ANN401
        """The same of the receiver."""


class HostConsoles:
    """Consoles on two hosts. Raises UnhealthyError where one cannot be started."""

    def __init__(self, crossing: Crossing, connect: Callable[[str], Connection], python: Callable[[str], str]) -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            self._ends = []
            for nic in (crossing.source, crossing.target):
                argv = [python(nic.host), "-m", "c4bench.verbs.endpoint_console", msgspec.json.encode(nic).decode()]
                session = undo.enter_context(contextlib.closing(connect(nic.host).start(argv)))
                self._ends.append((nic, session))
            self._stack = undo.pop_all()

    def near(self, do: str, **arguments: object) -> Any:  # noqa: ANN401
        """See Consoles."""
        return self._ask(0, do, arguments)

    def far(self, do: str, **arguments: object) -> Any:  # noqa: ANN401
        """See Consoles."""
        return self._ask(1, do, arguments)

    def _ask(self, end: int, do: str, arguments: dict[str, object]) -> Any:  # noqa: ANN401
        nic, session = self._ends[end]
        session.write_line(msgspec.json.encode({"do": do} | arguments).decode())
        try:
            answer = from_json(session.read_line(_ANSWER_S), dict[str, Any])
        except DecodingError as error:
            raise UnhealthyError(f"{nic.name}: the console of a queue pair printed no answer: {error}") from None
        if "answer" not in answer:
            raise UnhealthyError(f"{nic.name}: {answer.get('error', 'no answer')}")
        return answer["answer"]

    def close(self) -> None:
        """End both."""
        self._stack.close()


def _open(consoles: Consoles, crossing: Crossing, length: int, *, reliable: bool) -> None:
    """A new queue pair at both ends, connected, with so much memory."""
    ends = [ask("open", length=length, reliable=reliable) for ask in (consoles.near, consoles.far)]
    consoles.near("connect", end=ends[1], source_port=crossing.source_port)
    consoles.far("connect", end=ends[0], source_port=crossing.back_port)


class _Stream(NamedTuple):
    """When each message was sent, and the numbers, from 1, of those that arrived."""

    sent_s: list[float]
    arrived: frozenset[int]

    @property
    def lost(self) -> int:
        """How many did not arrive."""
        return len(self.sent_s) - len(self.arrived)

    @property
    def first_lost_s(self) -> float | None:
        """When the first that did not arrive was sent."""
        return next((at_s for number, at_s in enumerate(self.sent_s, 1) if number not in self.arrived), None)


def _loss(request: FaultRequest, consoles: Consoles, crossing: Crossing) -> Compared[_Stream]:
    """`path_sent` and `path_lost` messages that nobody repeats; seen when the loss fits the requested probability."""
    probability = float(request.parameters.get("probability", 1.0))
    count = min(_MESSAGES_MAX, max(_MESSAGES_MIN, round(_LOSSES_EXPECTED / probability)))
    size = {"count": count, "size": _MESSAGE_BYTES}

    def measure() -> _Stream:
        _open(consoles, crossing, count * _MESSAGE_BYTES, reliable=False)
        sent_s = consoles.near("stream", **size, gap_s=request.witness_s / count)["sent_s"]
        return _Stream(sent_s, frozenset(consoles.far("arrived", **size)))

    def seen(before: _Stream, during: _Stream) -> float | None:
        fits = plausible(during.lost, len(during.sent_s), probability) and before.lost < during.lost / 2
        return during.first_lost_s if fits else None

    return Compared(
        measure,
        lambda found: {"path_sent": float(len(found.sent_s)), "path_lost": float(found.lost)},
        seen,
        lambda before, after: after.lost <= max(before.lost, _RESIDUAL_LOSS * count * probability),
        RDMA,
    )


class _Rate(NamedTuple):
    """The fastest of some writes, 0 where one failed, and when the first of them was acknowledged."""

    bps: float
    at_s: float


def _rate(request: FaultRequest, consoles: Consoles, crossing: Crossing) -> Compared[_Rate]:
    """`path_bps`: how fast data is written; seen when it is below the limit, and was above before."""
    limit_bps = request.number("fraction") * crossing.rate_bps
    if not limit_bps:
        raise UnhealthyError(f"{request.where}: the rate of what is limited is not stated")

    def measure() -> _Rate:
        _open(consoles, crossing, _RATE_BYTES, reliable=True)
        try:
            ended_s, took_s = zip(*consoles.near("time_writes", times=_RATE_WRITES), strict=True)
        except UnhealthyError:  # nothing passes, which is no rate
            return _Rate(0.0, 0.0)
        return _Rate(_RATE_BYTES * 8 / min(took_s), ended_s[0])

    def seen(before: _Rate, during: _Rate) -> float | None:
        return during.at_s if 0 < during.bps <= _TOLERANCE * limit_bps < before.bps else None

    return Compared(
        measure,
        lambda found: {"path_bps": found.bps},
        seen,
        lambda _, after: True if after.bps > _TOLERANCE * limit_bps else None,
        RDMA,
    )


class _Acknowledged(NamedTuple):
    """Whether a write came to the far end, whether that was acknowledged, and when it was sent."""

    data: bool
    acknowledged: bool
    at_s: float


def _acknowledgements(request: FaultRequest, consoles: Consoles, crossing: Crossing) -> Compared[_Acknowledged]:  # noqa: ARG001
    """`path_data` and `path_acks`: whether a write arrives and its sender knows; seen when only the first is so."""
    size = {"count": 1, "size": _MESSAGE_BYTES}

    def measure() -> _Acknowledged:
        _open(consoles, crossing, _MESSAGE_BYTES, reliable=True)
        sent = consoles.near("stream", **size, within_s=_ACKNOWLEDGED_S)
        return _Acknowledged(bool(consoles.far("arrived", **size)), sent["completed"] == 1, sent["sent_s"][0])

    def seen(before: _Acknowledged, during: _Acknowledged) -> float | None:
        healthy = before.data and before.acknowledged
        return during.at_s if healthy and during.data and not during.acknowledged else None

    return Compared(
        measure,
        lambda found: {"path_data": float(found.data), "path_acks": float(found.acknowledged)},
        seen,
        lambda _, after: after.data and after.acknowledged,
        RDMA,
    )


# By the witness on the target, which the catalogue names.
_KINDS: dict[str, Callable[[FaultRequest, Consoles, Crossing], Witness]] = {
    "echo_loss": _loss,
    "peak_rate": _rate,
    "acks_lost": _acknowledgements,
}


def can_see(spec: FaultSpec, request: FaultRequest) -> bool:
    """Whether a fault is one that these witnesses see: of a port, or of what a NIC receives."""
    receives = request.nic is not None and request.parameters.get("direction") == "rx"
    return spec.witness in _KINDS and (request.port is not None or (receives and spec.witness == "peak_rate"))


def received(request: FaultRequest) -> Crossing | None:
    """What a NIC receives from another host's; None where that is not known."""
    nic = request.nic
    peer = next((one for one in request.peers if nic and nic.device and one.device and one.plane == nic.plane), None)
    return Crossing(peer, nic, rate_bps=nic.rate_bps) if nic and peer else None


def watch(spec: FaultSpec, request: FaultRequest, consoles: Consoles, crossing: Crossing) -> Witness:
    """The witness of a fault that `can_see` is true of."""
    return _KINDS[spec.witness](request, consoles, crossing)


class PathWatch:
    """A witness on the data's path beside that on the target: it decides, and both are reported."""

    def __init__(self, witness: Witness, close: Callable[[], None]) -> None:
        self._witness, self._close = witness, close
        self._before: Values = {}

    def before(self) -> None:
        """Measure before the fault."""
        self._before = self._witness.before()

    def during(self, onset_s: float, own: WitnessReport) -> WitnessReport:
        """What was seen on the path, or by the other witness before."""
        evidence = self._witness.during(onset_s)
        return beside(own, self._before, evidence)

    def after(self) -> Aftermath:
        """Measure after the revert."""
        return self._witness.after()

    def close(self) -> None:
        """End the consoles."""
        self._close()


def beside(own: WitnessReport, before: Values, evidence: Evidence) -> WitnessReport:
    """A report of the data's path, with what the witness on the target has measured."""
    seen = evidence.observed_s is not None
    times_s = [at_s for at_s in (own.observed_s, evidence.observed_s) if at_s is not None]
    return WitnessReport(seen, min(times_s) if seen else None, own.before | before, own.during | evidence.values, RDMA)


def healed(own: Healed, path: Aftermath) -> Healed:
    """The end of a fault whose target has recovered by both witnesses, as far as they know."""
    known = [one for one in (own.recovered, path.recovered) if one is not None]
    return msgspec.structs.replace(own, recovered=all(known) if known else None, after=own.after | path.values)


def start(
    spec: FaultSpec,
    request: FaultRequest,
    crossings: Crossings | None,
    connect: Callable[[str], Connection],
    python: Callable[[str], str],
) -> PathWatch | None:
    """A watch that has measured before the fault; None where no crossing is known or nothing can be sent over it."""
    if crossings is None or not can_see(spec, request):
        return None
    crossing = received(request) if request.nic else crossings(request)
    if crossing is None:
        return None
    crossing = crossing.acknowledging if spec.witness == "acks_lost" else crossing
    with contextlib.ExitStack() as undo:
        try:
            consoles = undo.enter_context(contextlib.closing(HostConsoles(crossing, connect, python)))
            watched = PathWatch(watch(spec, request, consoles, crossing), consoles.close)
            watched.before()
        except C4Error:  # no RDMA there, or not for us: the witness on the target is left
            return None
        undo.pop_all()
        return watched
