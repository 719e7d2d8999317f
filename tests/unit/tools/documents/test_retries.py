"""docs/reference/retries.md has the times that the model gives now, and so have figures that depend on retries."""

from pathlib import Path

import pytest

from c4bench.model.measurement import Clock, Measurement, Outcome
from c4bench.report.headlines import format_labels, format_value
from tools.__main__ import main
from tools.documents.generated import frame, markers
from tools.documents.retries import BLOCK, table

DOCUMENT = Path(__file__).parents[4] / "docs/reference/retries.md"


def taken(value, unit="s", **labels):
    """A measurement with these labels."""
    return Measurement("x", "collective.error_s", value, unit, "<= 1", Outcome.PASS, Clock.VIRTUAL, labels)


def test_the_document_is_current():
    """The committed table is that which `make figures` would write."""
    assert DOCUMENT.read_text() == frame(DOCUMENT, BLOCK).filled(table()), "run `make figures`"


def test_the_command_writes_the_table(tmp_path):
    """What surrounds the markers stays."""
    document = tmp_path / "x.md"
    document.write_text("above\n{}\n{}\nbelow\n".format(*markers(BLOCK)))
    assert main(["retries", str(document)]) == 0
    text = document.read_text()
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert "| NCCL's default | 20 | 7 | " in text


def test_a_figure_that_waits_for_retries_is_followed_by_that_of_hardware():
    """T 14, R 3 takes a ConnectX-6 1.5 s as shipped and 0.3 s with the floor off, and 10 ms are not the NIC's."""
    text = format_value(taken(0.285, qp_timeout=14, qp_retry_cnt=3, input="NIC down"))
    assert text == "285 ms; by model 1.52 s on ConnectX-6 as shipped, 316 ms on ConnectX-6 with the floor off"
    assert format_labels(taken(0.285, qp_timeout=14, qp_retry_cnt=3, input="NIC down")) == "input NIC down"


@pytest.mark.parametrize("other", [taken(0.285), taken(0.285, "1", qp_timeout=14, qp_retry_cnt=3)])
def test_other_figures_stand_alone(other):
    """Without the QP's attributes, or for what is no time, nothing is added."""
    assert "ConnectX" not in format_value(other)
