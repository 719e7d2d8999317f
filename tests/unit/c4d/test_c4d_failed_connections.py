"""Failed connections of ranks that live on are named by what they have in common: once, and only if both ends live."""

from c4d_telemetry import op, window

from c4bench.c4d.detector import Detector
from c4bench.c4d.hang.failed_connections import common
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.recording import FailureReported
from c4bench.model.telemetry import CommRecord, ConnRecord, Failure, Member, RankRecord

# Four hosts of one rank each: the last two are at another site, and each rank has a pair with one there.
PAIRS = {"a": (0, 2), "b": (1, 3)}
OWN = {"near": (0, 1), "far": (2, 3)}
COMMS = PAIRS | OWN
LINK_IN, LINK_OUT = "10.9.0.2", "10.9.0.1"


def link(*names):
    return tuple(Component("link", name) for name in names)


def test_pairs_that_cross_one_cable_accuse_it():
    """Both directions of the cable explain all, and cannot be told apart; NICs that work are not named."""
    pairs = {("h0/0", "h2/0"): [("h0/0", "h2/0", "1")], ("h1/0", "h3/0"): [("h3/0", "h1/0", "1")]}
    links = {
        ("h0/0", "h2/0", "1"): ("s0", LINK_OUT, LINK_IN, "h2"),
        ("h3/0", "h1/0", "1"): ("s1", LINK_OUT, LINK_IN, "h1"),
    }
    ((first, others),) = common(pairs, {("h0/0", "h1/0", "1"), ("h2/0", "h3/0", "1")}, links)
    assert sorted((first, *others), key=str) == list(link(LINK_OUT, LINK_IN))


def test_a_nic_that_carries_nothing_at_all_is_named():
    """All that failed ends at one NIC, which reaches nobody else either; its peers reach each other."""
    pairs = {("h0/0", "h2/0"): [("h0/0", "h2/0", "1")], ("h1/0", "h2/0"): [("h1/0", "h2/0", "1")]}
    working = {("h0/0", "h1/0", "1"), ("h1/0", "h0/0", "1")}
    assert common(pairs, working, {}) == [(Component("nic", "h2/0"), ())]


def test_without_known_paths_nothing_but_the_pairs_is_named():
    """NICs that reach their neighbours are well, so that one finding has the paths of all failed pairs."""
    pairs = {("h0/0", "h2/0"): [], ("h1/0", "h3/0"): []}
    paths = tuple(Component("path", name) for name in ("h0/0>h2/0", "h1/0>h3/0"))
    assert common(pairs, {("h0/0", "h1/0", "1"), ("h3/0", "h2/0", "1")}, {}) == [(paths[0], paths[1:])]


class Sites:
    """A job at two sites whose ranks step within their site, and exchange between them in `PAIRS`."""

    def __init__(self):
        self.detector, self.found, self._tick = Detector(), [], 0
        self.closed, self.states, self.pairs_work = set(), {}, True
        # Ranks that do nothing, and ranks inside an operation of their pair.
        self.stopped, self.inside = set(), set()
        self.run(10)

    @property
    def now_s(self):
        return 100.0 + self._tick / 10

    def run(self, ticks):
        """So many tenths of a second; returns what the detector has said in them."""
        found = []
        for _ in range(ticks):
            self._tick += 1
            for rank in range(4):
                self.detector.ingest_window(self._window(rank))
            found += self.detector.evaluate(self.now_s)
        self.found += found
        return found

    def _window(self, rank):
        comms, ops, conns = [], [], []
        state, code = self.states.get(rank, ("running", None))
        for name, ranks in COMMS.items():
            if rank in ranks and (name, rank) not in self.closed:
                member, peer = ranks.index(rank), 1 - ranks.index(rank)
                seats = [Member(place, f"h{each}", (f"h{each}/0",), each) for place, each in enumerate(ranks)]
                comms.append(CommRecord(name, "job", tuple(seats)))
                if name in OWN and rank not in self.stopped:
                    ops.append(op(member, self._tick, self.now_s - 0.05, self.now_s - 0.01, name))
                if name in PAIRS and rank in self.inside:
                    ops.append(op(member, 99, 100.95, name=name))
                conns.append(self._conn(name, member, peer, ranks))
        process = RankRecord("job", rank, f"h{rank}", 10 + rank, state, code)
        return window(f"h{rank}", self._tick, self.now_s, comms=comms, ranks=[process], ops=ops, conns=conns)

    def _conn(self, name, member, peer, ranks):
        ends = f"h{ranks[member]}/0", f"h{ranks[peer]}/0"
        works = self.pairs_work if name in PAIRS else not self.stopped.intersection(ranks)
        moved_s = self.now_s - 0.02 if works else 100.9
        sent = self._tick if works else 9
        return ConnRecord(name, member, peer, *ends, 7, 49152, sent, 1000 * sent, 0, 0, 0, 0, moved_s, 0, 0, "idle")

    def cut(self):
        """Nothing passes between the sites, and the transport of each pair's ends gives up later."""
        self.pairs_work = False
        found = self.run(5)
        for name in PAIRS:
            for member in range(2):
                self.fail(name, member)
        return found

    def fail(self, comm, member, status="RETRY_EXC_ERR"):
        failure = Failure(member, "no answer", status, 1 - member)
        self.detector.ingest(FailureReported(self.now_s, "job", comm, failure))


def test_a_cut_is_named_once_while_the_job_goes_on():
    """All ranks step on within their sites: one finding, no more at the next turn, and again after it was well."""
    job = Sites()
    assert job.cut() == []
    (found,) = job.run(10)
    assert (found.syndrome, found.cause) == (Syndrome.COMMUNICATION_SLOW, Cause.CONNECTION_LOST)
    assert {found.component.name, *(other.name for other in found.alternatives)} == {"h0/0>h2/0", "h1/0>h3/0"}
    assert job.cut() == []
    assert job.run(10) == []
    job.pairs_work = True
    assert job.run(10) == []
    job.cut()
    assert len(job.run(10)) == 1


def test_a_peer_that_closed_its_end_answers_nobody():
    """A rank that leaves the job closes its connections while its process lives: its peers' failures accuse nothing."""
    job = Sites()
    job.closed |= {("a", 2), ("b", 3)}
    job.pairs_work = False
    job.run(3)
    job.fail("a", 0)
    job.fail("b", 0)
    assert job.run(10) == []


def test_a_late_peer_is_no_network_fault():
    """An operation that its own time limit ended says nothing of the network."""
    job = Sites()
    job.fail("a", 0, "TIMEOUT")
    assert job.run(10) == []


def test_failures_of_ranks_that_stand_still_are_no_survival():
    """Nobody goes on after its failure: what ended the job, or holds it up, is not for this rule to say."""
    job = Sites()
    job.stopped |= {0, 1, 2, 3}
    job.pairs_work = False
    job.fail("a", 0)
    assert [one for one in job.run(8) if one.cause is Cause.CONNECTION_LOST] == []


def test_processes_that_end_well_inside_an_operation_are_not_named():
    """A job that is over has no hang, even if its last exchange failed: processes that exit with 0 wait for nobody."""
    job = Sites()
    job.inside |= {0, 1, 2, 3}
    job.run(5)
    job.stopped |= {0, 1, 2, 3}
    job.closed |= {(name, rank) for name, ranks in COMMS.items() for rank in ranks}
    job.states = dict.fromkeys(range(4), ("exited", 0))
    assert job.run(400) == []
