"""`c4bench convert TELEMETRY --to FORMAT --out FOLDER`: our recordings as other tools would have written them."""

import argparse
import sys
from pathlib import Path

from c4bench.cli import Commands
from c4bench.errors import UsageError
from c4bench.evidence.write import WRITERS, history
from c4bench.record.telemetry import read_telemetry


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
