"""`c4bench plan FLOWS.yml --atlas ATLAS.json`: C4P's planner, offline."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from c4bench.c4p.atlas import Atlas
from c4bench.c4p.planner import plan
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow

if TYPE_CHECKING:
    from c4bench.cli import Commands


def register(commands: "Commands") -> None:
    """Add the command."""
    parser = commands.add_parser("plan", help="place flows on a learnt fabric")
    parser.add_argument(
        "flows", type=Path, metavar="FLOWS.yml", help="a list of {id, job, source, destination, demand_bps}"
    )
    parser.add_argument("--atlas", type=Path, required=True, help="atlas.json of a run")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    placements = plan(_flows(arguments.flows), Atlas.from_json(_bytes(arguments.atlas)))
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(placements).decode() + "\n")
        return 0
    for placed in placements:
        sys.stdout.write(f"{placed.flow}: port {placed.path.source_port} via {' '.join(placed.path.hops) or 'ECMP'}\n")
    return 0


def _flows(path: Path) -> tuple[Flow, ...]:
    try:
        return msgspec.convert(yaml.safe_load(_bytes(path)), tuple[Flow, ...])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
