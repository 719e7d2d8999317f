"""What the lab's hosts have in common: SSH keys, shared storage and the Ansible inventory."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import yaml

from c4bench.inject.permitted import Permitted, PermittedHost
from c4bench.lab.guest import fabric
from c4bench.lab.spec import INVENTORY, LabSpec
from c4bench.lab.topology import Topology
from c4bench.model.fabric import FIVE_TUPLE, Host

SSH = Path("/run/c4/ssh")
SHARED = Path("/run/c4/shared")  # the storage that a cluster's hosts share
AGENT_ID = 990
SWITCH_USER = "admin"


def prepare(spec: LabSpec) -> None:
    """Make the lab's SSH keys, shared storage and inventory file."""
    SHARED.mkdir()
    os.chown(SHARED, AGENT_ID, AGENT_ID)
    SSH.mkdir()
    for name in ("id", "host_key"):
        path = str(SSH / name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True)
    public = (SSH / "host_key.pub").read_text().split()
    known = [f"{address} {public[0]} {public[1]}\n" for address in spec.topology.addresses.values()]
    (SSH / "known_hosts").write_text("".join(known))
    permit((), () if spec.topology.machines else fabric.switch_namespaces(spec.topology), Path("/etc/c4bench"))
    Path(INVENTORY).write_text(yaml.safe_dump(inventory(spec), sort_keys=False))


def permit(hosts: Iterable[Host], switches: Iterable[str], folder: Path) -> None:
    """Write the targets file in `folder`: faults may be injected into these hosts and these switches' ports."""
    known = {host.name: PermittedHost(host.disruptive, host.nics) for host in hosts}
    known |= {name: PermittedHost(disruptive=True, netns=f"/run/netns/{name}") for name in switches}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "targets.json").write_bytes(msgspec.json.encode(Permitted(known)))


def inventory(spec: LabSpec) -> dict[str, object]:
    """The lab as an Ansible inventory, which is all that the rest of c4bench knows of the lab."""
    hosts = {host.name: {"ansible_host": host.address, "c4": _facts(host)} for host in spec.topology.hosts}
    common: dict[str, object] = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(SSH / "id"),
        "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={SSH}/known_hosts -o ControlPath=/run/c4/%h",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    ports = {name: _switch(spec.topology, name) for name in fabric.switch_namespaces(spec.topology)}
    common["c4_fabric"] = _graph(spec.topology)
    return {"all": {"vars": common, "hosts": hosts, "children": {"switches": {"hosts": ports}}}}


def _switch(topology: Topology, name: str) -> dict[str, object]:
    """A switch: reached over SSH where it has an operating system, else a network namespace of the controller."""
    facts: dict[str, object] = {"disruptive": True, "rates": _port_rates(topology, name)}
    if topology.hash == FIVE_TUPLE:
        facts["hash"] = topology.hash  # anything else is for C4P to find out
    if topology.machines:
        access = {"ansible_host": topology.management(name), "ansible_user": SWITCH_USER}
        return access | {"c4": {"os": str(topology.switch_os)} | facts}
    sprays = {"spray_dscp": dscp} if (dscp := topology.spray_dscp) else {}
    place = {"netns": f"/run/netns/{name}", "python": sys.executable}
    return {"ansible_connection": "local", "c4": place | facts | sprays}


def _graph(topology: Topology) -> dict[str, object]:
    """The fabric's graph, with the ports at every cable's ends."""
    links = [_link(port.nic.name, f"{port.switch}/{port.interface}", port.rate_bps) for port in topology.ports]
    for link, port in zip(links, topology.ports, strict=True):
        if port.nic.bond:
            link["bond"] = port.nic.netdev
    for trunk in topology.links:
        a, b = (f"{end.switch}/{end.interface}" for end in trunk.ends)
        links.append(_link(a, b, trunk.rate_bps))
    return {"links": links}


def _link(a: str, b: str, rate_bps: float) -> dict[str, object]:
    return {"between": [a, b], "rate": _rate(rate_bps)}


def _port_rates(topology: Topology, switch: str) -> dict[str, str]:
    """The rates of a switch's ports, by interface."""
    trunks = ((end, link.rate_bps) for link in topology.links for end in link.ends)
    rates = {end.interface: rate_bps for end, rate_bps in trunks if end.switch == switch}
    rates |= {port.interface: port.rate_bps for port in topology.ports if port.switch == switch}
    return {interface: _rate(rate_bps) for interface, rate_bps in rates.items()}


def _rate(rate_bps: float) -> str:
    return f"{rate_bps / 1e6:g}mbit"


def _facts(host: Host) -> dict[str, object]:
    nics = [msgspec.to_builtins(nic) for nic in host.nics]
    for nic in nics:
        del nic["host"]
        if not nic["bond"]:
            del nic["bond"]
        if not nic["ecn"]:
            del nic["ecn"]
        nic["rate"] = _rate(nic.pop("rate_bps"))
    gpus: dict[str, object] = {"gpus": [{"nic": nic} for nic in host.gpus]} if host.gpus else {}
    if host.inside.rate_bps:
        gpus["inside"] = {"rate": _rate(host.inside.rate_bps), "delay": f"{host.inside.delay_s * 1e9:.0f}ns"}
    return gpus | {
        "disruptive": host.disruptive,
        "requires": ["agents", "rdma"],  # in a lab, whose absence is a defect of the lab
        "python": sys.executable,
        "shared": str(SHARED),
        "nics": nics,
    }
