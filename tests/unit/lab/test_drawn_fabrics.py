"""The fabrics of a seed on which healthy jobs run, `make fabrics`."""

import msgspec
from fabrics import drawn_fabric

from c4bench.lab.topology_file import parse


def test_a_lab_can_be_of_any_of_them():
    """Each can be booted, so all of its hosts reach each other, and every leaf has one."""
    for number in range(60):
        fabric = drawn_fabric(1, number)
        parse(msgspec.json.encode(fabric), "drawn")
        leaves = {name for name in fabric["switches"] if name.startswith("leaf")}
        assert 6 <= len(fabric["hosts"]) <= 8
        assert leaves == {link["between"][1] for link in fabric["links"] if link["between"][0] in fabric["hosts"]}


def test_a_seed_has_unequal_and_missing_links():
    """A third of them at least has several rates, and a third fewer uplinks than could be; the seed says which."""
    drawn = [drawn_fabric(1, number) for number in range(30)]
    assert drawn == [drawn_fabric(1, number) for number in range(30)]
    assert drawn != [drawn_fabric(2, number) for number in range(30)]
    assert sum(len(set(rates(fabric))) > 1 for fabric in drawn) >= 10
    assert sum(len(rates(fabric)) < possible(fabric) for fabric in drawn) >= 10


def rates(fabric):
    """The rate of each uplink."""
    return [link["rate"] for link in fabric["links"] if link["between"][0] in fabric["switches"]]


def possible(fabric):
    """How many uplinks there are where every leaf has one to every spine."""
    leaves = sum(name.startswith("leaf") for name in fabric["switches"])
    return leaves * (len(fabric["switches"]) - leaves)
