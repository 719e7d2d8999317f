"""What runs in every trial: ranks that make the same collective calls."""

from typing import Literal

import msgspec

from c4bench.attach.launchers import is_mpi
from c4bench.collective.options import Options
from c4bench.errors import UsageError
from c4bench.verbs.transport import BRISK
from c4bench.workload.collectives import Call, sized_call

Collective = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "barrier", "pipeline"
]
Kind = Collective | Literal["attached"]
_CONNECT_S, _TIMEOUT_S = 5.0, 5.0
# Small messages, so that a small program has many.
_CHUNK_BYTES = 4096
# After its last call a rank looks again at what it has received: for so long, what is still under way may arrive late.
REST_S = 0.3
_END_S = 5.0
_ENDS = 2
_MOST_RANKS, _MOST_BYTES, _MOST_OPERATIONS, _MOST_NICS, _MOST_SLOTS = 32, 64 << 20, 1000, 4, 64


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ranks` that make `operations` calls of `kind`, each with other numbers in the same arrays of `size_bytes`.

    In a `pipeline`, each rank receives from the one before it and sends to the one after it. With `resilient`, ranks
    have `nics_each` NICs and survive the loss of one. If two are left, messages overtake each other. Receivers have
    staging memory for `slots` messages: little, since registering it touches each page.
    `before` is `FILE.py:NAME`, a function that each rank calls first.

    An `attached` program is a `command` of others, which runs at both ends of a connection, and goes on at another NIC.
    One with mpirun in it runs once, and starts a rank on each host.
    """

    kind: Kind
    ranks: int = 8
    size_bytes: int = 64 << 10
    operations: int = 1
    resilient: bool = False
    before: str = ""
    nics_each: int = 2
    command: tuple[str, ...] = ()
    slots: int = 4

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("ranks", self.ranks, 2, _MOST_RANKS),
            ("size_bytes", self.size_bytes, 0, _MOST_BYTES),
            ("operations", self.operations, 1, _MOST_OPERATIONS),
            ("nics", self.nics_each, 2, _MOST_NICS),
            ("slots", self.slots, 1, _MOST_SLOTS),
        ):
            if not least <= value <= most:
                raise UsageError(f"{name} {value} is not between {least} and {most}")
        if self.command and (self.kind != "attached" or self.ranks != _ENDS):
            raise UsageError(f"a command runs at both ends of a connection: give `attached --ranks {_ENDS}` with it")
        if self.kind == "attached" and not self.command:
            raise UsageError("no command to attach: give --command 'WORDS'")

    @property
    def nics(self) -> int:
        """NICs of each rank."""
        return self.nics_each if self.resilient or self.command else 1

    @property
    def launcher(self) -> int | None:
        """Which word of the command is mpirun; None where none is."""
        return next((place for place, word in enumerate(self.command) if is_mpi((word,))), None)

    @property
    def processes(self) -> int:
        """How many processes a trial starts; a launcher starts its ranks itself."""
        return self.ranks if self.launcher is None else 1

    @property
    def options(self) -> Options:
        """The communicator's options."""
        return Options(
            chunk_bytes=_CHUNK_BYTES,
            staging_bytes=self.slots * _CHUNK_BYTES,
            profile=BRISK,
            connect_s=_CONNECT_S,
            timeout_s=_TIMEOUT_S,
            channels=self.nics,
            record=False,
            resilient=self.resilient,
        )

    @property
    def limit_s(self) -> float:
        """How long it may take until every rank has ended, in the lab's time: every wait of a rank ends before."""
        return _CONNECT_S + self.operations * _TIMEOUT_S + REST_S + _END_S

    def calls(self, rank: int) -> list[Call]:
        """The calls of a rank in one operation; none of an attached program."""
        if self.kind == "attached":
            return []
        if self.kind != "pipeline":
            return [sized_call(self.kind, self.size_bytes, self.ranks)]
        items = self.size_bytes // 4
        receive = [Call("recv", count=items, peer=rank - 1)] if rank else []
        return receive + ([Call("send", count=items, peer=rank + 1)] if rank < self.ranks - 1 else [])

    @property
    def title(self) -> str:
        """The program in a few words."""
        words = ["resilient"] if self.resilient else []
        words += [" ".join(self.command[:2]) or self.kind, f"{self.ranks} ranks", f"{self.size_bytes} B"]
        words += [f"{self.operations} operations"] if self.operations > 1 else []
        return ", ".join(words + ([self.before.rpartition(":")[2]] if self.before else []))


def topology(program: Program) -> str:
    """The fabric's file: a leaf for each NIC of a host, so that no packet has a choice of paths."""
    return (
        f"name: exhaust\ndescription: {program.ranks} hosts, NIC r of each on leaf r\n"
        f"leaf: {{count: {program.nics}}}\nspine: {{count: 1}}\n"
        f"hosts: {{count: {program.ranks}, nics: {program.nics}, attach: rail}}\n"
        "rates: {nic: 10gbit, uplink: 10gbit}\n"
    )
