"""A page of its own on what files of other tools say."""

from c4bench.model.evidence import EvidenceReport
from c4bench.report.evidence_panels import panel_of
from c4bench.report.html import environment


def evidence_page(report: EvidenceReport) -> str:
    """The page as HTML; it loads nothing and has no scripts."""
    return environment().get_template("evidence.html.j2").render(panel=panel_of(report))
