"""Print this host's RDMA NICs, GPUs and management interface as JSON, with the keys of an inventory's `c4`.

A NIC is the first port of an RDMA device; without a netdev (InfiniBand without IPoIB), or with one in another network
namespace, it has no address. Its leaf is what LLDP reports, where lldpd runs. A GPU's NIC is the one that shares most
PCI bridges with it. The management interface is that of this SSH connection, else of the default route; it is not
listed as a NIC.
"""

import contextlib
import itertools
import json
import operator
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_COMMAND_S = 20
CLASS = Path(sys.argv[1] if len(sys.argv) > 1 else "/sys/class/infiniband")
PCI = CLASS.parents[1] / "bus/pci/devices"
# How switches call their ports.
PORT_NAME = re.compile(r"(Ethernet|Eth|swp)[\d/.]+\w*")


def said(*words: str) -> str:
    """What a command prints; empty if it does not exist, fails or does not end."""
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.decode(errors="replace").strip()


def decoded(text: str) -> Any:  # noqa: ANN401  (JSON)
    """The JSON that a command printed; None for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def links(*words: str) -> list[dict[str, Any]]:
    """The answer of an `ip -json` command."""
    found: list[dict[str, Any]] = decoded(said("ip", "-json", *words)) or []
    return found


def text(path: Path) -> str:
    """The content of a kernel file, empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def management() -> str:
    """The interface with the address that the SSH connection came to, else the default route's."""
    came_to = (os.environ.get("SSH_CONNECTION", "").split() or ["", "", ""])[2]
    for link in links("address"):
        if came_to and any(one.get("local") == came_to for one in link.get("addr_info", [])):
            return str(link["ifname"])
    return next((str(route.get("dev", "")) for route in links("route", "show", "default")), "")


def rate(device: str) -> str:
    """The rate of a device's port: `100 Gb/sec (4X EDR)` gives `100gbit`."""
    words = text(CLASS / device / "ports/1/rate").split()
    return f"{words[0]}gbit" if words and words[0] not in {"0", "2.5"} else ""


def leaves() -> dict[str, str]:
    """By interface, the switch port at the other end of the cable; none if a neighbour does not say its name."""
    told = decoded(said("lldpctl", "-f", "json0")) or {}
    found = {}
    for one in (one for lldp in told.get("lldp", []) for one in lldp.get("interface", [])):
        with contextlib.suppress(LookupError, TypeError):
            found[one["name"]] = f"{one['chassis'][0]['name'][0]['value']}/{port_name(one['port'][0])}"
    return found


def port_name(port: dict[str, Any]) -> str:
    """The name of a neighbour's port; SONiC sends an alias as the port's ID, and the name as its description."""
    known: dict[str, str] = port["id"][0]
    described: str = next((one["value"] for one in port.get("descr", ())), "")
    return described if known["type"] == "local" and PORT_NAME.fullmatch(described) else known["value"]


def nics(without: str) -> list[dict[str, Any]]:
    """The RDMA NICs, by device name, except the one whose interface is `without`."""
    found, plugged = [], leaves()
    for device in sorted(path.name for path in CLASS.glob("*")):
        netdev = text(CLASS / device / "ports/1/gid_attrs/ndevs/0")
        if netdev and netdev == without:
            continue
        listed = (
            [one for link in links("address", "show", "dev", netdev) for one in link["addr_info"]] if netdev else []
        )
        address = next((one["local"] for one in listed if one["scope"] == "global"), "")
        nic = {
            "device": device,
            "netdev": netdev,
            "address": address,
            "rate": rate(device),
            "leaf": plugged.get(netdev),
        }
        found.append({name: value for name, value in nic.items() if value})
    return found


def gpus(devices: list[str]) -> list[dict[str, Any]]:
    """The GPUs, each with the index of its nearest NIC among `devices`."""
    rows = said("nvidia-smi", "--query-gpu=index,name,pci.bus_id", "--format=csv,noheader")
    found = []
    for index, model, bus in re.findall(r"^([0-9]+), *(.*), *(\S+)$", rows, re.MULTILINE):
        pci = bus[-12:].lower()  # nvidia-smi writes the domain with eight digits, the kernel with four
        gpu: dict[str, Any] = {"index": int(index), "model": model, "pci": pci}
        shared = [common(PCI / pci, CLASS / device / "device") for device in devices]
        if shared and max(shared) > 1 and shared.count(max(shared)) == 1:
            gpu["nic"] = shared.index(max(shared))
        found.append(gpu)
    return found


def common(one: Path, other: Path) -> int:
    """How many bridges two devices share, from the root of the bus."""
    ways = [[part for part in path.resolve().parts if ":" in part or part.startswith("pci")] for path in (one, other)]
    return sum(itertools.takewhile(bool, map(operator.eq, *ways)))


def main() -> None:
    """Print everything that the host has."""
    came_by = management()
    listed = nics(came_by)
    facts = {"management": came_by, "nics": listed, "gpus": gpus([nic["device"] for nic in listed])}
    print(json.dumps({name: value for name, value in facts.items() if value or name == "nics"}))  # noqa: T201


main()
