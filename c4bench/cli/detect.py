"""`c4bench detect TELEMETRY`: C4D on recorded telemetry."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from c4bench.c4d.offline import detect
from c4bench.errors import UsageError
from c4bench.model.telemetry import Window

if TYPE_CHECKING:
    from c4bench.cli import Commands


def register(commands: "Commands") -> None:
    """Add the command."""
    parser = commands.add_parser("detect", help="run C4D on recorded telemetry (a file of a run's telemetry folder)")
    parser.add_argument("telemetry", type=Path)
    parser.add_argument("--json", action="store_true", help="diagnoses as JSON (reports/schema/diagnosis.json)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    diagnoses = detect(_windows(arguments.telemetry))
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(diagnoses).decode() + "\n")
        return 0
    for found in diagnoses:
        sys.stdout.write(f"{found.named_s:.3f} s  {found.job}: {found.syndrome}, {found.component}\n")
        sys.stdout.writelines(f"    {line}\n" for line in found.evidence)
    return 0


def _windows(path: Path) -> list[Window]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file of a run's telemetry folder") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(msgspec.json.decode(line, type=Window))
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}: line {number}: {error}") from None
    return found
