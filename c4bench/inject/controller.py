"""The controller's side of the injector: a fault is a context manager.

That a fault takes its host away is seen from here: the host stops answering, and answers again. The history of faults
has a line for each request, onset and end, on the telemetry's clock.
"""

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from c4bench.errors import C4Error, InconclusiveError, UnhealthyError, UsageError
from c4bench.inject import catalogue, path_witness, places, protocol
from c4bench.inject.path_witness import Crossings, PathWatch
from c4bench.inject.places import Place
from c4bench.inject.protocol import Applied, Healed, Leaving, Planned, Refused, Reply
from c4bench.model.fabric import Host
from c4bench.model.fault import BlastRadius as Radius
from c4bench.model.fault import FaultRequest, FaultSpec, Value, WitnessReport
from c4bench.remote.local import LocalConnection
from c4bench.remote.protocol import Connection, Session

Field = str | float | bool | None


class History(Protocol):
    """Where events are recorded; a run directory is one."""

    def event(self, time_s: float, kind: str, **fields: Field) -> None:
        """Add a line."""


class HistoryFile:
    """A file of JSON lines, `{"time_s", "kind", ...}`, as a run's `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def event(self, time_s: float, kind: str, **fields: Field) -> None:
        """Add a line, in one write, since others append to the file too."""
        line = msgspec.json.encode({"time_s": time_s, "kind": kind} | dict(sorted(fields.items()))) + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def applied_event(applied: Applied, request: FaultRequest) -> dict[str, Field]:
    """The fields of an onset, besides its time."""
    witness = applied.witness
    values = {f"before_{name}": value for name, value in witness.before.items()}
    values |= {f"during_{name}": value for name, value in witness.during.items()}
    return {
        "fault": applied.fault,
        "host": request.host,
        "target": str(applied.target) if applied.target else "",
        "observed_s": witness.observed_s,
        "seen": witness.seen,
        "plane": witness.plane,
        **request.parameters,
        **values,
    }


def healed_event(healed: Healed, applied: Applied, request: FaultRequest) -> dict[str, Field]:
    """The fields of an end, besides its time."""
    return {
        "fault": applied.fault,
        "host": request.host,
        "target": str(applied.target) if applied.target else "",
        "reason": healed.reason,
        "by": healed.by,
        "recovered": healed.recovered,
        "residue": "; ".join(healed.residue),
    }


# The `witness` of a fault that takes the host away: the controller itself observes it.
ABSENCE = "absence"
# The injector of agentless switches, which runs here as whoever calls.
OWN_INJECTOR = (sys.executable, "-P", "-m", "c4bench.inject", "--own")
Reach = Callable[[Host], bool]
_SSH_PORT = 22
_ANSWER_S = 0.25
_GONE_STEP_S, _BACK_STEP_S = 2e-3, 0.02


class HostGone(NamedTuple):
    """The last attempt with an answer began at `last_s`, the first without at `time_s` (our clock)."""

    last_s: float
    time_s: float


def answers(host: Host) -> bool:
    """Whether the host's management address accepts connections."""
    try:
        with socket.create_connection((host.address, _SSH_PORT), timeout=_ANSWER_S):
            return True
    except OSError:
        return False


def wait_gone(host: Host, reach: Reach, timeout_s: float) -> HostGone | None:
    """When the host stopped answering, None when it answered until the timeout."""
    until_s, last_s = time.monotonic() + timeout_s, time.time()
    while time.monotonic() < until_s:
        asked_s = time.time()
        if not reach(host):
            return HostGone(last_s, asked_s)
        last_s = asked_s
        time.sleep(_GONE_STEP_S)
    return None


def wait_back(host: Host, reach: Reach, timeout_s: float) -> float | None:
    """When the host answered again, None when it did not until the timeout."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if reach(host):
            return time.time()
        time.sleep(_BACK_STEP_S)
    return None


_logger = logging.getLogger(__name__)

# For logging in, starting Python and a few commands on a busy host; the witness's observations come on top.
_REPLY_TIMEOUT_S = 60.0
# Agentless switches are read several times, and each of their commands may take seconds.
_SWITCH_REPLY_TIMEOUT_S = 240.0
_WITNESS_WINDOWS = 4
_GONE_WITHIN_S = 5.0
# A real host takes minutes to restart.
_BACK_WITHIN_S = 600.0


class Injector:
    """Applies faults of the catalogue to hosts and switches.

    `connect` opens a connection to a host by name, `python` names the interpreter there that has c4bench. The injector
    becomes root there by itself (see `privilege`). The request, onset and end of every fault are written to `record`. A
    host whose state was not restored is quarantined: no further fault is applied there. `hosts` are all hosts of the
    fabric: a witness probes a NIC of another one than the target. With `crossings`, faults of switches' ports and of
    what a NIC receives are seen on the path of the data (`path_witness`), where that is known.
    """

    def __init__(
        self,
        connect: Callable[[str], Connection],
        python: Callable[[str], str],
        record: History | None = None,
        *,
        reach: Reach = answers,
        hosts: Sequence[Host] = (),
        crossings: Crossings | None = None,
    ) -> None:
        self._connect, self._python, self._record = connect, python, record
        self._crossings = crossings
        self._reach, self._hosts = reach, hosts
        self._catalogue = catalogue.load()
        self._quarantined: dict[str, str] = {}

    def apply(
        self,
        name: str,
        host: Host,
        *,
        nic: int | None = None,
        port: str | None = None,
        netns: str | None = None,
        gpu: int | None = None,
        job: str | None = None,
        rank: int | None = None,
        lease_s: float = 30.0,
        witness_s: float = 0.3,
        **parameters: Value,
    ) -> contextlib.AbstractContextManager[Applied]:
        """`apply_at` with the parts of a place as arguments; a switch is a host without NICs."""
        chosen = None if nic is None else places.nic(host, nic)
        peers = places.peers_of(host, self._hosts) if job is None else ()
        place = Place(host, chosen, port, netns, gpu, job, rank, peers)
        return self.apply_at(name, place, parameters, lease_s=lease_s, witness_s=witness_s)

    @contextlib.contextmanager
    def apply_at(
        self,
        name: str,
        place: Place,
        parameters: Mapping[str, Value] | None = None,
        *,
        lease_s: float = 30.0,
        witness_s: float = 0.3,
        last_nic: bool = True,
        within: Radius = Radius.FABRIC,
    ) -> Iterator[Applied]:
        """The fault is in force and was witnessed within the block; the host's state is restored after it.

        Where the fault makes the host unreachable, leaving the block waits until the host is back after the lease.
        Raises UsageError for a request that does not fit the catalogue, the host or the radius `within`,
        UnhealthyError when the host cannot apply it or its state was not restored, InconclusiveError when the witness
        saw no effect or the lease ended too early.
        """
        request = place.request(name, dict(parameters or {}), lease_s, witness_s, last_nic=last_nic)
        spec, request = self._catalogue.resolve(request)
        self._refuse(spec, place.host, within)
        self._record_event("fault_asked", time.time(), request, fault=name, lease_s=lease_s)
        fields = {"fault": name, "target": request.where}
        _logger.info("%s on %s: requested, lease %g s", name, request.where, lease_s, extra=fields)
        watched = path_witness.start(spec, request, self._crossings, self._connect, self._python)
        with contextlib.ExitStack() as open_now:
            if watched:
                open_now.enter_context(contextlib.closing(watched))
            session = open_now.enter_context(contextlib.closing(self._start("hold", request)))
            applied = self._applied(session, place.host, request, watched)
            try:
                _check_seen(applied, request)
                yield applied
            except BaseException:
                # Report the block's error, not one of the revert; the watchdog reverts if we fail.
                with contextlib.suppress(UnhealthyError):
                    self._finish(session, spec, applied, place.host, request)
                raise
            healed = self._finish(session, spec, applied, place.host, request, watched)
        _check_healed(healed, request)

    @contextlib.contextmanager
    def apply_compound(
        self,
        name: str,
        targets: Sequence[Place],
        *,
        lease_s: float = 30.0,
        witness_s: float = 0.3,
        last_nic: bool = True,
        within: Radius = Radius.FABRIC,
    ) -> Iterator[list[Applied]]:
        """All parts of a compound are in force within the block, each applied at least `after_s` after the first.

        Raises UsageError for too few targets or a fault that is no compound, otherwise as `apply_at`.
        """
        spec = self._catalogue.find(name)
        check_targets(spec, targets)
        for place in targets:
            self._refuse(spec, place.host, within)
        began_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            applied: list[Applied] = []
            for part in sorted(spec.parts, key=lambda part: part.after_s):
                time.sleep(max(0.0, began_s + part.after_s - time.monotonic()))
                place = targets[part.target]
                times = {"lease_s": lease_s, "witness_s": witness_s}
                fault = self.apply_at(part.fault, place, part.parameters, **times, last_nic=last_nic, within=within)
                applied.append(stack.enter_context(fault))
                began_s = time.monotonic() if len(applied) == 1 else began_s
            yield applied

    def plan(self, name: str, place: Place, parameters: Mapping[str, Value] | None = None) -> Planned:
        """The commands that `apply_at` would run there. Reads the host and changes nothing."""
        reply = self._planned(name, place, parameters or {})
        if isinstance(reply, Refused):
            raise reply.raised(place.host.name)
        return reply

    def obstacle(self, name: str, place: Place, parameters: Mapping[str, Value]) -> str:
        """Why the place cannot have the fault with these parameters, as its driver says; "" where it can."""
        reply = self._planned(name, place, parameters)
        if isinstance(reply, Refused) and reply.exit_code != UnhealthyError.exit_code:
            raise reply.raised(place.host.name)
        return reply.error if isinstance(reply, Refused) else ""

    def _planned(self, name: str, place: Place, parameters: Mapping[str, Value]) -> Planned | Refused:
        _, request = self._catalogue.resolve(place.request(name, dict(parameters), 30.0, 0.3, last_nic=True))
        with contextlib.closing(self._start("plan", request)) as session:
            reply = _reply(session, request)
        if not isinstance(reply, Planned | Refused):
            raise UnhealthyError(f"{request.host}: {name} was not planned: {reply}")
        return reply

    def _refuse(self, spec: FaultSpec, host: Host, within: Radius) -> None:
        if not host.disruptive:
            raise UsageError(
                f"{host.name} is not marked `disruptive: true` in the inventory; choose another host or set it"
            )
        if not spec.reach.within(within):
            raise UsageError(
                f"{spec.name} affects the {spec.reach}, which is wider than the {within} you allow; "
                "raise that limit or choose another fault"
            )
        if host.name in self._quarantined:
            raise UnhealthyError(
                f"{host.name} is quarantined: {self._quarantined[host.name]}; restore it, then run `c4bench fault heal`"
            )

    def _start(self, what: str, request: FaultRequest) -> Session:
        text = msgspec.json.encode(request).decode()
        if request.switch:
            return LocalConnection(request.host).start([*OWN_INJECTOR, what, text])
        return self._connect(request.host).start([*self._command(request.host), what, text])

    def _command(self, host: str) -> list[str]:
        return [self._python(host), "-m", "c4bench.inject"]

    def _applied(self, session: Session, host: Host, request: FaultRequest, watched: PathWatch | None) -> Applied:
        try:
            reply = _read(session, request)
        except C4Error as error:
            self._record_event("fault_refused", time.time(), request, fault=request.fault, error=str(error))
            raise
        if isinstance(reply, Leaving):
            reply = self._wait_absent(reply, host)
        if not isinstance(reply, Applied):
            raise UnhealthyError(f"{request.host}: {request.fault} ended before it began: {reply}")
        if watched:
            reply = msgspec.structs.replace(reply, witness=watched.during(reply.onset_s, reply.witness))
        self._record_event("fault_applied", reply.onset_s, request, **applied_event(reply, request))
        level, seen = (logging.INFO, "effect seen") if reply.witness.seen else (logging.WARNING, "effect not seen")
        fields = {"fault": request.fault, "target": request.where, "lease": reply.id}
        _logger.log(level, "%s on %s: applied, %s; %s", request.fault, request.where, seen, reply.id, extra=fields)
        return reply

    def _wait_absent(self, leaving: Leaving, host: Host) -> Applied:
        """Witness from here that the host does not answer."""
        gone = wait_gone(host, self._reach, _GONE_WITHIN_S)
        witnessed = WitnessReport(
            gone is not None, gone.time_s if gone else None, {"answers": 1.0}, {"answers": float(not gone)}
        )
        return Applied(
            id=leaving.id,
            fault=leaving.fault,
            target=leaving.target,
            syndrome=leaving.syndrome,
            onset_s=gone.time_s if gone else leaving.leaving_s,
            onset_bound_s=gone.time_s - gone.last_s if gone else 0.0,
            expires_s=leaving.expires_s,
            witness=witnessed,
        )

    def _finish(
        self,
        session: Session,
        spec: FaultSpec,
        applied: Applied,
        host: Host,
        request: FaultRequest,
        watched: PathWatch | None = None,
    ) -> Healed:
        try:
            away = spec.witness == ABSENCE and applied.witness.seen
            healed = self._wait_back(applied, host, request) if away else self._revert(session, request)
        except UnhealthyError as error:
            self._quarantine(host.name, str(error))
            raise
        if healed.residue:
            self._quarantine(host.name, "; ".join(healed.residue))
        if watched:
            healed = path_witness.healed(healed, watched.after())
        self._record_event("fault_healed", healed.healed_s, request, **healed_event(healed, applied, request))
        arguments = (request.fault, request.where, healed.by, healed.reason, healed.id)
        fields = {"fault": request.fault, "target": request.where, "lease": healed.id, "by": healed.by}
        _logger.info("%s on %s: healed by %s (%s); %s", *arguments, extra=fields)
        return healed

    def _quarantine(self, host: str, reason: str) -> None:
        self._quarantined[host] = reason
        _logger.error("%s is not clean after the fault, no further fault is applied there: %s", host, reason)
        if self._record:
            self._record.event(time.time(), "host_quarantined", host=host, reason=reason)

    def _revert(self, session: Session, request: FaultRequest) -> Healed:
        with contextlib.suppress(UnhealthyError):  # the lease may have ended it; it has said so then
            session.write_line(protocol.REVERT)
        reply = _read(session, request)
        if not isinstance(reply, Healed):
            raise UnhealthyError(f"{request.host}: {request.fault} did not end: {reply}")
        return reply

    def _wait_back(self, applied: Applied, host: Host, request: FaultRequest) -> Healed:
        """Wait until the host answers, and revert what is left of the fault there."""
        left_s = max(0.0, applied.expires_s - time.time()) + _BACK_WITHIN_S
        back_s = wait_back(host, self._reach, left_s)
        if back_s is None:
            raise UnhealthyError(
                f"{host.name} does not answer {_BACK_WITHIN_S:g} s after {request.fault} should have ended"
            )
        with self._connect(host.name) as connection:
            answer = connection.run([*self._command(host.name), "heal"], timeout_s=_REPLY_TIMEOUT_S, check=False)
        residue = () if answer.code == 0 else (answer.stdout.decode(errors="replace").strip(),)
        return Healed(applied.id, "asked", "lease", back_s, True, {"answers": 1.0}, residue, ())

    def _record_event(self, kind: str, time_s: float, request: FaultRequest, **fields: Field) -> None:
        if self._record:
            self._record.event(time_s, kind, **{"host": request.host, "where": request.where} | fields)


def check_targets(spec: FaultSpec, targets: Sequence[Place]) -> None:
    """Raises UsageError unless there is a target for each part of a compound, or one for a single fault."""
    needed = 1 + max((part.target for part in spec.parts), default=0)
    if len(targets) != needed:
        raise UsageError(
            f"{spec.name} happens to {needed} target{'s' if needed > 1 else ''}, {len(targets)} given; name that many"
        )


def _reply(session: Session, request: FaultRequest) -> Reply:
    usual_s = _SWITCH_REPLY_TIMEOUT_S if request.switch else _REPLY_TIMEOUT_S
    return protocol.decode(session.read_line(usual_s + _WITNESS_WINDOWS * request.witness_s))


def _read(session: Session, request: FaultRequest) -> Reply:
    reply = _reply(session, request)
    if isinstance(reply, Refused):
        raise reply.raised(request.host)
    return reply


def _check_seen(applied: Applied, request: FaultRequest) -> None:
    if not applied.witness.seen:
        values = f"before {_format(applied.witness.before)}; during {_format(applied.witness.during)}"
        raise InconclusiveError(
            f"{request.fault} on {request.where} was applied and not seen to take effect on the "
            f"{applied.witness.plane} plane ({values}); check that the target is in use, or raise witness_s"
        )


def _check_healed(healed: Healed, request: FaultRequest) -> None:
    if healed.residue:
        raise UnhealthyError(
            f"{request.host} is not as it was before {request.fault} on {request.where}: {'; '.join(healed.residue)}"
        )
    if healed.recovered is False:
        raise UnhealthyError(
            f"{request.host}: {request.where} has not recovered from {request.fault} (now {_format(healed.after)})"
        )
    if healed.reason != "asked":
        raise InconclusiveError(
            f"{request.fault} on {request.where} ended ({healed.reason}) before the scenario did; "
            f"ask for a lease of more than {request.lease_s:g} s"
        )


def _format(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
