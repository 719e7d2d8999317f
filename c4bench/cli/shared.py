"""What several commands share: options, and how what they found is printed."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from c4bench.errors import UsageError
from c4bench.foreign_text import json_line, one_line
from c4bench.wire.messages import PORT

_PORT_AT_MOST = 65535
_TRUST = Path.home() / ".config/c4bench/trust"
_PATHS = Path.home() / ".local/state/c4bench/paths"


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`."""
    parser.add_argument(
        "--trust",
        type=Path,
        default=_TRUST,
        metavar="FOLDER",
        help="the certificates (default ~/.config/c4bench/trust)",
    )


def add_saved_paths(parser: argparse.ArgumentParser, option: str) -> None:
    """Add the option for the folder of saved paths."""
    parser.add_argument(
        option,
        type=Path,
        default=_PATHS,
        metavar="FOLDER",
        help="the folder of saved paths (default ~/.local/state/c4bench/paths)",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add `--cluster`."""
    parser.add_argument("--cluster", default="c4", metavar="NAME", help="the cluster's name on the bus (default c4)")


def gibibytes(text: str) -> int:
    """Bytes, by a number of GiB. Raises argparse.ArgumentTypeError for what is none, or not more than 0."""
    try:
        size_bytes = int(float(text) * (1 << 30))
    except (ValueError, OverflowError):
        size_bytes = 0
    if size_bytes <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of GiB, such as 8")
    return size_bytes


def listening(option: str, text: str, port: int) -> tuple[str, int]:
    """The address and the port that an `option` says to listen on. Raises UsageError, with `port` as an example."""
    address, _, number = text.rpartition(":")
    if not address or not number.isascii() or not number.isdigit() or int(number) > _PORT_AT_MOST:
        raise UsageError(f"{option} {text}: write ADDRESS:PORT, such as 0.0.0.0:{port}")
    return address.strip("[]"), int(number)


def add_master(parser: argparse.ArgumentParser) -> None:
    """Add `--master` and `--trust`."""
    parser.add_argument(
        "--master",
        default=f"127.0.0.1:{PORT}",
        metavar="ADDRESS[:PORT]",
        help=f"where the master listens (default 127.0.0.1:{PORT})",
    )
    add_trust(parser)


def require_certificates(trust: Path) -> None:
    """Raises UsageError for a folder without an authority."""
    if not (trust / "ca.pem").exists():
        raise UsageError(f"no certificates in {trust} (c4bench prepare makes them)")


def print_lines(lines: Iterable[str], longest: int = 10_000) -> None:
    """Print lines, in which names may be those that hosts, ranks and files brought."""
    sys.stdout.writelines(f"{one_line(line, longest)}\n" for line in lines)
    sys.stdout.flush()


def print_json(encoded: bytes) -> None:
    """Print a line of JSON, in which names may be those that hosts, ranks and files brought."""
    sys.stdout.write(json_line(encoded) + "\n")
    sys.stdout.flush()
