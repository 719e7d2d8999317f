"""The systems of switches that c4bench can change without being installed there, by the inventory's name for them."""

from collections.abc import Mapping

from c4bench.model.fault import Misconfiguration
from c4bench.switches import eos, linux, nvue, sonic
from c4bench.switches.system import System

SYSTEMS: Mapping[str, System] = {
    system.name: system for system in (sonic.SYSTEM, nvue.SYSTEM, eos.SYSTEM, linux.SYSTEM)
}

# What is said of a switch whose system is not known, or has no command for it.
_IN_WORDS = {
    Misconfiguration.PFC_OFF: "switch PFC on at priority {priority}",
    Misconfiguration.ECN_OFF: "mark packets (ECN) in the queue of priority {priority}",
    Misconfiguration.ECN_THRESHOLDS: "set ECN thresholds of {low} and {high} bytes, {percent} %",
    Misconfiguration.DSCP_MAP: "trust DSCP, and map DSCP {dscp} to priority {priority}",
    Misconfiguration.MTU: "set an MTU of {mtu}",
    Misconfiguration.WATCHDOG_OFF: "switch the PFC watchdog on",
    Misconfiguration.ADAPTIVE_ROUTING: "switch adaptive routing off",
}


def fix(system: str, kind: Misconfiguration, values: Mapping[str, object]) -> str:
    """The command that corrects a port's setting; `values` has its `port` and, by kind, the right values."""
    known = SYSTEMS[system].fixes if system in SYSTEMS else {}
    return known.get(kind, _IN_WORDS[kind]).format_map(values)
