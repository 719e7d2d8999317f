"""Hangs of connections whose ranks record no operations: work is outstanding, and nothing of it completes.

There is no period to measure a standstill by, so that of the job's own past is taken: no stall that ended was longer
than a third of one that is named. Outstanding work has two readings. A NIC that sends again gets no answer, and a
process that looks for completions in vain (`owed` of its connection) has none: then the network, or the other host,
does not deliver. A process that does not look shows neither; where NICs do not count, nobody can tell the two apart,
and the rank is an alternative. A host that says nothing has crashed, or only its agent has ended, which is back soon.
"""

from collections.abc import Sequence

import numpy as np

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.hangs import process_stopped
from c4bench.c4d.hang.port_failures import port_findings, ports_down, silent_host_finding, silent_hosts
from c4bench.c4d.hang.stalls import network_finding, or_senders
from c4bench.c4d.hang.wait_for_graph import WaitForGraph
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import Floats, Ints
from c4bench.c4d.observe.connections import ConnView
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.signs.packet_loss import nic_loss_counts
from c4bench.c4d.thresholds import HANG_FLOOR_S, HANG_PERIODS, UNKNOWN_PERIOD_HANG_S
from c4bench.model.diagnosis import Cause, Syndrome

_NOBODY_WAITS = WaitForGraph({}, {})
# An agent that has ended is back within this time (s).
_BACK_S = 2.5


class StillConnections:
    """Follows the connections of a job whose communicators have no operations."""

    def __init__(self, view: JobView, clocks: HostClocks) -> None:
        self._view, self._clocks = view, clocks
        # By row: the life of the connection, and how long (s) its present stall had lasted at the last look.
        self._lives: Ints = np.empty(0, np.int64)
        self._stood_s: Floats = np.empty(0)
        self._longest_s = 0.0
        self._began_s: float | None = None
        # How long (s) nothing at all had completed at the last look, and at most before something did.
        self._quiet_s = self._longest_quiet_s = 0.0

    def evaluate(self) -> list[Finding]:
        """What is behind the connections that stand still now; empty where there are none, or all may be well."""
        if not self._view.without_operations().any():
            return []
        rows, stood_s = self._stalls()
        if self._began_s is None:
            self._began_s = self._clocks.latest_heard_s()
        limit_s = self._limit_s(self._longest_s)
        self._learn(rows, stood_s, limit_s)
        still = stood_s >= limit_s
        if not still.any():
            return self._halted(rows)
        since_s = self._clocks.latest_heard_s() - float(stood_s[still].max())
        names = self._view.conns.table["name"][rows[still]].tolist()
        return self._behind([self._view.conns[name] for name in names], since_s, float(stood_s[still].max()))

    def _limit_s(self, longest_s: float) -> float:
        """How long (s) something may last of which this was the longest, once the job has been seen for long enough."""
        assert self._began_s is not None
        seen_s = self._clocks.latest_heard_s() - self._began_s
        limit_s = max(HANG_FLOOR_S, HANG_PERIODS * longest_s)
        return limit_s if seen_s >= HANG_PERIODS * limit_s else max(limit_s, UNKNOWN_PERIOD_HANG_S)

    def _stalls(self) -> tuple[Ints, Floats]:
        """The connections without operations, and for how long (s) each has had work outstanding without progress."""
        conns, members = self._view.conns.table, self._view.members.table
        known = np.flatnonzero(conns.used("known"))
        comms = members["comm"][conns["member"][known]]
        rows = known[self._view.without_operations()[comms]]
        hosts = members["host_name"][conns["member"][rows]].tolist()
        heard_s = np.asarray([self._clocks.last_heard_s(host) - self._clocks.offset_s(host) for host in hosts])
        from_s = np.maximum(conns["last_progress_s"][rows], conns["state_since_s"][rows])
        return rows, np.where(conns["outstanding"][rows] > 0, np.maximum(heard_s - from_s, 0.0), 0.0)

    def _learn(self, rows: Ints, stood_s: Floats, limit_s: float) -> None:
        """Note how long the stalls lasted that have ended, unless they were hangs."""
        conns = self._view.conns.table
        more = conns.count - len(self._stood_s)
        self._stood_s = np.concatenate([self._stood_s, np.zeros(more)])
        self._lives = np.concatenate([self._lives, conns["life"][conns.count - more : conns.count]])
        same = self._lives[rows] == conns["life"][rows]
        before_s = np.where(same, self._stood_s[rows], 0.0)
        ended_s = before_s[(stood_s < before_s) & (before_s < limit_s)]
        self._longest_s = max(self._longest_s, float(ended_s.max(initial=0.0)))
        self._stood_s[rows], self._lives[rows] = stood_s, conns["life"][rows]

    def _halted(self, rows: Ints) -> list[Finding]:
        """Stopped processes and silent hosts, where nothing completes anywhere for longer than it ever took."""
        conns = self._view.conns.table
        progress_s = conns["last_progress_s"][rows].max(initial=0.0)
        quiet_s = self._clocks.latest_heard_s() - progress_s if progress_s else 0.0
        limit_s = self._limit_s(self._longest_quiet_s)
        if quiet_s < self._quiet_s < limit_s:
            self._longest_quiet_s = max(self._longest_quiet_s, self._quiet_s)
        self._quiet_s = quiet_s
        if quiet_s < limit_s:
            return []
        process, since_s = self._view.process, self._clocks.latest_heard_s() - quiet_s
        evidence = "its process is stopped, and nothing completes on any connection"
        stopped = [rank for rank in sorted(process) if process[rank].state == "stopped"]
        found = [self._stopped(rank, since_s, quiet_s, evidence) for rank in stopped]
        return found or self._silent(self._clocks.latest_heard_s() - _BACK_S, since_s)

    def _silent(self, unheard_s: float, since_s: float) -> list[Finding]:
        """Hosts that were last heard of before `unheard_s` (master's clock)."""
        hosts = silent_hosts({record.host for record in self._view.process.values()}, self._clocks, unheard_s)
        observed_s = self._clocks.latest_heard_s()
        return [silent_host_finding(host, self._clocks, since_s, observed_s) for host in sorted(hosts)]

    def _behind(self, stuck: Sequence[ConnView], since_s: float, lasted_s: float) -> list[Finding]:
        """Processes that are stopped, silent hosts, ports that are down, and what the other connections share."""
        job = self._view
        ends = {rank for view in stuck for rank in (job.sender(view), job.receiver(view))}
        stopped = sorted(rank for rank in ends if process_stopped(job, rank))
        fallen = ports_down(job, self._clocks)
        silent = self._silent(since_s + lasted_s / 2, since_s)
        gone = {finding.component.name for finding in silent}
        unheard = {rank for rank in ends if job.mapping.host(rank) in gone}
        cut_off = {*stopped, *unheard, *(rank for nic in fallen for rank in job.users()[nic])}
        left = [view for view in stuck if cut_off.isdisjoint({job.sender(view), job.receiver(view)})]
        evidence = "its process is stopped, and work of its connections is outstanding"
        halted = [rank for rank in stopped if job.process[rank].state == "stopped"]
        found = [self._stopped(rank, since_s, lasted_s, evidence) for rank in halted]
        down = [*found, *silent, *port_findings(job, self._clocks, fallen)]
        return down + self._network(left, since_s, lasted_s)

    def _stopped(self, rank: int, since_s: float, lasted_s: float, evidence: str) -> Finding:
        component = rank_component(self._view.job, rank)
        return Finding(
            Syndrome.NON_COMMUNICATION_HANG,
            Cause.PROCESS_STOPPED,
            component,
            since_s,
            confidence(0),
            (evidence,),
            f"{component} running again",
            {"stood_still_s": lasted_s},
        )

    def _network(self, stuck: Sequence[ConnView], since_s: float, lasted_s: float) -> list[Finding]:
        """The network behind connections that get no answer, or may get none and have stood still for very long."""
        counts = nic_loss_counts(self._view, self._clocks, since_s)
        again = {nic for nic, counted in counts.items() if counted.retransmits}
        unanswered = [view for view in stuck if view.record.owed or view.record.source in again]
        if unanswered:
            return network_finding(self._view, self._clocks, _NOBODY_WAITS, unanswered, since_s)
        unsure = [view for view in stuck if not self._counts(view.record.source)]
        if not unsure or lasted_s < max(UNKNOWN_PERIOD_HANG_S, HANG_PERIODS * self._longest_s):
            return []
        found = network_finding(self._view, self._clocks, _NOBODY_WAITS, unsure, since_s)
        return [or_senders(self._view, finding, unsure) for finding in found]

    def _counts(self, nic: str) -> bool:
        """Whether a NIC counts what it sends again."""
        device = self._view.devices.get(nic)
        return device is not None and device.newest is not None and device.newest.retransmits is not None
