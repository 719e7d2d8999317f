"""What playbooks/discover.yml finds on a host, on a host made of files and of tools that answer as the real ones do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from c4bench.inventory.facts import HostFacts

FACTS = Path(__file__).parents[3] / "playbooks/files/facts.py"
TOOLS = {
    "nvidia-smi": "echo '0, NVIDIA H100, 00000000:17:00.0'; echo '1, NVIDIA H100, 00000000:2A:00.0'",
    "ip": """
case "$*" in
  "-json address") echo '[{"ifname": "eth0", "addr_info": [{"local": "10.0.0.5", "scope": "global"}]}]' ;;
  "-json address show dev eth2")
    echo '[{"addr_info": [{"local": "fe80::1", "scope": "link"}, {"local": "10.2.0.1", "scope": "global"}]}]' ;;
  "-json route show default") echo '[{"dev": "eth1"}]' ;;
  *) echo "Device does not exist." >&2; exit 1 ;;
esac
""",
    "lldpctl": """echo '{"lldp": [{"interface": [{"name": "eth2", "chassis": [{"name": [{"value": "leaf0"}]}],
  "port": [{"id": [{"type": "local", "value": "etp1"}], "descr": [{"value": "Ethernet0"}]}]},
  {"name": "eth4", "chassis": [{"name": [{"value": "leaf1"}]}],
  "port": [{"id": [{"type": "ifname", "value": "swp4"}], "descr": [{"value": "Ethernet9"}]}]},
  {"name": "eth9", "chassis": [{}]}]}]}'""",
}
# Device, its interface, its rate, its place on the bus.
NICS = (
    ("mlx5_0", "eth2", "400 Gb/sec (4X NDR)", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0"),
    ("mlx5_1", "eth3", "400 Gb/sec (4X NDR)", "pci0000:15/0000:15:01.0/0000:19:00.0/0000:1b:00.0"),
    ("mlx5_2", "eth0", "25 Gb/sec (1X EDR)", "pci0000:60/0000:60:01.0/0000:61:00.0"),
    ("mlx5_3", "eth4", "400 Gb/sec (4X NDR)", "pci0000:70/0000:70:01.0/0000:71:00.0"),
)
GPUS = ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0", "pci0000:29/0000:29:01.0/0000:2a:00.0")


@pytest.fixture
def found(tmp_path):
    """Runs the program; what it prints, checked as an inventory's `c4` would be."""
    for name, does in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    devices, classes = tmp_path / "sys/devices", tmp_path / "sys/class/infiniband"
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for name, netdev, rate, place in NICS:
        (devices / place).mkdir(parents=True)
        port = classes / name / "ports/1"
        (port / "gid_attrs/ndevs").mkdir(parents=True)
        (port / "gid_attrs/ndevs/0").write_text(f"{netdev}\n")
        (port / "rate").write_text(f"{rate}\n")
        (classes / name / "device").symlink_to(devices / place)
    for place in GPUS:
        (devices / place).mkdir(parents=True)
        (bus / Path(place).name).symlink_to(devices / place)

    def run(**environment):
        done = subprocess.run(
            [sys.executable, FACTS, classes],
            env={"PATH": f"{tmp_path}{os.pathsep}/nowhere"} | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return msgspec.convert(json.loads(done.stdout), HostFacts)

    return run


def test_nics_are_found_with_their_switch_ports_but_not_the_one_we_came_by(found):
    """A NIC without an address or a neighbour that says its name goes without; management is told, and left out.

    A port is called as its switch calls it, also where SONiC says an alias first.
    """
    facts = found(SSH_CONNECTION="10.0.0.9 40000 10.0.0.5 22")
    assert facts.management == "eth0"
    output = [(nic.device, nic.netdev, nic.address, nic.rate, nic.leaf) for nic in facts.nics]
    assert output == [
        ("mlx5_0", "eth2", "10.2.0.1", "400gbit", "leaf0/Ethernet0"),
        ("mlx5_1", "eth3", "", "400gbit", ""),
        ("mlx5_3", "eth4", "", "400gbit", "leaf1/swp4"),
    ]


def test_a_gpu_s_nic_is_the_one_behind_the_same_switch(found):
    """One that shares no bridge with any NIC has none."""
    facts = found(SSH_CONNECTION="10.0.0.9 40000 10.0.0.5 22")
    assert [(gpu.index, gpu.pci, gpu.nic) for gpu in facts.gpus] == [(0, "0000:17:00.0", 0), (1, "0000:2a:00.0", None)]


def test_without_a_session_management_is_the_default_route_s(found):
    """As where Ansible runs on the host itself."""
    facts = found()
    assert facts.management == "eth1"
    assert "mlx5_2" in [nic.device for nic in facts.nics]
