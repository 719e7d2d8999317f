"""What benchmarks measured, in words: for pages and for the command line."""

from collections.abc import Iterable, Iterator, Sequence

from c4bench.model.evidence import BenchmarkRow, BenchmarkRun
from c4bench.units import format_size

MOST_RUNS, _MOST_ROWS, _IN_FULL = 12, 64, 6
_HOSTS = 8
_COLLECTIVE = ("nccl-tests", "rccl-tests")


def wrong_results(runs: Iterable[BenchmarkRun]) -> list[str]:
    """A line for each run whose results were not what they should be."""
    return [_wrong(run) for run in runs if run.is_wrong]


def _wrong(run: BenchmarkRun) -> str:
    places = [
        f"{f'{row.wrong} elements' if row.wrong > 0 else 'data'} at {format_size(row.size_bytes)}{_at(run, row)}"
        for row in run.rows
        if row.wrong > 0 or row.failed
    ]
    counted = f"; {run.failed} FAILED by its own count" if run.failed > 0 else ""
    return (
        f"WRONG RESULTS: {title(run)}: {', '.join(places) or 'at a size that is not known'}{counted}; "
        "data were corrupted, whatever the speed, and nobody is known to be the cause"
    )


def _at(run: BenchmarkRun, row: BenchmarkRow) -> str:
    return f" {_place(row)}" if run.tool in _COLLECTIVE else ""


def title(run: BenchmarkRun) -> str:
    """What ran, and where."""
    words = [f"{run.tool} {run.version}".strip(), run.kind]
    where = []
    if run.ranks:
        where.append(f"{run.ranks} ranks")
    if run.hosts:
        more = f" and {len(run.hosts) - _HOSTS} more" if len(run.hosts) > _HOSTS else ""
        where.append(f"on {', '.join(run.hosts[:_HOSTS])}{more}")
    if run.nic:
        where.append(f"by {run.nic}")
    if run.connections > 1:
        where.append(f"with {run.connections} QPs")
    if run.local or run.remote:
        where.append(f"between {run.local or 'unknown'} and {run.remote or 'unknown'}")
    return f"{' '.join(words)}{', ' if where else ''}{' '.join(where)}"


def run_lines(runs: Sequence[BenchmarkRun], *, every_row: bool = False) -> Iterator[str]:
    """The runs for a terminal."""
    for head, body in described(runs, every_row=every_row):
        yield head
        yield from (f"    {line}" for line in body)
    if len(runs) > MOST_RUNS:
        yield f"{len(runs) - MOST_RUNS} more runs of benchmarks are not shown; --json has them"


def described(runs: Sequence[BenchmarkRun], *, every_row: bool = False) -> list[tuple[str, list[str]]]:
    """The first runs: what each is, and what it measured at each size, or if they are many, at its largest one."""
    full = every_row or len(runs) <= _IN_FULL
    return [(f"{title(run)} ({run.source})", list(_body(run, full=full))) for run in runs[:MOST_RUNS]]


def _body(run: BenchmarkRun, *, full: bool) -> Iterator[str]:
    sizes = list(dict.fromkeys(row.size_bytes for row in run.rows))
    shown = sizes[-_MOST_ROWS:] if full else sizes[-1:]
    if len(shown) < len(sizes) and full:
        yield f"{len(sizes) - len(shown)} smaller sizes are not shown"
    for size_bytes in shown:
        rows = [row for row in run.rows if row.size_bytes == size_bytes]
        yield f"{format_size(size_bytes)}: {_figures(run, rows)}" if size_bytes else _figures(run, rows)
    if run.mean_bps >= 0:
        yield f"mean bus bandwidth {run.mean_bps / 8e9:.6g} GB/s, as it printed"
    if checked := _checked(run):
        yield checked
    yield from (f"it said: {error}" for error in run.errors)
    if run.cut:
        yield f"incomplete: {run.cut}"


def _figures(run: BenchmarkRun, rows: Sequence[BenchmarkRow]) -> str:
    if run.tool in _COLLECTIVE:
        rates = [f"{row.bandwidth_bps / 8e9:.2f} GB/s {_place(row)}" for row in rows]
        wrong = [f"{row.wrong} WRONG elements {_place(row)}" for row in rows if row.wrong > 0]
        return f"bus bandwidth {', '.join(rates)}{', ' if wrong else ''}{', '.join(wrong)}"
    return "; ".join(_rate(row) if row.bandwidth_bps >= 0 else _times(row) for row in rows)


def _place(row: BenchmarkRow) -> str:
    return "in place" if row.in_place else "out of place"


def _rate(row: BenchmarkRow) -> str:
    return f"{row.bandwidth_bps / 1e9:.2f} Gbit/s"


def _times(row: BenchmarkRow) -> str:
    """Latencies, in microseconds."""
    named = (("mean", row.mean_s), ("typical", row.typical_s), ("99 %", row.p99_s), ("99.9 %", row.p999_s),
             ("longest", row.longest_s))  # fmt: skip
    return "latency " + ", ".join(f"{name} {value * 1e6:.2f} us" for name, value in named if value >= 0)


def _checked(run: BenchmarkRun) -> str:
    """How its results were checked; empty where that is not its task."""
    if run.tool not in _COLLECTIVE or not run.rows:
        return ""
    unchecked = sorted({_place(row) for row in run.rows if row.wrong < 0}) if run.wrong >= 0 else []
    beside = f"; {', '.join(unchecked)} was not checked" if unchecked else ""
    if run.wrong >= 0:
        return f"{run.wrong} wrong elements in all{beside}"
    return f"{run.failed} values out of bounds" if run.failed >= 0 else "results were not checked"
