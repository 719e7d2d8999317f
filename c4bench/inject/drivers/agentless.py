"""Faults of agentless switches: the changes of each system, and on plain Linux the drivers of any interface.

A change `down` of the system `sonic` is the driver `sonic.down`. On plain Linux the commands that a driver plans for an
interface are run on the switch.
"""

from collections.abc import Callable

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run
from c4bench.inject.agentless import AgentlessTarget
from c4bench.inject.drivers import netdev, switch
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import DRIVERS, driver
from c4bench.inject.targets import SwitchTarget
from c4bench.model.fault import FaultRequest, SwitchPort
from c4bench.switches import linux
from c4bench.switches.system import Change, Changer, Cycle, port_of
from c4bench.switches.systems import SYSTEMS

InterfaceDriver = Callable[[FaultRequest, InterfaceTarget], Plan]


def _register(name: str, changer: Changer) -> None:
    def plan(request: FaultRequest, target: object) -> Plan:
        found = _agentless(request, target)
        return found.planned(changer(found.facts, request))

    plan.__doc__ = changer.__doc__
    DRIVERS.add(name, plan)


def _agentless(request: FaultRequest, target: object) -> AgentlessTarget:
    if not isinstance(target, AgentlessTarget):
        raise UnhealthyError(
            f"{request.host} is changed over SSH, without c4bench there; state its system in the inventory (c4.os)"
        )
    return target


for _system in SYSTEMS.values():
    for _name, _changer in _system.changes.items():
        _register(f"{_system.name}.{_name}", _changer)


def _on_linux(name: str, plan_interface: InterfaceDriver, *, of_link: bool = False) -> None:
    """Register a driver of interfaces for a port of a plain Linux switch; `of_link` are those that reach a chip too."""

    def plan(request: FaultRequest, target: object) -> Plan:
        found = _agentless(request, target)
        port = port_of(found.facts, request).name
        if linux.has_chip(found.facts, port) and not of_link:
            raise UnhealthyError(f"the chip of {request.where} forwards, and the kernel's tc does not reach it")
        return found.planned(_change(plan_interface(request, _interface(found, port))))

    plan.__doc__ = plan_interface.__doc__
    DRIVERS.add(name, plan)


_on_linux("linux.down", netdev.down, of_link=True)
_on_linux("linux.flap", netdev.flap, of_link=True)
_on_linux("linux.rate", netdev.rate)
_on_linux("linux.loss", netdev.loss)
_on_linux("linux.blackhole", netdev.blackhole)
_on_linux("linux.acks_lost", switch.acks_lost)
_on_linux("linux.ecmp_member", switch.ecmp_member)
_on_linux("linux.ecmp_out", switch.ecmp_out)
_on_linux("linux.misrouted", switch.misrouted)


@driver("linux.switch_down")
def switch_down(request: FaultRequest, target: AgentlessTarget) -> Plan:
    """Set every port down but the one by which the switch is reached."""
    ports = SwitchTarget(tuple(_interface(target, name) for name in target.ports_up()))
    return target.planned(_change(switch.switch_down(request, ports)))


def _interface(target: AgentlessTarget, port: str) -> InterfaceTarget:
    """A port of the switch as the drivers of interfaces see one."""
    where = SwitchPort(target.request.host, port)
    sections = linux.port_sections(target.facts, port)
    return InterfaceTarget(where, linux.index_of(target.facts, port), sections, target.facts.ports[port].speed_bps)


def _change(plan: Plan) -> Change:
    """A plan for an interface as lines of a shell."""
    apply, revert = (tuple(map(_line, actions)) for actions in (plan.apply, plan.revert))
    rhythm = plan.rhythm
    cycle = Cycle(rhythm.period_s, rhythm.duty, rhythm.count) if rhythm else None
    return Change(plan.claims, apply, revert, cycle)


def _line(action: object) -> str:
    assert isinstance(action, Run)
    return str(action)
