"""Read-side checks: what is duplicated, reordered, late or torn is dropped and counted, never believed.

An agent speaks for its own host only: records of ranks elsewhere are dropped, whoever signs them.
"""

from collections import Counter
from collections.abc import Mapping

from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, NicRecord, OpRecord, RankRecord, Window

# Seconds summed in another order may differ in the last bits.
_ROUNDING_S = 1e-9
# A rank's clock and its agent's are the host's one clock; a reading may be a little younger than its window's end.
_AHEAD_S = 1.0
# No clock shows more seconds (thirty thousand years), no counter holds more.
_LATEST_S = 1e12
_MOST = 2.0**64


class Intake:
    """Decides which windows and records may be believed; `reasons` counts those that may not, by why."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self._latest: dict[str, tuple[int, float]] = {}

    @property
    def dropped(self) -> int:
        """How many windows and records were not believed."""
        return self.reasons.total()

    def admit(self, window: Window) -> bool:
        """Whether `window` is whole and newer than everything its host has sent."""
        if not self._check("torn window", ok=_well_formed(window)):
            return False
        if not self._check("old window", ok=self._newer(window)):
            return False
        self._latest[window.host] = (window.sequence, window.end_s)
        return True

    def admit_comm(self, record: CommRecord, host: str) -> bool:
        """Whether a communicator numbers its members from 0, seats them apart, and has one on `host`."""
        numbered = [member.rank for member in record.members] == list(range(len(record.members)))
        seats = [member.seat for member in record.members if member.seat >= 0]
        apart = len(seats) == len(set(seats)) and len(seats) in {0, len(record.members)}
        here = any(member.host == host for member in record.members)
        return self._check("torn communicator", ok=numbered and apart and here)

    def admit_rank(self, rank: RankRecord, host: str) -> bool:
        """Whether a process is on the host that reports it."""
        return self._check("foreign process", ok=rank.rank >= 0 and rank.host == host)

    def admit_op(self, op: OpRecord, hosts: Mapping[int, str], window: Window) -> bool:
        """Whether an operation's times are in order and its member is on the window's host."""
        if not self._check("foreign operation", ok=hosts.get(op.rank) == window.host):
            return False
        latest_s = max(op.entered_s, op.started_s, op.finished_s)
        return self._check(
            "torn operation", ok=0 <= op.seq < _MOST and _ordered(op) and latest_s <= window.end_s + _AHEAD_S
        )

    def admit_conn(self, conn: ConnRecord, before: ConnRecord | None, hosts: Mapping[int, str], host: str) -> bool:
        """Whether every cumulative counter is finite and no lower than `before`, and the sender is on `host`."""
        if not self._check("foreign connection", ok=hosts.get(conn.rank) == host and conn.peer in hosts):
            return False
        ok = _finite(conn) and (before is None or _grown(conn, before))
        return self._check("torn connection", ok=ok)

    def admit_arrival(self, end: ArrivalRecord, hosts: Mapping[int, str], host: str) -> bool:
        """Whether the receiver is on `host`, and counts upwards from 0."""
        return self._check("foreign arrival", ok=hosts.get(end.rank) == host and end.messages >= 0)

    def admit_nic(self, nic: NicRecord, host: str) -> bool:
        """Whether a NIC is on the host that reports it, and its counters are counts."""
        counts = (nic.retransmits, nic.out_of_sequence, nic.duplicates)
        counted = all(count is None or 0 <= count < _MOST for count in counts)
        return self._check("foreign NIC", ok=counted and nic.nic.startswith(f"{host}/"))

    def _check(self, reason: str, *, ok: bool) -> bool:
        if not ok:
            self.reasons[reason] += 1
        return ok

    def _newer(self, window: Window) -> bool:
        sequence, end_s = self._latest.get(window.host, (window.sequence - 1, window.start_s))
        # A restarted agent counts from zero again, but its time goes on.
        return window.sequence > sequence or window.start_s >= end_s


def _well_formed(window: Window) -> bool:
    return -_LATEST_S < window.start_s < window.end_s < _LATEST_S


def _ordered(op: OpRecord) -> bool:
    entered_s, started_s, finished_s = op.entered_s, op.started_s, op.finished_s
    if not (-_LATEST_S < entered_s < _LATEST_S and started_s < _LATEST_S and finished_s < _LATEST_S):
        return False
    started = started_s == 0.0 or started_s >= entered_s
    return started and (finished_s == 0.0 or (finished_s >= entered_s and finished_s >= started_s))


# Written out: every connection of every rank passes here every window.
def _finite(conn: ConnRecord) -> bool:
    return (
        0 <= conn.messages < _MOST
        and 0 <= conn.size_bytes < _MOST
        and 0 <= conn.wait_credit_s < _MOST
        and 0 <= conn.wait_data_s < _MOST
        and 0 <= conn.transfer_s < _MOST
        and 0 <= conn.outstanding < _MOST
        and -_LATEST_S < conn.last_progress_s < _LATEST_S
    )


def _grown(conn: ConnRecord, before: ConnRecord) -> bool:
    return (
        conn.messages >= before.messages
        and conn.size_bytes >= before.size_bytes
        and conn.wait_credit_s >= before.wait_credit_s - _ROUNDING_S
        and conn.wait_data_s >= before.wait_data_s - _ROUNDING_S
        and conn.transfer_s >= before.transfer_s - _ROUNDING_S
    )
