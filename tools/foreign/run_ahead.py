"""Ranks that call collectives without waiting for them, run until nothing moves any more.

A call runs on the device once the calls before it have ended that are not overlapped, and the call before it in its
group. A collective ends when it runs on all its members, a batch of transfers when the other sides of all of them run.
A rank calls on until its program waits for the device, or until its fault. Only the order counts here, no time.
"""

from collections import deque
from enum import StrEnum
from typing import NamedTuple

from tools.foreign.layout import Dimension, Program, Step

ITERATIONS = 2


class FaultKind(StrEnum):
    """What a rank at fault does at a call: it never makes it, it never runs it, or it calls something else."""

    STOPPED = "stopped"
    INSIDE = "inside"
    MISMATCH = "mismatch"


class Fault(NamedTuple):
    """A fault of a rank at the call of this number."""

    kind: FaultKind
    rank: int
    call: int


class Group(NamedTuple):
    """A group of ranks; its name is its number in the job."""

    name: str
    dimension: Dimension
    members: tuple[int, ...]


class RankRun:
    """The calls of a rank, and how many of them it has made; `running` and `ended` by the number of the call.

    `seqs` are the numbers of calls in their groups: of collectives and of batches of transfers, each by itself.
    """

    def __init__(self, rank: int, steps: list[Step], groups: dict[Dimension, Group]) -> None:
        self.rank, self.steps, self.groups = rank, steps, groups
        self.made = 0
        self.running = bytearray(len(steps))
        self.ended = bytearray(len(steps))
        self.seqs: list[int] = []
        self.before: list[tuple[int, int]] = []  # the call before it in its group, and the last not overlapped; or -1
        self._link()

    def _link(self) -> None:
        newest: dict[Dimension, int] = {}
        counted: dict[tuple[Dimension, bool], int] = {}
        blocking = -1
        for number, step in enumerate(self.steps):
            key = step.dimension, bool(step.transfers)
            counted[key] = counted.get(key, 0) + 1
            self.seqs.append(counted[key])
            self.before.append((newest.get(step.dimension, -1), blocking))
            newest[step.dimension] = number
            blocking = blocking if step.overlapped else number

    def can_run(self, number: int) -> bool:
        """Whether the calls that a call runs after have ended."""
        return all(one < 0 or self.ended[one] for one in self.before[number])

    def is_idle(self) -> bool:
        """Whether all calls made so far have ended."""
        return 0 not in self.ended[: self.made]


class RunAhead:
    """A job with faults, as it stands when nothing moves any more."""

    def __init__(self, program: Program, faults: tuple[Fault, ...]) -> None:
        self.program, self.layout = program, program.layout
        self.faults = {fault.rank: fault for fault in faults}
        self.groups = [Group(str(number), *one) for number, one in enumerate(self.layout.groups())]
        of_rank: list[dict[Dimension, Group]] = [{} for _ in range(self.layout.ranks)]
        for group in self.groups:
            for rank in group.members:
                of_rank[rank][group.dimension] = group
        stages = [program.calls(stage, ITERATIONS) for stage in range(self.layout.pipeline)]
        self.runs = [RankRun(rank, stages[self.layout.stage(rank)], of_rank[rank]) for rank in range(self.layout.ranks)]
        self._waiting: dict[tuple[str, int], list[tuple[int, int]]] = {}  # who runs a collective, with the call there
        self._sides: dict[tuple[int, int, int], tuple[int, int]] = {}  # who runs a transfer: from, to, number
        self._places = {id(steps): _transfer_numbers(steps) for steps in stages}
        self._todo = deque(range(self.layout.ranks))
        while self._todo:
            self._go_on(self.runs[self._todo.popleft()])

    def culprits(self) -> tuple[int, ...]:
        """The ranks whose fault has taken effect: they came to the call of it."""
        return tuple(sorted(rank for rank, fault in self.faults.items() if self._took_effect(fault)))

    def _took_effect(self, fault: Fault) -> bool:
        run = self.runs[fault.rank]
        if fault.kind is FaultKind.STOPPED:
            waits = run.steps[fault.call].waits and not run.is_idle()
            return run.made == fault.call and not waits
        return run.made > fault.call and (fault.kind is FaultKind.MISMATCH or run.can_run(fault.call))

    def is_healthy(self) -> bool:
        """Whether all calls have been made and have ended."""
        return all(run.made == len(run.steps) and run.is_idle() for run in self.runs)

    def _go_on(self, run: RankRun) -> None:
        """Let a rank call what it calls before it waits."""
        fault = self.faults.get(run.rank)
        while run.made < len(run.steps):
            number = run.made
            if fault and fault.kind is FaultKind.STOPPED and fault.call == number:
                return
            if run.steps[number].waits and not run.is_idle():
                return
            run.made += 1
            if run.can_run(number):
                self._start(run, number)

    def _start(self, run: RankRun, number: int) -> None:
        fault = self.faults.get(run.rank)
        if run.running[number] or (fault and fault.kind is FaultKind.INSIDE and fault.call == number):
            return
        run.running[number] = 1
        step = run.steps[number]
        if step.transfers:
            for way, ends in self._keys(run, number):
                self._sides[ends if way == "send" else (~ends[0], *ends[1:])] = run.rank, number
            for rank, at in {(run.rank, number), *self._others(run, number)}:
                self._end_transfers(self.runs[rank], at)
            return
        group = run.groups[step.dimension]
        key = group.name, run.seqs[number]
        members = self._waiting.setdefault(key, [])
        members.append((run.rank, number))
        if len(members) == len(group.members) and not self._differs(members):
            for rank, at in members:
                self._end(self.runs[rank], at)

    def _differs(self, members: list[tuple[int, int]]) -> bool:
        faults = ((self.faults.get(rank), at) for rank, at in members)
        return any(fault and fault.kind is FaultKind.MISMATCH and fault.call == at for fault, at in faults)

    def _keys(self, run: RankRun, number: int) -> list[tuple[str, tuple[int, int, int]]]:
        """The transfers of a call: the way, and the sending rank, the receiving rank and the number between them."""
        members = run.groups[Dimension.PIPELINE].members
        found = []
        for (way, stage), count in zip(run.steps[number].transfers, self._places[id(run.steps)][number], strict=True):
            peer = members[stage]
            ends = (run.rank, peer) if way == "send" else (peer, run.rank)
            found.append((way, (*ends, count)))
        return found

    def _others(self, run: RankRun, number: int) -> list[tuple[int, int]]:
        """The calls that run the other sides of a call's transfers, as far as they do."""
        sides = (self._sides.get((~ends[0], *ends[1:]) if way == "send" else ends)
                 for way, ends in self._keys(run, number))  # fmt: skip
        return [side for side in sides if side]

    def _end_transfers(self, run: RankRun, number: int) -> None:
        if not run.ended[number] and len(self._others(run, number)) == len(run.steps[number].transfers):
            self._end(run, number)

    def _end(self, run: RankRun, number: int) -> None:
        """A call has ended on a rank: later ones may run, and the program may go on."""
        run.ended[number] = 1
        self._todo.append(run.rank)
        for later in range(number + 1, run.made):
            if number in run.before[later] and run.can_run(later):
                self._start(run, later)


def _transfer_numbers(steps: list[Step]) -> list[tuple[int, ...]]:
    """Of each call's transfers, the number among those of one way with one stage."""
    counted: dict[tuple[str, int], int] = {}
    found = []
    for step in steps:
        numbers = []
        for transfer in step.transfers:
            counted[transfer] = counted.get(transfer, 0) + 1
            numbers.append(counted[transfer])
        found.append(tuple(numbers))
    return found
