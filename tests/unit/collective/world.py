"""Ranks as threads over the loopback transport."""

import threading
from concurrent.futures import Future, wait

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.inside import InsidePlace
from c4bench.collective.options import Options
from c4bench.collective.recorder import Recorder
from c4bench.model.fabric import ASK_QPS, Inside, Nic
from c4bench.model.telemetry import Gpu, Member
from tools.local_rendezvous import LocalRendezvous
from tools.loopback import LoopbackPort, Network


class PlannedRendezvous(LocalRendezvous):
    """Answers every flow with a source port, and remembers what it was asked.

    `needs` are the QPs that a pair of NICs needs, if more than one.
    """

    def __init__(self, needs):
        super().__init__()
        self.needs = needs
        self.asked = []
        self.asked_qps = []
        # Whether paths depend on the far ends' queue pairs, and these, by flow.
        self.by_qp, self.far_qps = False, {}
        self.released = []
        self.exchanged = lambda *_: None

    def exchange(self, comm, key, rank, size, payload, timeout_s):
        payloads = super().exchange(comm, key, rank, size, payload, timeout_s)
        self.exchanged(key, rank)
        return payloads

    def choose_qps(self, pairs):
        self.asked_qps.extend(pairs)
        return max(self.needs.get(pair, 1) for pair in pairs)

    def route(self, flows):
        self.asked.extend(flows)
        return [ASK_QPS if self.by_qp else 0xC100 + index for index in range(len(flows))]

    def route_qps(self, flows, qps):
        self.far_qps |= {flow.id: qp for flow, qp in zip(flows, qps, strict=True)}
        return [0xC200 + index for index in range(len(flows))]

    def release(self, flows):
        self.released.extend(flows)


class World:
    """A job of `size` ranks with `nics` NICs each; ranks in `absent` never join.

    With `gpus` there are so many ranks on each host, which have a GPU each and share the host's NICs. NICs in `down`,
    by rank and number, are down when they are opened; those in `nameless` have no address then, and those in `moving`
    get another one once the ranks have told each other the first. `needs` are QPs by pair of NICs.
    """

    def __init__(self, folder, size, nics=1, absent=(), **options):
        self.size = size
        self.folder = folder
        self.network = Network()
        self.down = options.pop("down", set())
        self.nameless = options.pop("nameless", set())
        self.moving = options.pop("moving", set())
        self.opened = []
        self.rates = options.pop("rates", (1e10,) * nics)
        self.rendezvous = PlannedRendezvous(options.pop("needs", {}))
        self.rendezvous.exchanged = self._move
        self.rendezvous.by_qp = options.pop("by_qp", False)
        self.inside = options.pop("inside", Inside())
        self.gpus = options.pop("gpus", 0)
        self.options = Options(timeout_s=options.pop("timeout_s", 20.0), **options)
        self.ports = [[LoopbackPort(self.network, f"rxe{i}") for i in range(nics)] for _ in range(size)]
        self.members = [self._member(rank, nics) for rank in range(size)]
        self.recorders = [Recorder(self.path(rank), "job", rank) for rank in range(size)]
        present = [rank for rank in range(size) if rank not in absent]
        self.joined = run_in_threads(self.join, present)

    def _member(self, rank, nics):
        number, index = divmod(rank, self.gpus or 1)
        gpu = Gpu(index, index % nics) if self.gpus else msgspec.UNSET
        return Member(rank, f"h{number}", tuple(f"h{number}/{nic}" for nic in range(nics)), gpu=gpu)

    @property
    def comms(self):
        return [future.result() for future in self.joined]

    def path(self, rank):
        return self.folder / f"rank{rank}.ring"

    def open(self, rank, nic):
        """The first communicator gets the ports that tests look at."""
        port = self.ports[rank][nic.index]
        port = LoopbackPort(self.network, f"rxe{nic.index}") if getattr(port, "nic", None) else port
        port.nic = rank, nic.index
        port.active = (rank, nic.index) not in self.down
        port.address = "" if (rank, nic.index) in self.nameless else port.address
        self.opened.append(port)
        return port

    def _move(self, key, rank):
        for owner, nic in self.moving:
            if (key, owner) == ("ring", rank):
                self.ports[rank][nic].address = "::2"

    def set_active(self, rank, index, active):
        """Have a NIC go down or up, for all that have opened it or will."""
        (self.down.discard if active else self.down.add)((rank, index))
        for port in [port for port in self.opened if port.nic == (rank, index)]:
            port.active = active
            if not port.closed:
                port.raise_event("PORT_ACTIVE" if active else "PORT_ERR")

    def bring_up(self):
        """All NICs are up, and have an address."""
        self.nameless.clear()
        for port in self.opened:
            self.set_active(*port.nic, active=True)
            port.address = port.address or "::1"

    def join(self, rank, **changed):
        host = self.members[rank].host
        nics = tuple(Nic(host, i, f"rxe{i}", "net", "::1", self.rates[i]) for i in range(len(self.ports[rank])))
        place = InsidePlace(self.folder, self.folder / f"{host}.links", self.inside) if self.gpus else None
        process = RankProcess(
            "job", nics, self.rendezvous, self.recorders[rank], lambda nic: self.open(rank, nic), inside=place
        )
        options = msgspec.structs.replace(self.options, **changed)
        return Communicator("dp", rank, self.members, process, options)

    def run(self, work):
        """`work(comm)` on every rank at once; what each returned or raised, by rank."""
        return [future.exception() or future.result() for future in run_in_threads(work, self.comms)]

    def close(self):
        for future in self.joined:
            if not future.exception():
                future.result().close()


def run_in_threads(function, arguments):
    """The futures of `function` for each argument, all done. A thread that hangs keeps no process from ending."""
    futures = [Future() for _ in arguments]
    for future, argument in zip(futures, arguments, strict=True):
        threading.Thread(target=_run, args=(future, function, argument), daemon=True).start()
    wait(futures)
    return futures


def _run(future, function, argument):
    try:
        future.set_result(function(argument))
    except BaseException as error:
        future.set_exception(error)
