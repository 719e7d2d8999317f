"""Drivers for hardware that is not here, held against what the tools print, as their documentation shows it."""

from pathlib import Path

import pytest

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import gpus
from c4bench.inject.catalogue import load
from c4bench.inject.registry import DRIVERS
from c4bench.model.fault import FaultRequest

CATALOGUE = load()
TOOLS = Path(__file__).parent / "tools"


def printed(name):
    return (TOOLS / name).read_text()


def plan(driver, request, found):
    _, request = CATALOGUE.resolve(request)
    made = DRIVERS[driver](request, found)
    return [[str(action) for action in side] for side in (made.apply, made.revert)]


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
