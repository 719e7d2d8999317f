"""`python -m tools readme|figures|attached|table4|retries|schemas`: rewrite parts of documents and reports/schema."""

import argparse
import sys
from pathlib import Path

from c4bench.cli import Commands
from tools.diloco_paper.document import paragraphs, rewrite_utilisation
from tools.documents.attached_faults import rewrite_attached_faults
from tools.documents.readme import figures_page, rewrite
from tools.documents.retries import rewrite_retries
from tools.documents.run_figures import rewrite_run_figures
from tools.documents.schemas import write_schemas


def register(commands: Commands) -> None:
    """Add the commands."""
    readme = commands.add_parser("readme", help="rewrite the figures of README.md and docs/figures.md from runs")
    figures = commands.add_parser("figures", help="redraw the figures of docs/diloco.md that runs have measured")
    attached = commands.add_parser("attached", help="rewrite the table of faults in docs/reference/attach.md from runs")
    for parser, run in ((readme, _readme), (figures, _figures), (attached, _attached)):
        parser.add_argument("document", type=Path, metavar="FILE")
        parser.add_argument("run_directories", type=Path, nargs="+", metavar="RUN_DIR")
        parser.set_defaults(run=run)
    table4 = commands.add_parser("table4", help="Table 4 of the Streaming DiLoCo paper, beside the simulated figures")
    table4.add_argument("document", type=Path, nargs="?", metavar="FILE", help="rewrite its part, do not print it")
    table4.set_defaults(run=_table4)
    retries = commands.add_parser("retries", help="rewrite how long NICs wait for a peer, in docs/reference/retries.md")
    retries.add_argument("document", type=Path, metavar="FILE")
    retries.set_defaults(run=_retries)
    schemas = commands.add_parser("schemas", help="rewrite the JSON Schemas in reports/schema")
    schemas.set_defaults(run=_schemas)


def _readme(arguments: argparse.Namespace) -> int:
    rewrite(arguments.document, arguments.run_directories)
    sys.stdout.write(f"rewrote the figures in {arguments.document} and {figures_page(arguments.document)}\n")
    return 0


def _figures(arguments: argparse.Namespace) -> int:
    written = rewrite_run_figures(arguments.document, arguments.run_directories)
    sys.stdout.write(f"rewrote {', '.join(written)} of {arguments.document}\n")
    return 0


def _attached(arguments: argparse.Namespace) -> int:
    rewrite_attached_faults(arguments.document, arguments.run_directories)
    sys.stdout.write(f"rewrote the table in {arguments.document}\n")
    return 0


def _table4(arguments: argparse.Namespace) -> int:
    if arguments.document:
        rewrite_utilisation(arguments.document)
        sys.stdout.write(f"rewrote the table in {arguments.document}, and its figure\n")
    else:
        sys.stdout.write("\n\n".join(paragraphs()) + "\n")
    return 0


def _retries(arguments: argparse.Namespace) -> int:
    rewrite_retries(arguments.document)
    sys.stdout.write(f"rewrote the table in {arguments.document}\n")
    return 0


def _schemas(_: argparse.Namespace) -> int:
    write_schemas()
    return 0
