"""NCCL's settings for the hosts of an inventory."""

from nccl_tests import settings

from c4bench.model.fabric import Host, Nic


def test_it_runs_on_the_inventorys_devices_alone():
    """Exactly the RDMA devices that the inventory names; none are no setting."""
    hosts = [Host(f"gpu0{n}", f"10.1.0.{n}", (Nic(f"gpu0{n}", 0, "mlx5_0", "eth2", "10.2.0.1", 4e11),)) for n in (1, 2)]
    assert settings(hosts)["NCCL_IB_HCA"] == "=mlx5_0"
    assert settings([Host("gpu01", "10.1.0.1")]) == {}


def test_nccl_is_measured_in_the_inventorys_class():
    """NCCL gets the traffic class and service level of the NICs; NICs with different ones leave it to its own."""
    nics = [Nic("gpu01", n, f"mlx5_{n}", "", "", 4e11, dscp=26, service_level=3) for n in range(2)]
    found = settings([Host("gpu01", "10.1.0.1", tuple(nics))])
    assert (found["NCCL_IB_TC"], found["NCCL_IB_SL"]) == ("104", "3")
    nics[1] = Nic("gpu01", 1, "mlx5_1", "", "", 4e11)
    assert "NCCL_IB_TC" not in settings([Host("gpu01", "10.1.0.1", tuple(nics))])
