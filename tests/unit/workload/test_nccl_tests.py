"""The command line of nccl-tests, and the parser of its output."""

import pytest
from nccl_tests import command, read

from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Host, Nic

HEAD = """\
# nThread 1 nGpus 1 minBytes 536870912 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   1728 on gpu01 device  0 [0000:0f:00] NVIDIA A100-SXM4-40GB
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
   536870912     134217728     float     sum      -1   2591.9  207.14  362.49      0   2589.3  207.34  362.84      0
  1073741824     268435456     float     sum      -1    13867   77.43  135.50      0    13877   77.38  135.41      0
"""
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 249.06\n#\n"


def test_rows_and_totals_are_read():
    """Sizes, times and bandwidths of every row out of place; the mean and what was out of bounds."""
    found = read(HEAD + ROWS + TAIL)
    assert [row.size_bytes for row in found.rows] == [536870912, 1073741824]
    assert found.rows[1].time_s == pytest.approx(0.013867)
    assert found.rows[1].busbw_bps == pytest.approx(135.5 * 8e9)
    assert (found.busbw_bps, found.out_of_bounds) == (pytest.approx(249.06 * 8e9), 0)


def test_labelled_lines_and_unchecked_collectives_are_read():
    """As `srun --label` prints them; a collective that is not checked has nothing wrong or right."""
    times = "1061.1  126.49  118.59    N/A   1058.4  126.82  118.89    N/A"
    row = f" 0:    134217728       2097152     float    none      -1   {times}\n"
    found = read(row + " 0: # Out of bounds values : 0 OK\n 0: # Avg bus bandwidth    : 128.817 \n")
    assert found.rows[0].wrong is None
    assert found.rows[0].algbw_bps == pytest.approx(126.49 * 8e9)


@pytest.mark.parametrize("output", ["", HEAD, HEAD + ROWS, HEAD + TAIL, "mpirun: command not found\n"])
def test_a_run_that_did_not_end_is_no_result(output):
    """Truncated output is an error with its last line, never a figure."""
    with pytest.raises(UnhealthyError, match="its last output"):
        read(output)


def test_it_runs_on_the_inventorys_devices_alone():
    """All hosts with their GPUs, and exactly the RDMA devices that the inventory names."""
    hosts = [Host(f"gpu0{n}", f"10.1.0.{n}", (Nic(f"gpu0{n}", 0, "mlx5_0", "eth2", "10.2.0.1", 4e11),)) for n in (1, 2)]
    words = command("all_reduce", hosts, 8)
    assert words[words.index("-np") + 1] == "16"
    assert "10.1.0.1:8,10.1.0.2:8" in words
    assert "NCCL_IB_HCA==mlx5_0" in words
    with pytest.raises(KeyError):
        command("scan", hosts, 8)


def test_nccl_is_measured_in_the_inventorys_class():
    """NCCL gets the traffic class and service level of the NICs; NICs with different ones leave it to its own."""
    nics = [Nic("gpu01", n, f"mlx5_{n}", "", "", 4e11, dscp=26, service_level=3) for n in range(2)]
    words = command("all_reduce", [Host("gpu01", "10.1.0.1", tuple(nics))], 8)
    assert {"NCCL_IB_TC=104", "NCCL_IB_SL=3"} <= set(words)
    nics[1] = Nic("gpu01", 1, "mlx5_1", "", "", 4e11)
    assert "NCCL_IB_TC" not in " ".join(command("all_reduce", [Host("gpu01", "10.1.0.1", tuple(nics))], 8))
