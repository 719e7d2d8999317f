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
        ((0.0, 0.5, 0.5, 0.0), "1122"),
        ((0.1, 0.9, 0.0, 0.0), "0111"),
        ((0.25, 0.25, 0.25, 0.25), "0123"),
    ],
)
def test_spare_qps_join_those_with_most(shares, leaders):
    """All QPs are used where their shares then are as equal as whole QPs allow."""
    flows, given = qps("x", *shares)
    found = assign_idle_qps(given, flows)
    assert [found[flow.id].leader for flow in flows] == [f"x.{leader}" for leader in leaders]
    carried = [sum(part.share for part in found.values() if part.leader == flow.id) for flow in flows]
    assert carried == pytest.approx(shares)


@pytest.mark.parametrize(
    ("shares", "carried"),
    [
        ((1 / 3, 1 / 3, 0.0, 1 / 3), (1 / 3, 1 / 3, 0, 1 / 3)),
        ((2 / 3, 0.0, 1 / 3, 0.0), (1 / 3, 1 / 3, 1 / 3, 0)),
        ((0.0, 0.4, 0.6, 0.0), (0.3, 0.4, 0.3, 0)),
    ],
)
def test_a_qp_that_would_make_shares_unequal_carries_nothing(shares, carried):
    """A full link is divided among QPs by their number: one that has more to carry than the others would end last."""
    flows, given = qps("x", *shares)
    found = assign_idle_qps(given, flows)
    assert [found[flow.id].share for flow in flows] == pytest.approx(carried)


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
