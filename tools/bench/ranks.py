"""A job whose ranks are threads of this process, over the loopback transport: no NIC, no lab, no agent."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from c4bench.collective.communicator import Communicator
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.options import Options
from c4bench.collective.recorder import Recorder
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import Member
from tools.local_rendezvous import LocalRendezvous
from tools.loopback import LoopbackPort, Network


@contextmanager
def ranks(folder: Path, size: int, options: Options) -> Iterator[list[Communicator]]:
    """`size` connected communicators, each for its own thread; they record in files of `folder`."""
    network, rendezvous = Network(), LocalRendezvous()
    members = [Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(size)]

    def join(rank: int) -> Communicator:
        process = RankProcess(
            job="bench",
            nics=(Nic(f"h{rank}", 0, "loopback", "lo", "::1", 1e10),),
            rendezvous=rendezvous,
            recorder=undo.enter_context(Recorder(folder / f"{rank}.ring", "bench", rank)),
            open_port=lambda _: LoopbackPort(network),
        )
        return undo.enter_context(Communicator("bench", rank, members, process, options))

    with ExitStack() as undo, ThreadPoolExecutor(size) as pool:
        yield list(pool.map(join, range(size)))


def each(comms: Sequence[Communicator], work: Callable[[Communicator], None]) -> None:
    """`work` on every rank at once; raises what the first that failed raised."""
    with ThreadPoolExecutor(len(comms)) as pool:
        for done in [pool.submit(work, comm) for comm in comms]:
            done.result()
