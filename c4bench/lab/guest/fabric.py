"""Build the fabric: the commands to `ip`, `tc` and `rdma` for a topology, run in batches.

The commands are what an engineer would type on a switch, so they can be read, printed and compared. They run in
batches, because a process for each command would cost tens of milliseconds in the lab.

A switch is a network namespace with its ports, a host is one with its NICs. As on any host with several NICs in a RoCE
fabric, each NIC has its own routing table, chosen by source address and by output interface. The table `local` comes
after these, so that traffic between two NICs of one host crosses the switches too.
"""

import subprocess
from collections import defaultdict
from contextlib import AbstractContextManager
from pathlib import Path

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.lab.topology import (
    MANAGEMENT_GATEWAY,
    Port,
    Topology,
    Uplink,
    management_address,
    ports,
    uplinks,
)
from c4bench.lab.topology import host_name as host_namespace

MTU_BYTES = 4200  # leaves room for a 4096-byte path MTU and its headers
MANAGEMENT_BRIDGE = "mgmt"
_LOCAL_TABLE_PREFERENCE = 5000
_NO_IPV6 = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}
_SWITCH_SYSCTLS = {
    **_NO_IPV6,
    "ipv4/ip_forward": "1",
    "ipv4/fib_multipath_hash_policy": "3",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/icmp_ratelimit": "0",
    "ipv4/icmp_msgs_per_sec": "100000",
    "ipv4/icmp_msgs_burst": "10000",
}
_HOST_SYSCTLS = {
    **_NO_IPV6,
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/accept_local": "1",
    "ipv4/conf/default/accept_local": "1",
    "ipv4/conf/all/arp_ignore": "1",
    "ipv4/conf/all/arp_announce": "2",
}
# The kernel keeps one hash key for all namespaces. With the same fields in both tiers a spine would see only flows that
# already agree on the leaf's hash, and their choices would be correlated; so the tiers hash different fields.
_HASH_FIELDS = {"leaf": "0x0037", "spine": "0x0035"}  # 5-tuple; 5-tuple without the destination address


def leaf_name(index: int) -> str:
    """A leaf's namespace, which is also its name in reports: `leaf0`, ..."""
    return f"leaf{index}"


def spine_name(index: int) -> str:
    """A spine's namespace, which is also its name in reports: `spine0`, ..."""
    return f"spine{index}"


def nic_mac(port: Port, *, leaf_end: bool) -> str:
    """The address of a NIC, or of the leaf port it is cabled to: fixed, so that neighbours can be permanent."""
    return f"02:c4:{port.leaf:02x}:{port.port:02x}:00:{'fe' if leaf_end else '01'}"


def uplink_mac(link: Uplink, *, leaf_end: bool) -> str:
    """The address of one end of a leaf-spine link."""
    return f"02:c5:{link.leaf:02x}:{link.spine:02x}:00:{'fe' if leaf_end else '01'}"


def nic_table(port: Port) -> int:
    """The number of the routing table a NIC's own traffic uses."""
    return 1000 + port.leaf * 100 + port.port


def nic_route(port: Port) -> str:
    """The NIC's only route. The kernel drops it when the NIC is set down; add it again when the NIC is set up."""
    return f"route replace default via {port.gateway} dev {port.nic.netdev} table {nic_table(port)}"


def nic_neighbour(port: Port) -> str:
    """The NIC's neighbour entry for the leaf port. The kernel forgets it when the NIC is set down."""
    lladdr = nic_mac(port, leaf_end=True)
    return f"neighbour replace {port.gateway} lladdr {lladdr} dev {port.nic.netdev} nud permanent"


def leaf_port_up(port: Port) -> list[str]:
    """Set the leaf's port up, with the neighbour entry that the kernel forgot when it was set down."""
    lladdr = nic_mac(port, leaf_end=False)
    return [
        f"link set {port.leaf_interface} up",
        f"neighbour replace {port.nic.address} lladdr {lladdr} dev {port.leaf_interface} nud permanent",
    ]


def shaper(interface: str, rate_bps: float) -> str:
    """Limit a port's rate, with a queue deep enough for go-back-N and a burst too small to raise measured rates."""
    return f"qdisc replace dev {interface} root tbf rate {rate_bps:.0f}bit burst 16k limit 8m"


def leaf_routes(topology: Topology, leaf: int, usable: dict[int, set[int]]) -> list[str]:
    """Routes from `leaf` to every other leaf, over the spines in `usable[other]`; without any it is unreachable."""
    own = {link.spine: link for link in uplinks(topology) if link.leaf == leaf}
    commands = []
    for other in range(topology.leaf.count):
        if other == leaf:
            continue
        hops = [f"nexthop via {own[s].spine_address} dev {own[s].leaf_interface}" for s in sorted(usable[other])]
        target = f"10.{other}.0.0/16"
        commands.append(f"route replace {target} {' '.join(hops)}" if hops else f"route replace unreachable {target}")
    return commands


def switch_namespaces(topology: Topology) -> list[str]:
    """Every switch, leaves first."""
    leaves = [leaf_name(index) for index in range(topology.leaf.count)]
    return leaves + [spine_name(index) for index in range(topology.spine.count)]


def ip_commands(topology: Topology) -> dict[str, list[str]]:
    """`ip` batches by namespace ("" is the initial one, and goes first)."""
    batches: dict[str, list[str]] = defaultdict(list)
    batches[""] += [
        f"link add {MANAGEMENT_BRIDGE} type bridge",
        f"address add {MANAGEMENT_GATEWAY}/24 dev {MANAGEMENT_BRIDGE}",
        f"link set {MANAGEMENT_BRIDGE} up",
    ]
    for namespace in switch_namespaces(topology):
        batches[namespace].append("link set lo up")
    for link in uplinks(topology):
        _cable_uplink(link, batches)
    for port in ports(topology):
        _cable_nic(port, batches)
    for index in range(topology.hosts.count):
        _cable_management(index, batches)
    every_spine = {leaf: set(range(topology.spine.count)) for leaf in range(topology.leaf.count)}
    for leaf in range(topology.leaf.count):
        batches[leaf_name(leaf)] += leaf_routes(topology, leaf, every_spine)
    return batches


def _cable_uplink(link: Uplink, batches: dict[str, list[str]]) -> None:
    leaf, spine = leaf_name(link.leaf), spine_name(link.spine)
    leaf_mac, spine_mac = uplink_mac(link, leaf_end=True), uplink_mac(link, leaf_end=False)
    batches[""].append(
        f"link add {link.leaf_interface} netns {leaf} mtu {MTU_BYTES} address {leaf_mac} type veth "
        f"peer name {link.spine_interface} netns {spine} mtu {MTU_BYTES} address {spine_mac}"
    )
    batches[leaf] += [
        f"address add {link.leaf_address}/30 dev {link.leaf_interface}",
        f"link set {link.leaf_interface} up",
        f"neighbour add {link.spine_address} lladdr {spine_mac} dev {link.leaf_interface} nud permanent",
    ]
    batches[spine] += [
        f"address add {link.spine_address}/30 dev {link.spine_interface}",
        f"link set {link.spine_interface} up",
        f"neighbour add {link.leaf_address} lladdr {leaf_mac} dev {link.spine_interface} nud permanent",
        f"route add 10.{link.leaf}.0.0/16 via {link.leaf_address}",
    ]


def _cable_nic(port: Port, batches: dict[str, list[str]]) -> None:
    nic, leaf, table = port.nic, leaf_name(port.leaf), nic_table(port)
    own_mac, leaf_mac = nic_mac(port, leaf_end=False), nic_mac(port, leaf_end=True)
    batches[""].append(
        f"link add {nic.netdev} netns {nic.host} mtu {MTU_BYTES} address {own_mac} type veth "
        f"peer name {port.leaf_interface} netns {leaf} mtu {MTU_BYTES} address {leaf_mac}"
    )
    batches[nic.host] += [
        f"address add {nic.address}/24 dev {nic.netdev}",
        f"link set {nic.netdev} up",
        nic_neighbour(port),
        nic_route(port),
        f"rule add oif {nic.netdev} lookup {table} pref {table}",
        # Only what this host sends (`iif lo`): packets that another of its NICs has sent arrive with such a source too.
        f"rule add from {nic.address} iif lo lookup {table} pref {table}",
    ]
    batches[leaf] += [f"address add {port.gateway}/24 dev {port.leaf_interface}", *leaf_port_up(port)]


def management_interface(index: int) -> str:
    """The bridge's end of a host's management link."""
    return f"m{index}"


def _cable_management(index: int, batches: dict[str, list[str]]) -> None:
    end, namespace = management_interface(index), host_namespace(index)
    batches[""] += [
        f"link add {end} type veth peer name eth0 netns {namespace}",
        f"link set {end} master {MANAGEMENT_BRIDGE} up",
    ]
    batches[namespace] += [
        "link set lo up",
        f"address add {management_address(index)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {MANAGEMENT_GATEWAY}",
        f"rule add pref {_LOCAL_TABLE_PREFERENCE} lookup local",
        "rule del pref 0",
    ]


def tc_commands(topology: Topology) -> dict[str, list[str]]:
    """`tc` batches by namespace: every port of every switch and every NIC at its rate."""
    batches: dict[str, list[str]] = defaultdict(list)
    for link in uplinks(topology):
        batches[leaf_name(link.leaf)].append(shaper(link.leaf_interface, topology.uplink_rate_bps))
        batches[spine_name(link.spine)].append(shaper(link.spine_interface, topology.uplink_rate_bps))
    for port in ports(topology):
        batches[port.nic.host].append(shaper(port.nic.netdev, topology.nic_rate_bps))
        batches[leaf_name(port.leaf)].append(shaper(port.leaf_interface, topology.nic_rate_bps))
    return batches


def rdma_commands(topology: Topology) -> dict[str, list[str]]:
    """`rdma` batches by namespace ("" goes last): make every NIC's RDMA device, then move it into its host's namespace.

    rxe makes a device in the initial namespace, wherever its netdev is.
    """
    batches: dict[str, list[str]] = defaultdict(list)
    nics = [port.nic for port in ports(topology)]
    for nic in nics:
        batches[nic.host].append(f"link add {nic.device} type rxe netdev {nic.netdev}")
    batches[""] = [f"dev set {nic.device} netns {nic.host}" for nic in nics]
    return batches


def build(topology: Topology) -> None:
    """Bring the whole fabric up. Raises UnhealthyError with the tool's message when it refuses a command."""
    batch("rdma", "", ["system set netns exclusive"])  # refused as soon as there is another namespace
    names = switch_namespaces(topology)
    hosts = [host_namespace(index) for index in range(topology.hosts.count)]
    batch("ip", "", [f"netns add {name}" for name in [*names, *hosts]])
    _write_sysctls("", _NO_IPV6)
    for name in names:
        fields = _HASH_FIELDS["leaf" if name.startswith("leaf") else "spine"]
        _write_sysctls(name, _SWITCH_SYSCTLS | {"ipv4/fib_multipath_hash_fields": fields})
    for name in hosts:
        _write_sysctls(name, _HOST_SYSCTLS)
    for tool, batches in (
        ("ip", ip_commands(topology)),
        ("tc", tc_commands(topology)),
        ("rdma", rdma_commands(topology)),
    ):
        for name, lines in batches.items():
            batch(tool, name, lines)


def nic_reset(port: Port, ifb: str) -> dict[str, list[str]]:
    """By tool, the commands that reset a NIC. Deleting what no fault has made fails, which does no harm."""
    nic = port.nic
    address = f"address replace {nic.address}/24 dev {nic.netdev}"
    return {
        "ip": [
            f"link del {ifb}",
            f"link set {nic.netdev} mtu {MTU_BYTES} up",
            address,
            nic_neighbour(port),
            nic_route(port),
        ],
        "tc": [
            f"qdisc del dev {nic.netdev} ingress",
            f"qdisc del dev {nic.netdev} root",
            shaper(nic.netdev, nic.rate_bps),
        ],
    }


def batch(tool: str, namespace: str, lines: list[str], *, force: bool = False) -> None:
    """Feed `lines` to one `ip`, `tc` or `rdma` process in a namespace ("" is this one); `force` ignores errors."""
    argv = [tool, *(["-force"] if force else []), "-b", "-"]
    with inside(namespace):
        done = subprocess.run(argv, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if done.returncode and not force:
        raise UnhealthyError(f"{tool} in {namespace or 'the lab'}: {done.stderr.strip() or done.stdout.strip()}")


def inside(namespace: str) -> AbstractContextManager[None]:
    """Run a block with the calling thread in a host's or switch's network namespace ("" is this one)."""
    return namespaces.network(f"/run/netns/{namespace}" if namespace else None)


def _write_sysctls(namespace: str, values: dict[str, str]) -> None:
    with inside(namespace):
        for key, value in values.items():
            Path("/proc/sys/net", key).write_text(value)
