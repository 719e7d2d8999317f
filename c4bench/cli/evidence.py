"""How `c4bench detect` shows what files of other tools say: text, the chain of waiting, JSON, a scheduler's reasons."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from c4bench.c4d.evidence.judge import judge
from c4bench.errors import UsageError
from c4bench.evidence import benchmarks
from c4bench.evidence.collect import collect
from c4bench.model.evidence import BenchmarkResult, EvidenceReport, EvidenceVerdict

BAD_INPUT = 2
_SHOWN = 16
_BENCHMARKS = (benchmarks.NCCL_TESTS, benchmarks.PERFTEST)


def detect_evidence(paths: list[Path], *, ranks: int, as_json: bool, explain: bool, reasons: str | None) -> int:
    """Judge the files at `paths` and print the verdicts; 2 if any file could not be used. Raises UsageError if none."""
    reading = collect(paths)
    for problem in reading.problems:
        sys.stderr.write(f"c4bench: {problem}\n")
    if not reading.sources:
        raise UsageError(f"{' '.join(map(str, paths))}: no file could be read; give dumps, or folders of them")
    report = judge(reading, ranks=ranks)
    for problem in report.problems[len(reading.problems) :]:
        sys.stderr.write(f"c4bench: {problem}\n")
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    elif reasons:
        sys.stdout.writelines(line + "\n" for verdict in report.verdicts for line in REASONS[reasons](verdict))
    else:
        sys.stdout.writelines(line + "\n" for line in _text(report, explain=explain))
    return BAD_INPUT if report.problems else 0


def _text(report: EvidenceReport, *, explain: bool) -> Iterator[str]:
    files = Counter(f"{source.format} {source.version}".strip() for source in report.sources)
    read = ", ".join(f"{count} x {name}" for name, count in sorted(files.items()))
    yield f"{report.ranks} ranks; read {read}"
    for verdict in report.verdicts:
        yield from _verdict(verdict, explain=explain)
    yield from (_benchmark(one) for one in report.benchmarks)
    if not report.verdicts and any(source.ranks or source.format not in _BENCHMARKS for source in report.sources):
        yield "no hang, mismatch or straggler is seen in these files"
    yield from (f"not known: {what}" for what in report.cannot_tell)


def _benchmark(one: BenchmarkResult) -> str:
    wrong = f", {one.wrong} WRONG elements" if one.wrong else ""
    return f"{one.format}: {one.kind}, {one.size_bytes} bytes: {one.bandwidth_bps / 1e9:.2f} Gbit/s{wrong}"


def _verdict(verdict: EvidenceVerdict, *, explain: bool) -> Iterator[str]:
    diagnosis = verdict.diagnosis
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    yield f"{diagnosis.syndrome}{cause}, {diagnosis.component}, confidence {diagnosis.confidence:.0%}"
    who = "to blame" if verdict.sure else "one of these is to blame"
    yield f"    {who}: ranks {_ranks(verdict.culprits)}" + (f" on {', '.join(verdict.hosts)}" if verdict.hosts else "")
    yield from (f"    {line}" for line in diagnosis.evidence)
    for what, ranks in (("never came", verdict.never_came), ("only wait", verdict.only_wait),
                        ("left no file", verdict.no_file)):  # fmt: skip
        if ranks:
            yield f"    {what}: ranks {_ranks(ranks)}"
    yield f"    refuted by {diagnosis.refuted_by}"
    words = (("torchfrtrace", verdict.torchfrtrace), ("RAS", verdict.ras))
    yield from (f"    {tool} would say: {word}" for tool, word in words if word)
    if explain:
        yield from (f"    > {line}" for line in verdict.chain)


def _ranks(ranks: tuple[int, ...]) -> str:
    """`0-3, 5`, at most so many ranges."""
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:_SHOWN]]
    return ", ".join(shown) + (" ..." if len(ranges) > _SHOWN else "")


def _message(verdict: EvidenceVerdict) -> str:
    sure = "" if verdict.sure else "one of "
    return f"c4bench: {verdict.diagnosis.cause}, {sure}ranks {_ranks(verdict.culprits)} of {verdict.diagnosis.job}"


def _slurm(verdict: EvidenceVerdict) -> Iterator[str]:
    """A command for each host that would drain it."""
    for host in verdict.hosts:
        yield shlex.join(("scontrol", "update", f"nodename={host}", "state=drain", f"reason={_message(verdict)}"))
    yield from _nowhere(verdict)


def _kubernetes(verdict: EvidenceVerdict) -> Iterator[str]:
    """A condition for each node, as a patch of its status."""
    reason = "".join(word.capitalize() for word in str(verdict.diagnosis.cause).split("_"))
    for host in verdict.hosts:
        condition = {"type": "C4benchSuspect", "status": "True", "reason": reason, "message": _message(verdict)}
        patch = msgspec.json.encode({"status": {"conditions": [condition]}}).decode()
        yield shlex.join(("kubectl", "patch", "node", host, "--subresource=status", "-p", patch))
    yield from _nowhere(verdict)


def _nowhere(verdict: EvidenceVerdict) -> Iterator[str]:
    if not verdict.hosts:
        yield f"# {_message(verdict)}: its host is in none of the files"


REASONS = {"slurm": _slurm, "kubernetes": _kubernetes}
