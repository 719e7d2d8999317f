"""Whether a request speaks only for what is its sender's, by the table in `wire/requests.py`."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from c4bench.control.jobs.job import Job
from c4bench.errors import C4Error, UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.model.fabric import Flow, Nic, host_of_nic
from c4bench.wire.job_names import JOB_ID_AT_MOST_BYTES
from c4bench.wire.requests import Claims, Request, seat_of

_logger = logging.getLogger(__name__)

# Characters of what a rank may call a communicator, an exchange or a flow.
_NAME_AT_MOST = 1024
# A test may join an exchange of a job's ranks, as one more.
_MORE_PLACES = 1
# Demands are sums and shares of rates, in floating point.
_SLACK = 1 + 1e-6


class NotTheirsError(UnhealthyError):
    """A request speaks for what is not its sender's."""


class Authorisation:
    """Checks requests: `jobs` are those that run, `live` returns a live flow by its id, `nic` a NIC of the inventory.

    What an agent says of a job that it has brought back is not believed against the inventory.
    """

    def __init__(
        self, jobs: Mapping[str, Job], live: Callable[[str], Flow | None], nic: Callable[[str], Nic | None]
    ) -> None:
        self._jobs, self._live, self._nic = jobs, live, nic
        self._warned: set[tuple[str, str, str]] = set()

    def admits(self, host: str, request: Request, body: Any) -> bool:  # noqa: ANN401  (each request has its own)
        """Whether to handle a request of the agent of `host`: not one that comes late, after its job has ended.

        Raises C4Error for one that speaks for others, or contradicts itself. That is logged once for each job.
        """
        try:
            claims = request.claims(body)
            if claims.host is not None:
                _check_host(host, claims.host)
            elif claims.job not in self._jobs:
                return _must_be_late(request, claims.job)
            else:
                self._check(host, claims, self._jobs[claims.job])
        except C4Error as error:
            self._warn(host, request.name, getattr(body, "job", ""), error)
            raise
        return True

    def _warn(self, host: str, name: str, job: str, error: C4Error) -> None:
        what = host, name, job
        if job in self._jobs and what not in self._warned:
            self._warned = {one for one in self._warned if one[2] in self._jobs} | {what}
            _logger.warning("agent of %s refused: its %s of %s: %s", *what, error, extra={"host": host, "attempt": job})

    def _check(self, host: str, claims: Claims, job: Job) -> None:
        _check_names(claims.names)
        _check_places(host, claims, job)
        for flow in claims.flows:
            self._check_flow(host, job, flow)
        for name in claims.live_flows:
            self._check_live(host, job, name)
        for source, destination in claims.pairs:
            self._check_pair(host, job, source, destination)

    def _check_flow(self, host: str, job: Job, flow: Flow) -> None:
        nic = self._check_pair(host, job, flow.source, flow.destination)
        _check_names((flow.id,))
        if flow.job != job.spec.id or not flow.id.startswith(f"{job.spec.id}/"):
            raise NotTheirsError(f"flow {one_line(flow.id, 120)} is of another job than {job.spec.id}")
        if not (math.isfinite(flow.demand_bps) and 0 < flow.demand_bps <= nic.rate_bps * _SLACK):
            raise UsageError(f"flow {flow.id} asks for {flow.demand_bps:g} bit/s; {nic.name} sends {nic.rate_bps:g}")
        live = self._live(flow.id)
        if live is not None and (live.source, live.destination) != (flow.source, flow.destination):
            raise NotTheirsError(f"flow {flow.id} is one of {live.source} to {live.destination} already")

    def _check_live(self, host: str, job: Job, name: str) -> None:
        live = self._live(name)
        if live is not None and (live.job != job.spec.id or host_of_nic(live.source) != host):
            raise NotTheirsError(f"flow {one_line(name, 120)} is not one of {host} in job {job.spec.id}")

    def _check_pair(self, host: str, job: Job, source: str, destination: str) -> Nic:
        """The source, as the inventory has it, or else the job."""
        if host_of_nic(source) != host or source not in job.nics:
            raise NotTheirsError(f"{one_line(source, 80)} is no NIC of {host} in job {job.spec.id}")
        if destination not in job.nics:
            raise NotTheirsError(f"{one_line(destination, 80)} is no NIC of job {job.spec.id}")
        return self._nic(source) or job.nics[source]


def _check_host(host: str, said: str) -> None:
    if said != host:
        raise NotTheirsError(f"the certificate says {host!r}, the agent {one_line(said, 80)!r}")


def _must_be_late(request: Request, job: str) -> bool:
    """False for a request that may come late. Raises UnhealthyError for any other."""
    if request.late:
        return False
    raise UnhealthyError(f"job {one_line(job[:JOB_ID_AT_MOST_BYTES])!r} does not run")


def _check_names(names: Iterable[str]) -> None:
    wrong = next((name for name in names if len(name) > _NAME_AT_MOST or not name.isprintable()), None)
    if wrong is not None:
        begin = one_line(wrong, 40)
        raise UsageError(f"the name {begin!r} is not of up to {_NAME_AT_MOST:,} printable characters; choose another")


def _check_places(host: str, claims: Claims, job: Job) -> None:
    """Raises unless all ranks that the request speaks for run on `host`, and all that it names exist."""
    seats, members, here = claims.seats, len(job.spec.members), job.ranks_by_host.get(host, set())
    if seats and (len(set(seats)) < len(seats) or not job.ranks.issuperset(seats)):
        raise UsageError(f"the seats of a communicator are different ranks of job {job.spec.id}")
    places = len(seats) if seats else members + _MORE_PLACES
    size = places if claims.size is None else claims.size
    if not 0 < size <= places or (seats and size != places):
        of = f"{len(seats)} seats" if seats else f"job {job.spec.id}, which has {members}"
        raise UsageError(f"{size} ranks take part, of {of}; the program is wrong")
    wrong = next((place for place in (*claims.places, *claims.others) if not 0 <= place < size), None)
    if wrong is not None:
        raise UsageError(f"rank {wrong} of {size} is none; the program is wrong")
    speaks = {*claims.ranks, *(seat_of(place, seats) for place in claims.places)}
    mine = speaks <= here if speaks else not here.isdisjoint(seats or here)
    if not here or not mine:
        raise NotTheirsError(f"the agent of {host} does not speak for these ranks of job {job.spec.id}")
