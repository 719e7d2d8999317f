"""What a host of the lab sees of NICs that are like a ConnectX: PCI functions in /sys, and NVIDIA's programs.

rxe's devices are virtual ones to the kernel. The host's /sys shows them, and their interfaces, below PCI functions of
the driver mlx5_core: folders in memory, whose files are the kernel's own wherever it has them. The rest is constant
text, but for `ecn`: its files are settings that nothing follows, since rxe has no congestion control.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from c4bench import namespaces
from c4bench.lab.topology import AckTimeout, Port, Topology, wires_of
from c4bench.lab.twin import connectx_tools

_PROGRAMS = Path("usr/local/bin")
_FILES = {
    "vendor": "0x15b3",
    "device": "0x101b",
    "subsystem_vendor": "0x15b3",
    "subsystem_device": "0x0007",
    "class": "0x020000",
    "revision": "0x00",
    "numa_node": "0",
    "irq": "0",
    # Start, end and flags of 32 MiB that are mapped, and of no more; without this file libpci ends programs.
    "resource": "\n".join(
        ["0x0000200000000000 0x0000200001ffffff 0x000000000014220c", *[" ".join(["0x0000000000000000"] * 3)] * 12]
    ),
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
}


def furnish(root: Path, topology: Topology, host: str) -> None:
    """Complete the root of a host's file system with its NICs."""
    ports = [port for port in topology.ports if port.nic.host == host]
    home = root / connectx_tools.HOME.relative_to("/")
    (home / "sys").mkdir(parents=True)
    home.chmod(0o700)
    namespaces.mount("sys", f"{home}/sys", "sysfs")
    sys = root / "sys"
    for folder in ("devices", "class/net", "class/infiniband", "bus/pci", "bus/pci/devices", "bus/pci/drivers"):
        _open_up(sys / folder, home / "sys" / folder)
    for port in ports:
        _show(sys, home / "sys", port)
    _provide_programs(root, home, topology, ports)


def _open_up(folder: Path, real: Path) -> None:
    """Put a folder in memory over one of sysfs, with all that this has."""
    namespaces.mount("connectx", str(folder), "tmpfs", data="mode=755")
    for entry in sorted(real.iterdir()):
        place = folder / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
        elif entry.is_dir():
            place.mkdir()
            namespaces.bind(str(entry), str(place))
        else:
            place.touch()
            namespaces.bind(str(entry), str(place))


def pci_address(port: Port) -> str:
    """The address of a NIC's PCI function: each is behind a root port of its own."""
    return f"0000:{_bus(port) + 1:02x}:00.0"


def _bus(port: Port) -> int:
    return 0x40 + 0x10 * port.nic.index


def _show(sys: Path, real: Path, port: Port) -> None:
    """One NIC: its function, its interface and its RDMA device."""
    above = f"pci0000:{_bus(port):02x}/0000:{_bus(port):02x}:01.0"
    function = sys / "devices" / above / pci_address(port)
    function.mkdir(parents=True)
    for name, text in _FILES.items():
        (function / name).write_text(f"{text}\n")
    (function / "uevent").write_text(
        f"DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:101B\nPCI_SLOT_NAME={function.name}\n"
    )
    driver = sys / "bus/pci/drivers/mlx5_core"
    driver.mkdir(exist_ok=True)
    (driver / function.name).symlink_to(f"../../../../devices/{above}/{function.name}")
    listed = sys / "bus/pci/devices"
    (listed / function.name).symlink_to(f"../../../devices/{above}/{function.name}")
    (function / "driver").symlink_to("../../../../bus/pci/drivers/mlx5_core")
    (function / "subsystem").symlink_to("../../../../bus/pci")
    for kind, name in (("net", port.netdev), ("infiniband", port.nic.device)):
        _show_device(function, real / "devices/virtual" / kind / name)
        (sys / "class" / kind / name).unlink()
        (sys / "class" / kind / name).symlink_to(f"../../devices/{above}/{function.name}/{kind}/{name}")
    speed = function / "net" / port.netdev / "speed"  # the kernel's is that of a veth
    speed.unlink()
    speed.write_text(f"{round(port.rate_bps / 1e6)}\n")
    for end, priority in ((end, priority) for end in ("roce_np", "roce_rp") for priority in range(8)):
        file = function / "net" / port.netdev / "ecn" / end / "enable" / str(priority)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1\n")
    classes = function / "infiniband" / port.nic.device / "tc/1"
    classes.mkdir(parents=True)
    (classes / "traffic_class").symlink_to("../../traffic_class")


def _show_device(function: Path, real: Path) -> None:
    """A device below its function: the kernel's files, and which device they are of."""
    folder = function / real.parent.name / real.name
    folder.mkdir(parents=True)
    for entry in sorted(real.iterdir()):
        target = f"../../../../../virtual/{real.parent.name}/{real.name}/{entry.name}"
        (folder / entry.name).symlink_to(
            f"../../../../../../class/{real.parent.name}" if entry.name == "subsystem" else target
        )
    (folder / "device").symlink_to("../..")


def _provide_programs(root: Path, home: Path, topology: Topology, ports: Sequence[Port]) -> None:
    (home / "nics.json").write_text(json.dumps([*_rows(topology, ports)]))
    for port in ports:
        _bind(f"/run/netns/{wires_of(port.nic.host)}", home / "inside")
        _bind(f"/run/netns/{port.switch}", home / port.switch)
    text = Path(connectx_tools.__file__).read_text()
    for name in connectx_tools.PROGRAMS:
        program = root / _PROGRAMS / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(text)
        program.chmod(0o755)


def _rows(topology: Topology, ports: Sequence[Port]) -> Iterator[dict[str, object]]:
    for port in ports:
        yield {
            "netdev": port.netdev,
            "device": port.nic.device,
            "pci": pci_address(port),
            "above": f"0000:{_bus(port):02x}:01.0",
            "wire": port.wire,
            "far_namespace": str(connectx_tools.HOME / port.switch),
            "far_interface": port.interface,
            "rate_mbps": round(port.rate_bps / 1e6),
            "lossless": [port.nic.dscp // 8] if port.nic.dscp else [],
            "floor_off": topology.ack_timeout is AckTimeout.CX6_FLOOR_OFF,
        }


def _bind(source: str, place: Path) -> None:
    if not place.exists():
        place.touch()
        namespaces.bind(source, str(place))
