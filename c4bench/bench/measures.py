"""Measure each kind of case, inside the lab."""

import math
import time
from typing import Any

from c4bench.bench import marks
from c4bench.bench.bounds import bus_bandwidth_bps, cost_fractions, median_ratio
from c4bench.bench.cases import Case, CollectiveCase, LinkCase, LoadCase, PerftestCase, RecorderCase
from c4bench.bench.session import Session
from c4bench.bench.suites import LINK_LIMIT, LINK_LIMIT_FROM_BYTES
from c4bench.errors import UnhealthyError
from c4bench.report.statistics import median, percentile
from c4bench.units import payload_bound
from c4bench.workload.jobs import place

_PERFTEST_AT_LEAST = 0.95
_RECORDER_AT_MOST = 0.01
_LOAD_GRADIENT_BYTES = 4 << 20
_LOAD_TOKEN_BYTES = 64 << 10


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
    results = session.results("link", session.hosts[:2], "link", **_parameters(case))
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
    results = session.results("perftest", session.hosts[:2], "perftest", **_parameters(case))
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
    results = session.results("recording", session.hosts[:2], "recording", **_parameters(case))
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
    marks.mark(session.run, marks.BEGIN)
    time.sleep(case.seconds)
    marks.mark(session.run, marks.END)


def _parameters(case: LinkCase | PerftestCase | RecorderCase) -> dict[str, Any]:
    """A case as the parameters of the program that measures it."""
    return {name: getattr(case, name) for name in case.__struct_fields__}
