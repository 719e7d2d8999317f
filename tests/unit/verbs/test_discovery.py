"""Discovery from sysfs trees as rxe, mlx5 on Ethernet and mlx5 on InfiniBand show them."""

import pytest

from c4bench.errors import UnhealthyError
from c4bench.verbs.discovery import discover, find, netdev_of

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:0ec4:7aff:fe00:0001"


def add_port(sysfs, device, port, link_layer, gids, netdev="", state="4: ACTIVE", **more):
    """A port as in /sys/class/infiniband; `gids` are (text, type), a type of "" for an entry that is not in use."""
    folder = sysfs / "infiniband" / device / "ports" / str(port)
    for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (folder / name).mkdir(parents=True)
    for name, text in ({"link_layer": link_layer, "state": state} | more).items():
        (folder / name).write_text(f"{text}\n")
    for index, (text, kind) in enumerate(gids):
        (folder / "gids" / str(index)).write_text(f"{text}\n")
        if kind:
            (folder / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
        if kind and netdev:
            (folder / "gid_attrs/ndevs" / str(index)).write_text(f"{netdev}\n")


def mapped(last):
    return f"0000:0000:0000:0000:0000:ffff:0a00:00{last:02x}"


@pytest.fixture
def sysfs(tmp_path):
    rxe = [(LOCAL, "RoCE v2"), (mapped(1), "RoCE v2")]
    add_port(tmp_path, "rxe0", 1, "Ethernet", rxe, netdev="eth0", lid="0x0000", lid_mask_count="0")
    roce = [(LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2"), (mapped(2), "IB/RoCE v1"), (mapped(2), "RoCE v2"), (NO_GID, "")]
    add_port(tmp_path, "mlx5_0", 1, "Ethernet", roce, netdev="ens1f0", state="1: DOWN", lid="0x0", lid_mask_count="0")
    ib = [("fe80:0000:0000:0000:0c42:a103:0065:1234", "IB/RoCE v1"), (NO_GID, "IB/RoCE v1")]
    add_port(tmp_path, "mlx5_1", 1, "InfiniBand", ib, lid="0x2c", lid_mask_count="2")
    return tmp_path


@pytest.fixture
def ports(sysfs):
    return discover(sysfs, lambda device, _port: {"rxe0": 1024}.get(device, 0))


def test_every_port_is_described(ports):
    """Name, state, link layer, LIDs, netdev, MTU and the GIDs in use with their types are read."""
    mlx5, infiniband, rxe = ports
    assert (rxe.device, rxe.netdev, rxe.state, rxe.active_mtu_bytes) == ("rxe0", "eth0", "ACTIVE", 1024)
    assert (mlx5.state, mlx5.netdev, mlx5.active_mtu_bytes) == ("DOWN", "ens1f0", 0)
    assert [(gid.table_index, gid.kind) for gid in mlx5.gids] == [
        (0, "RoCE v1"),
        (1, "RoCE v2"),
        (2, "RoCE v1"),
        (3, "RoCE v2"),
    ]
    assert (infiniband.link_layer, infiniband.lid, infiniband.lmc) == ("InfiniBand", 0x2C, 2)
    assert [gid.kind for gid in infiniband.gids] == ["IB"]


def test_ports_are_found_by_netdev_and_address(ports, sysfs):
    """A port is found by its interface, by an IP address of a RoCE v2 GID, or by both; a device tells its netdev."""
    assert find(ports, netdev="ens1f0").device == "mlx5_0"
    assert find(ports, address="10.0.0.1").device == "rxe0"
    assert find(ports, address="fe80::c42:a103:65:1234").device == "mlx5_1"
    assert find(ports, netdev="ens1f0", address="10.0.0.2").device == "mlx5_0"
    assert (netdev_of("mlx5_0", sysfs=sysfs), netdev_of("mlx5_1", sysfs=sysfs)) == ("ens1f0", "")


def test_a_port_that_is_not_there_is_reported_with_those_that_are(ports):
    """The error says what was wanted and which ports there are."""
    with pytest.raises(UnhealthyError, match=r"netdev eth0 and address 10.0.0.2; there are: .*rxe0/1 on eth0"):
        find(ports, netdev="eth0", address="10.0.0.2")
    with pytest.raises(UnhealthyError, match="there are: none"):
        find([], netdev="eth0")


def test_a_host_without_rdma_has_no_ports(tmp_path):
    """No /sys/class/infiniband at all is an empty list."""
    assert discover(tmp_path, lambda *_: 0) == []
