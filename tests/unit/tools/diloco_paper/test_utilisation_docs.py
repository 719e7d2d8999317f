"""docs/diloco.md has the table and the figure that the code gives now."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from c4bench.cost.utilisation import MODELS, Method, cells
from c4bench.errors import UsageError
from tools.__main__ import main
from tools.diloco_paper.document import BLOCK, FIGURE, figure, paragraphs, rewrite_utilisation
from tools.diloco_paper.published import TABLE_4, steps_off
from tools.documents.generated import frame, markers

DOCUMENT = Path(__file__).parents[4] / "docs/diloco.md"
BEGIN, END = markers(BLOCK)


def test_the_document_is_current():
    """The committed table and figure are those that `make figures` would write."""
    assert DOCUMENT.read_text() == frame(DOCUMENT, BLOCK).filled(*paragraphs()), "run `make figures`"
    assert (DOCUMENT.parent / "img" / FIGURE).read_text() == figure(), "run `make figures`"


def test_only_what_is_between_the_markers_is_written(tmp_path):
    """Text around the markers stays, the figure is written beside the document, and doing it again changes nothing."""
    document = tmp_path / "diloco.md"
    document.write_text(f"above\n\n{BEGIN}\nstale words\n{END}\n\nbelow\n")
    rewrite_utilisation(document)
    text = document.read_text()
    assert text.startswith(f"above\n\n{BEGIN}\n\n![")
    assert text.endswith(f"\n\n{END}\n\nbelow\n")
    assert "stale words" not in text
    assert (tmp_path / "img" / FIGURE).read_text() == figure()
    rewrite_utilisation(document)
    assert document.read_text() == text


def test_without_markers_nothing_is_written(tmp_path):
    """A document that does not say where the table belongs is left as it is, as is the folder of figures."""
    document = tmp_path / "diloco.md"
    document.write_text("no markers\n")
    with pytest.raises(UsageError, match="utilisation:begin"):
        rewrite_utilisation(document)
    assert document.read_text() == "no markers\n"
    assert list(tmp_path.iterdir()) == [document]


def test_the_command_prints_the_part_or_writes_it(tmp_path, capsys):
    """Without a document it is printed; one that cannot be read is named in one line, with the usage exit code."""
    assert main(["table4"]) == 0
    assert capsys.readouterr().out == "\n\n".join(paragraphs()) + "\n"
    document = tmp_path / "diloco.md"
    document.write_text(f"{BEGIN}\n{END}\n")
    assert main(["table4", str(document)]) == 0
    assert "| 1B | data-parallel | 86.8 |" in document.read_text()
    assert main(["table4", "no/such/file.md"]) == 2
    assert "no/such/file.md cannot be read" in capsys.readouterr().err


def test_the_table_has_each_published_figure_beside_ours():
    """Every row has the published figures in order; those that differ are bold, with ours before, and in a list."""
    _, table, _, differences, *_ = paragraphs()
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [(model.name, method) for model in MODELS for method in Method]
    for model, method, *shown in rows:
        assert [cell.strip("*").split(" / ")[-1] for cell in shown] == list(TABLE_4[model, Method(method)])
    off = [cell for cell in cells() if steps_off(cell)]
    assert table.count("**") == 2 * len(off)
    lines = differences.splitlines()
    assert len(lines) == len(off)
    for line, cell in zip(lines, off, strict=True):
        assert line.startswith(f"- {cell.model}, {cell.method}, {cell.utilisation:.0%}: ")
        there = float(re.search(r"utilisation is ([\d.]+)%", line)[1]) / 100
        assert (there > cell.utilisation) == (steps_off(cell) < 0)


def test_the_figure_is_a_file_of_its_own():
    """It is XML with a title, defines the colours it uses, and has five lines of 50 points for each of three models."""
    drawn = ET.fromstring(figure())
    space = {"svg": "http://www.w3.org/2000/svg"}
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert drawn.find("svg:title", space).text == "Compute utilisation over bandwidth"
    lines = drawn.findall(".//svg:polyline", space)
    assert [line.find("svg:title", space).text for line in lines] == 3 * [str(method) for method in Method]
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert len(points) == 50
        assert all(right[0] > left[0] and right[1] <= left[1] for left, right in pairwise(points))
    text = figure()
    assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(re.findall(r"--([\w-]+): ", text))
