"""What the page shows of the fabric's present state, as frozen data, and how it is taken from the master's parts."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from c4bench.attribution.weigh import Cell
from c4bench.c4p.knowledge.link_names import NamedLinks
from c4bench.control.parts import Parts
from c4bench.foreign_text import one_line
from c4bench.model.fabric import LinkLoad

_PICO = 1e12
OPEN, AVOIDED, MISSING = "open", "avoided", "missing"
# Of a larger fabric only the links that carry something, should, or may not be used are sent.
_IDLE_AT_MOST = 2000


class HostRow(msgspec.Struct, frozen=True):
    """A host. `lag_s`: the age of its newest window, by the clocks of host and master; None before the first.

    `silent_s` is how long its agent has been missing, None where it is not. `out` names the component for which the
    host is out of service, "" in service; `rdma` says why no RDMA device can be opened there, "" if one can.
    """

    host: str
    connected: bool
    version: str
    ranks: int
    lag_s: float | None
    silent_s: float | None
    out: str
    rdma: str


class JobRow(msgspec.Struct, frozen=True):
    """A job. `step_s` is the newest time between like operations, None before there are two."""

    name: str
    attempt: str
    program: str
    ranks: int
    hosts: int
    restarts: int
    diagnoses: int
    unplanned: int
    step_s: float | None


class LinkRow(msgspec.Struct, frozen=True):
    """A directed link, by the address at its far end (`link`) and by name, from the node `source` to `target`.

    The nodes are "" where no known path crosses the link. `carried_bps` is all traffic by its switch's counters at
    their last reading, None where they are not read; `rate_bps` its rate, None where unknown. `offered_bps` is what its
    `flows` planned flows bring if all NICs send at once as fast as they can. `state` is one of open, avoided (blamed,
    or held down after a loss) and missing.
    """

    link: str
    name: str
    source: str
    target: str
    offered_bps: float
    carried_bps: float | None
    rate_bps: float | None
    flows: int
    state: str


class FleetView(msgspec.Struct, frozen=True):
    """Everything but the details of single jobs, at `time_s` on the master's clock.

    `tiers` are the nodes of links: 0 for a NIC, 1 for a leaf, and so on. `named` are the components that C4D has named
    or suspects in jobs as they run now, such as `nic h3/0`.
    """

    time_s: float
    hosts: tuple[HostRow, ...]
    jobs: tuple[JobRow, ...]
    links: tuple[LinkRow, ...]
    tiers: dict[str, int]
    named: tuple[str, ...]


class JobDetail(msgspec.Struct, frozen=True):
    """One job: its newest step times, oldest first, and its newest delay matrix.

    `cells` has (row, column, picoseconds per byte) of the cells that carried data, in one flat list; rows are sending
    and columns receiving NICs, by their place in `nics`.
    """

    name: str
    attempt: str
    steps_s: tuple[float, ...]
    nics: tuple[str, ...]
    cells: tuple[int, ...]


def take_fleet(parts: Parts, now_s: float) -> FleetView:
    """The state of all hosts, jobs and links."""
    named = parts.paths.named
    links = link_rows(parts.paths.link_loads(), *_closed(parts), named)
    nodes = {node for link in links for node in (link.source, link.target)}
    tiers = {node: tier for node, tier in named.tiers.items() if node in nodes}
    return FleetView(now_s, _hosts(parts, now_s), _jobs(parts), links, tiers, _named(parts))


def _named(parts: Parts) -> tuple[str, ...]:
    """The suspects of the newest diagnoses of attempts that run."""
    attempts = {running.spec.id for running in parts.registry.jobs().values()}
    suspects = (suspect for found in parts.log.open(attempts) for suspect in found.suspects)
    return tuple(sorted({one_line(f"{suspect.kind} {suspect.name}") for suspect in suspects}))


def take_job(parts: Parts, name: str) -> JobDetail | None:
    """The details of a running job; None if no such job runs."""
    running = parts.registry.jobs().get(name)
    if running is None:
        return None
    attempt = running.spec.id
    nics, cells = sparse(parts.detection.cells(attempt))
    return JobDetail(name, attempt, parts.detection.intervals_s(attempt), nics, cells)


def sparse(cells: Mapping[Cell, float]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """A delay matrix as `JobDetail` has it: its NICs in order of their names, and its cells."""
    nics = tuple(sorted({nic for cell in cells for nic in cell[:2]}))
    place = {nic: index for index, nic in enumerate(nics)}
    flat = ((place[cell[0]], place[cell[1]], round(value * _PICO)) for cell, value in cells.items())
    return nics, tuple(number for triple in flat for number in triple)


def link_rows(
    loads: Mapping[str, LinkLoad], missing: frozenset[str], closed: frozenset[str], named: NamedLinks
) -> tuple[LinkRow, ...]:
    """A row for each link that is loaded or closed, and for idle ones of a fabric that is not too large; by name."""
    idle = named.links if len(named.links) <= _IDLE_AT_MOST else ()
    states = dict.fromkeys((*idle, *loads), OPEN) | dict.fromkeys(closed, AVOIDED) | dict.fromkeys(missing, MISSING)
    rows = [_link_row(link, loads.get(link, LinkLoad(0.0, 0, None)), state, named) for link, state in states.items()]
    return tuple(sorted(rows, key=lambda row: (row.name, row.link)))


def _link_row(link: str, load: LinkLoad, state: str, named: NamedLinks) -> LinkRow:
    found = named.links.get(link)
    source, target = (found.source, found.target) if found else ("", "")
    name = one_line(named.names.get(link, link))
    return LinkRow(link, name, source, target, load.offered_bps, load.carried_bps, load.rate_bps, load.flows, state)


def _closed(parts: Parts) -> tuple[frozenset[str], frozenset[str]]:
    health = parts.paths.controller.health
    return health.missing, health.closed


def _hosts(parts: Parts, now_s: float) -> tuple[HostRow, ...]:
    ranks: Counter[str] = Counter()
    for running in parts.registry.jobs().values():
        ranks.update(member.host for member in running.spec.members)
    out = {isolated.host: str(isolated.component) for isolated in parts.registry.isolated()}
    missing, connected, ends_s = parts.liveness.missing, parts.agents.by_host, parts.telemetry.window_ends_s
    rows = []
    for host in sorted({*parts.agents.refused, *missing, *out, *ranks}):
        hello = parts.agents.newest_hello(host)
        rows.append(
            HostRow(
                host,
                connected=host in connected,
                version=one_line(hello.version) if hello else "",
                ranks=ranks[host],
                lag_s=now_s - ends_s[host] if host in ends_s else None,
                silent_s=now_s - missing[host].since_s if host in missing else None,
                out=out.get(host, ""),
                rdma=one_line(hello.rdma) if hello else "",
            )
        )
    return tuple(rows)


def _jobs(parts: Parts) -> tuple[JobRow, ...]:
    diagnoses, unplanned = parts.log.counts(), parts.paths.unplanned()
    rows = []
    for name, running in sorted(parts.registry.jobs().items()):
        spec, steps_s = running.spec, parts.detection.intervals_s(running.spec.id)
        rows.append(
            JobRow(
                name,
                attempt=spec.id,
                program=spec.program,
                ranks=len(spec.members),
                hosts=len({member.host for member in spec.members}),
                restarts=len(running.restarts_s),
                diagnoses=sum(diagnoses.get(name, Counter()).values()),
                unplanned=unplanned[spec.id].flows if spec.id in unplanned else 0,
                step_s=steps_s[-1] if steps_s else None,
            )
        )
    return tuple(rows)
