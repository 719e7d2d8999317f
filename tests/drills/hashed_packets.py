"""Switches that hash more than the 5-tuple, on this machine's kernel, and RoCE packets that cross them.

    unshare --map-root-user --net --mount python hashed_packets.py TOPOLOGY

It prints which uplinks the packets of a source port and queue pair were sent over, and where probes of them expired.
"""

import json
import sys

import msgspec
from sprayed_packets import build, sent

from c4bench.lab.guest import fabric
from c4bench.lab.topology_file import load
from c4bench.model.fabric import HopProbe
from c4bench.verbs.probe import send_probes

PORTS, QPS, REPEATS = range(50000, 50004), range(16, 20), 8
# Beyond the first leaf and the spine: the last leaf, by the link from the spine.
TTL = 3


def main(name):
    """Build the fabric, send from its first NIC to its last, and print what was counted and what answered."""
    topology = load(name)
    topology = msgspec.structs.replace(topology, icmp=msgspec.structs.replace(topology.icmp, ratelimit_ms=0))
    build(topology)
    for switch in topology.switches:
        fabric._write_sysctls(switch.name, fabric.switch_settings(switch, topology.icmp))
    source, target = topology.ports[0].nic, topology.ports[-1].nic
    found = []
    for port in PORTS:
        for qp in QPS:
            hops, before = [], sent(topology)
            with fabric.inside(source.host):
                for _ in range(REPEATS):
                    probe = HopProbe(target.address, port, TTL)
                    hops += send_probes(source, [probe], 0.4, qps=[qp])
            # Answers go up from the last leaf.
            near = {link: count - before[link] for link, count in sent(topology).items() if link.startswith("leaf0")}
            over = {link: count for link, count in near.items() if count}
            found.append({"port": port, "qp": qp, "uplinks": over, "hops": sorted({hop.address for hop in hops})})
    with fabric.inside(source.host):
        (first,) = send_probes(source, [HopProbe(target.address, PORTS[0], 1)], 0.4, qps=[QPS[0]])
    spines = {
        f"{link.lower.switch}/{link.lower.interface}": link.upper.switch
        for link in topology.links
        if link.lower.switch == "leaf0"
    }
    back = {link.upper.switch: link.lower.address for link in topology.links if link.lower.switch == "leaf1"}
    answers = {uplink: back[spine] for uplink, spine in spines.items()}
    both = {"first": first.address, "gateway": topology.ports[0].gateway}
    json.dump({"sent": found, "answers": answers} | both, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
