"""Write the walks of docs/architecture.md: the modules that two values pass, from a run that is traced.

    python tests/unit/docs/walks.py docs/architecture.md

A small job runs in this process (`traced_job.py`). A function counts if one of its arguments, or what it returns, has
the value in it: as text, as a number, or as bytes of either.
"""

import ast
import logging
import re
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
from traced_job import COMMUNICATOR, JOB, SIZE_BYTES, TracedJob

import c4bench
from c4bench.errors import UnhealthyError

PACKAGE = Path(c4bench.__file__).parent
BLOCK = "walks"
# Data and what carries it, and the scene's own handle of the master.
LEFT_OUT = re.compile(r"model/|wire/|record/|(?!steer\.py)[^/]+\.py|control/cluster\.py")
DEEP, MANY, LONG = 4, 50, 200_000
TRIES = 3


class Value(NamedTuple):
    """What is followed: text or a number."""

    text: str = ""
    number: int | None = None

    @property
    def encoded(self):
        """Its bytes in messages and tables."""
        return self.text.encode() if self.text else struct.pack("<q", self.number)

    def within(self, found, deep=DEEP):
        """Whether it is part of what was found."""
        if isinstance(found, str):
            return bool(self.text) and self.text in found
        if isinstance(found, bytes | bytearray | memoryview):
            return self.encoded in bytes(found[:LONG])
        if isinstance(found, int | np.integer) and not isinstance(found, bool):
            return int(found) == self.number
        if isinstance(found, np.ndarray | np.void):
            return self.encoded in found.tobytes()[:LONG]
        return deep > 0 and any(self.within(part, deep - 1) for part in parts(found))


def parts(found):
    """The members of a container, or the fields of a struct."""
    if isinstance(found, dict):
        return [part for pair in list(found.items())[:MANY] for part in pair]
    if isinstance(found, list | tuple | set | frozenset):
        return list(found)[:MANY]
    if isinstance(found, type):
        return []
    fields = getattr(found, "__struct_fields__", None) or getattr(found, "__dataclass_fields__", ())
    return [getattr(found, field, None) for field in fields]


class Step(NamedTuple):
    """A module that the value passes, and the function by which it came there first."""

    module: str
    function: str


class Trace:
    """Follows a value through the calls of every thread; `steps` are in the order of coming."""

    def __init__(self, value):
        self.value, self.steps, self._seen = value, [], set()

    def __call__(self, frame, event, returned):
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(f"{PACKAGE}/") or "<" in code.co_name:
            return
        module = code.co_filename.removeprefix(f"{PACKAGE}/")
        if module in self._seen or LEFT_OUT.match(module):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        taken = [frame.f_locals.get(name) for name in names if name not in {"self", "cls"}]
        if any(map(self.value.within, taken if event == "call" else [returned])):
            self._seen.add(module)
            self.steps.append(Step(module, code.co_qualname.replace(".<locals>", "")))


def traced(values):
    """The steps of each value, in one run. On a busy machine another operation may stand still first: tries again."""
    for tries in range(TRIES, 0, -1):
        try:
            return run_once(values)
        except UnhealthyError as error:
            if tries == 1:
                raise
            sys.stderr.write(f"tries again: {error}\n")
    raise AssertionError


def run_once(values):
    """The steps of each value."""
    traces = [Trace(value) for value in values]

    def follow(*call):
        if not job.warming:
            for trace in traces:
                trace(*call)

    try:
        with tempfile.TemporaryDirectory() as folder:
            job = TracedJob(folder)
            threading.setprofile(follow)
            with job:
                job.run()
    finally:
        threading.setprofile(None)
    return [trace.steps for trace in traces]


def purpose(module):
    """The first sentence of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / module).read_text())) or ""
    sentence = re.split(r"(?<=\w)\.\s|[:;]\s", " ".join(docstring.split()) + " ")[0]
    return sentence.strip().removesuffix(".").replace("|", "\\|")


WALKS = {
    "A telemetry record, from the rank to a published diagnosis": Value(number=SIZE_BYTES),
    "A request for a path, from a rank to the planner and back": Value(text=f"{JOB}/{JOB}:{COMMUNICATOR}/"),
}


def block():
    """The generated part: a list for each walk, of the modules that two runs have both passed."""
    first, second = traced(WALKS.values()), traced(WALKS.values())
    paragraphs = []
    for title, steps, others in zip(WALKS, first, second, strict=True):
        modules = {step.module for step in others}
        lines = [
            f"1. `{step.module}` `{step.function}`: {purpose(step.module)}" for step in steps if step.module in modules
        ]
        paragraphs += [f"### {title}", "\n".join(lines)]
    return paragraphs


def main(document):
    """Rewrite the block of a document."""
    begin, end = f"<!-- {BLOCK}:begin -->", f"<!-- {BLOCK}:end -->"
    text = Path(document).read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"{document}: needs {begin} and {end} once each")
    before, _, rest = text.partition(begin)
    paragraphs = [f"{before}{begin}", *block(), f"{end}{rest.partition(end)[2]}"]
    Path(document).write_text("\n\n".join(paragraphs))


if __name__ == "__main__":
    logging.disable()
    main(sys.argv[1])
