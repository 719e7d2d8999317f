"""Work completions and events by their verbs names."""

from types import SimpleNamespace

import pytest

from c4bench.verbs.device import KINDS, RECEIVE, _completion
from c4bench.verbs.transport import Completion


def wc(wr_id, status=0, imm_data=0):
    return SimpleNamespace(qp_num=17, wr_id=wr_id, status=status, imm_data=imm_data)


def test_success_has_no_status():
    """A send keeps its work request's number, a receive has its immediate."""
    assert _completion(wc(5)) == Completion(17, 5, "", received=False, immediate=0)
    assert _completion(wc(RECEIVE, imm_data=9)) == Completion(17, 0, "", received=True, immediate=9)


@pytest.mark.parametrize(
    ("code", "name"), [(2, "LOC_QP_OP_ERR"), (5, "WR_FLUSH_ERR"), (10, "REM_ACCESS_ERR"), (12, "RETRY_EXC_ERR")]
)
def test_failures_are_named(code, name):
    """A failed work request has the status's verbs name; a failed receive is still known as one, without immediate."""
    assert _completion(wc(5, code)).status == name
    assert _completion(wc(RECEIVE, code, imm_data=9)) == Completion(17, 0, name, received=True, immediate=0)


def test_a_status_without_a_name_is_its_number():
    """A status unknown to this version is shown as a number."""
    assert _completion(wc(5, 99)).status == "99"


def test_events_have_names():
    """The events that matter to a running job are known by their verbs names."""
    assert {"PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "DEVICE_FATAL"} <= set(KINDS.values())
