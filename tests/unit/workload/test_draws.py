"""What a draw's name says about its connections."""

import pytest

from c4bench.errors import UsageError
from c4bench.verbs.transport import PATIENT
from c4bench.workload.draws import Draws


def draws(spray_dscp=0):
    """Parameters of which only the DSCP matters."""
    return Draws(1 << 20, (), "meeting", 0, 2, spray_dscp=spray_dscp)


def test_a_sprayed_connection_marks_its_packets_and_is_hashed_otherwise():
    """Only a sprayed round has the traffic class of the DSCP; none of its QPs asks C4P for a path."""
    sprayed, hashed = draws(8).options("sprayed/4"), draws(8).options("ecmp/4")
    assert (sprayed.profile.traffic_class, hashed.profile.traffic_class) == (8 << 2, 0)
    assert (sprayed.paths, sprayed.qps) == ("ecmp", 4)
    assert hashed.profile is PATIENT
    assert draws(8).options("planned").paths == "planned"


def test_spraying_needs_a_dscp():
    """Without one the switches would hash, and ECMP would pass for spraying."""
    with pytest.raises(UsageError, match="spray_dscp"):
        draws().options("sprayed")
