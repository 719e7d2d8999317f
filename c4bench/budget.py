"""How much an agent, a rank, a host, a switch, a file or a bus message may bring, and the count of what it brought.

Whoever is authenticated, and whatever a file says of itself, gets these bounds and no more: they keep memory, time and
descriptors of the master, the detectors and the injector finite. SECURITY.md states them.
"""

import time
from collections.abc import Callable

import msgspec

from c4bench.errors import C4Error


class Budget(msgspec.Struct, frozen=True):
    """The most that one source may bring: bytes, records (rows, lines, flows, calls), names kept, and seconds taken."""

    bytes: int
    records: int
    names: int
    seconds: float


# A file that a user gives us, also after decompression.
FILE = Budget(bytes=256 << 20, records=4_000_000, names=1_000_000, seconds=60.0)
# All files of one `c4bench detect` together: their bytes, the calls in them, and the members of communicators.
FILES = Budget(bytes=64 << 30, records=50_000_000, names=2_000_000, seconds=3600.0)
# All saved outputs of one `c4bench doctor --files` together: bytes, also after decompression, facts, and files.
SAVED_OUTPUTS = Budget(bytes=4 << 30, records=2_000_000, names=100_000, seconds=600.0)
# A report of NCCL's RAS, and the counts of ranks that follow from it, listed or not.
RAS = Budget(bytes=32 << 20, records=200_000, names=100_000, seconds=10.0)
# A log of a job, which may be read as a stream: its bytes, and what is kept of lines that tell something.
LOG = Budget(bytes=64 << 30, records=1_000_000, names=1_000_000, seconds=900.0)
# What is kept of the newest reports of RAS of all hosts together: their bytes, ranks in communicators, and jobs.
RAS_REPORTS = Budget(bytes=256 << 20, records=1_000_000, names=1_000, seconds=3600.0)
# An inventory: hosts, and how often they are named in groups.
INVENTORY = Budget(bytes=64 << 20, records=1_000_000, names=100_000, seconds=60.0)
# What one command prints on a host, or a service on it answers.
HOST = Budget(bytes=8 << 20, records=100_000, names=10_000, seconds=30.0)
# What one command prints on a switch.
SWITCH = Budget(bytes=8 << 20, records=100_000, names=10_000, seconds=30.0)
# One connection of an agent: bytes of the bodies of calls under way, such calls, and names that it introduces.
AGENT = Budget(bytes=64 << 20, records=4_096, names=65_536, seconds=30.0)
# The jobs that an agent brings back from an earlier master: bytes of their descriptions, jobs, and ranks.
ADOPTED = Budget(bytes=64 << 20, records=64, names=65_536, seconds=30.0)
# One job: bytes held for it, flows, and names of communicators and exchanges.
JOB = Budget(bytes=64 << 20, records=1_000_000, names=65_536, seconds=3600.0)
# One message of the bus.
BUS_MESSAGE = Budget(bytes=8 << 20, records=200_000, names=65_536, seconds=1.0)
# One value that a detector writes on the bus: a lease, a finding, traffic.
BUS_VALUE = Budget(bytes=512 << 10, records=20_000, names=20_000, seconds=0.1)
# What is attached on a host: bytes of a line of a program, programs at once, NICs that they use, and how long a program
# may take to say who it is.
ATTACHED = Budget(bytes=16_384, records=256, names=64, seconds=5.0)
# One window of a host: processes, and NICs; names of each sort.
WINDOW = Budget(bytes=8 << 20, records=4_096, names=65_536, seconds=0.1)


class OverBudgetError(C4Error):
    """A source brought more than its budget."""


class Account:
    """What one source, named `source` in errors, has brought of its budget. Nothing is taken by a call that raises."""

    def __init__(self, source: str, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._budget, self._clock = source, budget, clock
        self._began_s = clock()
        self.bytes = self.records = self.names = 0

    def spend(self, *, bytes: int = 0, records: int = 0, names: int = 0) -> None:  # noqa: A002  (the unit's name)
        """Count these. Raises OverBudgetError if they are more than what is left."""
        self._check("bytes", self.bytes + bytes, self._budget.bytes)
        self._check("records", self.records + records, self._budget.records)
        self._check("names", self.names + names, self._budget.names)
        self.bytes, self.records, self.names = self.bytes + bytes, self.records + records, self.names + names

    def give_back(self, *, bytes: int = 0, records: int = 0, names: int = 0) -> None:  # noqa: A002  (the unit's name)
        """Count these no more: they have been released."""
        self.bytes, self.records, self.names = self.bytes - bytes, self.records - records, self.names - names

    def check_time(self) -> None:
        """Raises OverBudgetError if the source has taken longer than its seconds."""
        self._check("seconds", self._clock() - self._began_s, self._budget.seconds)

    def _check(self, what: str, used: float, most: float) -> None:
        if used > most:
            raise OverBudgetError(f"{self._source}: more than {most:,} {what}, which is the most that is accepted")
