"""Options of commands that connect to a running master."""

import argparse
from pathlib import Path

from c4bench.wire.messages import PORT

_TRUST = Path.home() / ".config/c4bench/trust"


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`."""
    parser.add_argument("--trust", type=Path, default=_TRUST, help=f"the certificates (default {_TRUST})")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--master` and `--trust`."""
    parser.add_argument("--master", default=f"127.0.0.1:{PORT}", metavar="ADDRESS[:PORT]")
    add_trust(parser)
