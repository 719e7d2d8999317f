"""A plain Linux switch in namespaces, with a real SSH server and a real atd, and routers behind its ports.

It is a host of `netns_hosts` on which nothing of c4bench is deployed: up0 and up1 lead to two spines, over which one
route has two next hops; down0 leads to a host.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import netns_hosts
import yaml

from c4bench import remote
from c4bench.inventory import Inventory, load

SWITCH = "leaf0"
PORTS = {"up0": "10.8.0", "up1": "10.8.1", "down0": "10.8.2"}
_ROUTE = "10.9.0.0/24"
_TOOLS = ("at", "atd", "flock", "timeout")


def missing(*tools: str) -> str:
    """Why there can be no such switch here; "" when there can."""
    return netns_hosts.missing(*_TOOLS, *tools)


class Scene:
    """The switch, its inventory, and what runs there besides."""

    def __init__(self, made: netns_hosts.NetnsHosts, inventory: Path) -> None:
        self.host, self.path = made.hosts[0], inventory
        self.inventory: Inventory = load(inventory)

    def run(self, command: str) -> str:
        """What a shell prints on the switch. Raises UnhealthyError where it fails."""
        with remote.connect(SWITCH, self.inventory.access[SWITCH]) as connection:
            return connection.run(["sh", "-c", command], timeout_s=60.0).stdout.decode()

    def furnish(self) -> None:
        """What a switch does while it starts: its cables, addresses and routes, and atd."""
        lines = ["set -e", "mkdir -p /run/netns"]
        for port, network in PORTS.items():
            far = f"far-{port}"
            lines += [
                f"ip netns add {far}",
                f"ip link add {port} type veth peer name eth0 netns {far}",
                f"ip address add {network}.1/24 dev {port}",
                f"ip link set {port} up",
                f"ip -n {far} address add {network}.2/24 dev eth0",
                f"ip -n {far} link set eth0 up",
                f"ip -n {far} link set lo up",
            ]
        hops = " ".join(f"nexthop via {PORTS[port]}.2 dev {port}" for port in ("up0", "up1"))
        shaper = "tbf rate 10gbit burst 1mb limit 8mb"
        lines += [f"ip route add {_ROUTE} {hops}", f"tc qdisc add dev up0 root handle 1: {shaper}", "atd"]
        self.run("\n".join(lines))

    def reboot(self) -> None:
        """Cut its power and start it again."""
        self.host.reboot()
        self.furnish()


@contextmanager
def scene(directory: Path, *, system: str = "linux", systemd: bool = False) -> Iterator[Scene]:
    """A switch that is up; keys and inventory go to `directory`."""
    with netns_hosts.netns_hosts(1, directory, systemd=systemd) as made:
        inventory = directory / "switches.yml"
        inventory.write_text(yaml.safe_dump(_inventory(made.inventory, system)))
        found = Scene(made, inventory)
        found.furnish()
        yield found


def _inventory(of_hosts: Path, system: str) -> dict[str, object]:
    """The inventory of namespaces with its one host as a switch, beside a host that is never asked."""
    known = yaml.safe_load(of_hosts.read_text())["all"]
    address = known["hosts"]["n1"]["ansible_host"]
    facts = {"disruptive": True, "os": system}
    switches = {"hosts": {SWITCH: {"ansible_host": address, "c4": facts}}}
    hosts = {"h0": {"ansible_host": "198.18.77.200"}}
    return {"all": {"vars": known["vars"], "hosts": hosts, "children": {"switches": switches}}}
