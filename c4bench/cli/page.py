"""The live page of `c4bench master`, `c4bench page` for that of a run, and `c4bench token`: who may look at it."""

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from c4bench.cli import Commands, shared
from c4bench.control.parts import Parts
from c4bench.errors import UnhealthyError, UsageError
from c4bench.live.credentials import TokenFile, ensure_certificate, fingerprint
from c4bench.live.feed import Feed, RunFeed
from c4bench.live.server import PageServer, page_context

PORT = 7448
_HOUR_S = 3600.0
_HOURS_AT_MOST = 24.0 * 366
_logger = logging.getLogger(__name__)


class Page(msgspec.Struct, frozen=True):
    """What `--page` asks for: where to listen, and the folder of tokens. `faults` is a history to show."""

    option: str
    address: str
    port: int
    tls: ssl.SSLContext
    tokens: Path
    faults: Path | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the page to `c4bench master`."""
    parser.add_argument(
        "--page",
        metavar="ADDRESS:PORT",
        help="serve the live page here, over TLS, for operators' certificates and for tokens (c4bench token), such as "
        f"127.0.0.1:{PORT}",
    )
    parser.add_argument(
        "--page-certificate",
        nargs=2,
        type=Path,
        metavar=("CERTIFICATE", "KEY"),
        help="the page's certificate and key in PEM (default: self-signed ones in the state folder)",
    )
    parser.add_argument(
        "--faults", type=Path, metavar="FILE", help="show faults of this history on the page: a run's events.jsonl"
    )


def register(commands: Commands) -> None:
    """Add `c4bench token`."""
    parser = commands.add_parser("page", help="serve the live page of a run of pytest --c4-page, on this machine")
    parser.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="such as reports/runs/latest")
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="PORT", help=f"the loopback port (default {PORT}; 0 for any)"
    )
    parser.add_argument(
        "--hours", type=float, default=12.0, metavar="HOURS", help="how long its token is valid (default 12)"
    )
    parser.set_defaults(run=_show_run)
    parser = commands.add_parser("token", help="who may look at the live page in a browser")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token, and print it once")
    create.add_argument("name", metavar="NAME", help="whose token it is")
    create.add_argument("--hours", type=float, default=12.0, metavar="HOURS", help="how long it is valid (default 12)")
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list the names of valid tokens, and when each ends")
    listing.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="end a token now, also for pages that are open")
    revoke.add_argument("name", metavar="NAME", help="whose token it is")
    revoke.set_defaults(run=_revoke)
    for action in (create, listing, revoke):
        action.add_argument(
            "--state", type=Path, required=True, metavar="FOLDER", help="the state folder of the master"
        )


def prepare(arguments: argparse.Namespace) -> Page | None:
    """What the options ask for; None without `--page`. Raises UsageError; nothing listens yet."""
    if arguments.page is None:
        if arguments.page_certificate or arguments.faults:
            raise UsageError("--page-certificate and --faults are about the live page; give --page too")
        return None
    address, port = shared.listening("--page", arguments.page, PORT)
    arguments.state.mkdir(parents=True, exist_ok=True)
    names = {socket.gethostname(), *(() if _is_any(address) else (address,))}
    own = arguments.page_certificate or ensure_certificate(arguments.state, names, datetime.now(UTC))
    tls = page_context(arguments.trust / "ca.pem", *own)
    _logger.info("live page: certificate %s, SHA-256 %s", own[0], fingerprint(own[0]))
    return Page(arguments.page, address, port, tls, arguments.state, arguments.faults)


def _is_any(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


@contextlib.asynccontextmanager
async def serving(page: Page | None, sources: Parts) -> AsyncIterator[None]:
    """Serve the page of these parts while the body runs. Raises UnhealthyError if its port cannot be opened."""
    if page is None:
        yield
        return
    opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = PageServer(Feed(sources, page.faults), TokenFile(page.tokens))
    task = asyncio.create_task(server.run(page.tls, page.address, page.port, opened.set_result))
    try:
        await asyncio.wait((task, opened), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            _raise_as_ours(task, page)
        _logger.info("live page: https://%s:%d/", page.address, opened.result())
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _raise_as_ours(task: "asyncio.Task[None]", page: Page) -> None:
    try:
        task.result()
    except OSError as error:
        raise UnhealthyError(f"--page {page.option}: {error.strerror}") from None


def _show_run(arguments: argparse.Namespace) -> int:
    """Serve a run's page until Ctrl-C, with a certificate and a token that end with it."""
    _check_hours(arguments.hours)
    feed = RunFeed(arguments.run_directory)
    with tempfile.TemporaryDirectory(prefix="c4bench-page-") as name, contextlib.suppress(KeyboardInterrupt):
        folder, now_s = Path(name), time.time()
        own = ensure_certificate(folder, (), datetime.now(UTC))
        tokens = TokenFile(folder)
        token = tokens.create("page", now_s + _HOUR_S * arguments.hours, now_s)

        def ready(port: int) -> None:
            lines = f"https://localhost:{port}/", f"token {token}", f"SHA-256 {fingerprint(own[0])}"
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

        tls = page_context(None, *own)
        try:
            asyncio.run(PageServer(feed, tokens).run(tls, "127.0.0.1", arguments.port, ready))
        except (OSError, OverflowError) as error:
            raise UnhealthyError(f"--port {arguments.port}: {getattr(error, 'strerror', None) or error}") from None
    return 0


def _check_hours(hours: float) -> None:
    if not 0 < hours <= _HOURS_AT_MOST:
        raise UsageError(f"--hours {hours:g}: give more than 0 and at most {_HOURS_AT_MOST:g}")


def _create(arguments: argparse.Namespace) -> int:
    _check_hours(arguments.hours)
    if not arguments.state.is_dir():
        raise UsageError(f"--state {arguments.state} is no folder; give the master's own")
    now_s = time.time()
    token = TokenFile(arguments.state).create(arguments.name, now_s + _HOUR_S * arguments.hours, now_s)
    sys.stdout.write(token + "\n")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    for token in TokenFile(arguments.state).stored(time.time()):
        ends = datetime.fromtimestamp(token.ends_s, UTC).isoformat(timespec="seconds")
        sys.stdout.write(f"{token.name}\t{ends}\n")
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    TokenFile(arguments.state).revoke(arguments.name, time.time())
    return 0
