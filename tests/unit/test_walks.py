"""The walks of docs/architecture.md are those that `make walks` makes."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "tests/unit/docs"))

from traced_job import SIZE_BYTES  # noqa: E402  (a folder of tests)
from walks import PACKAGE, WALKS, Step, Value, main, purpose  # noqa: E402


def listed(document=REPOSITORY / "docs/architecture.md"):
    """The steps of each walk in the document, with what it says of the module."""
    block = document.read_text().partition("<!-- walks:begin -->")[2]
    sections = re.split(r"^### ", block.partition("<!-- walks:end -->")[0], flags=re.MULTILINE)[1:]
    lines = re.compile(r"^1\. `(\S+)` `(\S+)`: (.+)$", re.MULTILINE)
    return {section.partition("\n")[0]: lines.findall(section) for section in sections}


@pytest.mark.parametrize("title", WALKS)
def test_modules_are_there_and_described_by_themselves(title):
    """Each module of a walk exists, has the function that is named, and says of itself what the document says."""
    steps = listed()[title]
    assert len(steps) > 8
    assert [module for module, _, _ in steps if not (PACKAGE / module).is_file()] == []
    for module, function, text in steps:
        assert re.search(
            rf"^\s*(async )?def {function.rpartition('.')[2]}\b", (PACKAGE / module).read_text(), re.MULTILINE
        )
        assert text == purpose(module), f"{module}: run `make walks`"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_document_is_what_the_command_writes(tmp_path):
    """A run that is traced now passes the modules of the document, and hardly any others."""
    document = tmp_path / "architecture.md"
    document.write_text("<!-- walks:begin -->\n<!-- walks:end -->\n")
    subprocess.run([sys.executable, REPOSITORY / "tests/unit/docs/walks.py", document], check=True)
    for title, steps in listed(document).items():
        before, now = ({module for module, _, _ in walk} for walk in (listed()[title], steps))
        assert len(before ^ now) < 0.1 * len(before), f"{title}: run `make walks`; {before ^ now}"


def test_a_value_is_found_in_what_has_it():
    """A number is found in structs, containers, tables and messages, text in what quotes it, and neither elsewhere."""
    number, text = Value(number=SIZE_BYTES), Value(text="walk:ring")
    table = np.array([1, SIZE_BYTES], dtype=np.int64)
    assert all(map(number.within, (SIZE_BYTES, [{"a": (SIZE_BYTES,)}], table, table.tobytes(), table[1])))
    assert not any(map(number.within, (SIZE_BYTES + 1, True, str(SIZE_BYTES), [[]], table[:1], Step)))
    assert text.within(Step("", "of walk:ring/0"))
    assert text.within(b"\xa9walk:ring")
    assert not any(map(text.within, ("walk", -1, b"", Step("walk", "ring"))))


def test_a_document_without_markers_is_refused(tmp_path):
    """A document that lacks a marker stays as it is, before anything runs."""
    document = tmp_path / "architecture.md"
    document.write_text("<!-- walks:begin -->")
    with pytest.raises(SystemExit, match="once each"):
        main(document)
    assert document.read_text() == "<!-- walks:begin -->"
