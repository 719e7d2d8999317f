"""`c4bench detect`: C4D on telemetry, or on files of other tools. `c4bench downtime`: what faults cost."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

import msgspec

from c4bench.c4d import detectors
from c4bench.c4d.detector import Detector
from c4bench.c4d.offline import detect
from c4bench.cli import Commands
from c4bench.cli.evidence import REASONS, detect_evidence, follow_evidence
from c4bench.cli.shared import print_json, print_lines
from c4bench.cost.downtime import DowntimeRow, FaultRates, downtime_table
from c4bench.decoding import DecodingError, from_yaml
from c4bench.errors import UsageError
from c4bench.evidence.formats import FORMATS
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, read_bytes
from c4bench.files import read_bounded
from c4bench.foreign_text import file_name, one_line
from c4bench.inventory.document import located
from c4bench.inventory.groups import split
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.hypothesis import Explanation, Hypothesis, Standing
from c4bench.model.recording import Record
from c4bench.record import RunDirectory
from c4bench.record.archive import is_archive, read_archive
from c4bench.record.artefacts import Faults as Timelines
from c4bench.record.telemetry import is_recording, read_telemetry


def register(commands: Commands) -> None:
    """Add the commands."""
    _add_detect(commands)
    _add_downtime(commands)


def _add_detect(commands: Commands) -> None:
    parser = commands.add_parser(
        "detect",
        help="say what is wrong with a job, by its logs, dumps, reports, traces and benchmarks, or recorded telemetry",
        description="Says what is wrong with a job, by the files that it has left: logs, dumps, reports, traces and "
        "benchmarks of any tool, all of one job together; or by C4D's recorded telemetry (a file of a run's telemetry "
        "folder, or the folder of a master's archive), with the same result as live. Each file is recognised by its "
        "content. What is read, what of it is used, and what is not known are said.",
        epilog=f"Files of other tools may be {', '.join(FORMATS)} (docs/reference/evidence-formats.md), also gzipped. "
        "Exit codes: 0 judged, whether or not anything is wrong; 2 a file could not be used, the rest was judged; "
        "4 nothing could be told, which does not mean that all is well.",
    )
    parser.add_argument("paths", type=Path, nargs="*", metavar="PATH", help="a file, or a folder of them and folders")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a list of diagnoses, each as in reports/schema/diagnosis.schema.json, or with --explain as in "
        "explanation.schema.json; of files of other tools a report as in evidence.schema.json",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print what was weighed for each component; of files of other tools who waits for whom",
    )
    parser.add_argument("--detector", default=detectors.C4D, metavar="NAME", help="who judges recordings (default c4d)")
    parser.add_argument("--reasons", choices=tuple(REASONS), help="files of other tools: commands for a scheduler")
    parser.add_argument("--ras", action="append", default=[], metavar="HOST[:PORT]", help="ask this port of NCCL's RAS")
    parser.add_argument("--html", type=Path, metavar="FILE", help="files of other tools: write a page as well")
    parser.add_argument(
        "--follow",
        type=float,
        metavar="SECONDS",
        help="files of other tools: judge again as they appear, also in named pipes, for so long",
    )
    parser.add_argument(
        "--ranks", type=int, default=0, metavar="NUMBER", help="files of other tools: the number of the job's ranks"
    )
    parser.add_argument(
        "--cabling",
        type=Path,
        metavar="FILE",
        help="files of other tools: the cables between switches and hosts, by "
        "which slow pairs of NICs give a slow link (any file that c4bench topology import reads)",
    )
    parser.set_defaults(run=_detect)


def _add_downtime(commands: Commands) -> None:
    parser = commands.add_parser("downtime", help="print C4's downtime table for your fault rates and stage times")
    parser.add_argument(
        "faults",
        type=Path,
        metavar="FAULTS.yml",
        help="for each kind of fault: per_month, before and after (detection_s, diagnosis_isolation_s, "
        "re_initialisation_s, checkpoint_interval_s)",
    )
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="RUN_DIR",
        help="take stages that `after` leaves out from this run's faults of the same name",
    )
    parser.add_argument("--json", action="store_true", help="print the table's rows as JSON")
    parser.set_defaults(run=_downtime)


def _detect(arguments: argparse.Namespace) -> int:
    if not arguments.paths and not arguments.ras:
        raise UsageError("nothing to read: give a file, a folder, or --ras HOST")
    if _only_archive(arguments):
        attempts, torn = read_archive(arguments.paths[0])
        return _judge(arguments, [followed.records for followed in attempts], torn)
    if _only_recording(arguments):
        records, torn = read_telemetry(arguments.paths[0])
        return _judge(arguments, [records], torn)
    if arguments.detector != detectors.C4D:
        raise UsageError("--detector judges recordings of runs and archives; leave it out for files of other tools")
    if not 0 <= arguments.ranks <= MOST_RANKS:
        raise UsageError(f"--ranks {arguments.ranks}: give a number of ranks from 1 to {MOST_RANKS}, or nothing")
    return detect_evidence(arguments) if arguments.follow is None else follow_evidence(arguments)


def _only_archive(arguments: argparse.Namespace) -> bool:
    return len(arguments.paths) == 1 and not arguments.ras and is_archive(arguments.paths[0])


def _only_recording(arguments: argparse.Namespace) -> bool:
    """Whether the one thing to read is a recording of ours. Raises UsageError if it cannot be read at all."""
    if len(arguments.paths) != 1 or arguments.ras or arguments.follow is not None:
        return False
    path: Path = arguments.paths[0]
    if not path.is_file():
        return False
    try:
        return is_recording(read_bytes(path))
    except UnreadableError as error:
        raise UsageError(f"{file_name(path)}: {error}") from None


def _judge(arguments: argparse.Namespace, recordings: Iterable[list[Record]], torn: int) -> int:
    """Print what the detector finds in recordings, and to stderr what it has dropped of them."""
    is_c4d, explain = arguments.detector == detectors.C4D, arguments.explain
    if explain and not is_c4d:
        raise UsageError(f"--explain: only {detectors.C4D} explains what it finds; leave it or --detector out")
    dropped, diagnoses, benign = Counter({"torn line": torn}), list[Diagnosis](), list[BenignSlowdown]()
    explained: list[Explanation] = []
    for records in recordings:
        detector = Detector(explaining=explain) if is_c4d else detectors.detector(arguments.detector)
        diagnoses += detect(records, detector)
        if isinstance(detector, Detector):
            benign += detector.poll_benign()
            explained += detector.poll_explanations()
            dropped += detector.dropped_by_reason
    for reason, count in sorted((+dropped).items()):
        sys.stderr.write(f"c4bench: {file_name(arguments.paths[0])}: {count} x {one_line(reason)}, dropped\n")
    if arguments.json:
        print_json(msgspec.json.encode(explained if explain else diagnoses))
    elif explain:
        print_lines(line for one in explained for line in _explanation_lines(one))
    else:
        print_lines(line for diagnosis in diagnoses for line in _lines(diagnosis))
        print_lines(line for slowdown in benign for line in _benign_lines(slowdown))
    return 0


def _explanation_lines(one: Explanation) -> list[str]:
    head = _lines(one.diagnosis) if one.diagnosis else _benign_lines(one.slowdown) if one.slowdown else []
    return [*head, *map(_hypothesis_line, one.hypotheses)]


_STANDINGS = {Standing.NAMED: "named", Standing.ALTERNATIVE: "may be it as well", Standing.DROPPED: "dropped"}


def _hypothesis_line(one: Hypothesis) -> str:
    weighed = f": {one.bad:.0f} of {one.cases:.0f} that cross it are bad, gain {one.gain:.1f}" if one.cases else ""
    return f"    > {str(one.what).replace('_', ' ')}, {_STANDINGS[one.standing]}{weighed}"


def _lines(diagnosis: Diagnosis) -> list[str]:
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    what = f"{diagnosis.syndrome}{cause}, {diagnosis.component}, confidence {diagnosis.confidence:.0%}"
    head = f"{diagnosis.named_s:.3f} s  {diagnosis.job}: {what}"
    body = [*diagnosis.evidence, f"this would refute it: {diagnosis.refuted_by}"]
    body += [f"a probe from {flow.source} to {flow.destination} would narrow this down" for flow in diagnosis.probes]
    return [head, *(f"    {line}" for line in body)]


def _benign_lines(slowdown: BenignSlowdown) -> list[str]:
    what = f"no fault but {slowdown.reason}, {slowdown.component} is slower"
    head = f"{slowdown.explained_s:.3f} s  {slowdown.job}: {what}"
    return [head, *(f"    {line}" for line in slowdown.evidence)]


def _downtime(arguments: argparse.Namespace) -> int:
    rows = _table(arguments.faults, _measured(RunDirectory(arguments.measured)) if arguments.measured else {})
    if arguments.json:
        print_json(msgspec.json.encode(rows))
        return 0
    sys.stdout.write(f"{'':22}{'before':>9}{'after':>9}\n")
    sys.stdout.writelines(f"{row.name:22}{row.before:9.2%}{row.after:9.2%}\n" for row in rows)
    return 0


def _table(path: Path, measured: dict[str, dict[str, float]]) -> tuple[DowntimeRow, ...]:
    text = read_bounded(path)
    try:
        document: object = from_yaml(text)
    except DecodingError as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected a mapping of kinds of faults; see `c4bench downtime --help`")
    faults = {str(kind): _faults(path, text, str(kind), part, measured) for kind, part in document.items()}
    try:
        return downtime_table(faults)
    except ValueError as error:
        kind, _, problem = str(error).partition(": ")
        raise (
            located(str(path), text, (kind,), problem) if kind in faults else UsageError(f"{path}: {error}")
        ) from None


def _faults(path: Path, text: bytes, kind: str, part: object, measured: dict[str, dict[str, float]]) -> FaultRates:
    """One kind of faults, as the file has it, with what was measured in place of what the file leaves out."""
    if isinstance(part, dict) and kind in measured:
        part = part | {"after": measured[kind] | (part.get("after") or {})}
    try:
        return msgspec.convert(part, FaultRates)
    except msgspec.ValidationError as error:
        problem, keys = split(str(error))
        raise located(str(path), text, (kind, *keys), problem) from None


def _measured(run: RunDirectory) -> dict[str, dict[str, float]]:
    """The mean duration of each stage by kind of fault, of faults that reached all stages, with keys as in FAULTS.yml.

    The stages are: from the witness to the alarm, to isolation, and to the first good iteration.
    """
    stages: dict[str, list[tuple[float, float, float]]] = {}
    for saved in run.load_all("faults", Timelines).values():
        for fault in saved.faults:
            times = (fault.observed_s, fault.alarmed_s, fault.isolated_s, fault.resumed_s)
            if None not in times:
                observed_s, alarmed_s, isolated_s, resumed_s = (time_s or 0.0 for time_s in times)
                took = (alarmed_s - observed_s, isolated_s - alarmed_s, resumed_s - isolated_s)
                stages.setdefault(fault.name, []).append(took)
    names = ("detection_s", "diagnosis_isolation_s", "re_initialisation_s")
    means = {kind: [max(0.0, mean(column)) for column in zip(*rows, strict=True)] for kind, rows in stages.items()}
    return {kind: dict(zip(names, values, strict=True)) for kind, values in means.items()}
