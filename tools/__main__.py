"""`python -m tools NAME ...`: the commands of those who develop c4bench. `make` runs them; `-h` lists them."""

import argparse
import sys

from c4bench import logs
from c4bench.cli.main import printed_lines
from c4bench.errors import C4Error
from tools import cases, seen
from tools.bench import command as bench
from tools.campaign import command as campaign
from tools.documents import command as documents
from tools.foreign import command as foreign


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = argparse.ArgumentParser(prog="python -m tools", description="What makes and grades c4bench itself.")
    commands = whole.add_subparsers(title="commands", required=True, metavar="NAME")
    for module in (bench, campaign, cases, documents, foreign, seen):
        module.register(commands)
    return whole


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit codes are those of `c4bench`."""
    arguments = parser().parse_args(argv)
    logs.configure("warning", "text")
    try:
        code: int = arguments.run(arguments)
    except C4Error as error:
        sys.stderr.writelines(f"tools: {line}\n" for line in printed_lines(error))
        return error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
