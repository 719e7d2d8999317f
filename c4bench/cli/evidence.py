"""How `c4bench detect` shows what files of other tools say: text, the chain of waiting, JSON, a scheduler's reasons."""

import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from c4bench.c4d.evidence.judge import judge
from c4bench.errors import InconclusiveError, UsageError
from c4bench.evidence import benchmarks, ras, ras_client
from c4bench.evidence.collect import Collector, one_job
from c4bench.evidence.limits import UnreadableError
from c4bench.foreign_text import file_name, json_line, one_line
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.evidence import BenchmarkResult, EvidenceReport, EvidenceVerdict, Problem, Reading, State
from c4bench.report.evidence_panels import blamed, clock_summary, job_size, ranges, summary
from c4bench.report.html import evidence_page

BAD_INPUT = 2
_POLL_S = 0.5
_QUIET_S = 1.0
_LONGEST_LINE = 10_000
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
_BENCHMARKS = (benchmarks.NCCL_TESTS, benchmarks.PERFTEST)


class Options(NamedTuple):
    """What to judge, and how to show it: `ras` are ports of RAS as `HOST` or `HOST:PORT`."""

    paths: list[Path]
    ras: list[str]
    ranks: int
    as_json: bool
    explain: bool
    reasons: str | None
    html: Path | None


def detect_evidence(options: Options) -> int:
    """Judge the files once and print the verdicts.

    Returns 2 if any file could not be used, and 4 if the files tell too little to say that anything, or nothing, is
    wrong. Raises UsageError if none could be used.
    """
    reading = _gather(Collector(options.paths), options)
    report = judge(reading, ranks=options.ranks)
    for problem in report.problems:
        sys.stderr.write(f"c4bench: {one_line(problem, _LONGEST_LINE)}\n")
    if not reading.sources:
        named = " ".join([*map(file_name, options.paths), *options.ras])
        raise UsageError(f"{named}: no file could be read; give dumps, or folders of them")
    _show(report, options)
    if report.problems:
        return BAD_INPUT
    silent = report.state is State.UNTOLD and not report.benchmarks
    return InconclusiveError.exit_code if silent else 0


def follow_evidence(options: Options, for_s: float) -> int:
    """Judge again whenever files have appeared or grown, and nothing has changed for a while; print what is new."""
    with closing(Collector(options.paths)) as collector:
        return _follow(collector, options, time.monotonic() + for_s)


def _follow(collector: Collector, options: Options, end_s: float) -> int:
    changed_s, shown = -1.0, set[tuple[Cause | None, Component, tuple[int, ...]]]()
    while (now_s := time.monotonic()) < end_s:
        if collector.changed():
            changed_s = now_s
        elif changed_s >= 0 and now_s - changed_s >= _QUIET_S:
            changed_s = -1.0
            report = judge(_gather(collector, options), ranks=options.ranks)
            new = [one for one in report.verdicts if one.key not in shown]
            shown |= {one.key for one in new}
            if new:
                _show(msgspec.structs.replace(report, verdicts=tuple(new)), options)
                sys.stdout.flush()
        time.sleep(_POLL_S)
    return 0


def _gather(collector: Collector, options: Options) -> Reading:
    """All files, and the reports of RAS ports."""
    found, problems = collector.collect(), list[Problem]()
    readings = [msgspec.structs.replace(found, problems=())]
    for place in options.ras:
        try:
            readings.append(ras.read(ras_client.query(*ras_client.address(place)), place))
        except UnreadableError as error:
            problems.append(Problem(place, error.reason, error.place))
    return one_job(readings, [*found.problems, *problems])


def _show(report: EvidenceReport, options: Options) -> None:
    if options.html:
        try:
            options.html.write_text(evidence_page(report))
        except OSError as error:
            raise UsageError(f"{options.html}: {error.strerror}; give a file that can be written to") from None
    if options.as_json:
        sys.stdout.write(json_line(msgspec.json.encode(report)) + "\n")
    elif options.reasons:
        _print(line for verdict in report.verdicts for line in REASONS[options.reasons](verdict))
        _print(() if report.verdicts else (f"# {summary(report)}",))
    else:
        _print(_text(report, explain=options.explain))


def _print(lines: Iterable[str]) -> None:
    """Print lines, in which names are those of strangers' files."""
    sys.stdout.writelines(f"{one_line(line, _LONGEST_LINE)}\n" for line in lines)


def _text(report: EvidenceReport, *, explain: bool) -> Iterator[str]:
    files = Counter(f"{source.format} {source.version}".strip() for source in report.sources)
    read = ", ".join(f"{count} x {name}" for name, count in sorted(files.items()))
    yield f"{job_size(report)}; read {read}"
    for verdict in report.verdicts:
        yield from _verdict(verdict, explain=explain)
    yield from (_benchmark(one) for one in report.benchmarks)
    if not report.verdicts and any(source.ranks or source.format not in _BENCHMARKS for source in report.sources):
        yield summary(report)
    if report.clocks:
        yield clock_summary(report.clocks)
    yield from (f"not known: {what}" for what in report.cannot_tell)


def _benchmark(one: BenchmarkResult) -> str:
    wrong = f", {one.wrong} WRONG elements" if one.wrong else ""
    return f"{one.format}: {one.kind}, {one.size_bytes} bytes: {one.bandwidth_bps / 1e9:.2f} Gbit/s{wrong}"


def _verdict(verdict: EvidenceVerdict, *, explain: bool) -> Iterator[str]:
    diagnosis = verdict.diagnosis
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    yield f"{diagnosis.syndrome}{cause}, {diagnosis.component}, confidence {diagnosis.confidence:.0%}"
    yield f"    {blamed(verdict)}"
    yield from (f"    {line}" for line in diagnosis.evidence)
    for what, ranks in (("ahead, and wait", verdict.ahead), ("behind", verdict.behind),
                        ("never came", () if verdict.behind else verdict.never_came),
                        ("only wait", verdict.only_wait), ("left no file", verdict.no_file)):  # fmt: skip
        if ranks:
            yield f"    {what}: ranks {ranges(ranks)}"
    if verdict.unadvised:
        yield f"    nothing is to be taken out of service: {verdict.unadvised}"
        yield f"    what would tell more: {verdict.told_by}"
    yield f"    this would refute it: {diagnosis.refuted_by}"
    words = (("torchfrtrace", verdict.torchfrtrace), ("RAS", verdict.ras))
    yield from (f"    {tool} would say: {word}" for tool, word in words if word)
    if explain:
        yield from (f"    > {line}" for line in verdict.chain)


def _message(verdict: EvidenceVerdict) -> str:
    if not verdict.culprits:
        return f"c4bench: {verdict.diagnosis.cause}, {verdict.diagnosis.component}"
    sure = "" if verdict.sure else "one of "
    return f"c4bench: {verdict.diagnosis.cause}, {sure}ranks {ranges(verdict.culprits)} of {verdict.diagnosis.job}"


def _slurm(verdict: EvidenceVerdict) -> Iterator[str]:
    """A command for each host that would drain it."""
    for host in _drained(verdict):
        yield shlex.join(("scontrol", "update", f"nodename={host}", "state=drain", f"reason={_message(verdict)}"))
    yield from _undrained(verdict)


def _kubernetes(verdict: EvidenceVerdict) -> Iterator[str]:
    """A condition for each node, as a patch of its status."""
    reason = "".join(word.capitalize() for word in str(verdict.diagnosis.cause).split("_"))
    for host in _drained(verdict):
        condition = {"type": "C4benchSuspect", "status": "True", "reason": reason, "message": _message(verdict)}
        patch = msgspec.json.encode({"status": {"conditions": [condition]}}).decode()
        yield shlex.join(("kubectl", "patch", "node", host, "--subresource=status", "-p", patch))
    yield from _undrained(verdict)


def _drained(verdict: EvidenceVerdict) -> Iterator[str]:
    """The hosts of which a command may be printed: those whose names can mean one host only."""
    return (host for host in verdict.drain if _is_one_host(host))


def _is_one_host(name: str) -> bool:
    """Whether a scheduler takes a name for one host: Slurm also knows `ALL`, lists and ranges."""
    return bool(_HOST.fullmatch(name)) and name.upper() != "ALL"


def _undrained(verdict: EvidenceVerdict) -> Iterator[str]:
    """Why there is no command for a verdict, or for a host of it."""
    if verdict.unadvised:
        yield f"# {_message(verdict)}: no command, as {verdict.unadvised}; what would tell more: {verdict.told_by}"
    for host in verdict.drain:
        if not _is_one_host(host):
            yield f"# {_message(verdict)}: no command, as {host!r} is no name of one host"


REASONS = {"slurm": _slurm, "kubernetes": _kubernetes}
