"""`c4bench`: parse the command line, run one command, and report an error in one line with an exit code."""

import argparse
import re
import signal
import sys
from importlib import import_module
from typing import NoReturn

from c4bench import __version__, logs
from c4bench.errors import C4Error, meant
from c4bench.foreign_text import one_line

_LONGEST = 8000
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
# By module, in the order of the help, the commands that it adds. A module is imported only for these: all of them
# take a second. `completion` is for all commands, and not named.
_COMMANDS: dict[str, tuple[str, ...]] = {
    "setup": ("setup",),
    "doctor": ("doctor",),
    "topology": ("topology",),
    "lab": ("lab",),
    "inventory": ("inventory",),
    "prepare": ("prepare",),
    "nightly": ("nightly",),
    "fault": ("fault",),
    "paths": ("paths",),
    "plan": ("plan",),
    "detect": ("detect", "downtime"),
    "convert": ("convert",),
    "master": ("master", "watch", "job", "put-back"),
    "detector": ("detector", "bus"),
    "page": ("page", "token"),
    "workload": ("workload",),
    "report": ("report",),
    "bench": ("bench",),
    "utilisation": ("utilisation",),
    "completion": (),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0 pass, 1 fail, 2 usage, 3 lab or host unhealthy, 4 inconclusive."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser(*words[:1]).parse_args(words)
    logs.configure(arguments.log_level, arguments.log_format)
    try:
        code: int = arguments.run(arguments)
    except C4Error as error:
        sys.stderr.writelines(f"c4bench: {line}\n" for line in printed_lines(error))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("c4bench: interrupted\n")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 0
    return code


def printed_lines(error: C4Error) -> list[str]:
    """The lines that an error is printed in: one for each thing that is wrong, whatever strangers wrote into it."""
    return [one_line(problem, _LONGEST) for problem in error.each]


class _Parser(argparse.ArgumentParser):
    """Names the choice that was probably meant; parsers of subcommands are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with code 2."""
        wrong = _CHOICE.search(message)
        super().error(message + (meant(wrong[1], re.findall(r"[\w.-]+", wrong[2])) if wrong else ""))


def _parser(first: str = "") -> argparse.ArgumentParser:
    """The parser of all commands, or of those of one module where `first` is one of them."""
    parser = _Parser(prog="c4bench", description="Test bed for RDMA fabrics of training clusters.")
    parser.set_defaults(log_level="warning", log_format="text")  # for commands without these options
    parser.set_defaults(parser=parser)  # for `c4bench completion`
    parser.add_argument("--version", action="version", version=f"c4bench {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in [module for module, names in _COMMANDS.items() if first in names] or _COMMANDS:
        import_module(f"c4bench.cli.{module}").register(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
