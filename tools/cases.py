"""`python -m tools cases FOLDER`: to which share of a folder's inputs c4bench gives the right answer, and the others.

The right answers are those of a Python file with `TRUTHS` and `ANSWERS`, which do not come from c4bench.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from c4bench.cli import Commands
from c4bench.cli.main import main
from c4bench.errors import UsageError
from c4bench.foreign_text import one_line

FIXTURES = Path(__file__).parents[1] / "tests/evidence_fixtures"


class Truth(NamedTuple):
    """The right answer to a case.

    `ranks` is the size of the job, 0 where the input does not state it; `blamed` the hosts that it shows as at fault.
    `named` are the components that are named, in the verdicts' order, and `says` what the answer contains.
    """

    case: str
    ranks: int
    named: tuple[str, ...]
    culprits: tuple[tuple[int, ...], ...]
    blamed: tuple[str, ...] = ()
    says: tuple[str, ...] = ()

    def faults(self, folder: Path) -> Iterator[str]:
        """What is wrong with the answer to the case in a folder."""
        path = str(folder / self.case)
        code, said = answer("detect", path)
        yield from _differs("exit code", code, 0)
        yield from (f"it does not say {text!r}" for text in self.says if text not in said)
        yield from ("it says healthy" for _ in range("healthy" in said))
        _, printed = answer("detect", "--json", path)
        report = json.loads(printed[printed.index("{") :])
        verdicts = report["verdicts"]
        parts = [one["diagnosis"]["component"] for one in verdicts]
        yield from _differs("named", tuple(f"{part['kind']} {part['name']}" for part in parts), self.named)
        yield from _differs("culprits", tuple(tuple(one["culprits"]) for one in verdicts), self.culprits)
        wrongly = {host for one in verdicts for host in one["hosts"]} - set(self.blamed)
        yield from (f"it blames {host}" for host in sorted(wrongly))
        yield from _differs("size", report["ranks"] if report["size_stated"] else 0, self.ranks)
        yield from _differs("state", report["state"], "fault")


class Answer(NamedTuple):
    """The right answer to a case that is not about ranks: what the command prints, on stdout and stderr.

    All of `says` is in it and nothing of `not_says`. `words` are the command's, before the path; `code` its exit code.
    """

    case: str
    says: tuple[str, ...]
    not_says: tuple[str, ...] = ()
    code: int = 0
    words: tuple[str, ...] = ("detect",)

    def faults(self, folder: Path) -> Iterator[str]:
        """What is wrong with the answer to the case in a folder."""
        code, said = answer(*self.words, str(folder / self.case))
        yield from _differs("exit code", code, self.code)
        yield from (f"it does not say {text!r}" for text in self.says if text not in said)
        yield from (f"it says {text!r}" for text in self.not_says if text in said)


def _differs(what: str, found: object, right: object) -> Iterator[str]:
    if found != right:
        yield f"{what} {found}, not {right}"


def answer(*words: str) -> tuple[int, str]:
    """The exit code of a command of c4bench, and what it prints to stderr and stdout, in this order."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([*words])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
    return code, err.getvalue() + out.getvalue()


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("cases", help="judge a folder of cases against its right answers")
    parser.add_argument("folder", type=Path, nargs="?", default=FIXTURES / "cases", metavar="FOLDER")
    parser.add_argument(
        "--truths", type=Path, default=FIXTURES / "case_truths.py", metavar="FILE.py", help="with TRUTHS and ANSWERS"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    rows = _rows(arguments.truths)
    missed = 0
    for row in rows:
        faults = list(row.faults(arguments.folder))
        missed += bool(faults)
        if faults:
            sys.stdout.write(f"missed {one_line(row.case)}: {one_line('; '.join(faults), 2000)}\n")
    right = len(rows) - missed
    sys.stdout.write(f"cases.right_fraction {right / len(rows):.3f} ({right} of {len(rows)})\n")
    return 1 if missed else 0


def _rows(path: Path) -> list[Truth | Answer]:
    """The right answers of a file. Raises UsageError if it has none."""
    spec = importlib.util.spec_from_file_location("case_truths", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{path}: it is no Python file; give one with TRUTHS and ANSWERS")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = [*getattr(module, "TRUTHS", ()), *getattr(module, "ANSWERS", ())]
    if not rows:
        raise UsageError(f"{path}: it has neither TRUTHS nor ANSWERS")
    return rows
