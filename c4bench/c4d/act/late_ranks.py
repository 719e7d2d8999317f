"""Follows the late ranks of one job, in communicators of all sizes; each is named once until it keeps up again."""

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.signs.stragglers import IntermittentStragglers, Straggler, StragglerDetector
from c4bench.model.diagnosis import Cause, Component, Syndrome


class LateRanks:
    """The late ranks of one job."""

    def __init__(self, view: JobView, clocks: HostClocks) -> None:
        self._view, self._clocks = view, clocks
        self._by_size: dict[int, StragglerDetector] = {}
        self._intermittent = IntermittentStragglers()

    @property
    def disturbed(self) -> bool:
        """Whether a rank that is not known to be late was very late just now."""
        return any(one.disturbed for one in self._by_size.values())

    @property
    def standing(self) -> set[Component]:
        """The ranks that are named and are late still."""
        return {rank_component(self._view.job, rank) for rank in self._known()}

    def forget(self, number: int, size: int) -> None:
        """Forget a communicator, by its number and size."""
        if size in self._by_size:
            self._by_size[size].forget(number)

    def evaluate(self) -> list[Finding]:
        """New findings on ranks that the operations since the last call show to be late."""
        period_s = self._view.period_s() or 0.0
        findings, known = list[Finding](), self._known()
        for ops in self._view.finished():
            size = ops.ranks.shape[1]
            detector = self._by_size.setdefault(size, StragglerDetector(size, self._intermittent))
            for late in detector.evaluate(ops, period_s):
                rank = self._view.numbered[late.comm].ranks[late.member]
                if rank not in known:
                    known.add(rank)
                    findings.append(self._finding(late, rank))
        return findings

    def _known(self) -> set[int]:
        """Ranks that are named, which may be late again in any of their communicators."""
        comms = self._view.numbered
        standing = (late for detector in self._by_size.values() for late in detector.standing)
        return {comms[number].ranks[member] for number, member in standing} | self._intermittent.standing

    def _finding(self, late: Straggler, rank: int) -> Finding:
        host = self._view.numbered[late.comm].hosts[late.member]
        return Finding(
            Syndrome.NON_COMMUNICATION_SLOW,
            Cause.COMPUTE_SLOW,
            rank_component(self._view.job, rank),
            late.onset_s + self._clocks.offset_s(host),
            confidence(),
            (_how_late(late),),
            f"rank {rank} waiting as long as the others",
            {"late_share": late.share, "late_operations": float(late.ops)},
        )


def _how_late(late: Straggler) -> str:
    longer = f"waits least and computes {late.share:.1%} longer than the median"
    return (
        f"{longer} over {late.ops} operations" if late.lasting else f"{longer} again and again, {late.ops} times so far"
    )
