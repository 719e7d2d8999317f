"""A host says what a QP's time-out means there, as far as its NICs can be read."""

import json
import os
from pathlib import Path

import pytest

from c4bench.doctor import look
from c4bench.doctor.findings import Device
from c4bench.doctor.retries import meaning

# From NVIDIA's documentation: Adaptive Retransmission, Parameters Control, Sample Usage (shortened).
PRINTED = """Sending access register...

Field Name                                     | Data
============================================================
roce_adp_retrans_field_select                  | 0x00000001
min_ack_timeout_limit_disabled_field_select    | 0x00000001
roce_adp_retrans_en                            | 0x00000001
min_ack_timeout_limit_disabled                 | 0x00000000
adaptive_routing_forced_en                     | 0x00000000
============================================================
"""
OFF = PRINTED.replace("disabled                 | 0x00000000", "disabled                 | 0x00000001")


def device(driver="mlx5_core", floor=None):
    return Device("mlx5_0", False, "20.43.4100", "MT_0000000359", (), None, driver, floor)


@pytest.mark.parametrize(("text", "floor"), [(PRINTED, True), (OFF, False), ("-E- Failed to open device", None)])
def test_the_floor_is_read_from_the_register(text, floor):
    """The field itself counts, and not the one that says that it may be set; without it nothing is known."""
    assert look.ack_floor(text) is floor


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([device(floor=True)], "give up after 59.8 s (acknowledgement time-out floor on)"),
        ([device(floor=False)], "give up after 37.9 s (acknowledgement time-out floor off)"),
        ([device()], "59.8 s, or 37.9 s if the floor is off, which root reads with mlxreg"),
        ([device(floor=True), device(floor=False)], "floor on) and 37.9 s"),
    ],
)
def test_the_default_of_nccl_is_given_its_time(devices, said):
    """By the floor, and both times where it is unknown."""
    assert said in meaning(devices)
    assert meaning(devices).startswith("as ConnectX-6, QPs of timeout 20 and retry_cnt 7 give up after ")


@pytest.mark.parametrize("devices", [[], [device("bnxt_en")], [Device("rxe0", True, "", "", ())]])
def test_of_other_nics_nothing_is_said(devices):
    """The model is of ConnectX-6 alone."""
    assert meaning(devices) == ""


def test_hardware_is_asked_and_software_is_not(monkeypatch, tmp_path):
    """Mlxreg is asked by PCI address, of mlx5 alone; the report of a software device has no such key."""
    pci = tmp_path / "pci/0000:17:00.1"
    hardware = pci / "infiniband/mlx5_1"
    hardware.mkdir(parents=True)
    (tmp_path / "mlx5_core").mkdir()
    (pci / "driver").symlink_to(tmp_path / "mlx5_core")
    (hardware / "device").symlink_to(pci)
    tool = tmp_path / "bin/mlxreg"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho \"$*\" > {tmp_path}/asked\ncat <<'E'\n{OFF}E\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    found = look.device(hardware)
    assert (found["driver"], found["ack_floor"]) == ("mlx5_core", False)
    assert (tmp_path / "asked").read_text() == "-d 0000:17:00.1 --yes --reg_name ROCE_ACCL --get\n"
    software = tmp_path / "virtual/rxe0"
    software.mkdir(parents=True)
    assert not {"driver", "ack_floor"} & look.device(software).keys()
    assert json.dumps(look.device(Path(software)))
