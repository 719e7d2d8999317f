"""`c4bench master`: run the master."""

import argparse
import asyncio
import logging
import math
import resource
import shlex
import shutil
import signal
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from c4bench import inventory, logs, remote
from c4bench.c4d import detectors
from c4bench.cli import Commands, page, shared
from c4bench.control.hooks import HookPolicy, Hooks, running
from c4bench.control.master import Master
from c4bench.control.parts import Parts, compose
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.paths.switches import Switches
from c4bench.control.state.store import Store
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError, UsageError
from c4bench.record.archive import Archive, Bounds
from c4bench.wire.messages import PORT
from c4bench.wire.trust import RENEW

_logger = logging.getLogger(__name__)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("master", help="run the master; jobs continue while it is restarted")
    parser.add_argument(
        "--listen",
        default=f"0.0.0.0:{PORT}",
        metavar="ADDRESS:PORT",
        help=f"where agents and operators connect to (default 0.0.0.0:{PORT})",
    )
    parser.add_argument(
        "--state",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the master's own folder, from which it continues after a restart",
    )
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="INVENTORY",
        help="plan the paths of all jobs between these hosts, and read the counters of its switches; without it every "
        "flow is left to ECMP",
    )
    parser.add_argument(
        "--background-every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how often the switches' counters are read to plan around other traffic; 0 for never (default 10)",
    )
    parser.add_argument("--detector", default=detectors.C4D, metavar="NAME", help="who judges jobs (default c4d)")
    _add_hooks(parser)
    _add_archive(parser)
    _add_bus(parser)
    page.add_options(parser)
    shared.add_trust(parser)
    logs.add_options(parser, "info")
    parser.set_defaults(run=_master)


def _add_hooks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hook",
        action="append",
        default=[],
        metavar="COMMAND",
        help="give each finding to this command, as JSON on its standard input, such as 'c4bench hook slurm --do'; may "
        "be given several times (docs/howto/slurm.md)",
    )
    parser.add_argument(
        "--hook-job",
        action="append",
        metavar="PATTERN",
        help="give hooks only what is found about jobs of such names, such as 'train-*', also of programs that c4bench "
        "has not started; may be given several times (default: all)",
    )
    parser.add_argument(
        "--hook-per-hour", type=int, default=6, metavar="N", help="run each hook no more often than that (default 6)"
    )
    parser.add_argument("--hook-dry-run", action="store_true", help="note which hooks would run, and run none")


def _add_archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive",
        type=Path,
        metavar="FOLDER",
        help="keep what C4D ingests and finds as Parquet files there, a folder for each day: docs/steering.md#archive",
    )
    parser.add_argument(
        "--archive-days", type=float, default=30.0, metavar="DAYS", help="drop what is older from it (default 30)"
    )
    parser.add_argument(
        "--archive-gb", type=float, default=50.0, metavar="GB", help="drop the oldest of more than that (default 50)"
    )


def _add_bus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bus",
        metavar="nats://HOST:PORT",
        help="have c4bench detector processes judge the jobs, and keep the state there; of several masters one leads "
        "(docs/scale.md)",
    )
    parser.add_argument(
        "--bus-keeps",
        type=shared.gibibytes,
        default=1 << 30,
        metavar="GIB",
        help="how much telemetry the bus keeps, for two minutes at most (default 1)",
    )
    shared.add_cluster(parser)


def _master(arguments: argparse.Namespace) -> int:
    address, port = shared.listening("--listen", arguments.listen, PORT)
    if arguments.bus and arguments.detector != detectors.C4D:
        raise UsageError("--detector: with --bus c4bench detector processes judge; leave one of the two out")
    judge, hooks = detectors.judge(arguments.detector), _hooks(arguments)
    shared.require_certificates(arguments.trust)
    if names := authority.due(arguments.trust, datetime.now(UTC)):
        _logger.warning("certificates end within 30 days, or state no role: %s; %s", ", ".join(names), RENEW)
    fabric = _fabric(arguments.hosts, arguments.background_every) if arguments.hosts else None
    archive = _archive(arguments)
    shown = page.prepare(arguments)
    serve = partial(_serve, arguments, shown, hooks, address, port)
    # A descriptor for each agent; the limit that shells set by default is for programs that use select(2).
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.bus:
        from c4bench.bus.master import leading  # noqa: PLC0415  (nats-py, which is an extra)

        with leading(arguments.bus, arguments.cluster, arguments.trust, arguments.bus_keeps) as leader:
            asyncio.run(leader.run(fabric, serve))
    else:
        asyncio.run(serve(compose(Store(arguments.state), fabric, archive, judge=judge)))
    return 0


def _archive(arguments: argparse.Namespace) -> Archive | None:
    if arguments.archive is None:
        return None
    if arguments.bus:
        raise UsageError("--archive: with --bus no telemetry reaches the master to be kept; leave one of the two out")
    for option, number in (("--archive-days", arguments.archive_days), ("--archive-gb", arguments.archive_gb)):
        if not 0 < number < math.inf:
            raise UsageError(f"{option} {number:g}: give a number above 0")
    return Archive(arguments.archive, Bounds(int(arguments.archive_gb * 1e9), arguments.archive_days))


def _hooks(arguments: argparse.Namespace) -> HookPolicy:
    if arguments.hook_per_hour < 1:
        raise UsageError(f"--hook-per-hour {arguments.hook_per_hour}: give 1 or more")
    if arguments.hook_job and not arguments.hook:
        raise UsageError("--hook-job says which jobs hooks are for; give a --hook too")
    return HookPolicy(
        tuple(map(_words, arguments.hook)),
        jobs=tuple(arguments.hook_job or ("*",)),
        per_hour=arguments.hook_per_hour,
        dry_run=arguments.hook_dry_run,
    )


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--hook {command!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--hook {command!r}: no such program; give its path")
    return words


def _fabric(hosts: Path, background_s: float) -> PlannedFabric:
    """What the inventory says of the hosts and switches to plan for."""
    if not 0 <= background_s < math.inf:
        raise UsageError(f"--background-every {background_s:g}: give seconds, or 0 for never")
    planned = inventory.load(hosts)
    if not any(host.nics for host in planned.hosts):
        raise UsageError(f"{hosts}: no host has NICs (c4.nics), so there are no paths to plan; run c4bench inventory")
    switches = Switches(planned, lambda name: remote.connect(name, planned.access[name]))
    read = switches.ports if switches.any else None
    return PlannedFabric(planned.hosts, read=read, background_s=background_s, graph=planned.graph, hash=planned.hash)


async def _serve(
    arguments: argparse.Namespace, shown: page.Page | None, policy: HookPolicy, address: str, port: int, parts: Parts
) -> None:
    master = Master(parts, arguments.trust, address, port)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, master.leave)

    def ready() -> None:
        sys.stdout.write(f"listening on {address}:{port}\n")
        sys.stdout.flush()

    try:
        async with page.serving(shown, parts), running(Hooks(policy, parts.log, parts.registry.hosts_of)):
            await master.run(ready)
    except OSError as error:
        raise UnhealthyError(f"--listen {arguments.listen}: {error.strerror}") from None
