"""Bugs to plant in the library by which attached programs go on at another NIC: each replaces some of its text."""

import shutil
import subprocess
from pathlib import Path

from c4bench.attach import build

FENCE, POST = "failover/fence.c", "failover/post.c"
# By name: (file, its text, what comes in its place).
MUTANTS = {
    "no_fence": (
        (FENCE, "if (pair_set(pair->qp[pair->send_side], IBV_QPS_ERR)) {", "if (0) {"),
        (FENCE, "return receives->at.done == receives->at.given || ", "return 1 || "),
    ),
    "repeated_from_the_senders_oldest": (
        (FENCE, "int known = find_reached(pair, &reached);", "int known = 1; reached = pair->sends.at.done;"),
        (FENCE, "static int find_reached(", "__attribute__((unused)) static int find_reached("),
    ),
    "completion_twice": (
        (FENCE, "\tqueue_add(pair->send_queue, &completion);", "\tqueue_add(pair->send_queue, &completion);\n" * 2),
    ),
    "receives_in_the_order_of_the_newest": (
        (POST, "(pair, at->given);", "(pair, pair->receive_side ? at->head - 1 - (at->given - at->done) : at->given);"),
    ),
    "one_request_lost": (
        (
            FENCE,
            "complete_reached(pair, reached);\n\t\tpair->moves++;",
            "complete_reached(pair, reached + (reached < pair->sends.at.given));\n\t\tpair->moves++;",
        ),
    ),
}
_BEFORE = """\
import os


def planted():
    before = os.environ["LD_PRELOAD"].split(":")
    os.environ["LD_PRELOAD"] = ":".join({library!r} if "/failover-" in path else path for path in before)
"""


def compile_mutant(name: str, folder: Path) -> Path:
    """Compile the library with a bug into a folder."""
    sources = folder / "native"
    shutil.copytree(build._NATIVE, sources)
    for file, old, new in MUTANTS[name]:
        text = (sources / file).read_text()
        assert text.count(old) == 1, (name, old)
        (sources / file).write_text(text.replace(old, new))
    library = folder / f"{name}.so"
    words = [*build._COMPILER, "-o", library, *build.LIBRARIES["failover"]]
    subprocess.run(words, cwd=sources, check=True, capture_output=True)
    return library


def plant(name: str, folder: Path) -> str:
    """Compile the library with a bug into a folder; returns the place of a function that has programs load it."""
    library = compile_mutant(name, folder)
    (folder / "before.py").write_text(_BEFORE.format(library=str(library)))
    return f"{folder / 'before.py'}:planted"
