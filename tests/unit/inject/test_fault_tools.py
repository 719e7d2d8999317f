"""Drivers for hardware that is not here, held against what the tools print, as their documentation shows it."""

from pathlib import Path

import msgspec
import pytest
from fakes import NIC, nic_request, target

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import gpus
from c4bench.inject.catalogue import load
from c4bench.inject.drivers import hardware
from c4bench.inject.registry import DRIVERS
from c4bench.model.fault import FaultRequest

CATALOGUE = load()
TOOLS = Path(__file__).parent / "tools"
CONNECTX = msgspec.structs.replace(NIC, device="mlx5_0", netdev="enp65s0f0np0", rate_bps=100e9)


def printed(name):
    return (TOOLS / name).read_text()


@pytest.fixture
def tool(monkeypatch):
    """What each tool prints, by its name; one that is not there was not to be asked."""
    outputs = {
        "ethtool": printed("ethtool.txt"),
        "mlnx_qos": printed("mlnx_qos.txt"),
        "mlxlink": printed("mlxlink.txt"),
        "setpci": "0004\n",
        "readlink": "/sys/devices/pci0000:40/0000:40:03.1/0000:41:00.0\n",
    }
    monkeypatch.setattr(hardware, "run", lambda argv, _: outputs[argv[0]])
    return outputs


def plan(driver, request, found):
    _, request = CATALOGUE.resolve(request)
    made = DRIVERS[driver](request, found)
    return [[str(action) for action in side] for side in (made.apply, made.revert)]


def nic_plan(driver, fault, **parameters):
    request = msgspec.structs.replace(nic_request(fault, **parameters), nic=CONNECTX)
    return plan(driver, request, msgspec.structs.replace(target(), interface=CONNECTX))


@pytest.mark.usefixtures("tool")
def test_an_ethernet_link_is_fixed_at_a_speed_and_negotiates_again():
    """What the link advertised is everything it supports, so negotiation on gives exactly that back."""
    assert nic_plan("mlx5.speed", "nic.speed", speed="25G") == [
        ["ethtool -s enp65s0f0np0 speed 25000 autoneg off"],
        ["ethtool -s enp65s0f0np0 autoneg on"],
    ]


def test_a_fixed_speed_comes_back_fixed(tool):
    """A link that did not negotiate before does not afterwards."""
    tool["ethtool"] = tool["ethtool"].replace("Auto-negotiation: on", "Auto-negotiation: off")
    assert nic_plan("mlx5.speed", "nic.speed", speed="40G")[1] == ["ethtool -s enp65s0f0np0 speed 100000 autoneg off"]


@pytest.mark.parametrize(
    ("change", "speed", "complaint"),
    [
        (("", ""), "200G", "runs at 100000 Mb/s, no more than 200000"),
        (("25000baseCR/Full", "20000baseCR/Full"), "25G", "does not support 25000 Mb/s"),
        (("Advertised link modes:  1000baseKX/Full", "Advertised link modes:  1000baseT/Full"), "25G", "be restored"),
        (("Speed: 100000Mb/s", "Speed: Unknown!"), "25G", "reports no speed"),
    ],
)  # fmt: skip
def test_a_speed_that_could_not_be_had_or_put_back_is_refused(tool, change, speed, complaint):
    """Nothing is planned that the link cannot do, or that could not be undone exactly."""
    tool["ethtool"] = tool["ethtool"].replace(*change)
    with pytest.raises(UnhealthyError, match=complaint):
        nic_plan("mlx5.speed", "nic.speed", speed=speed)


@pytest.mark.usefixtures("tool")
def test_one_traffic_class_is_limited_and_all_eight_are_put_back():
    """The tool takes every class's limit at once: another class's own limit must survive both commands."""
    assert nic_plan("mlx5.qos", "nic.qos", fraction=0.25) == [
        ["mlnx_qos -i enp65s0f0np0 -r 0,0,0,25,3,0,0,0"],
        ["mlnx_qos -i enp65s0f0np0 -r 0,0,0,0,3,0,0,0"],
    ]


def test_unlisted_traffic_classes_are_refused(tool):
    """Half an answer would put back half the limits."""
    tool["mlnx_qos"] = tool["mlnx_qos"].partition("tc: 5")[0]
    with pytest.raises(UnhealthyError, match="limits of 5 traffic classes, not 8"):
        nic_plan("mlx5.qos", "nic.qos")


@pytest.mark.usefixtures("tool")
def test_an_infiniband_port_is_left_one_speed_and_given_all_again():
    """The speeds that were enabled come back by name, and the link trains each time."""
    assert nic_plan("infiniband.speed", "nic.speed", speed="100G") == [
        ["mlxlink -d mlx5_0 --speeds EDR --port_state TG"],
        ["mlxlink -d mlx5_0 --speeds HDR,EDR,FDR,SDR --port_state TG"],
    ]
    with pytest.raises(UnhealthyError, match="HDR, EDR, FDR, SDR enabled, not 25G"):
        nic_plan("infiniband.speed", "nic.speed", speed="25G")


@pytest.mark.usefixtures("tool")
def test_a_pcie_link_is_trained_at_a_lower_speed_by_the_port_above_it():
    """Only the target speed's bits are written, and the link is trained after each change."""
    assert nic_plan("pcie.speed", "nic.pcie", generation=1) == [
        ["setpci -s 0000:40:03.1 CAP_EXP+30.w=1:f", "setpci -s 0000:40:03.1 CAP_EXP+10.w=20:20"],
        ["setpci -s 0000:40:03.1 CAP_EXP+30.w=4:f", "setpci -s 0000:40:03.1 CAP_EXP+10.w=20:20"],
    ]
    with pytest.raises(UnhealthyError, match="generation 4 at most"):
        nic_plan("pcie.speed", "nic.pcie", generation=4)


def gpu_plan(driver, fault, index, **parameters):
    found = gpus.parse(printed("nvidia-smi.txt"))
    return plan(driver, FaultRequest(fault, "h5", gpu=index, parameters=parameters), found[index])


def test_a_gpu_is_held_back_and_let_go():
    """A power limit that was set before comes back as it was; a clock lock is taken away."""
    assert gpu_plan("nvidia.power", "gpu.power", 1) == [
        ["nvidia-smi -i 1 --power-limit=250"],
        ["nvidia-smi -i 1 --power-limit=650"],
    ]
    assert gpu_plan("nvidia.clock", "gpu.clock", 0) == [
        ["nvidia-smi -i 0 --lock-gpu-clocks=600,600"],
        ["nvidia-smi -i 0 --reset-gpu-clocks"],
    ]
    assert gpu_plan("nvidia.xid", "gpu.xid", 0) == [["dcgmi test --inject --gpuid 0 -f 230 -v 79"], []]
    with pytest.raises(UnhealthyError, match="supports 200 W at least; 100 W is not between them"):
        gpu_plan("nvidia.power", "gpu.power", 0, limit_w=100)


def test_gpus_are_read_whole_or_not_at_all(monkeypatch):
    """A figure that a GPU hides is told, and so is a GPU that is not there."""
    with pytest.raises(UnhealthyError, match="lacks a number for some field"):
        gpus.parse("0, [N/A], 200.00, 700.00, 700.00, 1980, 1980\n")
    monkeypatch.setattr(gpus, "run", lambda *_: printed("nvidia-smi.txt"))
    assert gpus.examine(FaultRequest("gpu.power", "h5", gpu=1)).enforced_w == 650
    with pytest.raises(UsageError, match="h5 has no GPU 7; it has: 0, 1"):
        gpus.examine(FaultRequest("gpu.power", "h5", gpu=7))


@pytest.mark.parametrize(("text", "number"), [(None, 79), ("#Entity   XIDER\nID\nGPU 0     N/A\n", 0), ("", 0)])
def test_the_newest_error_of_a_gpu_is_read(text, number):
    """No error at all reads as none."""
    assert gpus.parse_xid(printed("dcgmi_dmon.txt") if text is None else text) == number


@pytest.mark.parametrize("row", ["GPU", "GPU 0", "GPU 0 x", f"GPU 0 {'9' * 5000}"])
def test_another_table_of_dcgmi_is_refused(row):
    """A row without a number of an error is no traceback."""
    with pytest.raises(UnhealthyError, match="where the number of an XID is expected"):
        gpus.parse_xid(f"{row}\n")
