"""Finds out what a fabric's switches choose a packet's way by: which packets to compare, and what follows. Pure.

Packets that look like RDMA's expire at the middle of a path, where answers tell by which way they came. Such with equal
addresses, UDP ports and destination QP must come the same way each time, or no path can be chosen: the fabric routes
adaptively or sprays. Else, if another destination QP alone changes the way, switches hash that too. Else the 5-tuple
decides. Where switches can be read, packets that queue pairs send must be counted on the same way.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from c4bench.c4p.knowledge.atlas import Pair
from c4bench.model.fabric import ADAPTIVE, DEST_QP, FIVE_TUPLE, Hash

# A queue pair of nobody, so that nothing that arrives disturbs a connection. Others differ from it in each byte.
QP = 0xC4B000
_OTHER = 0x010101
_SEVERAL_PAIRS = 4
# Comparisons of each kind in all; with two ways, as few as there may be, equal packets that take either agree in all of
# them with a probability of 0.004.
_COMPARISONS = 8
# A path of fewer switches has no choice.
SWITCHES = 3
# The share of counted packets that went one way: at least, and of those that went elsewhere at most.
_ONE_WAY, _ELSEWHERE = 0.8, 0.1


class QpQuestion(NamedTuple):
    """A question by packets for a queue pair: which switch is at `position`, from 0, of this source port's path."""

    pair: Pair
    source_port: int
    position: int
    qp: int


class HashFinding(NamedTuple):
    """What switches hash, and why so; None where nothing answers, or where nothing that C4P can choose decides."""

    hash: Hash | None
    reason: str


SILENT = HashFinding(None, "no switch answers the packets that would show it")
# Why paths cannot be chosen.
SPRAYED = "equal packets take different paths: the switches route adaptively or spray"
UNLIKE = "packets of queue pairs take other paths than probes with the same 5-tuple and destination QP"


class HashInquiry:
    """Asks about some pairs; `switches` are how many are on the paths of each pair, of which the first serve best."""

    def __init__(self, switches: Mapping[Pair, int], source_port: int) -> None:
        self.source_port = source_port
        self._position = {pair: count // 2 for pair, count in _several(switches)}
        self._answers: dict[QpQuestion, list[str]] = defaultdict(list)

    def rounds(self) -> Iterable[list[QpQuestion]]:
        """The questions, one of each pair at a time: the first ones are those that the others are compared with."""
        if not self._position:
            return
        each = -(-_COMPARISONS // len(self._position))
        for _ in range(1 + each):
            yield [self._question(pair, QP) for pair in self._position]
        # Another one for each comparison: with some hashes one change of QPs changes the paths of all pairs or of none.
        others = iter(range(1, 1 + each * len(self._position)))
        for _ in range(each):
            yield [self._question(pair, QP ^ _OTHER * next(others)) for pair in self._position]

    def _question(self, pair: Pair, qp: int) -> QpQuestion:
        return QpQuestion(pair, self.source_port, self._position[pair], qp)

    def record(self, question: QpQuestion, address: str) -> None:
        """Note which switch answered, "" for none."""
        if address:
            self._answers[question].append(address)

    @property
    def finding(self) -> HashFinding:
        """What the answers show."""
        same = {pair: self._answers.get(self._question(pair, QP), []) for pair in self._position}
        if any(len(set(answers)) > 1 for answers in same.values()):
            return HashFinding(ADAPTIVE, SPRAYED)
        others = [one for one in self._answers if one.qp != QP and same[one.pair]]
        again = sum(max(0, len(answers) - 1) for answers in same.values())
        if min(again, len(others)) < _COMPARISONS // 2:
            return SILENT
        if any(set(self._answers[one]) != {same[one.pair][0]} for one in others):
            return HashFinding(DEST_QP, "another destination QP alone changes the path")
        return HashFinding(FIVE_TUPLE, "neither the destination QP nor the time changes the path")

    @property
    def ways(self) -> dict[Pair, str]:
        """By pair, where packets for `QP` crossed the middle of the path."""
        answers = {pair: self._answers.get(self._question(pair, QP), []) for pair in self._position}
        return {pair: found[0] for pair, found in answers.items() if found}


def confirmed(finding: HashFinding, counts: Iterable[tuple[int, int]]) -> HashFinding:
    """The finding, held against packets of queue pairs: how many were sent each time, and counted where others went.

    What was not sent at all, or not counted yet, says nothing.
    """
    shares = [there / sent for sent, there in counts]
    if any(_ELSEWHERE < share < _ONE_WAY for share in shares):
        return HashFinding(ADAPTIVE, SPRAYED)
    if any(share <= _ELSEWHERE for share in shares):
        return HashFinding(None, UNLIKE)
    return finding


def _several(switches: Mapping[Pair, int]) -> list[tuple[Pair, int]]:
    """A few pairs whose paths may differ, of as many sources as there are, since each source gets few answers."""
    chosen: dict[str, tuple[Pair, int]] = {}
    for pair, count in switches.items():
        if count >= SWITCHES:
            chosen.setdefault(pair[0], (pair, count))
    return list(chosen.values())[:_SEVERAL_PAIRS]
