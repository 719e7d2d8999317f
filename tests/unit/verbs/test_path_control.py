"""Source ports and flow labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.verbs.path import FIRST_PORT, LAST_PORT, FlowLabel, ecmp_label


@given(st.integers(FIRST_PORT, LAST_PORT), st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_every_port_has_a_label_that_folds_to_it(port, local_qp, remote_qp):
    """The label chosen for a port is never the ECMP one and gives that port whatever the QPs are."""
    label = FlowLabel().flow_label(port)
    assert 0 < label < 1 << 20
    assert FlowLabel().source_port(label, local_qp, remote_qp) == port


def test_ecmp_port_follows_the_qp_numbers():
    """Without a label the port is the one seen on the wire for QPs 17 and 17 of Linux 6.1."""
    assert FlowLabel().flow_label(0) == 0
    assert FlowLabel().source_port(0, 17, 17) == 0xC121
    assert ecmp_label(0x12345, 0x54321) == ecmp_label(0x54321, 0x12345)


@pytest.mark.parametrize("port", [4791, 0xBFFF, 0x10000])
def test_ports_outside_the_dynamic_range_are_refused(port):
    """A port no flow label can give is an error, not another port."""
    with pytest.raises(ValueError, match="outside"):
        FlowLabel().flow_label(port)
