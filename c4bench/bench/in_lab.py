"""Run one bench stage inside the lab: a master, the hosts' agents, and the stage's cases."""

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from c4bench.bench import figures
from c4bench.bench.figures import bus_bandwidth_bps, cost_fractions, median_ratio, note
from c4bench.bench.suites import (
    LINK_LIMIT,
    LINK_LIMIT_FROM_BYTES,
    Case,
    CollectiveCase,
    LinkCase,
    LoadCase,
    PerftestCase,
    RecorderCase,
    Stage,
)
from c4bench.control.cluster import Cluster
from c4bench.errors import UnhealthyError
from c4bench.inventory import load
from c4bench.lab.spec import INVENTORY
from c4bench.lab.topology import MANAGEMENT_GATEWAY
from c4bench.model.fabric import Host
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory
from c4bench.report.statistics import median, percentile
from c4bench.units import payload_bound
from c4bench.wire.messages import PORT
from c4bench.workload.jobs import job, place

_AGENTS_WITHIN_S = 30.0
_RESULTS_WITHIN_S = 3000.0
_PERFTEST_AT_LEAST = 0.95
_RECORDER_AT_MOST = 0.01
_LOAD_GRADIENT_BYTES = 4 << 20
_LOAD_TOKEN_BYTES = 64 << 10


class Session:
    """Runs jobs on the lab's hosts and records their figures."""

    def __init__(self, stage: Stage, run: RunDirectory, cluster: Cluster, seed: int) -> None:
        self.stage, self.run = stage, run
        self.cluster = cluster
        self.hosts = cluster.hosts
        self.rate_bps = stage.topology.nic_rate_bps
        self._seed = seed
        self._jobs = 0

    @contextmanager
    def running(
        self, program: str, hosts: tuple[Host, ...], kind: str, **parameters: object
    ) -> Iterator[list[dict[str, Any]]]:
        """A job on these hosts, once every rank has reported a result of that kind; those, in rank order."""
        self._jobs += 1
        spec = job(f"bench{self._jobs}", program, hosts, seed=self._seed, **parameters)
        running = self.cluster.start(spec)
        try:
            yield self.cluster.results(running, kind, _RESULTS_WITHIN_S)
        finally:
            self.cluster.stop(spec.id)

    def results(self, program: str, hosts: tuple[Host, ...], kind: str, **parameters: object) -> list[dict[str, Any]]:
        """Run a job on these hosts until every rank has reported a result of that kind."""
        with self.running(program, hosts, kind, **parameters) as results:
            return results

    def measure(self, suite: str, name: str, value: float, **rest: Any) -> None:  # noqa: ANN401  (as `note` has it)
        """Record a figure on the stage's clock and print it."""
        note(self.run, suite, name, value, clock=Clock.VIRTUAL if self.stage.virtual else Clock.MACHINE, **rest)


def measure(session: Session, case: Case) -> None:
    """Measure a case and record its figures. Raises UnhealthyError if a transfer fails or its data are wrong."""
    match case:
        case LinkCase():
            _link(session, case)
        case PerftestCase():
            _perftest(session, case)
        case CollectiveCase():
            _collective(session, case)
        case RecorderCase():
            _recorder(session, case)
        case LoadCase():
            _load(session, case)


def _link(session: Session, case: LinkCase) -> None:
    results = session.results("link", session.hosts[:2], "link", **asdict(case))
    for sent in results[0]["sent"]:
        moved_bits = sent["size_bytes"] * sent["messages"] * 8
        session.measure(
            "link",
            "link.goodput_fraction",
            moved_bits / (sent["ended_s"] - sent["began_s"]) / payload_bound(session.rate_bps),
            at_least=LINK_LIMIT if sent["size_bytes"] >= LINK_LIMIT_FROM_BYTES else None,
            bytes=sent["size_bytes"],
            rate=session.rate_bps,
        )


def _perftest(session: Session, case: PerftestCase) -> None:
    results = session.results("perftest", session.hosts[:2], "perftest", **asdict(case))
    pairs, size = results[0]["pairs"], case.size_bytes
    if missing := results[0]["missing"] or results[1]["missing"]:
        session.measure("perftest", "perftest.ratio", math.nan, at_least=_PERFTEST_AT_LEAST, bytes=size, reason=missing)
        return
    for name, column in (("perftest.ours_bps", 0), ("perftest.theirs_bps", 1)):
        session.measure("perftest", name, median([pair[column] for pair in pairs]), unit="bit/s", bytes=size)
    ratio = median_ratio(pairs)
    session.measure("perftest", "perftest.ratio", ratio, at_least=_PERFTEST_AT_LEAST, bytes=size, rounds=len(pairs))


def _collective(session: Session, case: CollectiveCase) -> None:
    hosts = tuple(place(session.hosts)[: case.hosts])
    results = session.results(
        "bandwidth",
        hosts,
        case.collective,
        size_bytes=case.size_bytes,
        collective=case.collective,
        operations=case.operations,
        back_to_back=True,
        paths="ecmp",
    )
    checked = sum(result["checked"] for result in results)
    if wrong := checked - sum(result["exact"] for result in results):
        raise UnhealthyError(f"{case.collective} over {case.hosts} hosts: {wrong} of {checked} elements are wrong")
    nics = len(hosts[0].nics)
    session.measure(
        "collectives",
        f"{case.collective}.busbw_fraction",
        bus_bandwidth_bps(case.collective, case.size_bytes, results) / (nics * payload_bound(session.rate_bps)),
        at_least=case.at_least,
        hosts=case.hosts,
        nics=nics,
        bytes=case.size_bytes,
        rate=session.rate_bps,
    )


def _recorder(session: Session, case: RecorderCase) -> None:
    results = session.results("recording", session.hosts[:2], "recording", **asdict(case))
    costs = cost_fractions([result["pairs"] for result in results])
    for percent in (25, 75):
        session.measure("recorder", f"recorder.cost_p{percent}", percentile(costs, percent), bytes=case.size_bytes)
    session.measure(
        "recorder",
        "recorder.cost_fraction",
        median(costs),
        at_most=_RECORDER_AT_MOST,
        bytes=case.size_bytes,
        rounds=len(costs),
    )


def _load(session: Session, case: LoadCase) -> None:
    """Let time pass between two marks; a load runs before the first and after the second."""
    if case.load == "idle":
        _pass_time(session, case)
        return
    with session.running(
        "training",
        session.hosts,
        "ready",
        gradient_bytes=_LOAD_GRADIENT_BYTES,
        token_bytes=_LOAD_TOKEN_BYTES,
        compute_s=0.0,
        paths="ecmp",
    ):
        _pass_time(session, case)


def _pass_time(session: Session, case: LoadCase) -> None:
    figures.mark(session.run, figures.BEGIN)
    time.sleep(case.seconds)
    figures.mark(session.run, figures.END)


def main(argv: list[str] | None = None) -> int:
    """Measure the stage in the file named first; figures go to the run directory named second."""
    parser = argparse.ArgumentParser(prog="python -m c4bench.bench.in_lab")
    parser.add_argument("stage", type=Path)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--trust", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(argv)
    stage = msgspec.json.decode(options.stage.read_bytes(), type=Stage)
    known = load(Path(INVENTORY))
    hosts = [host for host in known.hosts if host.nics]
    with Cluster(hosts, options.trust, MANAGEMENT_GATEWAY, PORT, hash=known.hash) as cluster:
        cluster.wait_hosts([host.name for host in hosts], _AGENTS_WITHIN_S)
        session = Session(stage, RunDirectory(options.run_directory), cluster, options.seed)
        for case in stage.cases:
            measure(session, case)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
