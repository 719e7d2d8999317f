"""`c4bench detector`: judge jobs of a bus, together with others. `c4bench bus config`: configure nats-server."""

import argparse
import asyncio
import contextlib
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from c4bench import logs
from c4bench.cli import Commands, shared
from c4bench.deploy import authority
from c4bench.wire.trust import Role

_PORT = 4222


def register(commands: Commands) -> None:
    """Add the commands."""
    parser = commands.add_parser("detector", help="judge a fair share of the jobs on a bus (docs/scale.md)")
    parser.add_argument("--bus", required=True, metavar="nats://HOST:PORT", help="where nats-server listens")
    shared.add_cluster(parser)
    shared.add_trust(parser)
    logs.add_options(parser, "info")
    parser.set_defaults(run=_detector)
    actions = commands.add_parser("bus", help="configure the bus").add_subparsers(required=True, metavar="ACTION")
    parser = actions.add_parser(
        "config",
        help="print a configuration for nats-server: TLS, who may do what, and where to keep streams; issues the "
        "certificates of nats-server, masters and detectors where they are missing",
    )
    parser.add_argument(
        "--listen",
        default=f"0.0.0.0:{_PORT}",
        metavar="ADDRESS:PORT",
        help=f"where nats-server listens (default 0.0.0.0:{_PORT})",
    )
    parser.add_argument("--store", type=Path, required=True, metavar="FOLDER", help="where nats-server keeps streams")
    parser.add_argument(
        "--cluster", action="append", metavar="NAME", help="a cluster that uses this bus; may be repeated (default c4)"
    )
    parser.add_argument(
        "--store-holds",
        type=shared.gibibytes,
        default=8 << 30,
        metavar="GIB",
        help="how much all streams may take: for each cluster what its master's --bus-keeps says, and 2 (default 8)",
    )
    shared.add_trust(parser)
    parser.set_defaults(run=_config)


def _config(arguments: argparse.Namespace) -> int:
    from c4bench.bus.server import BusStore, server_config  # noqa: PLC0415  (nats-py, which is an extra)
    from c4bench.bus.subjects import DEFAULT_CLUSTER, Subjects  # noqa: PLC0415

    address, port = shared.listening("--listen", arguments.listen, _PORT)
    clusters = [Subjects(name) for name in arguments.cluster or [DEFAULT_CLUSTER]]
    trust = arguments.trust.resolve()
    shared.require_certificates(trust)
    authority.issue_for_bus(trust, datetime.now(UTC))
    hosts = authority.agents(trust)
    store = BusStore(arguments.store.resolve(), arguments.store_holds)
    sys.stdout.write(server_config(trust, store, f"{address}:{port}", clusters, hosts))
    return 0


def _detector(arguments: argparse.Namespace) -> int:
    asyncio.run(_judge(arguments))
    return 0


async def _judge(arguments: argparse.Namespace) -> None:
    from c4bench.bus.connection import Bus, bus_tls, opened  # noqa: PLC0415  (nats-py, which is an extra)
    from c4bench.bus.detector import BusDetector  # noqa: PLC0415
    from c4bench.bus.job_follower import JobJudges  # noqa: PLC0415
    from c4bench.bus.master import own_name  # noqa: PLC0415
    from c4bench.bus.subjects import Subjects  # noqa: PLC0415

    tls, name = bus_tls(arguments.trust, Role.DETECTOR), own_name()
    async with opened(Bus(arguments.bus, tls, name, Subjects(arguments.cluster), Role.DETECTOR)) as bus:
        judging = asyncio.ensure_future(BusDetector(bus, name, JobJudges()).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, judging.cancel)
        sys.stdout.write(f"connected to {bus.address} as {name}\n")
        sys.stdout.flush()
        with contextlib.suppress(asyncio.CancelledError):
            await judging
