"""Ranks as threads over the loopback transport."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from loopback import LoopbackPort, Network

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.collective.options import Options
from c4bench.collective.recorder import Recorder
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import Member


class LocalRendezvous:
    """Exchanges within the process."""

    def __init__(self):
        self.condition = threading.Condition()
        self.given = {}
        self.asked = []
        self.released = []

    def exchange(self, key, rank, size, payload, timeout_s):
        with self.condition:
            given = self.given.setdefault(key, {})
            given[rank] = payload
            self.condition.notify_all()
            if not self.condition.wait_for(lambda: len(given) == size, timeout_s):
                missing = sorted(set(range(size)) - set(given))
                raise CollectiveError(f"ranks {missing} missing", comm="", rank=rank, kind="rendezvous", seq=0)
            return [given[rank] for rank in range(size)]

    def route(self, flows):
        self.asked.extend(flows)
        return [0xC100 + index for index in range(len(flows))]

    def release(self, flows):
        self.released.extend(flows)


class World:
    """A job of `size` ranks with `nics` NICs each."""

    def __init__(self, folder, size, nics=1, **options):
        self.size = size
        self.folder = folder
        self.network = Network()
        self.rendezvous = LocalRendezvous()
        self.options = Options(timeout_s=options.pop("timeout_s", 20.0), **options)
        self.ports = [[LoopbackPort(self.network) for _ in range(nics)] for _ in range(size)]
        self.members = [Member(rank, f"h{rank}", tuple(f"h{rank}/{i}" for i in range(nics))) for rank in range(size)]
        self.recorders = [Recorder(self.path(rank), "job", rank) for rank in range(size)]
        with ThreadPoolExecutor(size) as pool:
            self.comms = list(pool.map(self.join, range(size)))

    def path(self, rank):
        return self.folder / f"rank{rank}.ring"

    def join(self, rank):
        nics = [Nic(f"h{rank}", i, "dev", "net", "::1", 1e10) for i in range(len(self.ports[rank]))]
        return Communicator(
            "dp",
            "job",
            rank,
            self.members,
            nics,
            self.rendezvous,
            self.recorders[rank],
            self.options,
            lambda nic: self.ports[rank][nic.index],
        )

    def run(self, work):
        """`work(comm)` on every rank at once; what each returned or raised, by rank."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(work, comm) for comm in self.comms]
            return [future.exception() or future.result() for future in futures]

    def close(self):
        for comm in self.comms:
            comm.close()


@pytest.fixture
def world(tmp_path):
    made = []

    def make(size, nics=1, **options):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(World(folder, size, nics, **options))
        return made[-1]

    yield make
    for item in made:
        item.close()
