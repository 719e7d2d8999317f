"""What this session has of its hosts: which of them it may use, for how long, and what they can do."""

import argparse
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from c4bench import remote
from c4bench.doctor.capabilities import Capability, Report
from c4bench.doctor.hosts import look_at
from c4bench.doctor.overview import document
from c4bench.doctor.switches import ask_all
from c4bench.inject import catalogue, feasibility
from c4bench.inject.feasibility import Feasibility
from c4bench.inventory import Inventory
from c4bench.lab.spec import ROUTING_DAEMONS
from c4bench.pytest_plugin.verdicts import IN_LAB
from c4bench.record import RunDirectory
from c4bench.remote.clock import ClockOffset
from c4bench.reserve import Reservation, drained, scheduler

TENANCY = pytest.StashKey["Tenancy"]()
# Without these a host is broken for every scenario; what else it lacks is some scenarios' business.
_CONNECTX = "mlx5_"  # how devices of ConnectX NICs are named
_VITAL = ("reachable", "clean")


class Tenancy:
    """The hosts of a session: checked, reserved and drained at its beginning, given back at its end.

    `refusal` is the one reason to skip every scenario, "" where there is none. `broken` are hosts that fell out, and
    why; `clocks` are those of reserved hosts, against ours.

    Raises UnhealthyError when somebody else has the hosts, or the scheduler does not give them.
    """

    def __init__(self, option: argparse.Namespace, inventory: Inventory, command: str) -> None:
        self.inventory, self.refusal = inventory, ""
        self.broken: dict[str, str] = {}
        self.clocks: dict[str, ClockOffset] = {}
        self._reports: dict[str, Report] | None = None
        self._reservation: Reservation | None = None
        self._faults: Feasibility | None = None
        self._partial = bool(option.c4_allow_partial)
        self._disruptive = bool(option.c4_allow_disruptive)
        self._cleanup = ExitStack()
        if option.c4_reserve or option.c4_scheduler:
            with ExitStack() as undo:
                self._enter(undo, option, command)
                self._cleanup = undo.pop_all()

    def _enter(self, undo: ExitStack, option: argparse.Namespace, command: str) -> None:
        known = scheduler(option.c4_scheduler) if option.c4_scheduler else None
        reports = self.reports()
        found = document(self.inventory, tuple(reports.values()), ask_all(self.inventory))
        # Marks of switches' ports are by number, and keys in JSON are text.
        RunDirectory(Path(option.c4_run_dir)).save("doctor", msgspec.to_builtins(found, str_keys=True))
        for report in reports.values():
            lacking = [capability for name in _VITAL if (capability := report.lacks(name))]
            if lacking:
                self._drop(report.host, f"{lacking[0].detail}; {lacking[0].fix}")
        hosts = [host.name for host in self.inventory.hosts if host.name not in self.broken]
        if not hosts or self.refusal:
            return
        if option.c4_reserve:
            self._reservation = Reservation(self.inventory, hosts, command, ttl_s=option.c4_reserve)
            undo.callback(self._reservation.close)
        if known:
            undo.enter_context(drained(known, hosts))

    def _drop(self, host: str, reason: str) -> None:
        if host in self.broken:
            return
        self.broken[host] = reason.removeprefix(f"{host}: ")
        kept = tuple(other for other in self.inventory.hosts if other.name not in self.broken)
        if self._partial and kept:
            self.inventory = msgspec.structs.replace(self.inventory, hosts=kept)
        elif not self.refusal:
            advice = "" if self._partial else " (or go on without it: --c4-allow-partial)"
            self.refusal = f"broken-host: {host}: {self.broken[host]}{advice}"

    def reports(self) -> dict[str, Report]:
        """What each host can do; looked at once a session."""
        if self._reports is None:
            self._reports = {report.host: report for report in look_at(self.inventory)}
        return self._reports

    def capable(self, capabilities: Iterable[str]) -> frozenset[str]:
        """The hosts that are not broken and have all of these."""
        required = tuple(capabilities)
        names = (host.name for host in self.inventory.hosts if host.name not in self.broken)
        return frozenset(name for name in names if not required or not _missing(self.reports()[name], required))

    def faults(self) -> Feasibility:
        """Which faults these hosts and switches can have; planned once a session, where faults are allowed."""
        if self._faults is None:
            specs, access = catalogue.load().specs, self.inventory.access
            if not self._disruptive or self.refusal:
                self._faults = Feasibility({})
            elif IN_LAB and not _imitates_hardware(self.inventory):
                self._faults = feasibility.of_lab(specs)
            else:
                self._faults = feasibility.ask_hosts(
                    self.inventory,
                    specs,
                    lambda host: remote.connect(host, access[host]),
                    lambda host: access[host].python,
                )
        return self._faults

    def shortage(self, capabilities: Iterable[str], hosts: int, implied: Iterable[str] = ()) -> str:
        """Why fewer than so many hosts have all of these, as a reason to skip; "" where enough do.

        A missing capability, also one that is only `implied` by a scenario's fixtures, is a reason before the count is.
        """
        required = tuple(capabilities)
        able = self.capable(required)
        if len(able) >= hosts:
            return ""
        wanted = (*required, *implied)
        for host in self.inventory.hosts if wanted else ():
            missing = _missing(self.reports()[host.name], wanted)
            if missing:
                count = len(self.capable(wanted))
                return f"no-{missing.name}: {count} of {hosts} hosts have it ({host.name}: {missing.detail})"
        return f"too-few-hosts: {len(able)} of {hosts}"

    def recheck(self) -> None:
        """Between modules: drop hosts that are not clean or no longer reserved, and read the clocks again."""
        if self._reservation is not None and not self.refusal:
            self.clocks |= self._reservation.clocks()
            for host, reason in self._reservation.dirty().items():
                self._drop(host, reason)

    def close(self) -> None:
        """Give the hosts back. Raises UnhealthyError when the scheduler does not take them."""
        self._cleanup.close()


def _imitates_hardware(inventory: Inventory) -> bool:
    """Whether a lab's switches or NICs are like a vendor's, or route themselves: they can have fewer faults."""
    systems = any(inventory.facts[name].os for name in inventory.switches) or Path(ROUTING_DAEMONS).exists()
    return systems or any(nic.device.startswith(_CONNECTX) for host in inventory.hosts for nic in host.nics)


def _missing(report: Report, capabilities: Iterable[str]) -> Capability | None:
    return next((capability for name in capabilities if (capability := report.lacks(name))), None)
