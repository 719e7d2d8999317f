"""Figures of a document that are drawn from runs."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from c4bench.record import Ledger, begin
from c4bench.record.artefacts import LinkBytes, LossCurve, LossCurves, StepBytes
from tools.__main__ import main
from tools.documents.generated import frame, markers
from tools.documents.run_figures import FIGURES

DOCUMENT = Path(__file__).parents[4] / "docs/diloco.md"
PARTS = [f"{marker}\n" for figure in FIGURES for marker in markers(figure.artefact)]
LOSSES = LossCurves((LossCurve("data-parallel", ((0, 5.5), (120_000, 2.1))),))
BYTES = LinkBytes((StepBytes("long link", "data-parallel", 1e6),))


@pytest.fixture
def document(tmp_path):
    """A document with the markers of every figure, and words around them."""
    path = tmp_path / "diloco.md"
    path.write_text("above\n" + "between\n".join(PARTS) + "below\n")
    return path


def run_of(folder, seed, **artefacts):
    run = begin(folder, "main", command=("pytest",), seed=seed, backend="softroce", topology="sites-2", clock="virtual")
    for name, artefact in artefacts.items():
        Ledger(run, f"scenario of {name}").save(name, artefact)
    return str(folder)


def test_each_figure_is_of_the_last_run_that_has_it(document, tmp_path, capsys):
    """The losses of one run and the bytes of another, each with its seed; the files are drawings of them."""
    old = run_of(tmp_path / "old", 5, loss_curves=LOSSES, link_bytes=LinkBytes((StepBytes("long link", "old", 7.0),)))
    new = run_of(tmp_path / "new", 6, link_bytes=BYTES)
    assert main(["figures", str(document), old, new]) == 0
    assert "loss-curves.svg, link-bytes.svg" in capsys.readouterr().out
    text = document.read_text()
    losses, carried = text.index("loss-curves.svg"), text.index("link-bytes.svg")
    assert losses < text.index("seed 5") < carried < text.index("seed 6")
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    drawn = {name: ET.parse(tmp_path / "img" / name).getroot() for name in ("loss-curves.svg", "link-bytes.svg")}
    assert "data-parallel 2.100" in "".join(drawn["loss-curves.svg"].itertext())
    assert "long link, data-parallel: 1 MB" in "".join(drawn["link-bytes.svg"].itertext())


def test_a_figure_that_no_run_has_stays(document, tmp_path):
    """With the bytes of a run only, the part of the losses is left as it is."""
    before = document.read_text()
    main(["figures", str(document), run_of(tmp_path / "run", 1, link_bytes=BYTES)])
    text = document.read_text()
    assert text.startswith(before[: before.index(PARTS[2])])
    assert "link-bytes.svg" in text


def test_runs_without_figures_are_an_error(document, tmp_path, capsys):
    """Nothing is written, and what is missing is named; so it is where the document lacks a marker."""
    assert main(["figures", str(document), run_of(tmp_path / "run", 1)]) == 2
    assert "no run has loss_curves or link_bytes" in capsys.readouterr().err
    document.write_text("no markers\n")
    assert main(["figures", str(document), run_of(tmp_path / "full", 1, link_bytes=BYTES)]) == 2
    assert "<!-- link_bytes:begin --> 0 times" in capsys.readouterr().err
    assert not (tmp_path / "img").exists()


def test_the_document_has_a_place_for_each_figure():
    """docs/diloco.md has the markers of every figure, and the file of each that it shows."""
    text = DOCUMENT.read_text()
    for figure in FIGURES:
        frame(DOCUMENT, figure.artefact)
        assert (f"](img/{figure.file})" in text) == (DOCUMENT.parent / "img" / figure.file).exists()
