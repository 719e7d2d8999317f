"""`c4bench`: parse the command line, run one command, and report an error in one line with an exit code."""

import argparse
import re
import signal
import sys
from importlib import import_module
from typing import Any, NoReturn

from c4bench import __version__, logs
from c4bench.errors import C4Error, meant
from c4bench.foreign_text import one_line

_LONGEST = 8000
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
# By heading of the help and by module, the commands that a module adds. A module is imported only for these: all of
# them take a second. `completion` is for all commands, and not named.
_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "this machine and your hosts": {
        "setup": ("setup",),
        "doctor": ("doctor",),
        "inventory": ("inventory",),
        "prepare": ("prepare",),
        "completion": (),
    },
    "the embedded lab": {"lab": ("lab", "topology")},
    "jobs": {"workload": ("workload",), "attach": ("attach",), "operators": ("status", "watch", "job", "put-back")},
    "the master": {
        "master": ("master",),
        "hook": ("hook",),
        "page": ("page", "token"),
        "detector": ("detector", "bus"),
    },
    "faults, and finding them": {
        "fault": ("fault",),
        "first_light": ("first-light",),
        "detect": ("detect", "downtime"),
        "evidence": ("convert",),
    },
    "paths": {"paths": ("paths",), "plan": ("plan",)},
    "runs": {"nightly": ("nightly",), "report": ("report",)},
    "studies": {"bench": ("bench",), "exhaust": ("exhaust",), "utilisation": ("utilisation",)},
}
_COMMANDS = {module: names for modules in _GROUPS.values() for module, names in modules.items()}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0 pass, 1 fail, 2 usage, 3 lab or host unhealthy, 4 inconclusive."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parsed(words)
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


def _parsed(words: list[str]) -> argparse.Namespace:
    """The command line; words of `fault apply` may also come after its options."""
    parser = _parser(*words[:1])
    arguments, rest = parser.parse_known_args(words)
    if rest and ("words" not in arguments or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.words += rest
    return arguments


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]  # noqa: SLF001  (no public name)
    """Commands that say in their own help what the list of commands says of them."""

    def add_parser(self, name: str, *, help: str, **rest: Any) -> argparse.ArgumentParser:  # type: ignore[override]  # noqa: A002, ANN401
        """Add a command."""
        described = {"description": f"{help[0].upper()}{help[1:]}."} | rest
        parser: argparse.ArgumentParser = super().add_parser(name, help=help, **described)
        return parser


class _Grouped(argparse.HelpFormatter):
    """Lists the commands under their headings."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, _Commands):
            return super()._format_action(action)
        shown = {command.dest: command for command in action._choices_actions}  # noqa: SLF001
        lines = []
        for heading, modules in _GROUPS.items():
            names = [name for module, named in modules.items() for name in named or (module,)]
            lines.append(f"\n {heading}\n")
            lines += [self._format_action(shown[name]) for name in names if name in shown]
        return "".join(lines)


class _Parser(argparse.ArgumentParser):
    """Names the choice that was probably meant; parsers of subcommands are of this class too."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (those of argparse)
        super().__init__(**options)
        self.register("action", "parsers", _Commands)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with code 2."""
        wrong = _CHOICE.search(message)
        super().error(message + (meant(wrong[1], re.findall(r"[\w.-]+", wrong[2])) if wrong else ""))


def _parser(first: str = "") -> argparse.ArgumentParser:
    """The parser of all commands, or of those of one module where `first` is one of them."""
    parser = _Parser(
        prog="c4bench", description="Test bed for RDMA fabrics of training clusters.", formatter_class=_Grouped
    )
    parser.set_defaults(log_level="warning", log_format="text")  # for commands without these options
    parser.set_defaults(parser=parser)  # for `c4bench completion`
    parser.add_argument("--version", action="version", version=f"c4bench {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in [module for module, names in _COMMANDS.items() if first in names] or _COMMANDS:
        import_module(f"c4bench.cli.{module}").register(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
