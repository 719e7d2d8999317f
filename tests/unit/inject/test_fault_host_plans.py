"""Plans of host faults: what is done and undone, and what is refused."""

import pytest
from fakes import NOQUEUE, target

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Delete, Fill, Plan, Run, StepClock, Write
from c4bench.inject.drivers import host
from c4bench.inject.targets import HostTarget
from c4bench.model.fault import FaultRequest

GIB = 1 << 30


def on_host(**different):
    """A host with one NIC, which is also its management interface."""
    usual = {
        "management": target(NOQUEUE),
        "nics": (target(NOQUEUE),),
        "shared": False,
        "sysrq": "/proc/sysrq-trigger",
        "panic": "0",
        "memory_available_bytes": 10 * GIB,
        "disk_available_bytes": GIB,
        "time_s": 1000.0,
        "monotonic_s": 50.0,
    }
    return HostTarget(**usual | different)


def request(fault, lease_s=12.3, **parameters):
    return FaultRequest(fault, "h5", parameters=parameters, lease_s=lease_s)


def test_a_crash_restarts_at_the_end_of_the_lease_and_a_reboot_at_once():
    """The kernel panics and restarts after the lease, rounded up; the setting is put back to what it was."""
    panic = "/proc/sys/kernel/panic"
    assert host.crash(request("host.crash"), on_host()) == Plan(
        ("power",), (Write(panic, "13"), Write("/proc/sysrq-trigger", "c")), (Write(panic, "0"),)
    )
    assert host.reboot(request("host.reboot"), on_host()) == Plan(("power",), (Write("/proc/sysrq-trigger", "b"),), ())
    for fault in (host.crash, host.reboot):
        with pytest.raises(UnhealthyError, match="h5 has no /proc/sysrq-trigger"):
            fault(request("host.crash"), on_host(sysrq=""))


def test_a_clock_that_is_shared_is_not_stepped():
    """The clock steps by the offset and back to undisturbed time; a container's is another's too."""
    assert host.clock_step(request("host.clock_step", offset_s=-2.5), on_host()) == Plan(
        ("clock",), (StepClock(1000.0, 50.0, -2.5),), (StepClock(1000.0, 50.0, 0.0),)
    )
    with pytest.raises(UnhealthyError, match="shares its clock"):
        host.clock_step(request("host.clock_step", offset_s=1.0), on_host(shared=True))


def test_a_tenth_of_the_memory_stays_free():
    """Nine tenths of what is available may be taken, and one byte more is refused with both figures."""
    path = "/dev/shm/c4bench-fault"
    taken = host.memory(request("host.memory", bytes=9 * GIB), on_host())
    assert taken == Plan(("memory",), (Fill(path, 9 * GIB),), (Delete(path),))
    with pytest.raises(UnhealthyError, match=rf"{10 * GIB} bytes of memory available, of which {GIB} must"):
        host.memory(request("host.memory", bytes=9 * GIB + 1), on_host())


def test_a_disk_is_filled_but_for_what_is_left():
    """All but `left_bytes` is taken; where there is no more than that already, the fault is refused."""
    (fill,) = host.disk_full(request("host.disk_full", left_bytes=4096), on_host()).apply
    assert fill.size_bytes == GIB - 4096
    with pytest.raises(UnhealthyError, match=f"only {GIB} bytes left"):
        host.disk_full(request("host.disk_full", left_bytes=GIB), on_host())


def test_the_management_interface_is_cut_in_both_directions():
    """One drop each for what comes and what goes, undone together; an interface with filters of its own is left."""
    cut = host.management_cut(request("host.management_cut"), on_host())
    dropped = ("pref", "1", "matchall", "action", "drop")
    assert cut.apply == (
        Run(("tc", "qdisc", "add", "dev", "h5n0", "clsact")),
        Run(("tc", "filter", "add", "dev", "h5n0", "ingress", *dropped)),
        Run(("tc", "filter", "add", "dev", "h5n0", "egress", *dropped)),
    )
    assert cut.revert == (Run(("tc", "qdisc", "del", "dev", "h5n0", "clsact")),)
    assert (cut.claims, cut.sudden) == (("ingress of h5n0",), 2)
    with pytest.raises(UnhealthyError, match="no default route"):
        host.management_cut(request("host.management_cut"), on_host(management=None))
    own = target(NOQUEUE[:-1] + ',{"kind":"clsact","handle":"ffff:","parent":"ffff:fff1"}]')
    with pytest.raises(UnhealthyError, match="own filters"):
        host.management_cut(request("host.management_cut"), on_host(management=own))


def test_a_data_cut_needs_nics():
    """Every NIC is a black hole in both directions; a host without NICs is refused."""
    lost = [
        run.argv[4] for run in host.data_cut(request("host.data_cut"), on_host()).apply if "100.000000%" in run.argv
    ]
    assert lost == ["c4ifb7", "h5n0"]
    with pytest.raises(UnhealthyError, match="no NICs in the inventory"):
        host.data_cut(request("host.data_cut"), on_host(nics=()))
