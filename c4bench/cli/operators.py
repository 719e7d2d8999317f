"""What operators ask of a running master: `c4bench status`, `job`, `watch` and `put-back`."""

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from c4bench import inventory
from c4bench.cli import Commands, shared
from c4bench.control.client import Client, dial
from c4bench.control.pages.health import Health
from c4bench.errors import UnhealthyError
from c4bench.model.event import Diagnosed, Event
from c4bench.record.encoding import encode
from c4bench.wire.trust import Role
from c4bench.workload import job_file

T = TypeVar("T")
_AGAIN_S = 0.5
_LONGEST_LINE = 4000


def register(commands: Commands) -> None:
    """Add the commands."""
    parser = commands.add_parser("status", help="how things stand: agents, jobs, and what C4D has named in them")
    _add(parser, status_lines, lambda health: health)
    parser = commands.add_parser("watch", help="print diagnoses as JSON lines (reports/schema/diagnosis.schema.json)")
    parser.add_argument("--events", action="store_true", help="print every event (reports/schema/event.schema.json)")
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        metavar="NUMBER",
        help="begin with this event; -1 for new events only (default 0)",
    )
    shared.add_master(parser)
    parser.set_defaults(run=_watch)
    actions = commands.add_parser("job", help="list, start and stop jobs").add_subparsers(
        required=True, metavar="ACTION"
    )
    parser = actions.add_parser("list", help="list the jobs that run")
    _add(parser, job_lines, lambda health: health.jobs)
    parser = actions.add_parser("start", help="start the job that JOB.yml describes")
    parser.add_argument("file", type=Path, metavar="JOB.yml", help="what to run, and on which hosts (docs/steering.md)")
    parser.add_argument("--hosts", type=Path, required=True, metavar="INVENTORY", help="the hosts that the file names")
    shared.add_master(parser)
    parser.set_defaults(run=_start)
    parser = actions.add_parser("stop", help="end a job, whichever attempt of it runs")
    parser.add_argument("name", metavar="JOB", help="a name that `list` prints")
    shared.add_master(parser)
    parser.set_defaults(run=_stop)

    parser = commands.add_parser("put-back", help="put a repaired host back into service")
    parser.add_argument(
        "host", metavar="HOST|JOB", help="a host, or a job for all hosts that were isolated because of it"
    )
    shared.add_master(parser)
    parser.set_defaults(run=_put_back)


def _add(
    parser: argparse.ArgumentParser, lines: Callable[[Health], Iterable[str]], shown: Callable[[Health], object]
) -> None:
    """Make a command of a parser that prints some of the master's health, as lines or as JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON, with the fields of the master's /health")
    shared.add_master(parser)
    parser.set_defaults(run=partial(_run, lines, shown))


def _run(
    lines: Callable[[Health], Iterable[str]], shown: Callable[[Health], object], arguments: argparse.Namespace
) -> int:
    health = ask(arguments, Role.OBSERVER, lambda master: master.health())
    if arguments.json:
        shared.print_json(encode(shown(health)))
    else:
        shared.print_lines(lines(health), _LONGEST_LINE)
    return 0


def ask(arguments: argparse.Namespace, role: Role, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """The answer of the master that the options name. Raises UnhealthyError where it does not answer."""

    async def asked() -> T:
        async with dial(arguments.master, arguments.trust, role) as master:
            return await question(master)

    return asyncio.run(asked())


def status_lines(health: Health) -> Iterator[str]:
    """A line about all agents, one for each that is missing or has no RDMA, each job, and each open diagnosis."""
    connected = sum(agent.connected for agent in health.agents.values())
    yield f"{connected} of {len(health.agents)} agents connected"
    for agent in health.missing:
        yield f"  {agent.host}: missing; ranks there: {agent.ranks}"
    for name, known in sorted(health.agents.items()):
        if known.connected and known.rdma:
            yield f"  {name}: no RDMA: {known.rdma}"
    for isolated in health.out:
        back = f"once repaired: c4bench put-back {isolated.host}"
        yield f"  {isolated.host}: out of service for {isolated.component.named(health.link_names)}; {back}"
    yield from job_lines(health)
    yield f"{len(health.open)} open diagnoses" if health.open else "nothing is named in these jobs"
    for found in health.open:
        cause = f" ({found.cause})" if found.cause else ""
        what = f"{found.syndrome}{cause}, {found.component.named(health.link_names)}"
        yield f"  {found.job}: {what}, confidence {found.confidence:.0%}"


def job_lines(health: Health) -> Iterator[str]:
    """A line about how many jobs run, and one for each."""
    yield f"{len(health.jobs)} jobs run" if health.jobs else "no job runs"
    for name, job in sorted(health.jobs.items()):
        named = sum(health.diagnoses.get(name, {}).values())
        yield f"  {name}: {job.ranks} ranks, attempt {job.attempt}, {job.restarts} restarts, {named} diagnoses"


def _watch(arguments: argparse.Namespace) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_follow(arguments))
    return 0


async def _follow(arguments: argparse.Namespace) -> None:
    """Print events; when the connection is lost, wait for the master and continue after the last printed event."""
    number, connected = arguments.first, False
    while True:
        try:
            async with dial(arguments.master, arguments.trust, Role.OBSERVER) as master:
                connected = True
                async for event in master.follow(number):
                    number += number >= 0
                    _print(event, whole=arguments.events)
        except UnhealthyError:
            if not connected:
                raise
        await asyncio.sleep(_AGAIN_S)


def _print(event: Event, *, whole: bool) -> None:
    if whole or isinstance(event, Diagnosed):
        shared.print_json(encode(event if whole else event.diagnosis))  # type: ignore[union-attr]


def _start(arguments: argparse.Namespace) -> int:
    launch = job_file.read(arguments.file, inventory.load(arguments.hosts).hosts)
    ask(arguments, Role.OPERATOR, lambda master: master.start(launch))
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    ask(arguments, Role.OPERATOR, lambda master: master.stop(arguments.name))
    return 0


def _put_back(arguments: argparse.Namespace) -> int:
    ask(arguments, Role.OPERATOR, lambda master: master.put_back(arguments.host))
    return 0
