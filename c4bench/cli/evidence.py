"""Files of other tools: how `c4bench detect` shows what they say, as text, the chain of waiting, JSON or commands.

`c4bench convert TELEMETRY --to FORMAT --out FOLDER` writes our recordings as other tools would have written them.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from c4bench.cli import Commands, schedulers
from c4bench.cli.shared import print_json, print_lines
from c4bench.doctor.files import recognise
from c4bench.errors import CombinedUsageError, InconclusiveError, UsageError
from c4bench.evidence import ras, ras_client
from c4bench.evidence.collect import Collector, one_job
from c4bench.evidence.judging.crossings import Cabled, Fabric
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.limits import UnreadableError
from c4bench.evidence.write import WRITERS, history
from c4bench.foreign_text import one_line
from c4bench.inventory import cabling
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.evidence import EvidenceReport, EvidenceVerdict, LogEvent, Problem, Reading, State
from c4bench.record.telemetry import is_recording, read_telemetry
from c4bench.report.benchmark_words import run_lines, wrong_results
from c4bench.report.evidence_panels import (
    blamed,
    clock_summary,
    job_size,
    problem_lines,
    ranges,
    source_lines,
    summary,
)
from c4bench.report.html import evidence_page

BAD_INPUT = 2
_POLL_S = 0.5
_QUIET_S = 1.0
# Of a timeline, with --explain and without.
_FIRST_ERRORS, _FEW_ERRORS = 1024, 8


def detect_evidence(arguments: argparse.Namespace) -> int:
    """Judge the files once and print the verdicts.

    Returns 2 if any file could not be used, and 4 if the files tell too little to say that anything, or nothing, is
    wrong. Raises UsageError if none could be used.
    """
    reading = _gather(Collector(arguments.paths, _elsewhere), arguments)
    report = judge(reading, ranks=arguments.ranks, fabric=_fabric(arguments))
    lines = problem_lines(report.problems)
    if not reading.sources:
        raise CombinedUsageError(lines or ["no file could be read; give files of a job, or folders of them"])
    sys.stderr.writelines(f"c4bench: {one_line(line, 10_000)}\n" for line in lines)
    _show(report, arguments)
    if report.problems:
        return BAD_INPUT
    return InconclusiveError.exit_code if report.state is State.UNTOLD else 0


def _fabric(arguments: argparse.Namespace) -> Fabric | None:
    """The fabric that the user has named. Raises UsageError for what is none."""
    if arguments.cabling is None:
        return None
    wiring = cabling.with_roles(cabling.read(arguments.cabling))
    cables = (Cabled(wire.a.node, wire.a.port, wire.b.node, wire.b.port) for wire in wiring.wires)
    return Fabric(cables, cabling.hosts_of(wiring))


def _elsewhere(head: bytes, _name: str) -> str:
    """What a file is that other commands read."""
    if is_recording(head):
        return "it is a recording of c4bench's telemetry, which is judged alone: c4bench detect FILE"
    what, _, command = (recognise(head, "FILE") or "").rpartition(": ")
    return f"it is {what}, which another command reads: {command}" if what else ""


def follow_evidence(arguments: argparse.Namespace) -> int:
    """Judge again whenever files have appeared or grown, and nothing has changed for a while; print what is new."""
    with closing(Collector(arguments.paths, _elsewhere)) as collector:
        return _follow(collector, arguments, time.monotonic() + arguments.follow)


def _follow(collector: Collector, arguments: argparse.Namespace, end_s: float) -> int:
    changed_s, shown = -1.0, set[tuple[Cause | None, Component, tuple[int, ...]]]()
    while (now_s := time.monotonic()) < end_s:
        if collector.changed():
            changed_s = now_s
        elif changed_s >= 0 and now_s - changed_s >= _QUIET_S:
            changed_s = -1.0
            report = judge(_gather(collector, arguments), ranks=arguments.ranks, fabric=_fabric(arguments))
            new = [one for one in report.verdicts if one.key not in shown]
            shown |= {one.key for one in new}
            if new:
                _show(msgspec.structs.replace(report, verdicts=tuple(new)), arguments)
                sys.stdout.flush()
        time.sleep(_POLL_S)
    return 0


def _gather(collector: Collector, arguments: argparse.Namespace) -> Reading:
    """All files, and the reports of RAS ports."""
    found, problems = collector.collect(), list[Problem]()
    readings = [msgspec.structs.replace(found, problems=())]
    for place in arguments.ras:
        try:
            readings.append(ras.read(ras_client.query(*ras_client.address(place)), place))
        except UnreadableError as error:
            problems.append(Problem(place, error.reason, error.place))
    return one_job(readings, [*found.problems, *problems])


def _show(report: EvidenceReport, arguments: argparse.Namespace) -> None:
    if arguments.html:
        try:
            arguments.html.write_text(evidence_page(report))
        except OSError as error:
            raise UsageError(f"{arguments.html}: {error.strerror}; give a file that can be written to") from None
    if arguments.json:
        print_json(msgspec.json.encode(report))
    elif arguments.reasons:
        print_lines(line for verdict in report.verdicts for line in REASONS[arguments.reasons](verdict))
        print_lines(() if report.verdicts else (f"# {summary(report)}",))
    else:
        print_lines(_text(report, explain=arguments.explain))


def _text(report: EvidenceReport, *, explain: bool) -> Iterator[str]:
    files = len({source.file for source in report.sources})
    size = "" if report.benchmarks and not report.ranks else f"{job_size(report)}; "
    yield f"{size}read {files} file{'s' if files > 1 else ''}:"
    yield from (f"    {line}" for line in source_lines(report.sources))
    yield from wrong_results(report.benchmarks)
    for verdict in report.verdicts:
        yield from _verdict(verdict, explain=explain)
    yield from (f"read: {line}" for line in report.contents)
    yield from _timeline(report.timeline, longest=_FIRST_ERRORS if explain else _FEW_ERRORS)
    yield from run_lines(report.benchmarks, every_row=explain)
    if report.state is not State.FAULT:
        yield summary(report)
    if report.clocks:
        yield clock_summary(report.clocks)
    yield from (f"not known: {what}" for what in report.cannot_tell)


def _timeline(events: tuple[LogEvent, ...], longest: int) -> Iterator[str]:
    """The first errors in logs, one line each."""
    if events:
        yield "first errors in the logs, of each rank one, in the order of their times:"
    for event in events[:longest]:
        rank = f"rank {event.rank}" if event.rank >= 0 else ""
        process = f"process {event.pid}" if event.pid >= 0 and not rank else ""
        who = " ".join(part for part in (event.at, rank or process, f"on {event.host}" if event.host else "") if part)
        yield f"    {who or event.source}: {event.text}"
    if len(events) > longest:
        yield f"    and {len(events) - longest} more; --json has all"


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
        yield shlex.join(schedulers.slurm_drain(host, _message(verdict)).words)
    yield from _undrained(verdict)


def _kubernetes(verdict: EvidenceVerdict) -> Iterator[str]:
    """A condition for each node, as a patch of its status."""
    for host in _drained(verdict):
        yield shlex.join(schedulers.kubernetes_suspect(host, str(verdict.diagnosis.cause), _message(verdict)).words)
    yield from _undrained(verdict)


def _drained(verdict: EvidenceVerdict) -> Iterator[str]:
    """The hosts of which a command may be printed: those whose names can mean one host only."""
    return (host for host in verdict.drain if schedulers.is_one_host(host))


def _undrained(verdict: EvidenceVerdict) -> Iterator[str]:
    """Why there is no command for a verdict, or for a host of it."""
    if verdict.unadvised:
        yield f"# {_message(verdict)}: no command, as {verdict.unadvised}; what would tell more: {verdict.told_by}"
    for host in verdict.drain:
        if not schedulers.is_one_host(host):
            yield f"# {_message(verdict)}: no command, as {host!r} is no name of one host"


REASONS = {"slurm": _slurm, "kubernetes": _kubernetes}


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert", help="write recorded telemetry in the format of another tool, to try analysers on the lab's faults"
    )
    parser.add_argument("telemetry", type=Path, metavar="FILE", help="a file of a run's telemetry folder")
    parser.add_argument("--to", choices=tuple(WRITERS), required=True, help="whose format")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder that is empty or new")
    parser.set_defaults(run=_convert)


def _convert(arguments: argparse.Namespace) -> int:
    records, _ = read_telemetry(arguments.telemetry)
    job = history(records)
    if not job.ranks:
        raise UsageError(f"{arguments.telemetry}: it has no communicator; give a file of a run's telemetry folder")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        if any(arguments.out.iterdir()):
            raise UsageError(f"{arguments.out}: the folder is not empty; give a new one")
        count = 0
        for name, data in WRITERS[arguments.to](job):
            (arguments.out / name).write_bytes(data)
            count += 1
    except OSError as error:
        raise UsageError(f"{arguments.out}: {error.strerror}; give a folder that can be written to") from None
    sys.stdout.write(f"wrote {count} files of {len(job.ranks)} ranks to {arguments.out}\n")
    return 0
