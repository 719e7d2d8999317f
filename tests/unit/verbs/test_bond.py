"""Bonds: which port Linux sends a flow by, and the LAG port that a bonded mlx5 NIC's QP gets with its source port."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from c4bench.verbs import mlx5
from c4bench.verbs.addressing import ETHERNET, Gid, PathAttributes, PortStatus
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.mlx5 import LiveSourcePort, SourcePortAndLagPort, leaving_port, read_bond
from c4bench.verbs.transport import Remote

PORTS = ("eth0", "eth1")
OWN, FAR = "10.0.0.1", "10.2.0.1"


@pytest.fixture
def sysfs(tmp_path):
    """A folder like /sys/class with a bond of two PCI functions, and its RDMA device."""

    def write(mode="802.3ad 4", policy="layer3+4 1", up=PORTS, device="0000:3b:00."):
        bonding = tmp_path / "net/bond0/bonding"
        bonding.mkdir(parents=True)
        for name, text in (("mode", mode), ("xmit_hash_policy", policy), ("slaves", " ".join(PORTS))):
            (bonding / name).write_text(f"{text}\n")
        for number, port in enumerate(PORTS):
            (tmp_path / "net" / port / "bonding_slave").mkdir(parents=True)
            (tmp_path / "net" / port / "bonding_slave/mii_status").write_text("up\n" if port in up else "down\n")
            target = tmp_path / "devices" / f"{device}{number}"
            target.mkdir(parents=True)
            (tmp_path / "net" / port / "device").symlink_to(target)
        port = tmp_path / "infiniband/mlx5_bond_0/ports/1"
        for folder, text in (
            ("gids", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("gid_attrs/types", "RoCE v2"),
            ("gid_attrs/ndevs", "bond0"),
        ):
            (port / folder).mkdir(parents=True)
            (port / folder / "0").write_text(f"{text}\n")
        return tmp_path

    return write


class Device:
    """Stands in for a bonded NIC of the mlx5 family that is not here."""

    name, port_number, vendor = "mlx5_bond_0", 1, 0x02C9

    def status(self):
        return PortStatus("ACTIVE", 4096, ETHERNET, 0x2C, 0)

    def resolve_gid(self):
        return Gid(0, f"::ffff:{OWN}", "RoCE v2", "bond0")

    def here(self):
        return Remote(f"::ffff:{OWN}", 0)

    def connection(self, *_):
        return nullcontext(endpoint(self))


def endpoint(device):
    return SimpleNamespace(
        device=device,
        raw="qp",
        qp_num=17,
        qps=(17, 17),
        path=PathAttributes(),
        remote=Remote(f"::ffff:{FAR}", 18),
        connect_by=lambda *_: None,
    )


@pytest.fixture
def firmware(monkeypatch):
    """The verbs' calls in order, in pyverbs' place; without `affinity` it refuses LAG ports, as in hash mode."""

    def install(*, affinity=True):
        calls = []

        def lag(_, port=0):
            if not affinity:
                raise VerbsError("refused", device="mlx5_bond_0", status="Operation not supported")
            calls.append(("lag", port))
            return 1, 1

        qp = SimpleNamespace(
            modify_udp_sport=lambda _, port: calls.append(("sport", port)), modify_lag_port=lag, query_lag_port=lag
        )
        monkeypatch.setattr(mlx5, "_provider", lambda: SimpleNamespace(Mlx5QP=qp))
        return calls

    return install


def test_the_lag_port_is_that_by_which_the_bond_sends_from_the_source_port(sysfs, firmware):
    """Probes and data of a source port leave by one port: PCI function n is LAG port n + 1."""
    calls = firmware()
    control = SourcePortAndLagPort(LiveSourcePort(), sysfs())
    assert control.obstacle(Device()) == ""
    one = endpoint(Device())
    leaving = {}
    for source_port in range(0xC001, 0xC011):
        calls.clear()
        control.move(one, source_port)
        (_, sport), (_, leaving[source_port]) = calls
        assert sport == source_port
    assert leaving == {port: PORTS.index(leaving_port(PORTS, OWN, FAR, port)) + 1 for port in leaving}
    assert set(leaving.values()) == {1, 2}
    calls.clear()
    control.after_connect(one, 0)
    assert calls == []


@pytest.mark.parametrize(
    ("fabric", "affinity", "reason"),
    [
        ({"mode": "active-backup 1"}, True, "bond bond0 has mode active-backup and policy layer3+4; set balance-xor"),
        ({"policy": "layer2 0"}, True, "policy layer2; set balance-xor or 802.3ad with layer3+4"),
        ({"up": ()}, True, "no port of bond bond0 is up"),
        ({"device": "virtio"}, True, "its port eth0 is no PCI function"),
        ({}, False, "Operation not supported"),
    ],
)
def test_a_bond_whose_hash_cannot_be_followed_is_refused_in_one_line(sysfs, firmware, fabric, affinity, reason):
    """A bond that does not hash UDP ports, or firmware in hash mode, is left to the source port alone."""
    firmware(affinity=affinity)
    obstacle = SourcePortAndLagPort(LiveSourcePort(), sysfs(**fabric)).obstacle(Device())
    assert reason in obstacle
    assert "\n" not in obstacle


def test_a_port_that_is_down_carries_nothing(sysfs):
    """The kernel hashes over the ports that are up."""
    bond = read_bond("bond0", sysfs(up=("eth1",)))
    assert bond.ports == ("eth1",)
    assert {leaving_port(bond.ports, OWN, FAR, port) for port in range(0xC000, 0xC020)} == {"eth1"}


def test_what_is_no_bond_is_not_asked(tmp_path):
    """A NIC with one port, or without an interface here, has no LAG port."""
    assert {read_bond(name, tmp_path).obstacle for name in ("eth0", "")} == {"it is no bond"}
