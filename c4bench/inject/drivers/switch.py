"""Faults of a whole switch."""

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, together
from c4bench.inject.drivers import netdev
from c4bench.inject.registry import driver
from c4bench.inject.switches import SwitchTarget
from c4bench.model.fault import FaultRequest


@driver("switch.down")
def down(request: FaultRequest, target: SwitchTarget) -> Plan:
    """Set every port down; the revert sets all up, then restores their routes."""
    if not target.ports:
        raise UnhealthyError(f"{request.host} has no port that is up; choose another switch")
    plans = [netdev.down(request, port) for port in target.ports]
    both = together(*plans)
    links = tuple(plan.revert[0] for plan in plans)
    return Plan(both.claims, both.apply, (*links, *(a for a in both.revert if a not in links)), both.sudden)
