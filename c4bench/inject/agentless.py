"""A switch on which c4bench is not installed, as the target of a fault: read over SSH, and changed by its own commands.

The injector runs at the controller, as whoever calls it: it needs no root here, and the switch needs no Python.
"""

import time
from collections.abc import Callable
from functools import partial

import msgspec

from c4bench.errors import UsageError, meant
from c4bench.inject import reading, switch_shell
from c4bench.inject.actions import ApplyOnSwitch, Plan, RevertOnSwitch
from c4bench.inject.switch_shell import SwitchFault
from c4bench.inject.witness.base import STATE, Aftermath, Evidence, Values, wait_until
from c4bench.model.fault import AgentlessSwitch, FaultRequest, SwitchPort
from c4bench.switches import linux
from c4bench.switches.facts import SwitchFacts
from c4bench.switches.system import Change, System
from c4bench.switches.systems import SYSTEMS

# A link that comes back trains for seconds.
_BACK_WITHIN_S = 40.0
_POLL_S = 0.5


class AgentlessTarget(msgspec.Struct, frozen=True):
    """A switch, and its port where one is named.

    `uptime_ms` was its uptime at `read_s` of our monotonic clock; `session` is the address by which it is reached, ""
    where that is not known.
    """

    request: FaultRequest
    facts: SwitchFacts
    boot: str
    uptime_ms: int
    read_s: float
    session: str

    @property
    def listing(self) -> dict[str, str]:
        """The configuration that a fault may change, by section."""
        return system_of(self.request).listing(self.facts, self.request.port)

    def planned(self, change: Change) -> Plan:
        """The change as a plan. Raises UsageError for the port by which we reach the switch."""
        if self.request.port is not None:
            self._refuse_management(self.request.port)
        fault = SwitchFault(
            name=self.request.host,
            switch=reached(self.request),
            token=switch_shell.token(),
            claims=change.claims,
            apply=change.apply,
            revert=change.revert,
            boot=self.boot,
            cycle=change.cycle,
            ends_s=change.ends_s,
        )
        return Plan(change.claims, (ApplyOnSwitch(fault, self.uptime_ms, self.read_s),), (RevertOnSwitch(fault),))

    def ports_up(self) -> list[str]:
        """The ports that are up, without that by which we reach the switch."""
        return [name for name, port in self.facts.ports.items() if port.oper_up and not self._manages(name)]

    def _manages(self, port: str) -> bool:
        known = self.facts.ports.get(port)
        ours = [address.partition("/")[0] for address in known.addresses] if known else []
        return self.session in ours or (self.facts.system == "linux" and port == linux.default_port(self.facts))

    def _refuse_management(self, port: str) -> None:
        if self._manages(port):
            raise UsageError(f"{self.request.where} carries the session to {self.request.host}; name another port")


def reached(request: FaultRequest) -> AgentlessSwitch:
    """How the switch of a request is reached; UsageError where it is not an agentless one."""
    if request.switch is None:
        raise UsageError(f"{request.host} is no switch that is changed over SSH; state its system in c4.os")
    return request.switch


def system_of(request: FaultRequest) -> System:
    """The switch's system. Raises UsageError for one that c4bench does not know."""
    name = reached(request).system
    if name not in SYSTEMS:
        known = f"; c4.os is one of {', '.join(SYSTEMS)}"
        raise UsageError(f"{request.host}: there is no system {name!r} of a switch{meant(name, SYSTEMS, known)}")
    return SYSTEMS[name]


def examine(request: FaultRequest) -> AgentlessTarget:
    """Read the switch. Raises UnhealthyError for one that cannot be reached or is of another kind, in one line."""
    return msgspec.structs.replace(reading.answer(reached(request), partial(_read, request)), request=request)


def _read(request: FaultRequest) -> AgentlessTarget:
    system = system_of(request)
    answer = switch_shell.read(request.host, reached(request), system.reads)
    read_s = time.monotonic()
    facts = system.parse(answer.printed)
    session = (*answer.said.get("session", "").split(), "", "", "")[2]
    boot, uptime_ms = answer.said.get("boot", ""), int(answer.said["uptime_ms"])
    return AgentlessTarget(request, facts, boot, uptime_ms, read_s, session)


def ports(request: FaultRequest) -> list[SwitchPort]:
    """Its ports that are up."""
    return [SwitchPort(request.host, name) for name in examine(request).ports_up()]


class SwitchWitness:
    """What the switch itself says: `changed` rows of its configuration, how many ports are `up`, and their `flaps`.

    The port is that of the request, or all that were up. Seen when the configuration reads back otherwise than before;
    by `link_state` and `switch_state` when the ports are down as well, by `link_flaps` when the port went down and up.
    Recovered when configuration and ports are as before.
    """

    plane = STATE

    def __init__(self, request: FaultRequest, witness: str) -> None:
        self._request, self._witness = request, witness
        self._listing: dict[str, str] = {}
        self._ports: list[str] = []
        self._flaps = 0.0

    def before(self) -> Values:
        """Read the switch before the fault."""
        target = examine(self._request)
        self._listing = target.listing
        up = target.ports_up()
        self._ports = up if self._request.port is None else [port for port in up if port == self._request.port]
        self._flaps = self._changes(target)
        return self._values(target)

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (all of it is read after the onset)
        """Read it until the change is seen, at most as long as the request says."""
        flaps = self._witness == "link_flaps"
        window_s = self._request.witness_s + (2 * self._request.number("period_s") if flaps else 0.0)
        values, observed_s = self._read_until(self._seen, window_s)
        return Evidence(values, observed_s)

    def after(self) -> Aftermath:
        """Read it until all is as before."""
        values, healthy_s = self._read_until(self._healthy, _BACK_WITHIN_S)
        return Aftermath(values, healthy_s is not None)

    def _read_until(self, holds: Callable[[Values], bool], timeout_s: float) -> tuple[Values, float | None]:
        values: Values = {}

        def reads() -> bool:
            nonlocal values
            values = self._values(examine(self._request))
            return holds(values)

        since_s = wait_until(reads, timeout_s, _POLL_S)
        return values, since_s

    def _seen(self, values: Values) -> bool:
        match self._witness:
            case "link_flaps":
                return values["flaps"] > 1
            case "link_state" | "switch_state":
                return bool(values["changed"]) and not values["up"]
        return bool(values["changed"])

    def _healthy(self, values: Values) -> bool:
        return not values["changed"] and values["up"] == len(self._ports)

    def _values(self, target: AgentlessTarget) -> Values:
        rows, others = (
            {line for text in listing.values() for line in text.split("\n")}
            for listing in (self._listing, target.listing)
        )
        up = sum(target.facts.ports[name].oper_up for name in self._ports if name in target.facts.ports)
        return {
            "changed": float(len(rows ^ others)),
            "up": float(up),
            "flaps": self._changes(target) - self._flaps,
        }

    def _changes(self, target: AgentlessTarget) -> float:
        known = (target.facts.ports[name] for name in self._ports if name in target.facts.ports)
        return float(sum(port.carrier_changes or 0 for port in known))
