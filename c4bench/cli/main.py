"""`c4bench`: parse the command line, run one command, and report an error in one line with an exit code."""

import argparse
import signal
import sys

from c4bench import __version__, logs
from c4bench.cli import (
    bench,
    convert,
    detect,
    doctor,
    fault,
    inventory,
    lab,
    master,
    nightly,
    page,
    paths,
    plan,
    prepare,
    report,
    setup,
    topology,
    utilisation,
    workload,
)
from c4bench.errors import C4Error

_COMMANDS = (
    *(setup, doctor, topology, lab, inventory, prepare, nightly),
    *(fault, paths, plan, detect, convert, master, page, workload, report, bench, utilisation),
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0 pass, 1 fail, 2 usage, 3 lab or host unhealthy, 4 inconclusive."""
    arguments = _parser().parse_args(argv)
    logs.configure(arguments.log_level, arguments.log_format)
    try:
        code: int = arguments.run(arguments)
    except C4Error as error:
        sys.stderr.write(f"c4bench: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("c4bench: interrupted\n")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="c4bench", description="Test bed for RDMA fabrics of training clusters.")
    parser.set_defaults(log_level="warning", log_format="text")  # for commands without these options
    parser.add_argument("--version", action="version", version=f"c4bench {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.register(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
