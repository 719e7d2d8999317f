"""`c4bench workload run JOB.yml ...`: run jobs in the foreground, on real hosts or in a new embedded lab."""

import argparse
import asyncio
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec

from c4bench import inventory, logs
from c4bench.cli import Commands, shared
from c4bench.cli.lab import add_options, kept_or_scratch
from c4bench.control.client import dial, run_jobs
from c4bench.control.cluster import Cluster
from c4bench.decoding import DecodingError, decoding
from c4bench.errors import UsageError
from c4bench.inventory import Inventory
from c4bench.lab import topology_file
from c4bench.lab.machine.launch import launch, trust_directory
from c4bench.lab.spec import INVENTORY
from c4bench.model.fabric import Host
from c4bench.wire.messages import PORT, LaunchJob, Result
from c4bench.wire.trust import Role
from c4bench.workload import job_file

LAB = "softroce"
_AGENTS_WITHIN_S = 60.0
_INTERRUPTED = 130
_LONGEST = 2000  # characters of a line
_ANY = "0.0.0.0"  # noqa: S104  (agents of other machines connect to it)


class _Losses(msgspec.Struct, frozen=True):
    """The losses of consecutive steps, in hexadecimal, as a rank reports them."""

    first: int
    losses: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("workload", help="run jobs in the foreground")
    run = parser.add_subparsers(required=True, metavar="ACTION").add_parser(
        "run", help="start the jobs, print what their ranks report, and end with their exit code"
    )
    run.add_argument("files", type=Path, nargs="+", metavar="JOB.yml", help="jobs, which run side by side")
    run.add_argument("--hosts", required=True, metavar=f"INVENTORY|{LAB}", help=f"{LAB}: in a new embedded lab")
    run.add_argument("--json", action="store_true", help="print reports as JSON lines, with losses exact")
    shared.add_master(run)
    run.add_argument(
        "--own-master",
        nargs="?",
        const=f"{_ANY}:{PORT}",
        metavar="ADDRESS:PORT",
        help=f"where no master runs: be the agents' master while the jobs run (default {_ANY}:{PORT})",
    )
    lab = run.add_argument_group(f"with --hosts {LAB}")
    add_options(lab)
    lab.add_argument(
        "--run-dir", type=Path, metavar="RUN_DIR", help="where the lab writes to (default: a temporary directory)"
    )
    logs.add_options(run, "warning")
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.hosts == LAB:
        return _in_lab(arguments)
    known = inventory.load_unless_lab(arguments.hosts, LAB)
    launches = _launches(arguments.files, known.hosts)
    with ExitStack() as undo:
        if arguments.own_master:
            used = {member.host for each in launches for member in each.job.members}
            cluster = undo.enter_context(_master(known, arguments))
            cluster.wait_hosts(used, _AGENTS_WITHIN_S)
            cluster.plan_paths()
        try:
            return asyncio.run(_foreground(arguments, launches))
        except KeyboardInterrupt:
            return _INTERRUPTED


def _master(known: Inventory, arguments: argparse.Namespace) -> Cluster:
    address, port = shared.listening("--own-master", arguments.own_master, PORT)
    shared.require_certificates(arguments.trust)
    arguments.master = f"127.0.0.1:{port}" if address == _ANY else arguments.own_master
    return Cluster(known.hosts, arguments.trust, address, port, hash=known.hash)


def _launches(files: Sequence[Path], hosts: tuple[Host, ...]) -> list[LaunchJob]:
    """What the files describe. Raises UsageError that names the file and the problem."""
    launches = [job_file.read(path, hosts) for path in files]
    names = [each.job.id for each in launches]
    for path, name in zip(files, names, strict=True):
        if names.count(name) > 1:
            raise UsageError(f"{path}: another file has a job {name!r} too; give each job a name of its own")
    return launches


async def _foreground(arguments: argparse.Namespace, launches: Sequence[LaunchJob]) -> int:
    show = _show_json if arguments.json else _show
    async with dial(arguments.master, arguments.trust, Role.OPERATOR) as master:
        return await run_jobs(master, launches, show)


def _in_lab(arguments: argparse.Namespace) -> int:
    """Run the same command in a new lab, as its master. The files are checked before it boots."""
    fabric = topology_file.load(arguments.topology)
    _launches(arguments.files, fabric.hosts)
    with kept_or_scratch(arguments.run_dir) as directory:
        # The lab's own namespace has no loopback, by which the command reaches its master.
        command = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        command += ["c4bench", "workload", "run", *_copies(arguments.files, directory / "workload")]
        command += ["--hosts", INVENTORY, "--own-master", "--trust", str(trust_directory(directory))]
        command += ["--json"] * arguments.json
        command += ["--log-level", arguments.log_level, "--log-format", arguments.log_format]
        return launch(fabric, command, directory, seed=arguments.seed).exit_code


def _copies(files: Sequence[Path], folder: Path) -> list[str]:
    """Copy files to where the lab sees them; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = [(folder / f"{number}-{path.name}").resolve() for number, path in enumerate(files)]
    for path, copy in zip(files, copies, strict=True):
        shutil.copyfile(path, copy)
    return [str(copy) for copy in copies]


def _show(job: str, result: Result) -> None:
    """One line of what a rank reports, which may be anything."""
    fields = dict(result.body)
    kind = fields.pop("kind", "")
    if kind == "losses":
        fields = _newest_loss(fields)
    words = " ".join(f"{name}={value}" for name, value in fields.items())
    shared.print_lines([f"{job} rank {result.rank}: {kind} {words}".rstrip()], _LONGEST)


def _newest_loss(fields: dict[str, Any]) -> dict[str, Any]:
    """The newest of the losses that a rank reports; what it reports, if that is something else."""
    try:
        with decoding():
            losses = msgspec.convert(fields, _Losses)
            newest = float.fromhex(losses.losses[-1])
    except DecodingError:
        return fields
    return {"step": losses.first + len(losses.losses) - 1, "loss": f"{newest:.4f}"}


def _show_json(job: str, result: Result) -> None:
    shared.print_json(msgspec.json.encode({"job": job, "rank": result.rank} | result.body))
