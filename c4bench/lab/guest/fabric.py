"""Build the fabric: the commands to `ip`, `tc` and `rdma` for a topology, run in batches.

The commands are what an engineer would type on a switch, so they can be read, printed and compared. They run in
batches, because a process for each command would cost tens of milliseconds in the lab.

A switch is a network namespace with its ports, a host is one with its NICs. As on any host with several NICs in a RoCE
fabric, each NIC has its own routing table, chosen by source address and by output interface. The table `local` comes
after these, so that traffic between two NICs of one host crosses the switches too. A program that names neither, as
those of librdmacm do, leaves by the host's first NIC.

A NIC like a ConnectX: its port is in a namespace of its own, the inside of the NIC, and the host's interface is a
macvlan on it. The NIC's shaper is inside too, so that the host's `tc` changes neither rate nor RoCE packets.

A NIC whose ports are cabled to two switches: a Linux bond of its interfaces. The bond hashes addresses and UDP ports,
and so a flow's source port chooses the port that it leaves by. It is static: the two switches share the gateway's
address and MAC address, as with MLAG, and each delivers by its own cable. LACP would only add that both sides agree on
the ports first.
"""

import subprocess
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.lab.guest import flow_control, hashing, spraying
from c4bench.lab.topology import (
    MANAGEMENT_GATEWAY,
    AckTimeout,
    EcnMarking,
    IcmpLimits,
    Link,
    LinkEnd,
    NextHops,
    Nics,
    Port,
    Switch,
    SwitchRouting,
    Topology,
    next_hops,
    wires_of,
)
from c4bench.model.fabric import Nic

# Whether RDMA devices that are made now are like a ConnectX, and who of them has no floor (kernel.patch).
_CONNECTX, _FLOOR_OFF = (Path("/sys/module/rdma_rxe/parameters", name) for name in ("connectx", "floor_off"))
_MIIMON_MS = 100  # how often a bond looks for ports that have lost their link


def bond_commands(nic: Nic, mac: str, mtu_bytes: int) -> list[str]:
    """The `ip` commands that make this bond of interfaces that are there; `mac` is what its ports get too."""
    mode = f"mode balance-xor xmit_hash_policy layer3+4 miimon {_MIIMON_MS}"
    return [
        f"link add {nic.netdev} mtu {mtu_bytes} address {mac} type bond {mode}",
        *(f"link set {port} {state}" for port in nic.bond for state in (f"master {nic.netdev}", "up")),
    ]


NO_IPV6 = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}
_SWITCH_SETTINGS = {
    **NO_IPV6,
    "ipv4/ip_forward": "1",
    "ipv4/fib_multipath_hash_policy": "3",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
}
# A day: no token bucket of the kernel ever fills so far.
_NO_ANSWERS_MS = 86_400_000
HOST_SETTINGS = {
    **NO_IPV6,
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/accept_local": "1",
    "ipv4/conf/default/accept_local": "1",
    "ipv4/conf/all/arp_ignore": "1",
    "ipv4/conf/all/arp_announce": "2",
}
# The kernel keeps one hash key for all namespaces. With the same fields in all tiers a spine would see only flows that
# already agree on the leaf's hash, and choices would correlate; so the tiers hash different fields.
_HASH_FIELDS = (
    "0x0037",  # edge switches: 5-tuple
    "0x0035",  # the next tier: without the destination address
    "0x0036",  # without the source address
    "0x0034",  # all others: protocol and ports
)


def switch_settings(switch: Switch, limits: IcmpLimits) -> dict[str, str]:
    """A switch's settings: it forwards, and hashes the fields of its tier."""
    fields = _HASH_FIELDS[min(switch.tier, len(_HASH_FIELDS)) - 1]
    return (
        _SWITCH_SETTINGS | answer_settings(limits) | icmp_settings(limits) | {"ipv4/fib_multipath_hash_fields": fields}
    )


def icmp_settings(limits: IcmpLimits) -> dict[str, str]:
    """A switch's settings for these limits."""
    return {
        "ipv4/icmp_ratelimit": str(limits.ratelimit_ms if limits.answers else _NO_ANSWERS_MS),
        "ipv4/icmp_msgs_per_sec": str(limits.msgs_per_sec),
        "ipv4/icmp_msgs_burst": str(limits.msgs_burst),
    }


def answer_settings(limits: IcmpLimits) -> dict[str, str]:
    """How a switch shows which interface a probe arrived on: it answers with that interface's address, or names it.

    By default Linux answers with the address of the interface that it answers by, which another link may have where
    there are several ways back.
    """
    how = "icmp_errors_extension_mask" if limits.interfaces else "icmp_errors_use_inbound_ifaddr"
    return {f"ipv4/{how}": "1"}


_WIRE_MTU_BYTES = 9978  # the largest of a ConnectX: its host sets a smaller one
MTU_BYTES = 4200  # leaves room for a 4096-byte path MTU and its headers
MANAGEMENT_BRIDGE = "mgmt"
_FABRIC = "10.0.0.0/8"  # all NICs; the management network is a smaller one in it
_LOCAL_TABLE_PREFERENCE = 5000
_SMALLEST_FRAME_BYTES = 64
_QUEUE_BYTES = 8 << 20
_RED_MOST_BPS = 34e9  # `tc` keeps this in 32 bits, in bytes/s


def nic_mac(port: Port, *, switch_end: bool) -> str:
    """The address of a NIC, or of the switch port it is cabled to: fixed, so that neighbours can be permanent."""
    return f"02:c4:{port.edge:02x}:{port.port:02x}:00:{'fe' if switch_end else '01'}"


def link_mac(link: Link, end: LinkEnd) -> str:
    """The address of one end of a link between switches."""
    return f"02:c5:{link.number >> 8:02x}:{link.number & 0xFF:02x}:00:{'fe' if end is link.lower else '01'}"


def nic_table(port: Port) -> int:
    """The number of the routing table a NIC's own traffic uses on its host."""
    return 1000 + port.nic.index


def nic_routes(port: Port) -> list[str]:
    """The only route of the NIC's table, and one for who names no NIC, of which the first NIC's is preferred.

    The kernel drops them when the NIC is set down; add them again when it is set up.
    """
    way = f"via {port.gateway} dev {port.nic.netdev}"
    return [
        f"route replace default {way} table {nic_table(port)}",
        f"route replace {_FABRIC} {way} metric {1 + port.nic.index}",
    ]


def nic_neighbour(port: Port) -> str:
    """The NIC's neighbour entry for the switch port. The kernel forgets it when the NIC is set down."""
    lladdr = nic_mac(port, switch_end=True)
    return f"neighbour replace {port.gateway} lladdr {lladdr} dev {port.nic.netdev} nud permanent"


def switch_port_up(port: Port) -> list[str]:
    """Set the switch's port up, with the neighbour entry that the kernel forgot when it was set down."""
    lladdr = nic_mac(port, switch_end=False)
    return [
        f"link set {port.interface} up",
        f"neighbour replace {port.nic.address} lladdr {lladdr} dev {port.interface} nud permanent",
    ]


def shaper(interface: str, cable: Port | Link, ecn: EcnMarking | None = None) -> list[str]:
    """Limit the rate of a port at either end of a cable, with a queue deep enough for go-back-N.

    With a delay, packets are delayed after the queue; as many as the link carries meanwhile are under way. Without one,
    packets are marked in the queue as `ecn` says, and with PFC the queue is one of each priority.
    """
    rate_bps, delay_s = cable.rate_bps, cable.delay_s
    tbf = f"tbf rate {rate_bps:.0f}bit burst {cable.burst_bytes} limit {_QUEUE_BYTES}"
    rate = f"qdisc replace dev {interface} root handle 1: {tbf}"
    if not delay_s:
        marks = [marker(interface, rate_bps, ecn)] if ecn else []
        queues = [flow_control.queues(interface, "10:1" if ecn else "1:1")] if cable.pfc else []
        below = [*marks, *queues]
        return [rate, *below] if below else [rate.replace(" handle 1:", "")]
    under_way = max(1000, round(2 * rate_bps * delay_s / 8 / _SMALLEST_FRAME_BYTES))
    return [rate, f"qdisc replace dev {interface} parent 1:1 netem delay {delay_s * 1e6:.0f}us limit {under_way}"]


def marker(interface: str, rate_bps: float, ecn: EcnMarking) -> str:
    """Mark packets by the length of a shaper's queue, of which RED takes the shortest mean; none is dropped early."""
    thresholds = f"min {ecn.min_bytes} max {ecn.max_bytes} probability {ecn.probability}"
    burst = ecn.min_bytes // MTU_BYTES + 1
    idle_bps = min(rate_bps, _RED_MOST_BPS)  # how fast the mean falls while nothing is sent
    red = f"red limit {_QUEUE_BYTES} {thresholds} avpkt {MTU_BYTES} burst {burst} bandwidth {idle_bps:.0f}bit ecn"
    return f"qdisc replace dev {interface} parent 1:1 handle 10: {red}"


def subnet(number: int) -> str:
    """The addresses of an edge switch's NICs (`Topology.subnets`)."""
    return f"10.{number}.0.0/16"


def route_commands(routes: NextHops, *, sprayed: bool = False, hashed: bool = False) -> list[str]:
    """A switch's routes to all edge switches; without a link one is unreachable.

    Those by bucket come after them, of a switch that sprays, or that hashes more than the 5-tuple.
    """
    commands = []
    for edge, hops in routes.items():
        target = subnet(edge)
        listed = " ".join(f"nexthop via {link.far_end(end.switch).address} dev {end.interface}" for link, end in hops)
        commands.append(f"route replace {target} {listed}" if hops else f"route replace unreachable {target}")
    commands += spraying.route_commands(routes) if sprayed else ()
    return [*commands, *(hashing.route_commands(routes) if hashed else ())]


def switch_namespaces(topology: Topology) -> list[str]:
    """Every switch."""
    return [switch.name for switch in topology.switches]


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
    for link in topology.links:
        _cable_switches(link, batches)
    for nic in (nic for host in topology.hosts for nic in host.nics):
        _cable_nic(nic, topology.cables(nic), batches)
    for index, host in enumerate(topology.hosts):
        _cable_management(index, host.name, host.address, batches)
        batches[host.name] += _HOST_MANAGEMENT
    for index, switch in enumerate(topology.machines, len(topology.hosts)):
        _cable_management(index, switch.name, topology.management(switch.name), batches)
    for name, commands in (*spraying.ip_commands(topology).items(), *hashing.ip_commands(topology).items()):
        batches[name] += commands
    if topology.routing is SwitchRouting.BGP:
        for name in switch_namespaces(topology):
            batches[name].append(f"route add unreachable {_FABRIC}")
        return batches
    sprayers, hashers = spraying.sprayers(topology), hashing.hashers(topology)
    for name, routes in next_hops(topology).items():
        batches[name] += route_commands(routes, sprayed=name in sprayers, hashed=name in hashers)
    return batches


def _cable_switches(link: Link, batches: dict[str, list[str]]) -> None:
    lower, upper = link.ends
    batches[""].append(
        f"link add {lower.interface} netns {lower.switch} mtu {MTU_BYTES} address {link_mac(link, lower)} type veth "
        f"peer name {upper.interface} netns {upper.switch} mtu {MTU_BYTES} address {link_mac(link, upper)}"
    )
    for near, far in ((lower, upper), (upper, lower)):
        batches[near.switch] += [
            f"address add {near.address}/30 dev {near.interface}",
            f"link set {near.interface} up",
            f"neighbour add {far.address} lladdr {link_mac(link, far)} dev {near.interface} nud permanent",
        ]


def _cable_nic(nic: Nic, cables: Sequence[Port], batches: dict[str, list[str]]) -> None:
    own_mac, switch_mac = nic_mac(cables[0], switch_end=False), nic_mac(cables[0], switch_end=True)
    for port in cables:
        namespace, netdev = port.sender
        mtu_bytes = _WIRE_MTU_BYTES if port.wire else MTU_BYTES
        batches[""].append(
            f"link add {netdev} netns {namespace} mtu {mtu_bytes} address {own_mac} type veth "
            f"peer name {port.interface} netns {port.switch} mtu {MTU_BYTES} address {switch_mac}"
        )
        if port.wire:
            macvlan = f"netns {nic.host} mtu {MTU_BYTES} type macvlan mode passthru"
            batches[namespace].append(f"link add link {netdev} name {port.netdev} {macvlan}")
        addresses = [f"address add {address}/24 dev {port.interface}" for address in port.switch_addresses]
        batches[port.switch] += [*addresses, *switch_port_up(port)]
    table = nic_table(cables[0])
    batches[nic.host] += [
        *(bond_commands(nic, own_mac, MTU_BYTES) if nic.bond else ()),
        f"address add {nic.address}/24 dev {nic.netdev}",
        f"link set {nic.netdev} up",
        nic_neighbour(cables[0]),
        *nic_routes(cables[0]),
        f"rule add oif {nic.netdev} lookup {table} pref {table}",
        # Only what this host sends (`iif lo`): packets that another of its NICs has sent arrive with such a source too.
        f"rule add from {nic.address} iif lo lookup {table} pref {table}",
    ]


def management_interface(index: int) -> str:
    """The bridge's end of a management link: the hosts' by index, then the switches'."""
    return f"m{index}"


_HOST_MANAGEMENT = (
    f"route add default via {MANAGEMENT_GATEWAY}",
    f"rule add pref {_LOCAL_TABLE_PREFERENCE} lookup local",
    "rule del pref 0",
)


def _cable_management(index: int, name: str, address: str, batches: dict[str, list[str]]) -> None:
    end = management_interface(index)
    batches[""] += [
        f"link add {end} type veth peer name eth0 netns {name}",
        f"link set {end} master {MANAGEMENT_BRIDGE} up",
    ]
    batches[name] += ["link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up"]


def tc_commands(topology: Topology) -> dict[str, list[str]]:
    """`tc` batches by namespace: every port of every switch and every NIC at its rate, with its delay."""
    batches: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        for end in link.ends:
            batches[end.switch] += shaper(end.interface, link, topology.ecn)
    for port in topology.ports:
        namespace, netdev = port.sender
        batches[namespace] += shaper(netdev, port)
        batches[port.switch] += shaper(port.interface, port, topology.ecn)
    for name, commands in (*spraying.tc_commands(topology).items(), *hashing.tc_commands(topology).items()):
        batches[name] += commands
    return batches


def rdma_commands(topology: Topology) -> dict[str, list[str]]:
    """`rdma` batches by namespace ("" goes last): make every NIC's RDMA device, then move it into its host's namespace.

    rxe makes a device in the initial namespace, wherever its netdev is.
    """
    batches: dict[str, list[str]] = defaultdict(list)
    nics = [nic for host in topology.hosts for nic in host.nics]
    for nic in nics:
        batches[nic.host].append(f"link add {nic.device} type rxe netdev {nic.netdev}")
    batches[""] = [f"dev set {nic.device} netns {nic.host}" for nic in nics]
    return batches


def build(topology: Topology) -> None:
    """Bring the whole fabric up. Raises UnhealthyError with the tool's message when it refuses a command."""
    batch("rdma", "", ["system set netns exclusive"])  # refused as soon as there is another namespace
    if topology.pfc:
        flow_control.enable()
    names = switch_namespaces(topology)
    hosts = [host.name for host in topology.hosts]
    inside_nics = dict.fromkeys(wires_of(port.nic.host) for port in topology.ports if port.wire)
    batch("ip", "", [f"netns add {name}" for name in [*names, *hosts, *inside_nics]])
    _write_sysctls("", NO_IPV6)
    for switch in topology.switches:
        _write_sysctls(switch.name, switch_settings(switch, topology.icmp))
    for name in hosts:
        _write_sysctls(name, HOST_SETTINGS)
    for name in inside_nics:
        _write_sysctls(name, NO_IPV6)
    if topology.nics is Nics.CONNECTX_6:
        _CONNECTX.write_text("Y\n")
    for tool, batches in (
        ("ip", ip_commands(topology)),
        ("tc", tc_commands(topology)),
        ("rdma", rdma_commands(topology)),
    ):
        for name, lines in batches.items():
            batch(tool, name, lines)
    for name, lines in flow_control.settings(topology).items():
        with inside(name):
            flow_control.write(lines)
    for port in topology.ports:
        if topology.ack_timeout is AckTimeout.CX6_FLOOR_OFF:
            set_ack_floor(port, off=True)


def nic_reset(port: Port, ifb: str) -> dict[str, list[str]]:
    """By tool, the commands that reset a NIC. Deleting what no fault has made fails, which does no harm."""
    nic = port.nic
    address = f"address replace {nic.address}/24 dev {nic.netdev}"
    port_up = [f"link set {port.netdev} up"] if nic.bond else []
    netdevs = dict.fromkeys((nic.netdev, port.netdev))
    return {
        "ip": [
            f"link del {ifb}",
            *port_up,
            f"link set {nic.netdev} mtu {MTU_BYTES} up",
            address,
            nic_neighbour(port),
            *nic_routes(port),
        ],
        "tc": [
            *(f"qdisc del dev {netdev} {place}" for netdev in netdevs for place in ("ingress", "root")),
            *([] if port.wire else shaper(port.netdev, port)),
        ],
    }


def wire_reset(port: Port) -> dict[str, list[str]]:
    """By tool, the commands that reset the inside of a NIC: its link, and what its driver has set."""
    wire = port.wire
    return {"ip": [f"link set {wire} up"], "tc": [f"qdisc del dev {wire} root", *shaper(wire, port)]}


def far_end_reset(port: Port) -> list[str]:
    """The `tc` commands that give the switch's end of a NIC's cable its rate, which the NIC may have changed."""
    rate = f"rate {port.rate_bps:.0f}bit burst {port.burst_bytes} limit {_QUEUE_BYTES}"
    return [f"qdisc change dev {port.interface} root tbf {rate}"]


def set_ack_floor(port: Port, *, off: bool) -> None:
    """Whether a NIC like a ConnectX-6 raises short time-outs to a floor; the change holds for all its QPs."""
    with inside(port.nic.host):
        _FLOOR_OFF.write_text(f"{port.netdev} {off:d}\n")


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
