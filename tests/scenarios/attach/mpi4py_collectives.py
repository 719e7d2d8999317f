"""An all-reduce and an all-to-all of mpi4py, every element checked; rank 0 prints how long each took, as OSU's do."""

import sys
from array import array

from mpi4py import MPI

COUNT = 65536
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def timed(title, count, act):
    """Run a collective of `count` integers after a barrier, and print its time."""
    comm.Barrier()
    began_s = MPI.Wtime()
    act()
    if rank == 0:
        sys.stdout.write(f"# OSU MPI {title} Latency Test\n# Size  Avg Latency(us)\n")
        sys.stdout.write(f"{4 * count} {1e6 * (MPI.Wtime() - began_s):.3f}\n")
        sys.stdout.flush()


sums = array("i", bytes(4 * COUNT))
timed("Allreduce", COUNT, lambda: comm.Allreduce(array("i", [rank + 1] * COUNT), sums))
assert set(sums) == {size * (size + 1) // 2}
parts, received = array("i", range(rank * size, (rank + 1) * size)), array("i", bytes(4 * size))
timed("All-to-All Personalized Exchange", 1, lambda: comm.Alltoall(parts, received))
assert list(received) == [other * size + rank for other in range(size)]
