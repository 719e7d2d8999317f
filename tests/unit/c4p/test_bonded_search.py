"""The search for paths between bonds: the source port chooses transmit port, path and receive port."""

import itertools

import pytest
from test_path_search import PORTS, Fabric

from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.cabling import infer
from c4bench.c4p.knowledge.nic_links import NicLinks
from c4bench.c4p.knowledge.path_search import PathSearch
from c4bench.model.fabric import Nic


class BondedFabric(Fabric):
    """Pairs of leaves with two bonds each; every port of a bond is on its own leaf. All leaves meet all spines."""

    def __init__(self, pairs=2, spines=2, limited=True, named=True):
        super().__init__(leaves=pairs, spines=spines, limited=limited)
        self.named = named
        self.links = NicLinks(Nic(nic[:-2], 0, "", "", f"address of {nic}", 1e10, bond=("a", "b")) for nic in self.nics)
        if named:
            every = (hop for source, far in self.pairs for port in range(64) for hop in self.path(source, far, port))
            self.links.name_switches({hop: hop.partition("<")[0] for hop in every})

    def path(self, source, destination, port):
        near, far = self.nics[source], self.nics[destination]
        mixed = (int(source[1:-2]) * 7919 + int(destination[1:-2]) * 104729 + port * 2654435761) & 0xFFFFFFFF
        sent, received, spine = (mixed >> 5) & 1, (mixed >> 12) & 1, (mixed >> 19) % self.spines
        first = f"leaf{2 * near + sent}"
        if near == far:
            return (f"{first}<{source}",)
        last = f"leaf{2 * far + received}"
        return f"{first}<{source}", f"spine{spine}<{first}", f"{last}<spine{spine}"

    def last_hop(self, probe):
        entry = self.path(*probe)[-1]
        return f"address of {probe[1]}@{entry.partition('<')[0] if self.named else entry}"


@pytest.mark.parametrize("limited", [True, False])
def test_every_transmit_port_path_and_receive_port_is_found(limited):
    """Each pair of bonds gets a source port for each of 2 x 2 x 2 paths, at one pair of leaves for each of 2."""
    fabric = BondedFabric(limited=limited)
    traces = fabric.search()
    assert fabric.wrong(traces) == {}
    for pair in fabric.pairs:
        apart = fabric.nics[pair[0]] != fabric.nics[pair[1]]
        assert len({hops for (*ends, _), hops in traces.items() if tuple(ends) == pair}) == (8 if apart else 2), pair
    assert fabric.now_s < 60


def test_the_ports_of_a_bond_are_two_links():
    """Links to a bond are named by the switch they come from, else by where packets entered it; both end at the NIC."""
    known, unknown = BondedFabric(), BondedFabric(named=False)
    for fabric, count in ((known, 2), (unknown, 4)):
        traces = fabric.search([("h0/0", "h2/0")])
        last = {hops[-1] for hops in traces.values()}
        assert fabric.wrong(traces) == {}
        assert len(last) == count
        assert {hop.partition("@")[0] for hop in last} == {"address of h2/0"}


def test_the_leaves_of_a_bond_stay_two_switches():
    """Cabling is inferred from the paths of bonds without taking both leaves for one."""
    fabric = BondedFabric(limited=False)
    links = infer(Atlas.from_answers(fabric.search()), {})
    leaves = {link.target for link in links if link.source in fabric.nics}
    assert {leaf.partition("<")[0] for leaf in leaves} >= {f"leaf{number}" for number in range(4)}
    for a, b in itertools.combinations([link for link in links if link.source == "h0/0"], 2):
        assert a.target != b.target


def test_capacities_are_those_of_ports():
    """Each port of a bond has half of its rate; a NIC with one cable has all of it."""
    bond, single = (
        Nic(host, 0, "", "", address, 1e10, bond=ports)
        for host, address, ports in (("a", "10.0.0.1", ("p0", "p1")), ("b", "10.0.0.2", ()))
    )
    links = NicLinks([bond, single])
    links.name_switches({"10.9.0.1": "leaf0", "10.9.0.2": "leaf1", "10.9.0.3": "leaf1"})
    assert links.capacities() == {"10.0.0.1@leaf0": 5e9, "10.0.0.1@leaf1": 5e9, "10.0.0.2": 1e10}


def test_a_port_of_a_bond_is_missed_only_by_a_random_sample():
    """A leaf without answers left hides its paths, and so the link to a bond that no other hop stands for."""
    fabric = BondedFabric()
    pair = fabric.pairs[0]
    search = PathSearch(PORTS, fabric.links)
    search.begin({pair: 3})
    sample = search.sample(lambda _nic, _hop: True)
    assert sample.size(f"address of {pair[1]}", {pair: 30}) == 30
    assert sample.size(f"address of {pair[1]}@leaf2", {pair: 30}) == 0


def test_a_switch_that_names_interfaces_is_known_by_its_address():
    """A hop may be a switch's address and an interface (RFC 5837); a link to a bond then has its name too."""
    links = NicLinks([Nic("a", 0, "", "", "10.0.0.1", 1e10, bond=("p0", "p1"))])
    links.name_switches({"10.9.0.1": "leaf0"})
    assert links.last_hop("a/0", "10.9.0.1%p3") == "10.0.0.1@leaf0"
    assert links.last_hop("a/0", "10.9.0.9%p3") == "10.0.0.1@10.9.0.9%p3"
