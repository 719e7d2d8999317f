"""Hosts and switches queue the inventory's DSCP without loss, and alike; recorded and documented output is read."""

from pathlib import Path

import msgspec
import pytest
from test_capabilities import CLOCK, DEVICE, FOUND, HOST, NIC, change

from c4bench.doctor.capabilities import State, evaluate
from c4bench.doctor.findings import Netdev
from c4bench.doctor.look import dcb_pfc, dcb_trust, forced_class, mlnx_trust

RECORDED = Path(__file__).parents[1] / "inject" / "tools" / "mlnx_qos.txt"


def report(found=FOUND, name="n1"):
    """What is said of a host of that name."""
    return evaluate(type(HOST)(name, HOST.address, HOST.nics), found, CLOCK)


def test_trust_is_read_off_mlnx_qos():
    """The trusted field and each DSCP's priority are read, a priority's DSCPs on one line or on several."""
    trust, priorities = mlnx_trust(RECORDED.read_text())
    assert (trust, [dscp for dscp in range(64) if priorities[dscp] == 3]) == ("dscp", list(range(24, 32)))
    wrapped = "Priority trust state: dscp\n\tprio:5 dscp:07,06,05,\n\tprio:5 dscp:59,\n"
    assert [dscp for dscp, priority in enumerate(mlnx_trust(wrapped)[1]) if priority == 5] == [5, 6, 7, 59]
    assert mlnx_trust("Priority trust state: pcp\n") == ("pcp", [])
    assert mlnx_trust("Priority trust state: none\n") == mlnx_trust("") == ("", [])


def test_trust_is_read_off_dcb():
    """The DSCPs of the APP table have their priority, others 0; without one it is unknown what is trusted."""
    trust, priorities = dcb_trust('{"dscp_prio":[[26,3],[48,6]]}')
    assert (trust, priorities[26], priorities[48], sum(priorities)) == ("dscp", 3, 6, 9)
    assert dcb_trust("{}") == dcb_trust("") == ("", [])


@pytest.mark.parametrize(
    "text", ["[WARN] old", "[", "[]", '{"dscp_prio": 1, "prio-pfc": 1}', '{"dscp_prio": [[[], 1], 3]}', "[" * 5000]
)
def test_what_dcb_prints_otherwise_says_nothing(text):
    """Other text than the tool's is no report, and does not end that of the host."""
    assert dcb_trust(text) == ("", [])
    assert dcb_pfc(text) is None


def test_a_warning_before_the_answer_of_dcb_is_passed_over():
    """What is trusted and where PFC is on is read behind it."""
    assert dcb_pfc('[WARN] old\n{"prio-pfc": [false, "on"]}') == [1]
    assert dcb_trust('Warning\n{"dscp_prio": [[26, 3]]}')[0] == "dscp"


def test_host_that_leaves_out_priorities_is_not_believed():
    """A report that trusts DSCP must have the priority of all 64; any other is refused when it is decoded."""
    for priorities in ([], [0] * 63, [0] * 65):
        answer = {"mtu_bytes": 9000, "state": "up", "pfc": [3], "ecn": [], "trust": "dscp", "priorities": priorities}
        with pytest.raises(msgspec.ValidationError, match=f"{len(priorities)} priorities of 64"):
            msgspec.convert(answer, Netdev)


def test_class_of_a_whole_device_is_read():
    """What NVIDIA's driver package gives all packets of a device is read; an empty file gives each its own."""
    assert forced_class("Global tclass=106\n") == 106
    assert forced_class("") is None


def test_class_of_a_whole_device_may_have_any_ecn_bits():
    """A device whose fixed traffic class has the inventory's DSCP agrees with it, whatever its ECN bits."""
    found = change(rdma=(type(DEVICE)(*[getattr(DEVICE, name) for name in DEVICE.__struct_fields__[:-1]], 106),))
    assert report(found).lacks("lossless") is None


def test_default_is_lossy_on_a_host_that_is_set_up_for_another_class():
    """Where the inventory states no DSCP and PFC is on at priority 3, the host's packets are not lossless."""
    host = type(HOST)("n1", HOST.address, (type(NIC)("n1", 0, "mlx5_0", "eth2", "10.2.0.1", 1e11),))
    lacks = evaluate(host, FOUND, CLOCK).lacks("lossless")
    assert "DSCP 0 has priority 0 on eth2, and PFC is on at 3" in lacks.detail
    assert "`dscp` in c4" in lacks.fix


def test_lossless_host_says_so():
    """A host that trusts DSCP and has PFC at the DSCP's priority is lossless, with the DSCP it was judged by."""
    (lossless,) = [one for one in report().capabilities if one.name == "lossless"]
    assert (lossless.state, lossless.detail) == (State.REAL, "DSCP 26")
