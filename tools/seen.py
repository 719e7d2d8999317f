"""`python -m tools seen FILE...`: enter into the catalogue what files of `c4bench first-light` say was seen."""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from c4bench.cli import Commands
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.inject import catalogue
from c4bench.inject.first_light import FirstLight, seen_in
from c4bench.resources import resource

_SEEN = re.compile(r"^seen: .*\n", re.MULTILINE)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("seen", help="enter what files of `c4bench first-light` have seen into the catalogue")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    for fault, kinds in enter(resource("faults"), arguments.files).items():
        sys.stdout.write(f"faults/{fault}.yml: seen on {', '.join(kinds)}; correct its row in faults/README.md\n")
    return 0


def enter(faults: Path, paths: Iterable[Path]) -> dict[str, tuple[str, ...]]:
    """Write `seen` of each fault's file that changes; those faults, and what they were seen on in all.

    A kind of hardware for which a fault has no driver is left out. Raises UsageError for a file that is none.
    """
    pairs = sorted({pair for path in paths for pair in seen_in(_read(path))})
    specs, changed = catalogue.load(faults).specs, dict[str, tuple[str, ...]]()
    for fault, kind in pairs:
        spec = specs.get(fault)
        if spec and kind in spec.drivers and kind not in (*spec.seen, *changed.get(fault, ())):
            changed[fault] = (*changed.get(fault, spec.seen), kind)
    for fault, kinds in changed.items():
        path = faults / f"{fault}.yml"
        without = _SEEN.sub("", path.read_text())
        path.write_text(without.replace("capability:", f"seen: [{', '.join(kinds)}]\ncapability:", 1))
    return changed


def _read(path: Path) -> FirstLight:
    try:
        return from_json(path.read_bytes(), FirstLight)
    except (OSError, DecodingError) as error:
        raise UsageError(f"{path} is no file of `c4bench first-light`: {error}") from None
