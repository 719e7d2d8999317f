"""The outputs of hosts and switches that can be judged, recognised by their content: where a parser is registered."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from c4bench.doctor.facts import Advice, Fact
from c4bench.doctor.lldp import neighbours
from c4bench.doctor.outputs import configuration, ethernet, infiniband, interfaces, rdma, sonic, sysfs, system
from c4bench.doctor.outputs.layout import About

HEAD = 65_536


class Format(NamedTuple):
    """A kind of output: its name, the pattern that is in its beginning, and the facts in its text.

    `kind` is `host`, `switch` or `fabric`; `quiet` says that it tells of troubles only, so none in it is no trouble.
    """

    name: str
    kind: str
    pattern: re.Pattern[str]
    parse: Callable[[str, About], Iterator[Fact]]
    quiet: bool = False


def _lldp(text: str, _: About) -> Iterator[Fact]:
    yield from neighbours(text)
    if _NO_NEIGHBOURS.search(text):
        yield Advice("lldpctl", "", "no neighbour is known: none sends LLDP, or none has been heard yet", serious=False)


_LLDP = re.compile(
    r'"lldp"\s*:\s*[\[{]|"Neighbors"\s*:\s*\[|^lldp\.\S+\.via=LLDP|^LLDP neighbors:|^Interface:\s+\S+, via: LLDP',
    re.MULTILINE,
)
_NO_NEIGHBOURS = re.compile(r'"lldp"\s*:\s*(?:\[\s*)?(?:\{\s*\}|\[\s*\])|^LLDP neighbors:[-\s]*\Z', re.MULTILINE)
# In the order of trying: what has words of its own comes before what few words tell.
FORMATS = (
    Format("grep of /sys", "host", sysfs.FILES, sysfs.files),
    Format("rdma statistic", "host", rdma.STATISTIC, rdma.rdma_statistic),
    Format("rdma link", "host", rdma.LINK, rdma.rdma_link),
    Format("rdma -j link", "host", rdma.LINK_JSON, rdma.rdma_link),
    Format("ibv_devinfo", "host", rdma.DEVINFO, rdma.ibv_devinfo),
    Format("ibstat", "host", rdma.IBSTAT, rdma.ibstat),
    Format("show_gids", "host", rdma.GIDS, rdma.show_gids),
    Format("ethtool", "host", ethernet.SETTINGS, ethernet.settings),
    Format("ethtool -i", "host", ethernet.DRIVER, ethernet.driver),
    Format("ethtool -S", "host", ethernet.STATISTICS, ethernet.statistics),
    Format("ethtool -m", "host", ethernet.MODULE, ethernet.module),
    Format("mlxlink", "host", ethernet.MLXLINK, ethernet.mlxlink),
    Format("mlnx_qos", "host", ethernet.MLNX_QOS, ethernet.mlnx_qos),
    Format("ip -s -j link", "host", ethernet.IP_LINK, ethernet.ip_link),
    Format("ip link", "host", interfaces.IP_LINK, interfaces.ip_link),
    Format("lldpctl", "host", _LLDP, _lldp),
    Format("show interfaces counters", "switch", sonic.COUNTERS, sonic.counters),
    Format("portstat -j", "switch", sonic.PORTSTAT_JSON, sonic.portstat_json),
    Format("show interfaces status", "switch", sonic.STATUS, sonic.status),
    Format("counters of interfaces", "switch", interfaces.COUNTERS, interfaces.counters),
    Format("status of interfaces", "switch", interfaces.STATUS, interfaces.status),
    Format("show interface (Cumulus)", "switch", interfaces.CUMULUS, interfaces.cumulus),
    Format("show lldp neighbors", "switch", interfaces.NEIGHBOURS, interfaces.neighbours),
    Format("show pfc counters", "switch", sonic.PFC_COUNTERS, sonic.pfc_counters),
    Format("show queue counters", "switch", sonic.QUEUE_COUNTERS, sonic.queue_counters),
    Format("show priority-group drop counters", "switch", sonic.DROPPED_GROUPS, sonic.dropped_groups),
    Format("show pfcwd stats", "switch", sonic.WATCHDOG, sonic.watchdog, quiet=True),
    Format("show pfc priority", "switch", sonic.PFC_PRIORITY, sonic.pfc_priority),
    Format("show ecn", "switch", sonic.ECN, sonic.ecn),
    Format("aclshow", "switch", sonic.RULES, sonic.rules),
    Format("show lldp table", "switch", sonic.NEIGHBOURS, sonic.neighbours),
    Format("CONFIG_DB", "switch", configuration.SONIC, configuration.sonic_config),
    Format("nv config show -o json", "switch", configuration.NVUE, configuration.nvue_config),
    Format("show running-config (EOS)", "switch", configuration.EOS, configuration.eos_config),
    Format("ibnetdiscover", "fabric", infiniband.DISCOVERED, infiniband.netdiscover),
    Format("iblinkinfo", "fabric", infiniband.LINKINFO, infiniband.linkinfo),
    Format("ibqueryerrors", "fabric", infiniband.ERRORS, infiniband.errors, quiet=True),
    Format("perfquery", "fabric", infiniband.PERFQUERY, infiniband.perfquery),
    Format("ibdiagnet", "fabric", infiniband.DIAGNOSIS, infiniband.diagnosis, quiet=True),
    Format("NCCL topology", "host", system.NCCL_TOPOLOGY, system.nccl_topology),
    Format("nvidia-smi", "host", system.SMI, system.nvidia_smi),
    Format("nvidia-smi --query-gpu", "host", system.SMI_CSV, system.smi_csv),
    Format("dmesg", "host", system.DMESG, system.dmesg, quiet=True),
    Format("sysctl", "host", system.SYSCTL, system.sysctl, quiet=True),
)


def format_of(text: str) -> Format | None:
    """The first kind of output that a text is of; None if it is of none."""
    return next((one for one in FORMATS if one.pattern.search(text[:HEAD])), None)
