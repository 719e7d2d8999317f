"""What perftest prints and what the kernel says about its server."""

import pytest

from c4bench.workload.perftest import average_bps, serving

REPORT = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    200              4.21               3.87               0.000461
---------------------------------------------------------------------------------------
"""
LISTENING = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
"""


def test_the_average_is_read_from_the_row_of_the_size():
    """3.87 Gbit/s, not the peak."""
    assert average_bps(REPORT, 1 << 20) == pytest.approx(3.87e9)


@pytest.mark.parametrize("said", ["", "Can't produce a report", REPORT.replace("1048576", "4096")])
def test_no_row_is_no_bandwidth(said):
    """A run that could not time itself is told from one that was slow."""
    assert average_bps(said, 1 << 20) == 0.0


def test_a_listening_server_is_told_from_a_connected_one():
    """Only a socket that listens on that port means that a client may come."""
    assert serving(LISTENING, 18515)
    assert not serving(LISTENING, 18516)
    assert not serving(LISTENING.replace(" 0A ", " 01 "), 18515)
