"""`c4bench utilisation`: the bandwidth between sites that a way to train needs, by the model of Streaming DiLoCo."""

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby

import msgspec

from c4bench.cli import Commands
from c4bench.cost.utilisation import (
    MODELS,
    UTILISATIONS,
    Cell,
    Granularity,
    Method,
    Model,
    Pattern,
    Settings,
    cells,
    curve,
    format_bandwidth,
)
from c4bench.errors import UsageError
from c4bench.record.encoding import encode
from c4bench.units import format_rate, parse_rate, parse_time

_NAME, _COLUMN = 18, 19


class _Line(msgspec.Struct, frozen=True):
    """A cell for other programs; null is a bandwidth beyond the grid."""

    model: str
    method: Method
    utilisation: float
    needed_bps: float
    grid_bps: float


class _At(msgspec.Struct, frozen=True):
    """The utilisation of a method at a bandwidth."""

    model: str
    method: Method
    bandwidth_bps: float
    utilisation: float


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "utilisation", help="bandwidth between sites for a compute utilisation (docs/diloco.md)"
    )
    names = [model.name for model in MODELS]
    parser.add_argument("--model", action="append", choices=names, help="one of the paper's models (default: all)")
    parser.add_argument("--layers", type=int, metavar="NUMBER", help="of another model, with --parameters and --step")
    parser.add_argument("--parameters", type=float, metavar="NUMBER", help="such as 7e9")
    parser.add_argument("--step", metavar="TIME", help="how long a step computes, such as 2s")
    default = Settings()
    parser.add_argument(
        "--bits", type=float, default=default.bits, metavar="NUMBER", help="per parameter (default %(default)s, fitted)"
    )
    parser.add_argument("--period", type=int, default=default.period, metavar="STEPS", help="default %(default)s")
    parser.add_argument(
        "--fragment-layers", type=int, default=default.fragment_layers, metavar="NUMBER", help="default %(default)s"
    )
    parser.add_argument("--overlap", type=int, default=default.overlap, metavar="STEPS", help="default %(default)s")
    parser.add_argument(
        "--pattern", type=Pattern, choices=list(Pattern), default=default.pattern, help="which layers make a fragment"
    )
    parser.add_argument(
        "--waits", type=Granularity, choices=list(Granularity), default=default.waits, help="what waits with overlap"
    )
    parser.add_argument("--bandwidth", metavar="RATE", help="the utilisation at this bandwidth, such as 5gbit")
    parser.add_argument("--json", action="store_true", help="print the cells as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    models = _models(arguments)
    if arguments.bandwidth:
        points = _at(models, settings, parse_rate(arguments.bandwidth))
        sys.stdout.write(f"{encode(points).decode()}\n" if arguments.json else _points_text(points))
        return 0
    table = cells(models, settings)
    sys.stdout.write(f"{encode(list(map(_line, table))).decode()}\n" if arguments.json else _table_text(table))
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    names = {"--period": arguments.period, "--fragment-layers": arguments.fragment_layers}
    for name, value in names.items():
        if value < 1:
            raise UsageError(f"{name}: {value} is too few; give 1 or more")
    if not 0 <= arguments.overlap < arguments.period:
        raise UsageError(
            f"--overlap: {arguments.overlap} is not from 0 to below --period ({arguments.period}); change one"
        )
    if not 0 < arguments.bits < float("inf"):
        raise UsageError(f"--bits: {arguments.bits:g} bits cannot be sent; give a number above 0, such as 16")
    return Settings(
        arguments.bits,
        arguments.period,
        arguments.fragment_layers,
        arguments.overlap,
        arguments.pattern,
        arguments.waits,
    )


def _models(arguments: argparse.Namespace) -> list[Model]:
    """The user's own model, or those of the paper that were chosen."""
    chosen, own = arguments.model, (arguments.layers, arguments.parameters, arguments.step)
    if own == (None, None, None):
        return [model for model in MODELS if not chosen or model.name in chosen]
    if chosen:
        raise UsageError("--model and a model of your own exclude each other; leave out one")
    if None in own:
        raise UsageError("a model of your own needs --layers, --parameters and --step; give all three")
    step_s = parse_time(arguments.step)
    if arguments.layers < 1 or not 0 < arguments.parameters < float("inf") or step_s <= 0:
        raise UsageError("--layers, --parameters and --step must be above 0; correct them")
    return [Model("own", arguments.layers, arguments.parameters, step_s)]


def _at(models: Sequence[Model], settings: Settings, bandwidth_bps: float) -> list[_At]:
    if bandwidth_bps <= 0:
        raise UsageError("--bandwidth: nothing is sent at 0 bit/s; give a rate such as 5gbit")
    return [
        _At(model.name, method, bandwidth_bps, *curve(model, method, settings, [bandwidth_bps]))
        for model in models
        for method in Method
    ]


def _line(cell: Cell) -> _Line:
    return _Line(cell.model, cell.method, cell.utilisation, cell.needed_bps, cell.bandwidth_bps)


def _table_text(table: Sequence[Cell]) -> str:
    lines = [f"{'Gbit/s for a utilisation of':27}" + "".join(f"{share:>{_COLUMN}.0%}" for share in UTILISATIONS)]
    for (model, method), row in groupby(table, key=lambda cell: (cell.model, cell.method)):
        lines.append(f"{model:8} {method:{_NAME}}" + "".join(f"{format_bandwidth(cell):>{_COLUMN}}" for cell in row))
    return "\n".join(lines) + "\n"


def _points_text(points: Sequence[_At]) -> str:
    lines = [f"utilisation at {format_rate(points[0].bandwidth_bps)}"]
    lines += [f"{point.model:8} {point.method:{_NAME}} {point.utilisation:7.2%}" for point in points]
    return "\n".join(lines) + "\n"
