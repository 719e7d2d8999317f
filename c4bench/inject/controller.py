"""The controller's end of the injector: a fault as a block of code."""

import contextlib
from collections.abc import Callable, Iterator

import msgspec

from c4bench.errors import InconclusiveError, UnhealthyError, UsageError
from c4bench.inject import catalogue, protocol
from c4bench.inject.protocol import Applied, Healed, Refused, Reply
from c4bench.model.fabric import Host, Nic
from c4bench.model.fault import FaultRequest, Value
from c4bench.record.run import RunDirectory
from c4bench.remote.protocol import Connection, Session

# Logging in, starting Python and a few commands, on a busy host; the witness's looks come on top.
_PATIENCE_S = 60.0
_LOOKS = 4


class Injector:
    """Applies faults of the catalogue to hosts.

    `connect` gives a way to a host by name, `python` the interpreter there that has c4bench, as root. Every fault
    leaves its onset and its end in the run's `events.jsonl`.
    """

    def __init__(
        self,
        connect: Callable[[str], Connection],
        python: Callable[[str], str],
        record: RunDirectory | None = None,
    ) -> None:
        self._connect, self._python, self._record = connect, python, record
        self._catalogue = catalogue.load()

    @contextlib.contextmanager
    def apply(
        self,
        name: str,
        host: Host,
        *,
        nic: int | None = None,
        job: str | None = None,
        rank: int | None = None,
        lease_s: float = 30.0,
        witness_s: float = 0.3,
        **parameters: Value,
    ) -> Iterator[Applied]:
        """The fault is in force, and was witnessed, within the block; the host is as before after it.

        Raises UsageError for a request that does not fit the catalogue or the host, UnhealthyError when the host cannot
        do it or is not as it was found, InconclusiveError when the witness saw no effect or the lease ended too early.
        """
        chosen = None if nic is None else _nic(host, nic)
        request = FaultRequest(name, host.name, chosen, job, rank, parameters, lease_s, witness_s)
        _, request = self._catalogue.resolve(request)
        if not host.disruptive:
            raise UsageError(f"{host.name} is not marked `disruptive: true` in the inventory; no fault goes there")
        with contextlib.closing(self._start(request)) as session:
            applied = self._applied(session, request)
            try:
                _check_seen(applied, request)
                yield applied
            except BaseException:
                # What went wrong in the block matters more than what may go wrong here; the watchdog stands by.
                with contextlib.suppress(UnhealthyError):
                    self._end(session, applied, request)
                raise
            _check_healed(self._end(session, applied, request), request)

    def _start(self, request: FaultRequest) -> Session:
        text = msgspec.json.encode(request).decode()
        return self._connect(request.host).start([self._python(request.host), "-m", "c4bench.inject", "hold", text])

    def _applied(self, session: Session, request: FaultRequest) -> Applied:
        reply = _read(session, request)
        if not isinstance(reply, Applied):
            raise UnhealthyError(f"{request.host}: {request.fault} ended before it began: {reply}")
        self._note(applied_event(reply, request), "fault_applied", reply.onset_s)
        return reply

    def _end(self, session: Session, applied: Applied, request: FaultRequest) -> Healed:
        with contextlib.suppress(UnhealthyError):  # the lease may have ended it; it has said so then
            session.write_line(protocol.REVERT)
        reply = _read(session, request)
        if not isinstance(reply, Healed):
            raise UnhealthyError(f"{request.host}: {request.fault} did not end: {reply}")
        self._note(healed_event(reply, applied, request), "fault_healed", reply.healed_s)
        return reply

    def _note(self, fields: dict[str, str | float | bool | None], kind: str, time_s: float) -> None:
        if self._record:
            self._record.event(time_s, kind, **fields)


def applied_event(applied: Applied, request: FaultRequest) -> dict[str, str | float | bool | None]:
    """What `events.jsonl` says of an onset, besides its time."""
    witness = applied.witness
    values = {f"before_{name}": value for name, value in witness.before.items()}
    values |= {f"during_{name}": value for name, value in witness.during.items()}
    return {
        "fault": applied.fault,
        "host": request.host,
        "target": str(applied.target),
        "observed_s": witness.observed_s,
        "seen": witness.seen,
        **request.parameters,
        **values,
    }


def healed_event(healed: Healed, applied: Applied, request: FaultRequest) -> dict[str, str | float | bool | None]:
    """What `events.jsonl` says of an end, besides its time."""
    return {
        "fault": applied.fault,
        "host": request.host,
        "target": str(applied.target),
        "reason": healed.reason,
        "by": healed.by,
        "recovered": healed.recovered,
        "residue": "; ".join(healed.residue),
    }


def _nic(host: Host, index: int) -> Nic:
    try:
        return host.nic(index)
    except LookupError as error:
        raise UsageError(f"{error.args[0]}; its NICs: {', '.join(nic.name for nic in host.nics) or 'none'}") from None


def _read(session: Session, request: FaultRequest) -> Reply:
    reply = protocol.decode(session.read_line(_PATIENCE_S + _LOOKS * request.witness_s))
    if isinstance(reply, Refused):
        raise reply.raised(request.host)
    return reply


def _check_seen(applied: Applied, request: FaultRequest) -> None:
    if not applied.witness.seen:
        raise InconclusiveError(
            f"{request.fault} on {request.where} was applied and not seen to take effect "
            f"(before {_shown(applied.witness.before)}; during {_shown(applied.witness.during)}); "
            "is there traffic, and is witness_s longer than the job's rhythm?"
        )


def _check_healed(healed: Healed, request: FaultRequest) -> None:
    if healed.residue:
        raise UnhealthyError(
            f"{request.host} is not as it was before {request.fault} on {request.where}: {'; '.join(healed.residue)}"
        )
    if healed.recovered is False:
        raise UnhealthyError(
            f"{request.host}: {request.where} has not recovered from {request.fault} (now {_shown(healed.after)})"
        )
    if healed.reason != "asked":
        raise InconclusiveError(
            f"{request.fault} on {request.where} ended ({healed.reason}) before the scenario did; "
            f"ask for a lease of more than {request.lease_s:g} s"
        )


def _shown(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
