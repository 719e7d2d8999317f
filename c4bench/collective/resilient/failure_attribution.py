"""Whose fault it was: NIC, remote NIC or the path between, by probes to third hosts (R2CCL, arXiv 2512.25059).

When a rail dies both ends probe the other rails of the NICs it joined, and tell their peers what they saw. Whoever has
heard both ends can blame a NIC that reaches nobody, or a path between two NICs that reach others; the judging is
`c4d.localise`. With two hosts there is no third one, and several answers stay open.
"""

from collections.abc import Callable, Sequence

from c4bench.c4d.localise import Cell, localise
from c4bench.collective.resilient.messages import RailDeath, Word
from c4bench.collective.resilient.peer_rails import PeerRails
from c4bench.collective.resilient.rail import State
from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.telemetry import Member

# Time for probes to end, and then for the other end's account of its own.
_PROBES_S, _ACCOUNTS_S = 0.06, 0.12
# An end that has not told by then will not.
_LONGEST_S = 1.0
# What is further apart than this belongs to different matters.
_MATTER_S = 2.0


class FailureAttribution:
    """Open inquiries by NIC, and the components found to blame; C4D is told of each by `report`."""

    def __init__(
        self,
        edges: PeerRails,
        rank: int,
        members: Sequence[Member],
        tell: Callable[[int, Word], None],
        report: Callable[[NetworkLoss], None],
    ) -> None:
        self._edges = edges
        self._rank = rank
        self._members = members
        self._tell = tell
        self._report = report
        self._since_ns: dict[int, int] = {}
        self._told: set[int] = set()
        self._seen: dict[int, dict[Cell, float]] = {}
        self._accounts: dict[int, set[str]] = {}
        self._heard_ns: dict[int, int] = {}
        self.findings: list[tuple[Component, ...]] = []

    def open(self, nic: int, now_ns: int) -> None:
        """A rail of this NIC has died."""
        self._since_ns.setdefault(nic, now_ns)

    def heard(self, word: RailDeath, now_ns: int) -> None:
        """What a rank has seen of its own NIC. Of an earlier matter nothing is left to say."""
        if now_ns - self._heard_ns.get(word.nic, 0) > _MATTER_S * 1e9:
            self._seen.pop(word.nic, None)
            self._accounts.pop(word.nic, None)
        self._heard_ns[word.nic] = now_ns
        seen = self._seen.setdefault(word.nic, {})
        self._accounts.setdefault(word.nic, set()).update(one for one, _, _ in word.cells)
        for one, other, bad in word.cells:
            # A probe is a round trip: it says the same of both directions.
            seen[one, other] = seen[other, one] = float(bad)

    def tick(self, now_ns: int) -> None:
        """Tell what was seen once the probes have ended, and judge once the others have told."""
        for nic, since_ns in list(self._since_ns.items()):
            age_s = (now_ns - since_ns) / 1e9
            asked = any(rail.probing for _, rail in self._edges.rails(State.UP) if rail.nic == nic)
            if age_s >= _PROBES_S and nic not in self._told and not asked:
                self._told.add(nic)
                self._account(nic, now_ns)
            if nic in self._told and age_s >= (_LONGEST_S if self._lacking(nic) else _ACCOUNTS_S):
                self._judge(nic)

    def _lacking(self, nic: int) -> bool:
        """Whether an end of a dead rail has not told yet what it sees."""
        ends = {end for cell, bad in self._seen[nic].items() if bad for end in cell}
        return not ends <= self._accounts[nic]

    def _account(self, nic: int, now_ns: int) -> None:
        own = self._members[self._rank].nics[nic]
        rails = [rail for _, rail in self._edges.rails() if rail.nic == nic]
        peers = {rail.peer for rail in rails}
        bad = {peer: any(r.state is not State.UP for r in rails if r.peer == peer) for peer in peers}
        word = RailDeath(nic, tuple((own, self._members[peer].nics[nic], bad[peer]) for peer in sorted(peers)))
        self.heard(word, now_ns)
        for peer in sorted(peers):
            self._tell(peer, word)

    def _judge(self, nic: int) -> None:
        blames = localise(self._seen.pop(nic), bar=0.5)
        del self._accounts[nic]
        found = tuple(dict.fromkeys(one for blame in blames for one in (blame.component, *blame.alternatives)))
        if found:
            self.findings.append(found)
            self._report(NetworkLoss(self._rank, found[0], self._since_ns[nic] / 1e9, found[1:]))
        del self._since_ns[nic]
        self._told.discard(nic)
