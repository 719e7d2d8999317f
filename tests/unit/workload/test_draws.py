"""What a draw's name says about its connections."""

import pytest

from c4bench.errors import UsageError
from c4bench.verbs.transport import PATIENT
from c4bench.workload.draws import Draws


def draws(spray_dscp=0):
    """Parameters of which only the DSCP matters."""
    return Draws(1 << 20, (), "meeting", 0, 2, spray_dscp=spray_dscp)


def test_a_sprayed_connection_marks_its_packets():
    """Only a sprayed round has the traffic class of the DSCP, and goes on after any number of NAKs."""
    sprayed = draws(8).transport("sprayed")
    assert (sprayed.traffic_class, sprayed.retries, sprayed.timeout) == (8 << 2, 7, PATIENT.timeout)
    assert draws(8).transport("sprayed-short").timeout < PATIENT.timeout
    assert draws(8).transport("ecmp") is draws(8).transport("planned") is PATIENT


def test_spraying_needs_a_dscp():
    """Without one the switches would hash, and ECMP would pass for spraying."""
    with pytest.raises(UsageError, match="spray_dscp"):
        draws().transport("sprayed")
