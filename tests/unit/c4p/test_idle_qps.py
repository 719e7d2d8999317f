"""Idle QPs use the paths of QPs with a share."""

import pytest

from c4bench.c4p.shares import assign_idle_qps
from c4bench.model.fabric import Flow


def qps(connection, *shares):
    flows = [Flow(f"{connection}.{number}", "j", "a", "b", 1.0) for number in range(len(shares))]
    return flows, {flow.id: share for flow, share in zip(flows, shares, strict=True)}


@pytest.mark.parametrize(
    ("shares", "leaders"),
    [
        ((1.0, 0.0, 0.0, 0.0), "0000"),
        ((0.0, 0.25, 0.75, 0.0), "2122"),
        ((0.0, 0.4, 0.6, 0.0), "2121"),
        ((0.25, 0.25, 0.25, 0.25), "0123"),
    ],
)
def test_spare_qps_join_those_with_most(shares, leaders):
    """The largest share that a QP carries is as low as whole QPs allow."""
    flows, given = qps("x", *shares)
    found = assign_idle_qps(given, flows)
    assert [found[flow.id].leader for flow in flows] == [f"x.{leader}" for leader in leaders]
    carried = [sum(part.share for part in found.values() if part.leader == flow.id) for flow in flows]
    assert carried == pytest.approx(shares)


def test_connections_do_not_help_each_other():
    """A spare QP reaches only its own peer; an unknown connection gets no guidance for any of its QPs."""
    one, shares = qps("x", 0.0, 1.0)
    other, more = qps("y", 1.0, 0.0)
    unknown, _ = qps("z", 0.0, 0.0)
    found = assign_idle_qps(shares | more, [*one, *other, *unknown])
    assert {flow: part.leader for flow, part in found.items()} == {
        "x.0": "x.1",
        "x.1": "x.1",
        "y.0": "y.0",
        "y.1": "y.0",
    }
    assert assign_idle_qps({"z.0": 0.0, "z.1": 0.0}, unknown) == {}
