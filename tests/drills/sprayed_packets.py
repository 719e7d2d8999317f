"""Switches of a topology on this machine's kernel, and RoCE packets that cross them. Run it in new namespaces.

    unshare --map-root-user --net --mount python sprayed_packets.py TOPOLOGY

It prints by case how many packets arrived, and by uplink how many were sent over it.
"""

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec

from c4bench.lab.guest import fabric, spraying
from c4bench.lab.topology import next_hops
from c4bench.lab.topology_file import load

DSCP, ECN_CAPABLE = 8 << 2, 2
PACKETS = 192
ROCE_PORT = 4791
NO_IPV6 = {"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}  # its packets would be counted
FORWARDING = {"ipv4/ip_forward": "1", "ipv4/fib_multipath_hash_policy": "1", "ipv4/conf/default/rp_filter": "0"}
BTH = struct.Struct(">BBHIBBH")  # opcode, flags, partition key, destination QP, acknowledge, packet sequence number


def main(name):
    """Build the fabric, send from its first NIC to its last in several states of it, and print what was counted."""
    topology = msgspec.structs.replace(load(name), spray_dscp=DSCP >> 2)
    build(topology)
    ends = topology.ports[0].nic, topology.ports[-1].nic
    found = {"other class": send(topology, *ends, 0), "sprayed": send(topology, *ends, DSCP | ECN_CAPABLE)}
    lost = topology.links[1]
    fabric.batch("ip", lost.lower.switch, [f"link set {lost.lower.interface} down"])
    found["link down"] = send(topology, *ends, DSCP)
    sprayers = spraying.sprayers(topology)
    for switch, hops in next_hops(topology, {lost.number}).items():
        fabric.batch("ip", switch, fabric.route_commands(hops, sprayed=switch in sprayers))
    found["new routes"] = send(topology, *ends, DSCP)
    json.dump(found, sys.stdout)


def build(topology):
    """Switches and hosts as in the lab, without RDMA devices and shapers."""
    subprocess.run("mount -t tmpfs tmpfs /run && mkdir /run/netns && mount -t sysfs sysfs /sys", shell=True, check=True)
    names = [each.name for each in (*topology.switches, *topology.hosts)]
    fabric.batch("ip", "", [f"netns add {name}" for name in names])
    for name in ["", *names]:
        with fabric.inside(name):
            for key, value in (NO_IPV6 | FORWARDING).items():
                Path("/proc/sys/net", key).write_text(value)
    for name, commands in fabric.ip_commands(topology).items():
        fabric.batch("ip", name, commands)
    for name, commands in fabric.tc_commands(topology).items():
        fabric.batch("tc", name, [command for command in commands if not command.startswith("qdisc replace")])


def send(topology, source, target, traffic_class):
    """Send packets with successive sequence numbers, and count."""
    with fabric.inside(target.host):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((target.address, ROCE_PORT))
        receiver.settimeout(1.0)
    with fabric.inside(source.host):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((source.address, 50000))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic_class)
    before, arrived = sent(topology), 0
    with receiver, sender:
        for number in range(PACKETS):
            sender.sendto(BTH.pack(10, 0, 0xFFFF, 17, 0, 0, number), (target.address, ROCE_PORT))
            try:
                receiver.recv(2048)
                arrived += 1
            except TimeoutError:
                pass
    counts = {link: count - before[link] for link, count in sent(topology).items()}
    return {"arrived": arrived, "uplinks": {link: count for link, count in counts.items() if count}}


def sent(topology):
    """Packets that each uplink has sent so far."""
    return {
        f"{link.lower.switch}/{link.lower.interface}": _sent(link.lower.switch, link.lower.interface)
        for link in topology.links
    }


def _sent(switch, interface):
    argv = ["ip", "netns", "exec", switch, "ip", "-json", "-s", "link", "show", "dev", interface]
    (link,) = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    return link["stats64"]["tx"]["packets"]


if __name__ == "__main__":
    main(sys.argv[1])
