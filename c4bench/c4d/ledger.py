"""What agents report, filed by job."""

from collections.abc import Iterable

from c4bench.c4d.clocks import HostClocks
from c4bench.c4d.devices import NicView
from c4bench.c4d.intake import Intake
from c4bench.c4d.job_view import JobView, Ways, key
from c4bench.model.telemetry import CommRecord, OpRecord, Window


class Ledger:
    """All jobs, and the clocks and NICs of the hosts they run on."""

    def __init__(self, intake: Intake, ways: Ways | None = None) -> None:
        self._ways = {} if ways is None else ways
        self.jobs: dict[str, JobView] = {}
        self.devices: dict[str, NicView] = {}
        self.clocks = HostClocks()
        self._intake = intake
        self._job_of: dict[str, JobView] = {}
        self._on_host: dict[str, dict[str, tuple[int, ...]]] = {}

    def take(self, window: Window) -> None:
        """File every record of an admitted window under its job."""
        self.clocks.arrived(window.host, window.start_s, window.end_s)
        for record in window.comms:
            if record.comm not in self._job_of and self._intake.admit_comm(record, window.host):
                self._introduce(record)
        self._note_closed(window)
        for rank in window.ranks:
            if self._intake.admit_rank(rank, window.host):
                self._job(rank.job).put_rank(rank, window.end_s)
        self._take_devices(window)
        for op in _in_order(window.ops):
            job = self._job_of.get(op.comm)
            if job is not None and self._intake.admit_op(op, job.comms[op.comm].hosts, window):
                job.put_op(op, window.end_s)
        for conn in window.conns:
            job = self._job_of.get(conn.comm)
            if job is None:
                continue
            view = job.conns.get(key(conn))
            before = None if view is None else view.record
            if self._intake.admit_conn(conn, before, job.comms[conn.comm].hosts, window.host):
                job.put_conn(conn, view, window.host, window.end_s)
        for end in window.arrivals:
            job = self._job_of.get(end.comm)
            if job is not None and self._intake.admit_arrival(end, job.comms[end.comm].hosts, window.host):
                job.arrivals[end.comm, end.source, end.destination, end.qp] = end

    def _introduce(self, record: CommRecord) -> None:
        self._job_of[record.comm] = self._job(record.job)
        self._job_of[record.comm].introduce(record)
        members: dict[str, list[int]] = {}
        for member in record.members:
            members.setdefault(member.host, []).append(member.rank)
        for host, own in members.items():
            self._on_host.setdefault(host, {})[record.comm] = tuple(own)

    def _note_closed(self, window: Window) -> None:
        """A communicator that a host no longer lists has been closed by those of its members that run there."""
        listed = {record.comm for record in window.comms}
        for name, here in self._on_host.get(window.host, {}).items():
            job = self._job_of[name]
            comm = job.comms[name]
            if comm.left:
                comm.left.difference_update(here)
            if name not in listed:
                running = {rank.rank for rank in window.ranks if rank.job == job.job and rank.state == "running"}
                comm.left.update(member for member in here if comm.seats[member] in running)

    def _take_devices(self, window: Window) -> None:
        for nic in window.nics:
            if self._intake.admit_nic(nic, window.host):
                self.devices.setdefault(nic.nic, NicView(window.host)).take(nic, window.end_s)

    def _job(self, name: str) -> JobView:
        if name not in self.jobs:
            self.jobs[name] = JobView(name, self._ways, self.devices)
        return self.jobs[name]


def _in_order(ops: Iterable[OpRecord]) -> list[OpRecord]:
    return sorted(ops, key=lambda op: (op.entered_s, op.seq))
