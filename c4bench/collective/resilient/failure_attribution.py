"""Attribute a dead rail to a NIC, the remote NIC or the path between, by probes (R2CCL, arXiv 2512.25059).

When a rail dies, both ends probe the other rails of its NICs and send the results to their peers. With the results of
both ends a rank can tell a NIC that reaches nobody from a path between two NICs that reach others
(`attribution.weigh`). With only two hosts there is no third one to probe, and several components stay possible.
"""

from collections.abc import Callable, Sequence

from c4bench.attribution.weigh import Cell, attribute_cells
from c4bench.collective.edges import PeerRails
from c4bench.collective.rail import RailState
from c4bench.collective.resilient.messages import ControlMessage, RailDeath
from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.telemetry import Member

# Wait this long for probes to end, and this long for the other end's results.
_PROBES_S, _ACCOUNTS_S = 0.06, 0.12
# Wait no longer than this for the other end's results.
_LONGEST_S = 1.0
# Failures further apart than this are unrelated.
_MATTER_S = 2.0


class FailureAttribution:
    """Ongoing attributions by NIC, and the components found at fault; `report` passes each to C4D."""

    def __init__(
        self,
        edges: PeerRails,
        rank: int,
        members: Sequence[Member],
        send: Callable[[int, ControlMessage], None],
        report: Callable[[NetworkLoss], None],
    ) -> None:
        self._edges = edges
        self._rank = rank
        self._members = members
        self._send = send
        self._report = report
        self._since_ns: dict[int, int] = {}
        self._reported: set[int] = set()
        self._seen: dict[int, dict[Cell, float]] = {}
        self._accounts: dict[int, set[str]] = {}
        self._last_account_ns: dict[int, int] = {}
        self.findings: list[tuple[Component, ...]] = []

    def open(self, nic: int, now_ns: int) -> None:
        """A rail of this NIC has died."""
        self._since_ns.setdefault(nic, now_ns)

    def on_rail_death(self, message: RailDeath, now_ns: int) -> None:
        """Ingest a rank's probe results for its own NIC; results of an unrelated earlier failure are dropped."""
        if now_ns - self._last_account_ns.get(message.nic, 0) > _MATTER_S * 1e9:
            self._seen.pop(message.nic, None)
            self._accounts.pop(message.nic, None)
        self._last_account_ns[message.nic] = now_ns
        seen = self._seen.setdefault(message.nic, {})
        self._accounts.setdefault(message.nic, set()).update(nic for nic, _, _ in message.cells)
        for nic, other, bad in message.cells:
            # A probe is a round trip and tests both directions.
            seen[nic, other] = seen[other, nic] = float(bad)

    def tick(self, now_ns: int) -> None:
        """Send the probe results once the probes have ended, and evaluate once the other ends have sent theirs."""
        for nic, since_ns in list(self._since_ns.items()):
            age_s = (now_ns - since_ns) / 1e9
            probing = any(rail.probing for _, rail in self._edges.rails(RailState.UP) if rail.nic == nic)
            if age_s >= _PROBES_S and nic not in self._reported and not probing:
                self._reported.add(nic)
                self._report_probes(nic, now_ns)
            if nic in self._reported and age_s >= (_LONGEST_S if self._awaits_account(nic) else _ACCOUNTS_S):
                self._evaluate(nic)

    def _awaits_account(self, nic: int) -> bool:
        """Whether the results of an end of a dead rail are still missing."""
        ends = {end for cell, bad in self._seen[nic].items() if bad for end in cell}
        return not ends <= self._accounts[nic]

    def _report_probes(self, nic: int, now_ns: int) -> None:
        own = self._members[self._rank].nics[nic]
        rails = [rail for _, rail in self._edges.rails() if rail.nic == nic]
        peers = {rail.peer for rail in rails}
        bad = {peer: any(r.state is not RailState.UP for r in rails if r.peer == peer) for peer in peers}
        message = RailDeath(nic, tuple((own, self._members[peer].nics[nic], bad[peer]) for peer in sorted(peers)))
        self.on_rail_death(message, now_ns)
        for peer in sorted(peers):
            self._send(peer, message)

    def _evaluate(self, nic: int) -> None:
        blames = attribute_cells(self._seen.pop(nic), above=0.5)
        del self._accounts[nic]
        components = tuple(dict.fromkeys(component for blame in blames for component in blame.suspects))
        if components:
            self.findings.append(components)
            self._report(NetworkLoss(self._rank, components[0], self._since_ns[nic] / 1e9, components[1:]))
        del self._since_ns[nic]
        self._reported.discard(nic)
