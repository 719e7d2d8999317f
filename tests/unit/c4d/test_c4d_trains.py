"""Packet trains: which component is slow, by how far trains are spread and how late they are."""

import random

import pytest
from c4d_fabric import LeafSpine
from test_c4d_doubts import ACROSS, PATH, link

from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.diagnosis import Finding
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.fabric import Train
from c4bench.model.recording import DeliveriesCounted, Delivery, ProbingBegan, ProbingEnded, TimedFlow, TrainsTimed

# A third leaf tells links in series apart.
FABRIC = LeafSpine(3)
PATHS, LEAF = FABRIC.paths, FABRIC.leaf
RATE_BPS = 1e10
TRAIN_BYTES = 64 << 10
SENT = 10
LATE_S = 0.003
# What a ring cannot tell apart: a NIC, its only path out and its only path in, and all their links.
HOME = [link(name) for name in FABRIC.links("h4/0", "h0/0", "spine1")]
RING = [PATH, Component("path", "h4/0>h0/0"), *ACROSS, *HOME]
CABLE = {"tx": ACROSS[0], "rx": HOME[-1]}


def nic(side=""):
    """The NIC of the ring."""
    return Component("nic", "h0/0", side)


class Network:
    """Delivers trains. `narrow` and `late` are parts of paths, by how many times and by how many seconds.

    `clocks` are by how much those of hosts are ahead (s), at first, and from the middle of the first round on. `busy`
    is how often a train meets the job's data. `says` is what a host's agent says of a train that has come to it, if it
    is from the NIC `about`, or from any.
    """

    def __init__(self, *, narrow=None, late=None, clocks=None, busy=0.1, seed=1, says=None, about=None):
        self.narrow, self.late, self.clocks = narrow or {}, late or {}, clocks or {}
        self.busy, self.draw, self.says = busy, random.Random(seed), says or {}
        self.about = about
        self.rounds = 0

    def round(self, flows):
        """What the receivers of flows say."""
        self.rounds += 1
        return TrainsTimed(0.0, "job", tuple(map(self.timed, flows)))

    def timed(self, flow):
        """What the receiver of a flow says."""
        honest = self.about not in {None, flow[0]}
        says = (lambda train: train) if honest else self.says.get(flow[1].partition("/")[0], lambda train: train)
        trains = (says(self.train(flow, number)) for number in range(SENT))
        return TimedFlow(*flow, RATE_BPS, TRAIN_BYTES, SENT, tuple(train for train in trains if train))

    def train(self, flow, number):
        """One train: it may wait for data before, and between, its packets."""
        parts = {f"tx {flow[0]}", f"rx {flow[1]}", *PATHS[flow]}
        waits_s, between = ((self.draw.random() < self.busy) * self.draw.random() for _ in range(2))
        delay_s = len(PATHS[flow]) * 4e-6 + sum(self.late.get(part, 0.0) for part in parts) + waits_s * 1e-3
        times = max(self.narrow.get(part, 1.0) for part in parts) * self.draw.uniform(0.99, 1.01) + 5 * between
        later = self.rounds > 1 or number >= SENT / 2
        ahead_s = [self.clocks.get(end.partition("/")[0], (0.0, 0.0))[later] for end in flow[:2]]
        return Train(delay_s + ahead_s[1] - ahead_s[0], times * 8 / RATE_BPS)


def doubted(suspects, cause=Cause.TRANSFER_SLOW):
    """The doubts after a finding with these suspects."""
    first, *others = suspects
    finding = Finding(Syndrome.COMMUNICATION_SLOW, cause, first, 1.0, 0.5, ("seen",), "", {}, tuple(others))
    doubts = Doubts(PATHS)
    doubts.hold(finding, 2.0, 2.0, LEAF) or doubts.add(finding, 2.0, LEAF)
    return doubts


@pytest.fixture
def probed():
    """Send trains for a finding on what is slow; return the suspects left, if any were cleared, and how many rounds."""

    def run(suspects, **network):
        doubts, sends = doubted(suspects), Network(**network)
        while flows := doubts.next_trains():
            doubts.ingest(sends.round(flows))
        doubts.ingest(ProbingEnded(0.0, "job"))
        return [{one.component, *one.alternatives} for one, _ in doubts.ended(0.0).name], sends.rounds

    return run


@pytest.mark.parametrize("side", ["tx", "rx"])
@pytest.mark.parametrize("named", ["", "tx", "rx"])
@pytest.mark.parametrize("times", [1.25, 4.0])
def test_a_narrow_nic_is_left_with_its_side(probed, side, named, times):
    """Of all that a ring cannot tell apart a NIC that is narrow one way is left, with its cable there."""
    assert probed([nic(named), *RING], narrow={f"{side} h0/0": times}) == ([{nic(side), CABLE[side]}], 1)


def test_a_nic_that_is_narrow_both_ways_stays_whole(probed):
    """Where both directions spread trains the NIC as a whole is left, with its cable."""
    narrow = {"tx h0/0": 3.0, "rx h0/0": 3.0}
    assert probed([nic("rx"), *RING], narrow=narrow) == ([{nic(), *CABLE.values()}], 1)


@pytest.mark.parametrize("both", [False, True])
def test_a_narrow_link_is_told_from_the_next(probed, both):
    """Trains from a third leaf cross only one of two links in series: the other is told from it."""
    narrow = dict.fromkeys(["spine0>leaf1", *(["leaf1>spine0"] if both else [])], 2.0)
    assert probed([nic(), *RING], narrow=narrow) == ([{link("spine0>leaf1")}], 1)


@pytest.mark.parametrize("side", ["tx", "rx"])
def test_a_nic_that_delays_is_left_with_the_side_that_was_named(probed, side):
    """Delays there and back find the NIC; its side is what C4D knows from the past of the job's own delays."""
    assert probed([nic(side), *RING], late={f"{side} h0/0": LATE_S}) == ([{nic(side), CABLE[side]}], 1)


def test_delays_alone_tell_no_side(probed):
    """Where no side was named the NIC is left as a whole with both directions of its cable."""
    assert probed([nic(), *RING], late={"tx h0/0": LATE_S}) == ([{nic(), *CABLE.values()}], 1)


def test_a_link_that_delays_is_told_from_the_next(probed):
    """Delays there and back over several spines find the link."""
    assert probed([nic("tx"), *RING], late={"spine0>leaf1": LATE_S})[0] == [{link("spine0>leaf1")}]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fault", [{"narrow": {"spine0>leaf1": 1.2}}, {"late": {"spine0>leaf1": LATE_S}}])
def test_traffic_of_the_job_hides_nothing(probed, fault, seed):
    """Where most trains meet the job's data the right one is left, or among what is."""
    (left,), _ = probed([nic("tx"), *RING], **fault, busy=0.6, seed=seed)
    assert link("spine0>leaf1") in left


@pytest.mark.parametrize("seed", range(60))
def test_heavy_traffic_accuses_nobody(probed, seed):
    """Where four trains of five meet the job's data a link that delays is found, and nothing else."""
    left, _ = probed([nic("tx"), *RING], late={"spine0>leaf1": LATE_S}, busy=0.8, seed=seed)
    assert left == [{link("spine0>leaf1")}]


def test_ways_that_cross_no_suspect_are_compared():
    """Two pairs of NICs send to each other by ways that no suspect is on, so that it is known what is usual."""
    suspects = {nic("tx"), *RING}
    touched = {"h0/0", *(part.name for part in suspects)}
    clear = {flow for flow in doubted([nic("tx"), *RING]).next_trains() if touched.isdisjoint((*flow, *PATHS[flow]))}
    assert len({frozenset(flow[:2]) for flow in clear if any(back[:2] == flow[1::-1] for back in clear)}) >= 2


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("busy", [0.0, 0.3, 0.6])
def test_nothing_is_named_of_a_healthy_network(probed, busy, seed):
    """Where no train is slow for long, more are sent up to a limit, and the finding stays as it is."""
    assert probed([nic("tx"), *RING], busy=busy, seed=seed) == ([], 4)


@pytest.mark.parametrize("fault", [{"narrow": {"tx h1/0": 3.0}}, {"late": {"rx h1/0": LATE_S}}])
def test_what_is_no_suspect_is_not_hidden_behind_one(probed, fault):
    """Where another NIC is slow no suspect is named."""
    assert probed([nic("tx"), *RING], **fault)[0] == []


STEPPED = {"h0": (0.0, 0.7), "h3": (40.0, 40.0), "h5": (-3.0, -8.0)}


def test_clocks_may_differ_and_jump(probed):
    """Clocks that differ by seconds, or that are set between two trains of a round, accuse nobody and hide nothing."""
    late = {"rx h0/0": LATE_S}
    assert probed([nic("rx"), *RING], late=late, clocks=STEPPED)[0] == [{nic("rx"), CABLE["rx"]}]
    assert probed([nic("rx"), *RING], clocks=STEPPED)[0] == []


def test_where_no_train_arrives_the_doubt_stays(probed):
    """Flows whose trains are lost, or that nobody times, say nothing."""
    deaf = dict.fromkeys((name.partition("/")[0] for name in LEAF), lambda _: None)
    assert probed([nic("tx"), *RING], narrow={"tx h0/0": 4.0}, says=deaf) == ([], 1)


def test_a_host_that_times_nothing_hides_nothing(probed):
    """The trains of other hosts still tell which NIC is narrow."""
    left, _ = probed([nic("tx"), *RING], narrow={"tx h0/0": 4.0}, says={"h3": lambda _: None})
    assert left == [{nic("tx"), CABLE["tx"]}]


WILD = [
    lambda _: Train(1e9, 1e6),
    lambda _: Train(-1e9, -1.0),
    lambda _: Train(0.0, 0.0),
]


@pytest.mark.parametrize("wild", WILD)
def test_wild_times_say_nothing(probed, wild):
    """Times that no train can take, and the same train again and again, neither accuse nor hide anything."""
    assert probed([nic("tx"), *RING], says={"h3": wild})[0] == []
    left, _ = probed([nic("tx"), *RING], narrow={"tx h0/0": 4.0}, says={"h3": wild})
    assert left == [{nic("tx"), CABLE["tx"]}]


LIES = [lambda one: Train(one.delay_s, 50 * one.s_per_byte), lambda one: Train(one.delay_s + 0.1, one.s_per_byte)]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_accuses_only_what_the_liar_is_reached_by(probed, lie):
    """An agent that calls all trains to it slow, or late, accuses its own cable or its own path, and nobody else."""
    left, _ = probed([nic("tx"), *RING], says={"h3": lie})
    assert all(suspects <= {PATH, ACROSS[-1]} for suspects in left)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("liar", LEAF)
@pytest.mark.parametrize("victim", ["h0/0", "h3/0", "h4/0"])
def test_a_lie_about_one_sender_accuses_a_path_at_most(probed, lie, liar, victim):
    """An agent that calls one NIC's trains slow does not have it named: others tell of its trains as well."""
    left, _ = probed([nic("tx"), *RING], says={liar.partition("/")[0]: lie}, about=victim)
    assert all(part.kind == "path" for suspects in left for part in suspects)


def test_what_is_sure_is_not_probed():
    """A side of a NIC without alternatives costs no train."""
    assert doubted([nic("rx")]).next_trains() == ()


def test_each_doubt_has_its_own_kind_of_packets():
    """What is slow is sought by trains and what loses packets by numbered packets, also at the same time."""
    doubts = doubted([nic("tx"), *RING])
    assert not doubts.next_flows()
    lossy = Finding(Syndrome.COMMUNICATION_SLOW, Cause.PACKETS_LOST, PATH, 1.0, 0.5, ("seen",), "", {}, tuple(ACROSS))
    doubts.add(lossy, 2.0, LEAF)
    network, lost = Network(narrow={"tx h0/0": 3.0}), {"leaf0>spine0"}
    while (flows := doubts.next_flows()) or (trains := doubts.next_trains()):
        if flows:
            came = {flow: 90 if {*PATHS[flow]} & lost else 100 for flow in flows}
            counted = tuple(Delivery(*flow, 100, left, left, 0) for flow, left in came.items())
            doubts.ingest(DeliveriesCounted(0.0, "job", counted))
        else:
            doubts.ingest(network.round(trains))
    doubts.ingest(ProbingEnded(0.0, "job"))
    slow, lossy = doubts.ended(0.0).name
    assert {slow[0].component, *slow[0].alternatives} == {nic("tx"), CABLE["tx"]}
    assert (lossy[0].component, lossy[0].alternatives) == (link("leaf0>spine0"), ())
    assert slow[0].probed
    assert "packet trains" in slow[0].refuted_by


@pytest.mark.parametrize(("narrow", "kept"), [({}, False), ({"tx h0/0": 4.0}, True)])
def test_what_trains_refute_in_time_is_not_named(narrow, kept):
    """A doubtful finding is held for 2.5 s of probing, and dropped if trains across it are as fast as others."""
    doubts, network = doubted([PATH, nic("tx"), *RING[1:]]), Network(narrow=narrow, busy=0.0)
    doubts.ingest(ProbingBegan(2.0, "job"))
    doubts.ingest(network.round(doubts.next_trains()))
    assert doubts.ended(4.4) == ([], [], [])
    named, refuted, _ = doubts.ended(4.5)
    assert (len(named), len(refuted)) == (int(kept), int(not kept))


def test_what_nobody_probes_is_named_in_the_end():
    """Without an answer a doubtful finding is named as it is, once."""
    doubts = doubted([PATH, nic("tx"), *RING[1:]])
    assert doubts.ended(2.9) == ([], [], [])
    assert len(doubts.ended(3.0).name) == 1
    assert doubts.ended(9.0) == ([], [], [])


def test_trains_of_two_slow_nics_leave_each_finding_its_own():
    """One NIC is narrow and another late: the cable of the first is a suspect of both, and left of one."""
    doubts, sends = doubted([nic("tx"), *RING]), Network(narrow={"tx h0/0": 2.0}, late={"rx h3/0": LATE_S})
    other, cable = Component("nic", "h3/0", "rx"), CABLE["tx"]
    finding = Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.TRANSFER_SLOW,
        other,
        1.0,
        0.5,
        ("seen",),
        "",
        {},
        (cable, link("leaf1>h3/0")),
    )
    doubts.hold(finding, 2.0, 2.0, LEAF)
    while flows := doubts.next_trains():
        doubts.ingest(sends.round(flows))
    doubts.ingest(ProbingEnded(0.0, "job"))
    left = [{one.component, *one.alternatives} for one, _ in doubts.ended(0.0).name]
    assert left == [{nic("tx"), cable}, {other, link("leaf1>h3/0")}]
