"""Ranks as threads over the loopback transport."""

from concurrent.futures import ThreadPoolExecutor

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.local import LocalRendezvous
from c4bench.collective.options import Options
from c4bench.collective.process import Process
from c4bench.collective.recorder import Recorder
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import Member
from c4bench.verbs.loopback import LoopbackPort, Network


class PlannedRendezvous(LocalRendezvous):
    """Answers every flow with a source port, and remembers what it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.released = []

    def route(self, flows):
        self.asked.extend(flows)
        return [0xC100 + index for index in range(len(flows))]

    def release(self, flows):
        self.released.extend(flows)


class World:
    """A job of `size` ranks with `nics` NICs each; ranks in `absent` never join.

    NICs in `down`, by rank and number, are down when they are opened.
    """

    def __init__(self, folder, size, nics=1, absent=(), **options):
        self.size = size
        self.folder = folder
        self.network = Network()
        self.down = options.pop("down", set())
        self.opened = []
        self.rates = options.pop("rates", (1e10,) * nics)
        self.rendezvous = PlannedRendezvous()
        self.options = Options(timeout_s=options.pop("timeout_s", 20.0), **options)
        self.ports = [[LoopbackPort(self.network, f"rxe{i}") for i in range(nics)] for _ in range(size)]
        self.members = [Member(rank, f"h{rank}", tuple(f"h{rank}/{i}" for i in range(nics))) for rank in range(size)]
        self.recorders = [Recorder(self.path(rank), "job", rank) for rank in range(size)]
        present = [rank for rank in range(size) if rank not in absent]
        with ThreadPoolExecutor(size) as pool:
            self.joined = [pool.submit(self.join, rank) for rank in present]

    @property
    def comms(self):
        return [future.result() for future in self.joined]

    def path(self, rank):
        return self.folder / f"rank{rank}.ring"

    def open(self, rank, nic):
        """The first communicator gets the ports that tests look at."""
        port = self.ports[rank][nic.index]
        port = LoopbackPort(self.network, f"rxe{nic.index}") if getattr(port, "taken", False) else _take(port)
        port.active = (rank, nic.index) not in self.down
        self.opened.append(port)
        return port

    def bring_up(self):
        """All NICs are up."""
        for port in self.opened:
            port.active = True

    def join(self, rank, **changed):
        nics = tuple(Nic(f"h{rank}", i, f"rxe{i}", "net", "::1", self.rates[i]) for i in range(len(self.ports[rank])))
        process = Process("job", nics, self.rendezvous, self.recorders[rank], lambda nic: self.open(rank, nic))
        options = msgspec.structs.replace(self.options, **changed)
        return Communicator("dp", rank, self.members, process, options)

    def run(self, work):
        """`work(comm)` on every rank at once; what each returned or raised, by rank."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(work, comm) for comm in self.comms]
            return [future.exception() or future.result() for future in futures]

    def close(self):
        for future in self.joined:
            if not future.exception():
                future.result().close()


def _take(port):
    port.taken = True
    return port
