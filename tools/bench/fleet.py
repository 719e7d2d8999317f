"""Doctor, plan and report for a large inventory, in one process so that its memory can be read.

Hosts are processes of this machine. Each has its own session and sends real echo requests to the next address; only
network and login time are left out.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.c4p.placement.planner import Planner
from c4bench.doctor.capabilities import State
from c4bench.doctor.hosts import look_at
from c4bench.doctor.overview import Document, document
from c4bench.errors import UnhealthyError
from c4bench.inventory import Inventory, load
from c4bench.inventory.review import review
from c4bench.model.fabric import Flow
from c4bench.model.measurement import Clock
from c4bench.record import Ledger, begin
from c4bench.record.artefacts import DelayMatrices, DelayMatrix
from c4bench.report import evaluate_run, render

_HOSTS_PER_LEAF, _SPINES, _PEERS = 16, 16, 8
_FIRST_PORT = 0xC001
_RATE_BPS = 1e11
_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
Result = TypeVar("Result")


class Reading(msgspec.Struct, frozen=True):
    """Time in seconds and peak memory in bytes for a fleet of `hosts` hosts.

    Of `doctor_s`, our own process computes for `doctor_own_cpu_s`; the hosts, which are processes here, for
    `doctor_hosts_cpu_s` together, which real hosts would divide among them.
    """

    hosts: int
    doctor_s: float
    doctor_own_cpu_s: float
    doctor_hosts_cpu_s: float
    inventory_s: float
    plan_s: float
    report_s: float
    peak_bytes: int


def main(argv: list[str] | None = None) -> int:
    """Write an inventory of `hosts` hosts into a folder, and measure."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.fleet")
    parser.add_argument("hosts", type=int)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    reading = measure(options.hosts, options.folder)
    sys.stdout.write(msgspec.json.encode(reading).decode() + "\n")
    return 0


def measure(hosts: int, folder: Path) -> Reading:
    """Raises UnhealthyError when a host could not be checked, or a flow has no path."""
    path = write_inventory(hosts, folder)
    inventory, inventory_s = _timed(lambda: _checked(path))
    before = [_cpu_s(who) for who in _WHO]
    reports, doctor_s = _timed(lambda: look_at(inventory))
    own_s, hosts_s = (_cpu_s(who) - at_s for who, at_s in zip(_WHO, before, strict=True))
    unseen = [report.host for report in reports if report.lacks("reachable") or report.lacks("mtu")]
    if unseen:
        raise UnhealthyError(f"{len(unseen)} of {hosts} hosts were not looked at, such as {unseen[0]}; try again")
    nics = [host.nics[0].name for host in inventory.hosts]
    _, plan_s = _timed(lambda: _plan(nics))
    _, report_s = _timed(lambda: _report(folder, inventory, document(inventory, reports, ())))
    peak = max(resource.getrusage(who).ru_maxrss for who in _WHO)
    return Reading(hosts, doctor_s, own_s, hosts_s, inventory_s, plan_s, report_s, peak << 10)


def write_inventory(hosts: int, folder: Path) -> Path:
    """Write `hosts` hosts, each with one NIC at its own loopback address."""
    lines = ["all:", "  vars: {ansible_connection: local}", "  hosts:"]
    for number in range(hosts):
        nic = f"{{netdev: lo, address: 127.{1 + number // 250}.0.{1 + number % 250}, rate: 100gbit}}"
        lines.append(f"    gpu{number:03}: {{c4: {{nics: [{nic}], management: eth0}}}}")
    path = folder / "hosts.yml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _checked(path: Path) -> Inventory:
    inventory = load(path)
    problems = review(inventory).problems
    if problems:
        raise UnhealthyError(problems[0])
    return inventory


def _plan(nics: Sequence[str]) -> None:
    """Each NIC to its next eight, over sixteen spines."""
    pairs = [(nic, nics[(index + step) % len(nics)]) for index, nic in enumerate(nics) for step in range(1, _PEERS + 1)]
    leaf = {nic: index // _HOSTS_PER_LEAF for index, nic in enumerate(nics)}

    def hops(source: str, destination: str, spine: int) -> tuple[str, ...]:
        first, last = leaf[source], leaf[destination]
        across = () if first == last else (f"up{first}.{spine}", f"down{spine}.{last}")
        return f"in.{source}", *across, f"out.{destination}"

    atlas = Atlas.from_answers(
        PathTrace(a, b, _FIRST_PORT + spine, hops(a, b, spine)) for a, b in pairs for spine in range(_SPINES)
    )
    planner = Planner(atlas)
    planner.add(Flow(f"{a}>{b}", "fleet", a, b, _RATE_BPS / _PEERS) for a, b in pairs)
    placed = len(planner.assignments())
    if placed != len(pairs):
        raise UnhealthyError(f"{len(pairs) - placed} of {len(pairs)} flows have no path")


def _report(folder: Path, inventory: Inventory, seen: Document) -> None:
    """A page with a figure for each host and the delay matrix of all pairs."""
    command = ("python", "-m", "tools.bench.fleet")
    run = begin(
        folder / "run",
        "fleet",
        command=command,
        seed=0,
        backend="hosts",
        topology="",
        clock="machine",
        inventory_digest=inventory.digest,
    )
    ledger = Ledger(run, "hosts.fleet")
    for report in seen.hosts:
        able = sum(capability.state is not State.ABSENT for capability in report.capabilities)
        ledger.measure("capabilities", able, "1", clock=Clock.NONE, at_least=1, host=report.host)
    names = tuple(host.nics[0].name for host in inventory.hosts)
    row = tuple(8 / _RATE_BPS for _ in names)
    ledger.save("delay_matrix", DelayMatrices((DelayMatrix("all pairs", names, tuple(row for _ in names)),)))
    run.save("doctor", seen)
    evaluate_run(run.path)
    render(run.path)


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began = time.monotonic()
    return work(), time.monotonic() - began


if __name__ == "__main__":
    raise SystemExit(main())
