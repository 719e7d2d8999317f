"""`c4bench setup`: make this machine ready for the lab, or with `--check` only say what is missing."""

import argparse
import sys

from c4bench.attach import build as attach_build
from c4bench.cli import Commands
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.lab.machine import packages
from c4bench.lab.machine.checks import Check, immutable_checks, local_checks
from c4bench.lab.machine.kernel import build


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "setup", help="make this machine ready for the lab: packages (as root), pyverbs, the lab's kernel"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="change nothing; one line for each thing that is missing")
    what.add_argument(
        "--environment", action="store_true", help="only make the distribution's pyverbs importable in this environment"
    )
    # When a set-up from nothing began, in seconds since 1970: the Makefile says so.
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.check:
        return _report_missing([*local_checks(), _preloaded()])
    if not arguments.environment:
        code = _report_missing(immutable_checks())
        if code:
            return code
        _install_packages()
    linked = packages.link_pyverbs()
    if linked:
        _print(f"pyverbs: {linked} -> {linked.readlink()}")
    if not arguments.environment:
        attach_build.build()
        built = build.build(arguments.began)
        _print(f"Linux {built.version}: {built.program} (built in {built.build_s:g} s)")
    return 0


def _install_packages() -> None:
    wanted = packages.missing()
    if wanted:
        _print(f"installing {' '.join(wanted)}")
        packages.install(wanted)


def _preloaded() -> Check:
    """Whether what programs of others get preloaded is built."""
    try:
        detail, ok = ", ".join(map(str, attach_build.libraries())), True
    except UnhealthyError:
        detail, ok = "not built", False
    return Check("preloaded libraries", ok, detail, "run `c4bench setup`")


def _report_missing(checks: list[Check]) -> int:
    """One line, with the fix, for each check that fails; the exit code."""
    bad = [check for check in checks if not check.ok]
    sys.stderr.writelines(f"c4bench: {one_line(f'{check.name}: {check.detail}; {check.fix}')}\n" for check in bad)
    return UnhealthyError.exit_code if bad else 0


def _print(text: str) -> None:
    sys.stdout.write(f"c4bench: {text}\n")
    sys.stdout.flush()
