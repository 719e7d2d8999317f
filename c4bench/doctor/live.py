"""What the tools of a live host print, judged as saved outputs are: the same parsers, the same rules.

What `capabilities` says of RDMA ports is not said again: it knows which NICs the inventory has.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from c4bench.doctor import counters, rules
from c4bench.doctor.facts import Counters, Fact, FixedClass, Gid, Interface, Qos, RdmaPort, Remark
from c4bench.doctor.findings import HostSelfReport
from c4bench.doctor.outputs import sysfs
from c4bench.doctor.outputs.formats import format_of
from c4bench.doctor.outputs.layout import About
from c4bench.doctor.settings import NicSettings, nic_settings

# Between two readings of counters. A cable that loses packets under load adds to them within seconds.
APART_S = 5.0
_OF_HOST = (("show_gids",), ("nvidia-smi",), ("dmesg", "--since", "-1hour"), sysfs.COMMAND)
_OF_INTERFACE = (("ethtool",), ("ethtool", "-i"), ("ethtool", "-m"))
_COUNTERS = ("ethtool", "-S")
_ETHERNET = "Ethernet"
# The answers to commands, in their order, "" for those that failed.
Run = Callable[[Sequence[Sequence[str]]], Sequence[str]]


def examine(
    facts: HostSelfReport, run: Run, apart_s: float = APART_S
) -> tuple[tuple[Remark, ...], tuple[NicSettings, ...]]:
    """What the rules say of a host, and what its NICs are set to.

    Counters are read twice, `apart_s` apart, where some speak against a link.
    """
    names = sorted(facts.netdevs)
    commands = [(argv, "") for argv in _OF_HOST]
    commands += [((*argv, name), name) for name in names for argv in _OF_INTERFACE]
    found = list(_facts(run, commands))
    before: counters.Counts = {}
    after = _counts(run, names)
    if counters.any_errors(after):
        time.sleep(apart_s)
        before, after = after, _counts(run, names)
    return (*rules.judge(found), *counters.judge_ports(before, after)), nic_settings([*found, *_reported(facts)])


def _reported(facts: HostSelfReport) -> Iterator[Fact]:
    """What a host reports itself of its NICs, as facts."""
    for name, netdev in facts.netdevs.items():
        yield Interface(name, mtu_bytes=netdev.mtu_bytes)
        yield Qos(name, netdev.trust, netdev.priorities, netdev.pfc)
    for device in facts.rdma:
        for port in device.ports:
            if port.netdev in facts.netdevs:
                yield RdmaPort(device.name, port.number, port.state, netdev=port.netdev)
            if port.link_layer == _ETHERNET and not port.gid_types:
                yield Gid(device.name, port.number, 0, "", "")
        if device.traffic_class is not None:
            yield FixedClass(device.name, device.traffic_class)


def _counts(run: Run, names: Sequence[str]) -> counters.Counts:
    found = _facts(run, [((*_COUNTERS, name), name) for name in names])
    return {fact.port: fact.counts for fact in found if isinstance(fact, Counters)}


def _facts(run: Run, commands: Sequence[tuple[Sequence[str], str]]) -> Iterator[Fact]:
    """The facts in what the commands print; each is given with the interface that it is about."""
    if not commands:
        return
    for (_, port), text in zip(commands, run([argv for argv, _ in commands]), strict=False):
        found = format_of(text)
        if found is not None:
            yield from found.parse(text, About(port))
