"""Workers at several sites over the loopback transport: exchange, quorum, catching up, late sites."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from c4bench.collective.communicator import Communicator
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.errors import CollectiveError
from c4bench.collective.options import Options
from c4bench.collective.recorder import Recorder
from c4bench.collective.rendezvous import AbsentError
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import Member
from c4bench.workload.diloco.fabric_exchange import Attendance, FabricExchange, Peers, Place
from c4bench.workload.diloco.plan import cut, schedule
from c4bench.workload.diloco.quantisation import CODECS
from c4bench.workload.diloco.training import OuterState, Replica, train
from c4bench.workload.models.optimisers import AdamW
from c4bench.workload.models.protocol import Layer
from tools.local_rendezvous import LocalRendezvous
from tools.loopback import LoopbackPort, Network

LAYERS = [Layer("embedding", 0, 50), Layer("block0", 50, 1500), Layer("block1", 1500, 2800)]
FRAGMENTS = cut(LAYERS, 2, "strided")
PLAN = schedule(6, 3, 1)
# Long where nobody is late, since the machine may be busy.
PATIENT_S, GRACE_S = 30.0, 2.0


class KeptAnswers(LocalRendezvous):
    """As the master does, answers those that come after the end of an exchange with its end."""

    def exchange(self, comm, key, rank, size, payload, timeout_s):
        name = (comm, key)
        with self._changed:
            if name in self._missing and rank not in self._payloads.get(name, {}):
                raise AbsentError(self._missing[name], timeout_s)
        return super().exchange(comm, key, rank, size, payload, timeout_s)


class Sites:
    """`sites` sites of `workers` workers, which minimise the distance to a point of their site's own."""

    def __init__(self, folder, sites, workers, quorum, grace_s=GRACE_S):
        self.sites, self.workers, self.quorum, self.grace_s = sites, workers, quorum, grace_s
        self.rendezvous, self.network = KeptAnswers(), Network()
        self.recorders = [Recorder(folder / f"{rank}.ring", "job", rank) for rank in range(sites * workers)]
        self.cut, self.slow = set(), {}
        self.replicas, self.exchanges, self.steps = {}, {}, {}

    def connect(self, rank, name, ranks, **options):
        process = RankProcess(
            "job",
            (Nic(f"h{rank}", 0, "rxe0", "net", "::1", 1e10),),
            self.rendezvous,
            self.recorders[rank],
            lambda _: LoopbackPort(self.network, "rxe0"),
        )
        members = [Member(number, f"h{each}", (f"h{each}/0",)) for number, each in enumerate(ranks)]
        return Communicator(name, ranks.index(rank), members, process, Options(**options))

    def run(self, steps):
        size = self.sites * self.workers
        with ThreadPoolExecutor(size) as pool:
            for future in [pool.submit(self.work, rank, steps) for rank in range(size)]:
                future.result()
        return self

    def work(self, rank, steps):
        site, worker = divmod(rank, self.workers)
        near = self.connect(rank, f"site{site}", list(range(site * self.workers, (site + 1) * self.workers)))

        def connect(pair, turn):
            if pair in self.cut:
                raise CollectiveError("cut", comm="", rank=rank, kind="connecting")
            ranks = [each * self.workers + worker for each in pair]
            return self.connect(rank, f"{pair}.{worker}.{turn}", ranks, timeout_s=self.grace_s, connect_s=self.grace_s)

        def gather(key, sites, number, payload):
            return self.rendezvous.exchange("", key, number, len(sites) * self.workers, payload, self.grace_s)

        initial = np.zeros(LAYERS[-1].end, np.float32)
        outer = OuterState(initial, FRAGMENTS, 0.7, 0.5)
        replica = self.replicas[rank] = Replica(initial, FRAGMENTS, AdamW(initial.size, 0.05), outer, 0.5)
        peers = Peers(site, connect)
        exchange = self.exchanges[rank] = FabricExchange(
            Place(site, worker, self.sites, self.workers),
            outer,
            CODECS["e3m0"],
            self.quorum,
            Attendance(gather, site, worker, self.workers),
            peers,
            near,
        )
        goal = np.random.default_rng(site).normal(size=initial.size).astype(np.float32)

        def inner_step(number):
            time.sleep(self.slow.get((site, number), 0.0))
            if self.at_step:
                self.at_step(rank, number, peers)
            gradient = replica.parameters - goal
            replica.inner.step(number, replica.parameters, gradient)
            return float(np.square(gradient).mean())

        self.steps[rank] = [step.number for step in train(replica, inner_step, PLAN, exchange, range(steps))]
        exchange.close()
        near.close()

    at_step = None

    def state(self, site):
        """The outer state of a site, which all its workers share."""
        states = {
            self.replicas[site * self.workers + worker].outer.copy(range(3)).tobytes() for worker in range(self.workers)
        }
        assert len(states) == 1
        return states.pop()


@pytest.mark.parametrize(("sites", "workers"), [(2, 1), (2, 2), (3, 2)])
def test_all_sites_have_the_same_outer_state(tmp_path, sites, workers):
    """After every turn the outer parameters, velocities and versions are equal to the bit, and are of all sites."""
    world = Sites(tmp_path, sites, workers, sites, PATIENT_S).run(12)
    assert len({world.state(site) for site in range(sites)}) == 1
    for exchange in world.exchanges.values():
        assert [(turn.number, turn.sites) for turn in exchange.held] == [(n, tuple(range(sites))) for n in range(6)]
    middle = np.mean([np.random.default_rng(site).normal(size=2800) for site in range(sites)], axis=0)
    distance = np.abs(world.replicas[0].outer.parameters() - middle).mean()
    assert distance < np.abs(middle).mean()


def test_a_site_that_is_cut_off_catches_up(tmp_path):
    """Cut in the second turn, site 2 misses outer steps of the others; back, it takes over their state to the bit."""
    world = Sites(tmp_path, 3, 2, 2)

    def at_step(rank, number, peers):
        """The link of site 2 fails after step 2, and works again from step 9 on."""
        if number == 3:
            world.cut |= {(0, 2), (1, 2)}
            for pair in [pair for other, pair in peers._pairs.items() if 2 in (other, rank // 2)]:
                pair.abandon(RuntimeError("cut"))
        if number == 9:
            world.cut.clear()

    world.at_step = at_step
    world.run(18)
    assert len({world.state(site) for site in range(3)}) == 1
    held = {site: world.exchanges[2 * site].held for site in range(3)}
    used = [turn.sites for turn in held[0]]
    assert used[0] == (0, 1, 2)
    assert used[1:3] == [(0, 1)] * 2
    assert used[-1] == (0, 1, 2)
    assert used == [turn.sites for turn in held[1]] == [turn.sites for turn in held[2]]
    assert {number for turn in held[2] for number in turn.adopted} >= {1, 2}
    for mine, others in zip(held[0], held[1], strict=True):
        assert mine.digest == others.digest


def test_without_a_quorum_a_fragment_is_sent_again(tmp_path):
    """Two sites that cannot reach each other take no outer step; the next turn of the fragment does."""
    world = Sites(tmp_path, 2, 1, 2, PATIENT_S)
    world.cut.add((0, 1))
    world.at_step = lambda _rank, number, _peers: world.cut.clear() if number == 7 else None
    world.run(12)
    sites = [turn.sites for turn in world.exchanges[0].held]
    assert sites[:3] == [()] * 3
    assert sites[-2:] == [(0, 1)] * 2
    assert len({world.state(site) for site in range(2)}) == 1


def test_a_late_site_leaves_out_steps(tmp_path):
    """Site 2 is later than the grace time for a turn: the others go on, and it joins them again at a later turn."""
    world = Sites(tmp_path, 3, 1, 2)
    world.slow[2, 3] = 2.5 * GRACE_S
    world.run(24)
    held = world.exchanges[2].held
    missed = [turn.number for turn in held if not turn.present]
    assert missed
    assert [turn.sites for turn in world.exchanges[0].held if turn.number in missed] == [(0, 1)] * len(missed)
    assert len(world.steps[2]) < 24
    # Until the next turn in which it is expected, nobody waits for it.
    asked = {key for _, key in world.rendezvous._payloads}
    between = [missed[-1] + 1] if (missed[-1] + 1) % 4 else []
    assert between
    assert {f"open/{number}/0.1" for number in between} <= asked
    assert not {f"open/{number}/0.1.2" for number in between} & asked
    assert world.steps[0] == list(range(1, 25))
    assert len({world.state(site) for site in range(3)}) == 1


def test_late_and_timely_workers_learn_the_same():
    """Of three sites one comes too late: the others get the same answer, and it learns that it is left out."""
    rendezvous = KeptAnswers()

    def gather(key, sites, rank, payload):
        return rendezvous.exchange("", key, rank, len(sites), payload, 0.3)

    found = {}

    def come(site, late_s):
        time.sleep(late_s)
        found[site] = Attendance(gather, site, 0, 1).of("turn", range(3), msgspec.msgpack.encode(site))

    threads = [threading.Thread(target=come, args=(site, 0.8 if site == 1 else 0.0)) for site in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: {0: [b"\x00"], 2: [b"\x02"]}, 1: {}, 2: {0: [b"\x00"], 2: [b"\x02"]}}
